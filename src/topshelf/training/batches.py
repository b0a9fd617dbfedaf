"""Batches built from ragged lists by index arithmetic: no Python per row, no worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from topshelf.ragged import Ragged

Order = Literal["query", "pair"]


@dataclass(frozen=True)
class Batch:
    """Q queries and P of their positives."""

    query: Tensor  # (Q,), index of each query
    owner: Tensor  # (P,), which of the Q queries each positive belongs to, ascending
    item: Tensor  # (P,), the positive items
    positives: Ragged  # Q lists: all training positives of each query
    is_whole: bool  # whether the P positives are all of them, in the same order
    begin: Tensor  # (Q,), where each query's positives begin among all training positives

    def counts(self) -> Tensor:
        """How many of the P positives each query has, (Q,)."""
        return self.positives.counts if self.is_whole else torch.bincount(self.owner, minlength=self.query.numel())

    def part(self, start: int, stop: int) -> Batch:
        """The queries ``start`` to ``stop``."""
        if start == 0 and stop == self.query.numel():
            return self
        if self.is_whole:
            first, last = int(self.positives.indptr[start]), int(self.positives.indptr[stop])
        else:
            first, last = torch.searchsorted(self.owner, torch.tensor([start, stop], device=self.owner.device)).tolist()
        return Batch(
            self.query[start:stop],
            self.owner[first:last] - start,
            self.item[first:last],
            self.positives.slice(start, stop),
            self.is_whole,
            self.begin[start:stop],
        )

    def reordered(self, order: Tensor) -> Batch:
        """The same positives with the queries in another order; each query must have one of them."""
        owner = torch.arange(order.numel(), device=order.device)
        return Batch(
            self.query[order], owner, self.item[order], self.positives.select(order), self.is_whole, self.begin[order]
        )

    def pair(self) -> Tensor:
        """The index of each of the P positives among all training positives, (P,)."""
        chosen = self.chosen()
        if chosen is None:
            chosen = torch.arange(self.owner.numel(), device=self.owner.device)
        return (self.begin - self.positives.indptr[:-1])[self.owner] + chosen

    def chosen(self) -> Tensor | None:
        """Where the P positives are in ``positives.indices``; None when they are all of them."""
        if self.is_whole:
            return None
        span = int(self.positives.indices.max()) + 1
        return torch.searchsorted(self.positives.owner() * span + self.positives.indices, self.owner * span + self.item)


class Batches:
    """The batches of an epoch, in an order that only the generator decides.

    ``query``: shuffled queries, each with all its positives. ``pair``: shuffled (query, positive) pairs, as in the
    paper; with ``repeat_queries`` every pair is a query of its own (Q = P), so that each gets its own negatives.
    Queries without positives, or with nothing but positives, teach nothing about ranking and are left out.
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


def stream(seed: int, *path: int) -> torch.Generator:
    """A random stream of its own for every (seed, path), so that a resumed epoch draws what it would have drawn."""
    state = np.random.SeedSequence([seed, *path]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) % 2**63)
