"""The solver of sparse EASE, compiled by numba on first use. Import it where it is called.

Every item has a small system of its own: its counts among its neighbours. Each is gathered, factorised and solved by
one thread, so that no more than one matrix per thread is alive.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from topshelf.compiled import Array, jit, jit_helper
from topshelf.kernels import share_rows

_SEARCHED = 16  # a list longer than this times the number of neighbours is searched, a shorter one is read


def solve_neighbours(items: Array, neighbours: Array, weights: Array, gram: tuple[Array, ...], l2: float) -> None:
    """The ridge regression of each item on its neighbours, in float64.

    Shapes: items (B,) int64; neighbours (B, M) int64, different ones, -1 after the last; weights (B, M) float64, which
        are overwritten, 0 after the last. gram: indptr (I + 1,), indices (ascending in a row) and counts of the matrix
        (I, I) of common users.
    """
    shared: dict[str, Any] = dict(zip(("indptr", "indices", "counts"), gram, strict=True))
    share_rows(solve, items.size, neighbours.shape[1] ** 2, items, neighbours, weights, **shared, l2=l2)


@numba.njit(nogil=True, boundscheck=False, fastmath={"contract", "reassoc", "nsz"})  # sums may be reordered
def inner(a: Array, b: Array, n: int) -> float:
    """The product of the first n numbers."""
    total = 0.0
    for j in range(n):
        total += a[j] * b[j]
    return total


@jit
def solve(
    items: Array, neighbours: Array, weights: Array, indptr: Array, indices: Array, counts: Array, l2: float
) -> None:
    most = neighbours.shape[1]
    place, table = np.full(indptr.shape[0] - 1, -1), np.empty((most, most))
    for b in range(items.shape[0]):
        n = 0
        while n < most and neighbours[b, n] >= 0:
            place[neighbours[b, n]] = n
            n += 1
        mine, solution = neighbours[b, :n], weights[b]
        solution[:] = 0.0
        for x in range(n):
            table[x, : x + 1] = 0.0
            fill_row(mine[x], mine, x + 1, place, table[x], indptr, indices, counts)
            table[x, x] += l2
        fill_row(items[b], mine, n, place, solution, indptr, indices, counts)
        place[mine] = -1
        factorise(table, n)
        substitute(table, solution, n)


@jit_helper
def fill_row(
    item: int, mine: Array, n: int, place: Array, row: Array, indptr: Array, indices: Array, counts: Array
) -> None:
    """The counts of an item with its first n neighbours, each at its place."""
    first, last = indptr[item], indptr[item + 1]
    if last - first <= _SEARCHED * n:
        for p in range(first, last):
            at = place[indices[p]]
            if 0 <= at < n:
                row[at] = counts[p]
        return
    for x in range(n):
        p = first + np.searchsorted(indices[first:last], mine[x])
        if p < last and indices[p] == mine[x]:
            row[x] = counts[p]


@jit_helper
def factorise(table: Array, n: int) -> None:
    """The Cholesky factor L of the lower triangle of the first n rows and columns, in its place."""
    for i in range(n):
        row = table[i]
        for j in range(i + 1):
            other = table[j]
            value = row[j] - inner(row, other, j)
            row[j] = np.sqrt(value) if i == j else value / other[j]


@jit_helper
def substitute(factor: Array, solution: Array, n: int) -> None:
    """Solve L L' x = b, in the place of b."""
    for i in range(n):
        solution[i] = (solution[i] - inner(factor[i], solution, i)) / factor[i, i]
    for i in range(n - 1, -1, -1):
        solution[i] /= factor[i, i]
        for j in range(i):
            solution[j] -= factor[i, j] * solution[i]
