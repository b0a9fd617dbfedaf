"""Batches built from ragged lists by index arithmetic: no Python per row, no worker processes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from topshelf.queries import Batch
from topshelf.ragged import Ragged

if TYPE_CHECKING:
    from topshelf.training.objective import EpochBatches

Order = Literal["query", "pair"]


class Batches:
    """The batches of an epoch, in an order that only the generator decides.

    ``query``: shuffled queries, each with all its positives. ``pair``: shuffled (query, positive) pairs, as in the
    paper; with ``repeat_queries`` every pair is its own query (Q = P), so that each has its own negatives.
    Queries without positives, or with all items as positives, cannot be ranked and are left out.
    """

    def __init__(
        self, positives: Ragged, n_items: int, *, order: Order, size: int, repeat_queries: bool = False
    ) -> None:
        self.positives, self.order, self.size, self.repeat_queries = positives, order, size, repeat_queries
        counts = positives.counts
        self.queries = ((counts > 0) & (counts < n_items)).nonzero().squeeze(1)
        self.n_full = int((counts == n_items).sum())
        if order == "pair":
            chosen = positives.select(self.queries)
            self.pair_query, self.pair_item = self.queries[chosen.owner()], chosen.indices
        self.total = self.queries.numel() if order == "query" else self.pair_query.numel()

    def __len__(self) -> int:
        return -(-self.total // self.size)

    def epoch(self, generator: torch.Generator) -> Iterator[Batch]:
        shuffled = torch.randperm(self.total, generator=generator).to(self.queries.device)
        for part in shuffled.split(self.size):
            yield self._of_queries(self.queries[part]) if self.order == "query" else self._of_pairs(part)

    def _of_queries(self, query: Tensor) -> Batch:
        positives = self.positives.select(query)
        return Batch(query, positives.owner(), positives.indices, positives, True, self.positives.indptr[query])

    def _of_pairs(self, pairs: Tensor) -> Batch:
        query, owner = self.pair_query[pairs], torch.arange(pairs.numel(), device=pairs.device)
        if not self.repeat_queries:
            query, owner = torch.unique(query, return_inverse=True)
            owner, order = owner.sort(stable=True)
            pairs = pairs[order]
        return Batch(
            query, owner, self.pair_item[pairs], self.positives.select(query), False, self.positives.indptr[query]
        )


class FirstBatches:
    """The first batches of each epoch."""

    def __init__(self, batches: EpochBatches, n: int) -> None:
        self.batches, self.n = batches, n

    def __len__(self) -> int:
        return min(self.n, len(self.batches))

    def epoch(self, generator: torch.Generator) -> Iterator[Any]:
        return itertools.islice(self.batches.epoch(generator), self.n)


def bounded(batches: EpochBatches, n: int | None) -> EpochBatches:
    """The batches, or the first n of each epoch."""
    return batches if n is None else FirstBatches(batches, n)


def stream(seed: int, *path: int) -> torch.Generator:
    """One random stream per (seed, path), so that a resumed epoch draws the same as an uninterrupted one."""
    state = np.random.SeedSequence([seed, *path]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) % 2**63)
