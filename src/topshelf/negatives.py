"""Where negatives come from: the whole catalogue, a shared sample, a sample per query, the batch, or a mixture.

Each source draws for a batch of Q queries with their positives and never lets a positive count as a negative
(accidental hits are masked, or cannot be drawn). Draws that are not uniform say so in ``log_q``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from topshelf.drawing import chance_drawn, draw_distinct, draw_negatives, places_in
from topshelf.errors import DataError, at_least, at_most
from topshelf.queries import Batch, Context, Encoded
from topshelf.ragged import Ragged, ragged_from_pairs
from topshelf.registry import Recorded

Layout = Literal["catalogue", "shared", "own"]


@dataclass(frozen=True)
class Draw:
    """Negatives of one batch.

    ``items``: None for the whole catalogue, (N,) shared by all queries, or (Q, N). ``exclude``: Q lists of columns
    that do not count (positives that are in the draw). ``log_q``: log of each column's probability relative to a
    uniform draw, (N,), or (Q, N) where the items are; None when uniform.
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
        log_q = self.log_q if self.log_q is None or self.log_q.dim() == 1 else self.log_q[start:stop]
        return Draw(items, None if self.exclude is None else self.exclude.slice(start, stop), log_q)

    def reordered(self, order: Tensor) -> Draw:
        """The draw with the queries in another order."""
        items = self.items if self.items is None or self.is_shared else self.items[order]
        log_q = self.log_q if self.log_q is None or self.log_q.dim() == 1 else self.log_q[order]
        return Draw(items, None if self.exclude is None else self.exclude.select(order), log_q)

    def weighted(self, log_weight: Tensor | None) -> Draw:
        """The draw with the log-weight (I,) of every item in its ``log_q``; for drawn items only."""
        if log_weight is None or self.items is None:
            return self
        own = log_weight[self.items]
        return replace(self, log_q=-own if self.log_q is None else self.log_q - own)

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
        if self.log_q is not None and tuple(self.log_q.shape) not in {(width,), shape}:
            raise DataError(
                f"log_q must be ({width},), one number per column, or as items are, got {tuple(self.log_q.shape)}"
            )

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

    @cached_property
    def n_pairs(self) -> int:
        return int(self.item_counts.sum())


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
    - ``is_exact``: whether every draw is all items but the query's positives, so that none needs to be made;
    - ``by_rows``: whether a draw reads no more of ``encoded.items`` than ``size(0)`` and rows by their ids, so that a
      step need not encode all items.
    """

    layout: ClassVar[Layout]
    stands_for_catalogue: bool = False
    is_exact: ClassVar[bool] = False
    by_rows: ClassVar[bool] = False
    n: int | None = None
    population: Population

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for claim in ("is_exact", "by_rows"):  # a subclass that draws otherwise makes its own claims
            if "draw" in vars(cls) and claim not in vars(cls):
                setattr(cls, claim, False)

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
    stands_for_catalogue = True
    is_exact: ClassVar[bool] = True

    def draw(self, batch: Batch, encoded: Encoded, generator: torch.Generator) -> Draw:  # noqa: ARG002
        return Draw(None, batch.positives)


class Shared(Negatives):
    r"""``n`` items drawn for the whole batch, each once; positives masked.

    ``popularity`` 0: uniform, without replacement. Above 0: ``n`` independent draws in proportion to (training count +
    1) to that power, repeats left out. An item is among them with probability :math:`1 - (1 - p_i)^n`, and ``log_q``
    corrects for it: the sum over the draw estimates that over all items without bias.
    Cost of a draw: O(n log I); at the start one pass over the items.
    """

    layout: ClassVar[Layout] = "shared"
    by_rows: ClassVar[bool] = True

    def __init__(self, n: int = 1000, *, popularity: float = 0.0) -> None:
        self.n = at_least("n", n, 1)
        self.popularity = at_most("popularity", at_least("popularity", popularity, 0.0), 1.0)

    def attach(self, context: Context) -> Negatives:
        super().attach(context)
        self._cumulative = self._weights(self.population.item_counts).cumsum(0) if self.popularity else None
        return self

    def draw(self, batch: Batch, encoded: Encoded, generator: torch.Generator) -> Draw:  # noqa: ARG002
        assert self.n is not None
        n_items, device, log_q = self.population.n_items, batch.item.device, None
        if self._cumulative is None:
            items = draw_distinct(self.n, n_items, generator).to(device)
        else:
            total = self._cumulative[-1]
            places = torch.rand(self.n, generator=generator, dtype=torch.float64).to(device) * total
            items = torch.searchsorted(self._cumulative, places, right=True).clamp_(max=n_items - 1).unique()
            share = self._weights(self.population.item_counts[items]) / total
            log_q = relative_log(-torch.expm1(self.n * torch.log1p(-share)), items.numel(), n_items)
        return Draw(items, columns_of(batch.positives, items, n_items), log_q)

    def _weights(self, counts: Tensor) -> Tensor:
        return (counts.double() + 1) ** self.popularity


class PerQuery(Negatives):
    """``n`` negatives for each query, uniform and independent (with replacement), never a positive: the paper's."""

    layout: ClassVar[Layout] = "own"
    by_rows: ClassVar[bool] = True

    def __init__(self, n: int = 1000) -> None:
        self.n = at_least("n", n, 1)

    def draw(self, batch: Batch, encoded: Encoded, generator: torch.Generator) -> Draw:  # noqa: ARG002
        assert self.n is not None
        return Draw(draw_negatives(batch.positives, self.n, self.population.n_items, generator), None)


