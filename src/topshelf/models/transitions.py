"""Baselines of sequences: the Markov chain of the last item, and item-kNN with the latest items counted most."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from topshelf.errors import at_least, at_most
from topshelf.models.item_item import SparseItemItem
from topshelf.models.neighbours import ItemKNN
from topshelf.models.sequence import events_of, sequences_of
from topshelf.queries import Context, QuerySet
from topshelf.ragged import Ragged
from topshelf.registry import SearchSpace
from topshelf.sequences import from_end


class RecentRows:
    """Vectors that are sequences: row u has ``decay`` to the power of n at the item that is n from the end of u.

    Rows are sparse (CSR) matrices; an item that comes again is counted by its latest place.
    """

    def __init__(self, sequences: Ragged, n_items: int, decay: float) -> None:
        self.sequences, self.n_items, self.decay = sequences, n_items, decay

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, rows: Tensor) -> Tensor:
        lists = self.sequences.select(rows)
        place = from_end(lists)
        order = torch.argsort(place, stable=True)
        order = order[torch.argsort((lists.owner() * self.n_items + lists.indices)[order], stable=True)]
        key = (lists.owner() * self.n_items + lists.indices)[order]
        is_latest = torch.ones_like(key, dtype=torch.bool)
        is_latest[1:] = key[1:] != key[:-1]
        weights = self.decay ** place[order].to(torch.float32)
        is_latest &= weights > 0
        latest = Ragged(lists.indptr, lists.indices[order]).where(is_latest)
        return latest.matrix(weights[is_latest], self.n_items)


class Markov(SparseItemItem):
    r"""What followed the last item in training, by how often it did: a Markov chain of first order.

    .. math:: s_{uj} = \sum_n \delta^n \, P(j \mid i_{-n}), \qquad
        P(j \mid i) = \frac{\sum_{v, t} \sum_{m \le w} [i_{v,t} = i, i_{v,t+m} = j] / m}{\sum_{v, t} [i_{v,t} = i] + h}

    Settings: ``window`` w: how far after an item others still follow it, with a weight of 1 / distance; ``decay`` δ,
        what the item before the last counts, 0 for the last item alone; ``shrink`` h, which lowers the chances after
        rare items; ``memory``, the maximum bytes of the table.
    Use when: a baseline of sequences is needed that every network must beat.
    Cost: one count per pair of items that follow each other; scored as a dense table of n_items^2.
    Paper: as a baseline, Rendle et al., Factorizing personalized Markov chains for next-basket recommendation, WWW
        2010; a wider window as the sequential rules of Ludewig and Jannach, Evaluation of session-based
        recommendation algorithms, UMUAI 2018.
    """

    takes: ClassVar[frozenset[str]] = frozenset({"rows", "sequence"})
    ranges: ClassVar[SearchSpace] = {
        "model.window": (1, 2, 3, 5, 10),
        "model.decay": (0.0, 0.2, 0.4, 0.6, 0.8),
        "model.shrink": (0.0, 1.0, 3.0, 10.0),
    }
    _sequences: Ragged | None = None

    def __init__(
        self,
        n_queries: int,
        n_items: int,
        *,
        window: int = 1,
        decay: float = 0.0,
        shrink: float = 0.0,
        memory: float = 8e9,
    ) -> None:
        super().__init__(n_queries, n_items, memory)
        self.window, self.shrink = at_least("window", window, 1), at_least("shrink", shrink, 0.0)
        self.decay = at_most("decay", at_least("decay", decay, 0.0), 1.0)

    def attach(self, context: Context) -> None:
        self._sequences = events_of(self, context)

    def fit(self, context: Context) -> None:
        self.attach(context)
        assert self._sequences is not None
        self._keep(self._followers(self._sequences))

    def encode_queries(self, queries: QuerySet) -> RecentRows:
        return RecentRows(sequences_of(self, queries, self._sequences), self.n_items, self.decay)

    def _followers(self, sequences: Ragged) -> scipy.sparse.csr_array:
        owner, items = sequences.owner().cpu().numpy(), sequences.indices.cpu().numpy()
        counts = np.bincount(items, minlength=self.n_items) + self.shrink
        total = scipy.sparse.csr_array((self.n_items, self.n_items))
        for distance in range(1, self.window + 1):
            same = owner[distance:] == owner[:-distance]
            first, then = items[:-distance][same], items[distance:][same]
            values = 1 / (distance * counts[first])
            total = total + scipy.sparse.csr_array((values, (then, first)), shape=total.shape)
        total.setdiag(0)  # an item is not recommended after itself
        total.eliminate_zeros()
        return total


class SequenceKNN(ItemKNN):
    r"""Item-kNN where the latest items of a user count most.

    .. math:: s_{uj} = \sum_n \delta^n \, c_{i_{-n} j}

    Settings: those of ``itemknn``, whose similarities c it has, and ``decay`` δ, what an item counts that comes
        one place earlier than another.
    Use when: a strong baseline of sessions is needed quickly.
    Cost: that of ``itemknn``.
    Paper: item-kNN on sessions of Ludewig and Jannach, Evaluation of session-based recommendation algorithms, UMUAI
        2018, with decaying weights as in their V-SkNN.
    Relations: with ``decay`` 1 it is ``itemknn``.
    """

    takes: ClassVar[frozenset[str]] = frozenset({"rows", "sequence"})
    ranges: ClassVar[SearchSpace] = {**ItemKNN.ranges, "model.decay": (0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)}
    _sequences: Ragged | None = None

    def __init__(
        self,
        n_queries: int,
        n_items: int,
        *,
        decay: float = 0.7,
        k: int = 100,
        shrink: float = 10.0,
        asymmetry: float = 0.5,
        memory: float = 8e9,
    ) -> None:
        super().__init__(n_queries, n_items, k=k, shrink=shrink, asymmetry=asymmetry, memory=memory)
        self.decay = at_most("decay", at_least("decay", decay, 0.0), 1.0)

    def attach(self, context: Context) -> None:
        self._sequences = events_of(self, context)

    def encode_queries(self, queries: QuerySet) -> RecentRows:
        return RecentRows(sequences_of(self, queries, self._sequences), self.n_items, self.decay)
