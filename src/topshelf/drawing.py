"""How items are drawn: uniform over negatives, distinct, or one order dealt to many queries; and their scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from topshelf import kernels
from topshelf.errors import ConfigError
from topshelf.ragged import Ragged


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
    if counts.device.type == "cpu":
        drawn = torch.empty(uniform.shape, dtype=torch.int64)
        kernels.nth_others(uniform, positives.indptr, positives.indices, left, drawn)
        return drawn
    return _nth_others(uniform, positives, left, n_items)


def _nth_others(uniform: Tensor, positives: Ragged, left: Tensor, n_items: int) -> Tensor:
    """:func:`topshelf.kernels.nth_others` by torch."""
    counts, owner = positives.counts, positives.owner()
    place = (uniform * left.unsqueeze(1)).long().clamp_(max=(left - 1).unsqueeze(1))
    rank = torch.arange(owner.numel(), device=owner.device) - positives.indptr[:-1][owner]
    width = int(counts.max()) if counts.numel() else 0
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
    columns = Ragged(positives.indptr, places_in(items, positives.indices, n_items))
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
    """Scores of each query's own items: queries (Q, d), items (I, d), ids (Q, N) to (Q, N), differentiable."""
    if kernels.fits(queries, items) and not torch.compiler.is_compiling():
        scores: Tensor = _SampledScores.apply(queries, items, ids)
        return scores
    return _sampled_scores(queries, items, ids)


class _SampledScores(torch.autograd.Function):
    """Products of the rows that are asked for, forward and backward: no vector is copied, and no (Q, I) table made."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, items: Tensor, ids: Tensor) -> Tensor:
        queries, items, ids = queries.contiguous(), items.contiguous(), ids.contiguous()
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < items.size(0):  # compiled loops do not look
            raise IndexError(f"items must be from 0 to {items.size(0) - 1}, got {int(ids.min())} to {int(ids.max())}")
        ctx.save_for_backward(queries, items, ids)
        scores = torch.empty(ids.shape, dtype=torch.float32)
        kernels.list_scores(queries, items, _even_lists(ids), ids.view(-1), scores.view(-1))
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        queries, items, ids = ctx.saved_tensors
        lists, weights = (_even_lists(ids), ids.view(-1)), gradient.contiguous().view(-1)
        to_queries, to_items = torch.empty_like(queries), torch.zeros_like(items)
        kernels.list_gradients(queries, items, *lists, weights, to_queries)
        kernels.item_gradients(queries, *lists, weights, to_items)
        return to_queries, to_items, None


def _even_lists(ids: Tensor) -> Tensor:
    """Bounds of the rows (Q + 1,) where ids (Q, N) are one list."""
    return torch.arange(ids.size(0) + 1) * ids.size(1)


def _sampled_scores(queries: Tensor, items: Tensor, ids: Tensor) -> Tensor:
    """:func:`sampled_scores` by torch.

    A matrix product with the whole catalogue and a gather of numbers beats a gather of vectors until the catalogue
    is some dozens of times the sample; then vectors are gathered, one block of queries at a time.
    """
    n = ids.size(1)
    if items.size(0) <= 32 * n:
        return (queries @ items.T).gather(1, ids)
    block = max(1, 2**22 // max(1, n * items.size(1)))
    parts = [
        torch.bmm(F.embedding(some, items), vectors.unsqueeze(2)).squeeze(2)
        for some, vectors in zip(ids.split(block), queries.split(block), strict=True)
    ]
    return torch.cat(parts)


def chance_drawn(marked: Tensor, drawn: int, pool: int) -> Tensor:
    """Probability that ``drawn`` of ``pool`` things, without replacement, include one of the ``marked`` (N,) ones.

    The product of 1 - n / (pool - t) over t < m as a power of its middle factor: exact for m = 1, else within 2%
    of the hypergeometric (the tests measure it), and stable for large pools where log-gammas cancel.
    """
    marked = marked.double()
    least, most = marked.clamp(max=drawn), marked.clamp(min=drawn)
    missed = (1 - most / (pool - (least - 1) / 2).clamp(min=1)).clamp(min=0) ** least
    return (1 - missed).masked_fill(marked + drawn > pool, 1.0)


def places_in(items: Tensor, ids: Tensor, n_items: int) -> Tensor:
    """Where each of ``ids`` is among the distinct ``items``, their number if it is not there."""
    n = items.numel()
    if n_items <= 4 * (n + ids.numel()):
        place = torch.full((n_items,), n, device=items.device)
        place[items] = torch.arange(n, device=items.device)
        return place[ids]
    if not n:
        return torch.zeros_like(ids)
    ordered, order = items.sort()  # a table of a large catalogue costs more than a search
    found = torch.searchsorted(ordered, ids).clamp_(max=n - 1)
    return order[found].where(ordered[found] == ids, n)
