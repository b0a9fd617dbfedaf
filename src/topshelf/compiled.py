"""The kernels' machine code: what numba compiles on first use. :mod:`topshelf.kernels` is the way in.

Sums may be added in any order; nothing else is left to the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np


def _jit(function: Callable[..., None]) -> Callable[..., None]:
    """Compile on first use; the code is kept beside the source, or in the user's cache where that cannot be written."""
    options: dict[str, Any] = {"nogil": True, "boundscheck": False, "fastmath": {"contract", "reassoc", "nsz"}}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder to keep it in: compile again in every process
        return numba.njit(**options)(function)


# exp(x) = 2^n e^r with r = x - n ln 2 in [-0.35, 0.35]: ln 2 in two parts keeps r exact, a polynomial does the rest.
_LOG2E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_C2, _C3, _C4, _C5, _C6 = (np.float32(1 / x) for x in (2, 6, 24, 120, 720))
_ONE, _HALF, _BIAS, _LOWEST, _ZERO = (np.float32(x) for x in (1, 0.5, 127, -87, 0))
_SHIFT = np.int32(23)
_ROUND, _HIGH = np.uint32(0x7FFF), np.uint32(16)
_LAST = np.uint32(1)
_CHUNK = 64


@numba.njit(fastmath={"contract"})
def exp(x: Any) -> Any:
    """e^x for -87 <= x <= 88. ``int32`` cuts off towards zero, so its argument is kept positive."""
    n = np.int32(x * _LOG2E + _BIAS + _HALF)
    real = np.float32(n) - _BIAS
    r = (x - real * _LN2_HIGH) - real * _LN2_LOW
    p = (((((_C6 * r + _C5) * r + _C4) * r + _C3) * r + _C2) * r + _ONE) * r + _ONE
    return np.float32(p) * np.int32(n << _SHIFT).view(np.float32)


@_jit
def exp_sums(tile: np.ndarray, total: np.ndarray) -> None:
    for b in range(tile.shape[0]):
        row, found = tile[b], _ZERO
        for j in range(row.shape[0]):
            x = row[j]
            value = exp(_LOWEST if x < _LOWEST else x)  # NaN stays NaN
            value = _ZERO if x < _LOWEST else value
            row[j] = value
            found += value
        total[b] += found


@_jit
def exp_sums_half(tile: np.ndarray, half: np.ndarray, total: np.ndarray) -> None:
    for b in range(tile.shape[0]):
        row, kept, found = tile[b], half[b], _ZERO
        for j in range(row.shape[0]):
            x = row[j]
            value = exp(_LOWEST if x < _LOWEST else x)  # NaN stays NaN
            value = _ZERO if x < _LOWEST else value
            found += value
            bits = np.float32(value).view(np.uint32)  # the upper half, rounded to the nearest, ties to even
            odd = np.uint32(np.uint32(bits >> _HIGH) & _LAST)
            kept[j] = np.uint16(np.uint32(bits + _ROUND + odd) >> _HIGH)
        total[b] += found


@_jit
def excess_counts(tile: np.ndarray, level: np.ndarray, count: np.ndarray, excess: np.ndarray) -> None:
    for b in range(tile.shape[0]):
        row, edge, n, found = tile[b], level[b], _ZERO, _ZERO
        for j in range(row.shape[0]):
            over = row[j] - edge
            n += _ONE if over > _ZERO else _ZERO
            found += max(over, _ZERO)
        count[b] += n
        excess[b] += found


@_jit
def keep_best(tile: np.ndarray, values: np.ndarray, indices: np.ndarray, first: int) -> None:
    width = tile.shape[1]
    for b in range(tile.shape[0]):
        row, best, names = tile[b], values[b], indices[b]
        for start in range(0, width - _CHUNK + 1, _CHUNK):
            part, edge, news = row[start : start + _CHUNK], best[-1], np.int32(0)
            for j in range(_CHUNK):  # many scores at once; few chunks hold anything new
                news |= np.int32(not part[j] <= edge)
            if news:
                insert(part, best, names, first + start)
        insert(row[width - width % _CHUNK :], best, names, first + width - width % _CHUNK)


@numba.njit(nogil=True, boundscheck=False)
def insert(part: np.ndarray, best: np.ndarray, names: np.ndarray, first: int) -> None:
    """Put what belongs there into a sorted list; an equal score that came before stays before, NaN goes first."""
    last = best.shape[0] - 1
    for j in range(part.shape[0]):
        x = part[j]
        if x <= best[last]:
            continue
        low, high = 0, last if x == x else 0
        while low < high:
            middle = (low + high) // 2
            if best[middle] < x:
                high = middle
            else:
                low = middle + 1
        for place in range(last, low, -1):
            best[place], names[place] = best[place - 1], names[place - 1]
        best[low], names[low] = x, first + j
