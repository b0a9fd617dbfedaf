"""Where negatives come from: the whole catalogue, a shared sample, a sample per query, the batch, or a mixture.

Each source draws for a batch of Q queries with their positives and never lets a positive count as a negative
(accidental hits are masked, or cannot be drawn). Draws that are not uniform say so in ``log_q``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf import kernels
from topshelf.errors import ConfigError, DataError, at_least
from topshelf.queries import Batch, Context, Encoded
from topshelf.ragged import Ragged, ragged_from_pairs
from topshelf.registry import Recorded

Layout = Literal["catalogue", "shared", "own"]


@dataclass(frozen=True)
class Draw:
    """Negatives of one batch.

    ``items``: None for the whole catalogue, (N,) shared by all queries, or (Q, N). ``exclude``: Q lists of columns
    that do not count (positives that are in the draw). ``log_q (N,)``: log of each column's probability relative to a
    uniform draw; None when uniform.
    """

    items: Tensor | None
    exclude: Ragged | None
    log_q: Tensor | None = None

    @property
    def is_shared(self) -> bool:
        """Whether all queries of the batch look at the same items."""
        return self.items is None or self.items.dim() == 1

    def n_columns(self, n_items: int) -> int:
        """Number of negatives per query, for a catalogue of ``n_items``."""
        return n_items if self.items is None else self.items.size(-1)

    def part(self, start: int, stop: int) -> Draw:
        """The draw of the queries ``start`` to ``stop``."""
        items = self.items if self.items is None or self.is_shared else self.items[start:stop]
        return Draw(items, None if self.exclude is None else self.exclude.slice(start, stop), self.log_q)

    def reordered(self, order: Tensor) -> Draw:
        """The draw with the queries in another order."""
        items = self.items if self.items is None or self.is_shared else self.items[order]
        return Draw(items, None if self.exclude is None else self.exclude.select(order), self.log_q)

    def check(self, layout: Layout, n_queries: int, n_items: int) -> None:
        """Refuse a draw that does not have its layout, or names items, columns or queries that are not there."""
        items, width = self.items, self.n_columns(n_items)
        shape = {"catalogue": None, "shared": (width,), "own": (n_queries, width)}[layout]
        got = None if items is None else tuple(items.shape)
        if got != shape:
            wanted = {"catalogue": "None", "shared": "(N,)", "own": f"({n_queries}, N)"}[layout]
            raise DataError(f"with layout = {layout!r} items must be {wanted}, got {'None' if got is None else got}")
        if items is not None:
            if items.dtype != torch.int64:
                raise DataError(f"items must be int64, got {items.dtype}")
            if items.numel() and (int(items.min()) < 0 or int(items.max()) >= n_items):
                raise DataError(f"items must be from 0 to {n_items - 1}, got {int(items.min())} to {int(items.max())}")
        if self.exclude is not None:
            self.exclude.check(width, "exclude", n_lists=n_queries)  # columns of the draw, of which there are `width`
        if self.log_q is not None and tuple(self.log_q.shape) != (width,):
            raise DataError(f"log_q must be ({width},), one number per column, got {tuple(self.log_q.shape)}")

    def mask(self, n_columns: int) -> Tensor | None:
        """``exclude`` as (Q, n_columns) flags."""
        if self.exclude is None:
            return None
        mask = torch.zeros(len(self.exclude), n_columns, dtype=torch.bool, device=self.exclude.indices.device)
        mask[self.exclude.owner(), self.exclude.indices] = True
        return mask


@dataclass(frozen=True)
class Population:
    """What batches are drawn from: how many training queries have each item (I,), and how many queries there are.

    Queries that no batch holds (without positives, or with nothing but positives) are not counted.
    """

    item_counts: Tensor
    n_queries: int

    @classmethod
    def of(cls, positives: Ragged, n_items: int) -> Population:
        counts = positives.counts
        is_full = counts == n_items
        item_counts = torch.bincount(positives.indices, minlength=n_items) - is_full.sum()
        return cls(item_counts, int(((counts > 0) & ~is_full).sum()))

    @property
    def n_items(self) -> int:
        return self.item_counts.numel()


def item_prior(item_counts: Tensor, exponent: float) -> Tensor | None:
    r"""The log-weight of every item as a negative, (I,): by how often it is a positive, (count + 1) to the exponent.

    The weights have mean one: without scores, a sum over the catalogue is what it would be without them, so that its
    effective N keeps its meaning. None for exponent 0.
    """
    if exponent == 0:
        return None
    log_weight = exponent * torch.log1p(item_counts.double())
    return (log_weight - torch.logsumexp(log_weight, 0) + math.log(max(1, item_counts.numel()))).to(torch.float32)


class Negatives(Recorded):
    """Base of the sources. A subclass has :meth:`draw`, and says:

    - ``layout``: "catalogue" (all items), "shared" (one draw for the batch) or "own" (each query has its own);
    - ``n``: how many are drawn per query, a constructor argument; None where that is not a setting;
    - ``stands_for_catalogue``: whether the sum over the draw, corrected by ``log_q``, estimates that over all items;
    - ``is_exact``: whether every draw is all items but the query's positives, so that none needs to be made.
    """

    layout: ClassVar[Layout]
    stands_for_catalogue: ClassVar[bool] = False
    is_exact: ClassVar[bool] = False
    n: int | None = None
    population: Population

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "draw" in vars(cls) and "is_exact" not in vars(cls):
            cls.is_exact = False  # a subclass of the catalogue that draws otherwise

    def attach(self, context: Context) -> Negatives:
        """Prepare for the training data that batches are drawn from; returns itself."""
        self.population = Population.of(context.histories, context.n_items)
        return self

    def draw(self, batch: Batch, encoded: Encoded, generator: torch.Generator) -> Draw:
        """Negatives of a batch of Q queries. ``encoded`` has the vectors of the step, detached."""
        raise NotImplementedError


class Catalogue(Negatives):
    """Every item that is not a positive of the query: exact."""

    layout: ClassVar[Layout] = "catalogue"
    stands_for_catalogue: ClassVar[bool] = True
    is_exact: ClassVar[bool] = True

    def draw(self, batch: Batch, encoded: Encoded, generator: torch.Generator) -> Draw:  # noqa: ARG002
        return Draw(None, batch.positives)


class Shared(Negatives):
    """``n`` items drawn uniformly without replacement, shared by the whole batch; positives masked."""

    layout: ClassVar[Layout] = "shared"

    def __init__(self, n: int = 1000) -> None:
        self.n = at_least("n", n, 1)

    def draw(self, batch: Batch, encoded: Encoded, generator: torch.Generator) -> Draw:  # noqa: ARG002
        n_items = self.population.n_items
        items = torch.randperm(n_items, generator=generator)[: self.n].to(batch.item.device)
        return Draw(items, columns_of(batch.positives, items, n_items))


class PerQuery(Negatives):
    """``n`` negatives for each query, uniform and independent (with replacement), never a positive: the paper's."""

    layout: ClassVar[Layout] = "own"

    def __init__(self, n: int = 1000) -> None:
        self.n = at_least("n", n, 1)

    def draw(self, batch: Batch, encoded: Encoded, generator: torch.Generator) -> Draw:  # noqa: ARG002
        assert self.n is not None
        return Draw(draw_negatives(batch.positives, self.n, self.population.n_items, generator), None)