class InBatch(Negatives):
    r"""The positive items of the batch and ``n_uniform`` more, uniform without replacement, each item once.

    The batch's items are drawn by popularity, so ``log_q`` corrects for it: an item is among all of them with
    probability :math:`1 - (1 - c_i)(1 - u)`, c that of being in the batch, u that of the uniform draw. The corrected
    partition sum estimates the catalogue's without bias; without ``n_uniform``, items without training interactions
    are left out of it: those are never in a batch.
    """

    layout: ClassVar[Layout] = "shared"
    stands_for_catalogue = True
    by_rows: ClassVar[bool] = True

    def __init__(self, *, n_uniform: int = 0) -> None:
        self.n_uniform = at_least("n_uniform", n_uniform, 0)

    def draw(self, batch: Batch, encoded: Encoded, generator: torch.Generator) -> Draw:  # noqa: ARG002
        items, n_items = torch.unique(batch.item), self.population.n_items
        if self.n_uniform:
            more = draw_distinct(self.n_uniform, n_items, generator).to(items.device)
            items = torch.cat([items, more]).unique()
        log_q = relative_log(self.chance(items, batch, min(1.0, self.n_uniform / n_items)), items.numel(), n_items)
        return Draw(items, columns_of(batch.positives, items, n_items), log_q)

    def chance(self, items: Tensor, batch: Batch, uniform: float) -> Tensor:
        """The probability of each item to be in such a batch, or in a uniform draw of probability ``uniform``."""
        population = self.population
        if batch.is_whole:  # queries were drawn, each with all its positives
            drawn, pool = len(batch.positives), population.n_queries
        else:  # pairs were drawn
            drawn, pool = batch.item.numel(), population.n_pairs
        # An item is a negative only of queries without it, so the query itself did not bring it into the batch.
        return 1 - (1 - chance_drawn(population.item_counts[items], drawn - 1, pool - 1)) * (1 - uniform)


class Mixed(Negatives):
    """The positive items of the batch and, for each query, the ``n_hard`` hardest of ``pool`` uniform draws.

    The batch's items have the correction of ``in_batch``. The hard ones have the highest scores by the vectors of the
    same step; by default they are not corrected. ``corrected``: every item counts by the probability of being in the
    batch or in the pool; the sum is then that over the catalogue, less what the easier items of the pool stand for.
    Use when uniform draws soon become too easy and popular items alone are not enough. Cost: one product of the batch
    with ``pool`` items.
    """

    layout: ClassVar[Layout] = "own"
    by_rows: ClassVar[bool] = True

    def __init__(self, *, n_hard: int = 50, pool: int = 1000, corrected: bool = False) -> None:
        self.n_hard, self.pool = at_least("n_hard", n_hard, 1), at_least("pool", pool, n_hard)
        self.corrected = self.stands_for_catalogue = corrected
        self._in_batch = InBatch()

    def attach(self, context: Context) -> Negatives:
        self._in_batch.attach(context)
        return super().attach(context)

    @torch.no_grad()
    def draw(self, batch: Batch, encoded: Encoded, generator: torch.Generator) -> Draw:
        n_items, device = self.population.n_items, batch.item.device
        shared = self._in_batch.draw(batch, encoded, generator)
        assert shared.items is not None
        pool = draw_distinct(self.pool, n_items, generator).to(device)
        share = pool.numel() / n_items
        pool = pool[~torch.isin(pool, shared.items)]  # an item counts once
        scores = encoded.queries @ encoded.items[pool].T
        own = columns_of(batch.positives, pool, n_items)
        scores[own.owner(), own.indices] = -torch.inf
        best = scores.topk(min(self.n_hard, pool.numel()), dim=1)
        hard = pool[best.indices]
        items = torch.cat([shared.items.expand(len(batch.positives), -1), hard], 1)
        # A query with fewer than n_hard negatives in the pool has positives in the last places; they are masked.
        row, place = (best.values == -torch.inf).nonzero().T
        excluded = shared.exclude
        assert excluded is not None
        rows = torch.cat([excluded.owner(), row])
        columns = torch.cat([excluded.indices, place + shared.items.numel()])
        return Draw(
            items, ragged_from_pairs(rows, columns, len(batch.positives)), self._log_q(shared, pool, best, batch, share)
        )

    def _log_q(self, shared: Draw, pool: Tensor, best: Any, batch: Batch, share: float) -> Tensor:
        """(N,), or (Q, N) where the hard items are corrected; ``share`` of the items are in the pool."""
        assert shared.items is not None
        assert shared.log_q is not None
        n_shared, n_hard = shared.items.numel(), best.indices.size(1)
        if not self.corrected:
            return torch.cat([shared.log_q, shared.log_q.new_zeros(n_hard)])
        n, n_items = n_shared + n_hard, self.population.n_items
        known, more = (
            relative_log(self._in_batch.chance(some, batch, share), n, n_items) for some in (shared.items, pool)
        )
        return torch.cat([known.expand(len(batch.positives), -1), more[best.indices]], 1)


NEGATIVES: dict[str, type[Negatives]] = {
    "catalogue": Catalogue,
    "shared": Shared,
    "per_query": PerQuery,
    "in_batch": InBatch,
    "mixed": Mixed,
}


def relative_log(chance: Tensor, n: int, n_items: int) -> Tensor:
    """``log_q`` of n columns from the probabilities of being drawn: relative to n uniform draws of n_items."""
    return torch.log(chance.clamp(min=1e-12) * (n_items / max(1, n))).to(torch.float32)


def columns_of(positives: Ragged, items: Tensor, n_items: int) -> Ragged:
    """The positives that are among the distinct ``items``, as columns of the draw."""
    column = places_in(items, positives.indices, n_items)
    drawn = column < items.numel()
    return ragged_from_pairs(positives.owner()[drawn], column[drawn], len(positives))
