"""Users as sums of item vectors: no parameters per user."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf.errors import at_least, at_most, one_of
from topshelf.models.base import Model
from topshelf.models.graph import sums_over
from topshelf.models.tables import Init, Score, for_score, new_tables, place_rows
from topshelf.queries import Batch, Context, Encoded, QuerySet
from topshelf.ragged import Ragged
from topshelf.registry import SearchSpace


class History(Model):
    r"""A user is the sum of vectors of its items; an item has one vector for that sum and one to be scored with.

    .. math:: q_u = \frac{1}{\sqrt{|H_u|}} \sum_{i \in H_u} a_i, \qquad s_{ui} = \cos(q_u, v_i)
        \quad \text{or} \quad q_u^\top v_i

    Settings: ``drop``: the share of a user's items that is left out of H_u at random in each training step, never in
        scoring; ``dim``, ``score`` and ``init`` as in MF.
    Use when: new users arrive often: they are scored from their items, without training; also in a blend with MF.
    Cost: 2 n_items x dim parameters, none for users; one sparse product with the batch's histories each way.
    Paper: ours. Sums of item vectors as users are from Paterek, Improving regularized singular value decomposition for
        collaborative filtering, KDD Cup 2007, and Kabbur et al., FISM, KDD 2013, who leave the item to be predicted out
        of the sum; here it stays in, and items are left out at random.
    Relations: the weights of :class:`EASE` with a rank of at most ``dim``, trained for the top K.
    """

    takes: ClassVar[frozenset[str]] = frozenset({"rows", "history"})
    item_tables = ("history_vectors", "item_vectors")
    ranges: ClassVar[SearchSpace] = {
        "model.dim": (64, 128, 256, 512),
        "model.drop": (0.0, 0.1, 0.2, 0.35, 0.5),
        "train.learning_rate": (0.001, 0.003, 0.01, 0.03),
    }

    def __init__(
        self,
        n_queries: int,
        n_items: int,
        *,
        dim: int = 256,
        drop: float = 0.2,
        score: Score = "cosine",
        init: Init = "xavier",
    ) -> None:
        super().__init__(n_queries, n_items)
        self.score = one_of("score", score, ("cosine", "dot"))
        self.drop = at_most("drop", at_least("drop", drop, 0.0), 0.9)
        self.history_vectors, self.item_vectors = new_tables(n_items, n_items, dim, init)

    def attach(self, context: Context) -> None:
        self._histories = context.histories

    def encode_queries(self, queries: QuerySet) -> Tensor:
        return self._summed(self.histories_of(queries))

    def encode_items(self) -> Tensor:
        return for_score(self.score, self.item_vectors)

    def encode_batch(self, batch: Batch) -> Encoded:
        histories = self.histories_of(batch.queries)
        return Encoded(self._summed(thinned_at_random(histories, self.drop)), self.encode_items())

    @torch.no_grad()
    def place_new(self, n_queries: int, n_items: int, context: Context) -> None:  # noqa: ARG002  users have no rows
        """New items among the users who have them, by what those have of the known items."""
        all_lists = context.histories
        lists = all_lists.select(all_lists.owner()[all_lists.indices >= n_items].unique())
        known = lists.where(lists.indices < n_items)
        sums = self.history_vectors.new_zeros(len(lists), self.history_vectors.size(1))
        sums.index_add_(0, known.owner(), self.history_vectors[known.indices])
        is_new = lists.indices >= n_items
        users = F.normalize(sums, dim=1)[lists.owner()[is_new]]
        for rows in (self.item_vectors, self.history_vectors):
            place_rows(rows, n_items, lists.indices[is_new], users)

    def _summed(self, histories: Ragged) -> Tensor:
        shares = histories.counts.clamp(min=1).to(self.history_vectors.dtype).rsqrt()
        return for_score(self.score, sums_over(histories, shares, self.history_vectors, self.held))


def thinned_at_random(lists: Ragged, share: float) -> Ragged:
    """The lists without each of their indices with a probability of ``share``, by torch's global generator."""
    if share == 0:
        return lists
    is_kept = torch.rand(lists.indices.numel()).to(lists.indices.device) >= share
    return lists.where(is_kept)