class InBatch(Negatives):
    """The positive items of the batch, each once; drawn by popularity, so ``log_q`` corrects for it.

    The corrected partition sum estimates the catalogue's without bias, items without training interactions left
    out: those are never in a batch.
    """

    layout: ClassVar[Layout] = "shared"
    stands_for_catalogue: ClassVar[bool] = True

    def draw(self, batch: Batch, encoded: Encoded, generator: torch.Generator) -> Draw:  # noqa: ARG002
        population = self.population
        items = torch.unique(batch.item)
        counts = population.item_counts[items]
        if batch.is_whole:  # queries were drawn, each with all its positives
            drawn, pool = len(batch.positives), population.n_queries
        else:  # pairs were drawn
            drawn, pool = batch.item.numel(), int(population.item_counts.sum())
        # An item is a negative only of queries without it, so the query itself did not bring it into the batch.
        chance = _chance_drawn(counts, drawn - 1, pool - 1)
        uniform = items.numel() / population.n_items
        log_q = torch.log(chance.clamp(min=1e-12) / uniform).to(torch.float32)
        return Draw(items, columns_of(batch.positives, items, population.n_items), log_q)


class Mixed(Negatives):
    """The positive items of the batch and, for each query, the ``n_hard`` hardest of ``pool`` uniform draws.

    The batch's items have the correction of ``in_batch``. The hard ones have the highest scores by the vectors of the
    same step; they are not corrected. Use when uniform draws soon become too easy and popular items alone are not
    enough. Cost: one product of the batch with ``pool`` items.
    """

    layout: ClassVar[Layout] = "own"

    def __init__(self, *, n_hard: int = 50, pool: int = 1000) -> None:
        self.n_hard, self.pool = at_least("n_hard", n_hard, 1), at_least("pool", pool, n_hard)
        self._in_batch = InBatch()

    def attach(self, context: Context) -> Negatives:
        self._in_batch.attach(context)
        return super().attach(context)

    @torch.no_grad()
    def draw(self, batch: Batch, encoded: Encoded, generator: torch.Generator) -> Draw:
        n_items, device = self.population.n_items, batch.item.device
        shared = self._in_batch.draw(batch, encoded, generator)
        assert shared.items is not None
        assert shared.log_q is not None
        pool = draw_distinct(self.pool, n_items, generator).to(device)
        pool = pool[~torch.isin(pool, shared.items)]  # an item counts once
        scores = encoded.queries @ encoded.items[pool].T
        own = columns_of(batch.positives, pool, n_items)
        scores[own.owner(), own.indices] = -torch.inf
        best = scores.topk(min(self.n_hard, pool.numel()), dim=1)
        hard = pool[best.indices]
        items = torch.cat([shared.items.expand(len(batch.positives), -1), hard], 1)
        log_q = torch.cat([shared.log_q, shared.log_q.new_zeros(hard.size(1))])
        # A query with fewer than n_hard negatives in the pool has positives in the last places; they are masked.
        row, place = (best.values == -torch.inf).nonzero().T
        excluded = shared.exclude
        assert excluded is not None
        rows = torch.cat([excluded.owner(), row])
        columns = torch.cat([excluded.indices, place + shared.items.numel()])
        return Draw(items, ragged_from_pairs(rows, columns, len(batch.positives)), log_q)


