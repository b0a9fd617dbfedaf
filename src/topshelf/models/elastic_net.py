"""SLIM's solver: an elastic net by coordinate descent, compiled by numba on first use. Import it where it is called.

Few weights end above 0. Sweeps over all candidates are rare; between them only the weights above 0 are updated, on
their own small matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from topshelf.compiled import Array, jit, jit_helper
from topshelf.kernels import LEAST_CELLS, share_rows

_MOST_INNER, _MOST_ACTIVE = 1000, 4096  # the matrix of the active items has at most 128 MiB


def elastic_net(items: Array, weights: Array, gram: tuple[Array, ...], **settings: Any) -> Array:
    """Predict each item by a sum of the others with weights >= 0, in float64.

    Shapes: items (B,) int64, the items to predict; weights (B, I), where the descent starts and
        what it finds; gram: indptr (I + 1,), indices
        and counts of the matrix (I, I) of common users, and its diagonal (I,). Returns (B,): the sweeps over all
        weights per row, -1 where they did not converge.
    Settings: l1, l2, tolerance (of the largest change in a sweep), most_rounds.
    """
    rounds = np.zeros(items.size, np.int64)
    shared = dict(zip(("indptr", "indices", "counts", "diagonal"), gram, strict=True))
    share_rows(solve, items.size, LEAST_CELLS, items, weights, rounds, **shared, **settings)
    return rounds


@jit
def solve(
    items: Array,
    weights: Array,
    rounds: Array,
    indptr: Array,
    indices: Array,
    counts: Array,
    diagonal: Array,
    l1: float,
    l2: float,
    tolerance: float,
    most_rounds: int,
) -> None:
    n_items = diagonal.shape[0]
    residual, place = np.zeros(n_items, np.float64), np.full(n_items, -1)
    for b in range(items.shape[0]):
        own, row = items[b], weights[b]
        first, last = indptr[own], indptr[own + 1]
        residual[:] = 0.0
        residual[indices[first:last]] = counts[first:last]
        nearest = indices[first:last][np.argsort(-counts[first:last] / (diagonal[indices[first:last]] + l2))]
        # No weight is below 0, so residuals only fall: items with a residual of at most l1 now keep the weight 0.
        candidates = nearest[(nearest != own) & (residual[nearest] > l1)]
        begin(candidates, row, residual, indptr, indices, counts)
        moved = np.inf
        while moved > tolerance and rounds[b] < most_rounds:
            rounds[b] += 1
            moved = 0.0
            for i in candidates:
                best = max(residual[i] + diagonal[i] * row[i] - l1, 0.0) / (diagonal[i] + l2)
                moved = max(moved, abs(best - row[i]))
                set_weight(i, best, row, residual, indptr, indices, counts)
            if moved > tolerance:
                active = candidates[row[candidates] > 0]
                if active.shape[0] <= _MOST_ACTIVE:
                    settle(active, row, residual, place, indptr, indices, counts, l1, l2, tolerance)
        if moved > tolerance:
            rounds[b] = -1


@jit_helper
def begin(candidates: Array, row: Array, residual: Array, indptr: Array, indices: Array, counts: Any) -> None:
    """Take the first weights of the candidates into the residuals; those of other items are 0."""
    first = row[candidates]
    row[:] = 0.0
    for x in range(candidates.shape[0]):
        if first[x] > 0.0:
            set_weight(candidates[x], first[x], row, residual, indptr, indices, counts)


@jit_helper
def set_weight(i: int, value: float, row: Array, residual: Array, indptr: Array, indices: Array, counts: Any) -> None:
    move = value - row[i]
    row[i] = value
    if move != 0.0:
        for p in range(indptr[i], indptr[i + 1]):
            residual[indices[p]] -= move * counts[p]


@jit_helper
def settle(
    active: Array,
    row: Array,
    residual: Array,
    place: Array,
    indptr: Array,
    indices: Array,
    counts: Array,
    l1: float,
    l2: float,
    tolerance: float,
) -> None:
    """Descent among the active items only, then the residuals of all items. ``place`` is scratch, -1 everywhere."""
    n = active.shape[0]
    own, mine, matrix = row[active], residual[active], np.zeros((n, n))
    place[active] = np.arange(n)
    for x in range(n):
        for p in range(indptr[active[x]], indptr[active[x] + 1]):
            if place[indices[p]] >= 0:
                matrix[x, place[indices[p]]] = counts[p]
    place[active] = -1
    moved, left = np.inf, _MOST_INNER
    while moved > tolerance and left > 0:
        moved, left = 0.0, left - 1
        for x in range(n):
            size = matrix[x, x]
            best = max(mine[x] + size * own[x] - l1, 0.0) / (size + l2)
            move = best - own[x]
            if move != 0.0:
                own[x] = best
                moved = max(moved, abs(move))
                for y in range(n):
                    mine[y] -= move * matrix[x, y]
    for x in range(n):
        set_weight(active[x], own[x], row, residual, indptr, indices, counts)
