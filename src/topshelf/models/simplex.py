"""Users as a mix of their own vector and the mean of their items: SimpleX."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topshelf.errors import at_least, at_most
from topshelf.models.graph import sums_over
from topshelf.models.tables import Init, Score, TableModel, for_score
from topshelf.queries import Context, QuerySet
from topshelf.ragged import Ragged


class SimpleX(TableModel):
    r"""A user's own vector mixed with the mean of the vectors of its items.

    .. math:: q_u = g e_u + (1 - g) W \frac{1}{|H_u|} \sum_{i \in H_u} e_i

    Settings: ``gate`` g; ``n_history``: the maximum size of H_u; longer lists are thinned at even steps (the mean is
        over the items that remain); ``dim``, ``score`` and ``init`` as in MF.
    Use when: users have few items each and MF's users learn slowly; with CCL it is the published SimpleX.
    Cost: MF's, dim^2 weights, and one sparse product with the batch's histories each way.
    Paper: Mao et al., SimpleX: a simple and strong baseline for collaborative filtering, CIKM 2021 (mean pooling).
    Relations: with a gate of 1, :class:`MF`.
    """

    item_tables = ("item_vectors",)

    def __init__(
        self,
        n_queries: int,
        n_items: int,
        *,
        dim: int = 64,
        gate: float = 0.5,
        n_history: int = 50,
        score: Score = "cosine",
        init: Init = "xavier",
    ) -> None:
        super().__init__(n_queries, n_items, dim, score, init)
        self.gate = at_most("gate", at_least("gate", gate, 0.0), 1.0)
        self.n_history = at_least("n_history", n_history, 1)
        self.to_query = nn.Linear(dim, dim, bias=False)

    def attach(self, context: Context) -> None:
        self._histories = thinned(context.histories, self.n_history)

    def encode_queries(self, queries: QuerySet) -> Tensor:
        own = queries.take(self.query_vectors, sparse=self.sparse_rows)
        histories = self.histories_of(queries)
        share = 1 / histories.counts.clamp(min=1).to(own.dtype)
        mean = sums_over(histories, share, self.item_vectors, self.held)
        return for_score(self.score, self.gate * own + (1 - self.gate) * self.to_query(mean))


def thinned(lists: Ragged, most: int) -> Ragged:
    """Lists of at most ``most`` indices: longer ones keep indices at even steps, beginning with the first."""
    counts = lists.counts.clamp(max=most)
    indptr = F.pad(counts.cumsum(0), (1, 0))
    total = int(indptr[-1])
    owner = torch.repeat_interleave(counts, output_size=total)
    place = torch.arange(total, device=owner.device) - indptr[owner]
    return Ragged(indptr, lists.indices[lists.indptr[owner] + place * lists.counts[owner] // counts[owner]])