NEGATIVES: dict[str, type[Negatives]] = {
    "catalogue": Catalogue,
    "shared": Shared,
    "per_query": PerQuery,
    "in_batch": InBatch,
    "mixed": Mixed,
}


def draw_negatives(positives: Ragged, n: int, n_items: int, generator: torch.Generator) -> Tensor:
    """(Q, n) items, uniform and independent over each query's non-positives, without rejection.

    The r-th item that is not a positive is r plus the number of positives before it; with the positives sorted,
    a binary search in ``positive - rank`` gives that number.
    """
    counts = positives.counts
    left = n_items - counts
    if counts.numel() and int(left.min()) < 1:
        raise ConfigError(f"a query has all {n_items} items as positives: there is no negative to draw for it")
    uniform = torch.rand(counts.numel(), n, generator=generator, dtype=torch.float64).to(counts.device)
    place = (uniform * left.unsqueeze(1)).long().clamp_(max=(left - 1).unsqueeze(1))
    width = int(counts.max()) if counts.numel() else 0
    owner = positives.owner()
    rank = torch.arange(owner.numel(), device=owner.device) - positives.indptr[:-1][owner]
    shifted = torch.full((counts.numel(), width), n_items, device=owner.device)
    shifted[owner, rank] = positives.indices - rank
    return place + torch.searchsorted(shifted, place, right=True)


@dataclass(frozen=True)
class Dealt:
    """Negatives of a block of Q queries from one random order of items: the first n that are not the query's positives.

    ``items (W,)``: distinct items, in random order. ``exclude``: Q lists of the columns of the query's positives, W or
    more for those that were not drawn; not sorted. ``stop (Q,)``: the column after the query's last negative.
    ``counts (Q,)``: the number of negatives of each query: n, or all of them if it has fewer.
    """

    items: Tensor
    exclude: Ragged
    stop: Tensor
    counts: Tensor


