"""Loops over score tiles, compiled by numba: one pass where torch makes several.

They take float32 tensors on the CPU (see :func:`fits`); callers have a torch version for everything else, and tests
compare the two. Rows are split among as many threads as torch uses. These are Python threads, not numba's, so kernels
may be called from several threads at once and load no second OpenMP.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

LEAST_CELLS = 1 << 15  # with fewer cells per thread, starting a thread costs more than the work


def fits(*tensors: Tensor) -> bool:
    """Whether the kernels accept these tensors."""
    return all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in tensors)


def exp_sums(
    tile: Tensor,
    total: Tensor,
    half: Tensor | None = None,
    above: tuple[Tensor, Tensor, Tensor] | None = None,
    log_weight: Tensor | None = None,
) -> None:
    """Replace scores by their exponentials and add each row's sum to ``total``.

    Shapes: tile (B, W) float32, rows may be strided; total (B,) float32; half (B, W) bfloat16: receives the
        exponentials, and the tile keeps its scores; above: level, count and excess (B,) float32. The number of scores
        above a row's level is added to the count, and the sum of their distances to it to the excess. log_weight (W,)
        float32 is added to the scores of each column before the exponential, but not for the count.
    Scores must be at most 88, with their weights; below -87 (and at -inf) the exponential is 0. Accurate to a few units
    in the last place.
    """
    kept = None if half is None else half.view(torch.uint16)
    rows = (tile, total, kept, *(above or (None, None, None)))
    share_rows(_compiled().exp_sums, *tile.shape, *rows, log_weight=log_weight)


def list_excess(values: Tensor, indptr: Tensor, level: Tensor, count: Tensor, excess: Tensor) -> None:
    """The count and excess of :func:`exp_sums` for ragged lists of scores, values (P,) and indptr (B + 1,)."""
    _compiled().list_excess(*(x.numpy() for x in (values, indptr, level, count, excess)))


def unit_rows(table: Tensor, unit: Tensor, norm: Tensor) -> None:
    """Rows divided by their lengths: table (N, d) to unit (N, d), lengths (at least 1e-12) to norm (N,)."""
    share_rows(_compiled().unit_rows, *table.shape, table, unit, norm)


def unit_rows_gradient(gradient: Tensor, unit: Tensor, norm: Tensor, result: Tensor) -> None:
    """The gradient of :func:`unit_rows`: that of unit (N, d) to that of table (N, d)."""
    share_rows(_compiled().unit_rows_gradient, *gradient.shape, gradient, unit, norm, result)


def keep_best(tile: Tensor, values: Tensor, indices: Tensor, first: int = 0) -> None:
    """Merge a tile of scores into each row's best so far, best first, equal scores in the order they came.

    Shapes: tile (B, W) float32, scores of the items ``first`` and on; values (B, k) float32 and indices (B, k) int64,
        which begin as -inf and -1. A score of -inf is never taken; NaN comes before every number.
    """
    share_rows(_compiled().keep_best, *tile.shape, tile, values, indices, first=first)


def hide(tile: Tensor, indptr: Tensor, indices: Tensor, first: int = 0) -> None:
    """Set each row's listed items to -inf.

    Shapes: tile (B, W) float32, scores of the items ``first`` and on; indptr (B + 1,) and indices (P,): a list of
        items per row, which may name items outside the tile.
    """
    rows = (tile, indptr[:-1], indptr[1:])  # each row comes with the bounds of its list
    share_rows(_compiled().hide, tile.size(0), _width(indptr), *rows, indices=indices, first=first)


def add_votes(
    tile: Tensor,
    lists: tuple[Tensor, Tensor, Tensor],
    votes: tuple[Tensor, Tensor, Tensor],
    first: int = 0,
) -> None:
    """Add to each row the votes of its listed columns, each times its number.

    Shapes: tile (B, W) float32, scores of the items ``first`` and on; lists: indptr (B + 1,), columns (P,) and their
        numbers (P,) float32; votes: indptr (C + 1,), the items (V,) that each column votes for, ascending, and their
        values (V,) float32.
    """
    indptr, indices, numbers = lists
    same: dict[str, Any] = dict(zip(("indptr", "items", "values"), votes, strict=True))
    rows = (tile, indptr[:-1], indptr[1:])
    share_rows(_compiled().add_votes, *tile.shape, *rows, indices=indices, numbers=numbers, **same, first=first)


def count_above(scores: Tensor, indptr: Tensor, indices: Tensor, above: Tensor, equal: Tensor) -> None:
    """Add how many scores of its row are above each listed item's, and how many others are equal to it.

    Shapes: scores (B, I) float32; indptr (B + 1,) and indices (P,): a list of items per row; above, equal (P,) int64.
    """
    rows = (scores, indptr[:-1], indptr[1:])
    share_rows(_compiled().count_above, *scores.shape, *rows, indices=indices, above=above, equal=equal)


def hits(lists: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
    """Which places of a row hold one of its wanted items: 0 or 1, in float64.

    Shapes: lists (B, K) int64; indptr (B + 1,) and indices (P,): a list of wanted items per row; returns (B, K).
    """
    flags = torch.empty(lists.shape, dtype=torch.float64)
    share_rows(_compiled().hits, *lists.shape, lists, flags, indptr[:-1], indptr[1:], indices=indices)
    return flags


def count_taken(indptr: Tensor, columns: Tensor, n: int, taken: Tensor) -> None:
    """How many listed columns come before a row's n-th column that is not listed.

    Shapes: indptr (B + 1,) and columns (P,) int64: a list of columns per row, in any order, without repeats; taken
        (B,) int64, which begins as 0.
    """
    rows = (indptr[:-1], indptr[1:], taken)
    share_rows(_compiled().count_taken, taken.numel(), _width(indptr), *rows, columns=columns, n=n)


def list_scores(queries: Tensor, items: Tensor, indptr: Tensor, indices: Tensor, scores: Tensor) -> None:
    """Scores of each query's listed items, without copying their vectors.

    Shapes: queries (B, d) and items (I, d) float32; indptr (B + 1,) and indices (P,): a list of items per query;
        scores (P,) float32 receives the dot products.
    """
    rows, same = (queries, indptr[:-1], indptr[1:]), {"items": items, "indices": indices, "scores": scores}
    share_rows(_compiled().list_scores, queries.size(0), _width(indptr) * queries.size(1), *rows, **same)


def list_gradients(
    queries: Tensor, items: Tensor, indptr: Tensor, indices: Tensor, weights: Tensor, to_queries: Tensor
) -> None:
    """What :func:`list_scores` hands back to the queries: the sums of their listed items, each times its weight.

    Shapes: as there; weights (P,) float32; to_queries (B, d) float32 receives the sums.
    """
    rows = (queries, indptr[:-1], indptr[1:], to_queries)
    same = {"items": items, "indices": indices, "weights": weights}
    share_rows(_compiled().list_gradients, queries.size(0), _width(indptr) * queries.size(1), *rows, **same)


def item_gradients(queries: Tensor, indptr: Tensor, indices: Tensor, weights: Tensor, to_items: Tensor) -> None:
    """What :func:`list_scores` hands back to the items: the sums of the queries that list them, times the weights.

    Shapes: as there; weights (P,) float32; to_items (I, d) float32, which begins as 0. Threads divide the columns, so
        that sums are made in one order, whatever their number.
    """
    same = {"starts": indptr[:-1], "stops": indptr[1:], "indices": indices, "weights": weights}
    columns = np.arange(queries.size(1))
    share_rows(
        _compiled().item_gradients, columns.size, indices.numel(), columns, queries=queries, to_items=to_items, **same
    )


def nth_others(uniform: Tensor, indptr: Tensor, listed: Tensor, left: Tensor, items: Tensor) -> None:
    """The items of which the places among a row's items that are not listed are given as shares of their number.

    Shapes: uniform (B, N) float64 in [0, 1); indptr (B + 1,) and listed (P,) int64: a list of items per row,
        ascending, without repeats; left (B,) int64: how many are not listed; items (B, N) int64 receives the items.
    """
    rows = (uniform, indptr[:-1], indptr[1:], left, items)
    share_rows(_compiled().nth_others, *uniform.shape, *rows, listed=listed)


def weighted_kth(
    best: Tensor, scores: Tensor, indptr: Tensor, n_negatives: Tensor, n_drawn: Tensor, k: int, level: Tensor
) -> None:
    """:func:`topshelf.thresholds.weighted_thresholds` of negatives that are sorted, best first.

    Shapes: best (B, N) float32, -inf where there is none; scores (P,) float32 and indptr (B + 1,): the positives'
        scores per row; n_negatives, n_drawn (B,) int64; level (B,) float32 receives the thresholds.
    """
    rows = (best, indptr[:-1], indptr[1:], n_negatives, n_drawn, level)
    share_rows(_compiled().weighted_kth, *best.shape, *rows, scores=scores, k=k)


def _width(indptr: Tensor) -> int:
    """Entries per list, on average."""
    return int(indptr[-1]) // max(1, indptr.numel() - 1)


def _compiled() -> ModuleType:
    # Importing numba takes half a second; commands that score no catalogue do without it.
    from topshelf import compiled

    return compiled


def share_rows(
    kernel: Callable[..., None], n_rows: int, width: int, *rows: Tensor | np.ndarray | None, **same: Any
) -> None:
    """Call a kernel on parts of the rows, one per thread, with the same keyword arguments for all."""
    if n_rows == 0:
        return
    n_threads = min(torch.get_num_threads(), n_rows, max(1, n_rows * width // LEAST_CELLS))
    arrays = [x.numpy() if isinstance(x, Tensor) else x for x in rows]
    same = {name: x.numpy() if isinstance(x, Tensor) else x for name, x in same.items()}
    if n_threads == 1:
        kernel(*arrays, **same)
        return
    ends = [n_rows * t // n_threads for t in range(n_threads + 1)]
    parts = [
        tuple(None if array is None else array[start:stop] for array in arrays)
        for start, stop in itertools.pairwise(ends)
    ]
    waiting: list[Future[None]] = []
    try:
        for part in parts[1:]:
            waiting.append(_submit(kernel, *part, **same))
        kernel(*parts[0], **same)
    finally:  # whatever happened, no thread writes to the arrays any more
        wait(waiting)
    for done in waiting:
        done.result()


def _submit(kernel: Callable[..., None], *part: np.ndarray | None, **same: Any) -> Future[None]:
    try:
        return _pool().submit(kernel, *part, **same)
    except RuntimeError:  # the interpreter is shutting down and its pools are closed
        kernel(*part, **same)
        done: Future[None] = Future()
        done.set_result(None)
        return done


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, (os.cpu_count() or 1) - 1), thread_name_prefix="topshelf")


if hasattr(os, "register_at_fork"):  # a forked child has the pool but not its threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