def deal_negatives(positives: Ragged, n: int, n_items: int, generator: torch.Generator) -> Dealt:
    """``n`` negatives for each query, shared as far as their positives allow.

    For each query alone they are a uniform sample of its negatives without replacement; the samples of two queries of
    the block are nearly the same. One product with ``items`` scores them all.
    """
    counts = positives.counts
    most = int(counts.max()) if counts.numel() else 0
    items = draw_distinct(n + most, n_items, generator).to(counts.device)
    place = torch.full((n_items,), items.numel(), device=items.device)
    place[items] = torch.arange(items.numel(), device=items.device)
    columns = Ragged(positives.indptr, place[positives.indices])
    taken = torch.zeros_like(counts)
    if counts.device.type == "cpu":
        kernels.count_taken(columns.indptr, columns.indices, n, taken)
    else:
        _count_taken(columns, n, taken)
    stop = (n + taken).clamp_(max=items.numel())
    width = int(stop.max()) if counts.numel() else 0
    return Dealt(items[:width], columns, stop, stop - taken)


def _count_taken(columns: Ragged, n: int, taken: Tensor) -> None:
    """:func:`topshelf.kernels.count_taken` by torch."""
    owner = columns.owner()
    while True:
        counts = torch.bincount(owner[columns.indices < n + taken[owner]], minlength=taken.numel())
        if torch.equal(counts, taken):
            return
        taken.copy_(counts)


def draw_distinct(n: int, n_items: int, generator: torch.Generator) -> Tensor:
    """``n`` distinct items in random order, or all of them: uniform without replacement, on the CPU."""
    if 4 * n >= n_items:
        return torch.randperm(n_items, generator=generator)[:n]
    # In a large catalogue few draws repeat: take the first n distinct ones, in O(n log n).
    drawn = np.empty(0, np.int64)
    while drawn.size < n:
        more = torch.randint(n_items, (n + n // 2 + 8,), generator=generator).numpy()
        drawn = np.concatenate([drawn, more])
        drawn = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
    return torch.from_numpy(drawn[:n])


def sampled_scores(queries: Tensor, items: Tensor, ids: Tensor) -> Tensor:
    """Scores of each query's own items: queries (Q, d), items (I, d), ids (Q, N) to (Q, N), differentiable.

    A matrix product with the whole catalogue and a gather of numbers beats a gather of vectors until the catalogue
    is some dozens of times the sample; then vectors are gathered, one block of queries at a time.
    """
    n = ids.size(1)
    if items.size(0) <= 32 * n:
        return (queries @ items.T).gather(1, ids)
    block = max(1, 2**22 // (n * items.size(1)))
    parts = [
        torch.bmm(F.embedding(some, items), vectors.unsqueeze(2)).squeeze(2)
        for some, vectors in zip(ids.split(block), queries.split(block), strict=True)
    ]
    return torch.cat(parts)


def _chance_drawn(marked: Tensor, drawn: int, pool: int) -> Tensor:
    """Probability that ``drawn`` of ``pool`` things, without replacement, include one of the ``marked`` (N,) ones.

    The product of 1 - n / (pool - t) over t < m as a power of its middle factor: exact for m = 1, else within 2%
    of the hypergeometric (the tests measure it), and stable for large pools where log-gammas cancel.
    """
    marked = marked.double()
    least, most = marked.clamp(max=drawn), marked.clamp(min=drawn)
    missed = (1 - most / (pool - (least - 1) / 2).clamp(min=1)).clamp(min=0) ** least
    return (1 - missed).masked_fill(marked + drawn > pool, 1.0)


def columns_of(positives: Ragged, items: Tensor, n_items: int) -> Ragged:
    """The positives that are among ``items``, as columns of the draw."""
    place = torch.full((n_items,), -1, dtype=torch.int64, device=items.device)
    place[items] = torch.arange(items.numel(), device=items.device)
    column = place[positives.indices]
    drawn = column >= 0
    return ragged_from_pairs(positives.owner()[drawn], column[drawn], len(positives))
