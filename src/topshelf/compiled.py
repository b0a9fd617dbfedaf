"""The loops behind :mod:`topshelf.kernels`, compiled by numba on first use. Call them through that module.

The compiler may reorder sums, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

Array = np.ndarray


def jit(function: Callable[..., None]) -> Callable[..., None]:
    """Compile on first use. The code is cached beside the source, or in the user's cache if that is not writable."""
    options: dict[str, Any] = {"nogil": True, "boundscheck": False, "fastmath": {"contract", "reassoc", "nsz"}}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no writable cache: compile again in every process
        return numba.njit(**options)(function)


jit_helper = numba.njit(nogil=True, boundscheck=False)  # called by kernels, and cached with them


# exp(x) = 2^n e^r with r = x - n ln 2 in [-0.35, 0.35]: ln 2 in two parts keeps r exact, a polynomial does the rest.
_LOG2E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_C2, _C3, _C4, _C5, _C6 = (np.float32(1 / x) for x in (2, 6, 24, 120, 720))
_ONE, _HALF, _BIAS, _LOWEST, _ZERO = (np.float32(x) for x in (1, 0.5, 127, -87, 0))
_TINY = np.float32(1e-12)
_NORMAL = np.float32(1.2e-38)
_SHIFT = np.int32(23)
_ROUND, _HIGH = np.uint32(0x7FFF), np.uint32(16)
_LAST = np.uint32(1)
_CHUNK, _BIT = 64, 8
_LEAST_GROUPS = 256
_CACHED = 4096
_SHORT = 256
_HIGHEST_KEY = np.int32(0x7FFFFFFF)
_LOWEST_KEY = -0x7F7FFFFF  # of the lowest number above -inf


@numba.njit(fastmath={"contract"})
def exp(x: Any) -> Any:
    """e^x for -87 <= x <= 88. ``int32`` truncates towards zero, so its argument is kept positive."""
    n = np.int32(x * _LOG2E + _BIAS + _HALF)
    real = np.float32(n) - _BIAS
    r = (x - real * _LN2_HIGH) - real * _LN2_LOW
    p = (((((_C6 * r + _C5) * r + _C4) * r + _C3) * r + _C2) * r + _ONE) * r + _ONE
    return np.float32(p) * np.int32(n << _SHIFT).view(np.float32)


@jit
def exp_sums(
    tile: Array,
    total: Array,
    half: Array | None,
    level: Array | None,
    count: Array | None,
    excess: Array | None,
    log_weight: Array | None,
) -> None:
    """Arguments that are None are compiled away, not skipped at run time."""
    for b in range(tile.shape[0]):
        row, row_sum, n_above, row_excess = tile[b], _ZERO, _ZERO, _ZERO
        edge = _ZERO if level is None else level[b]
        for j in range(row.shape[0]):
            x = row[j]
            over = x - edge
            if log_weight is not None:
                x += log_weight[j]
            value = exp(_LOWEST if x < _LOWEST else x)  # NaN stays NaN
            value = _ZERO if x < _LOWEST else value
            row_sum += value
            if level is not None:
                n_above += _ONE if over > _ZERO else _ZERO
                row_excess += max(over, _ZERO)
            if half is None:
                row[j] = value
            else:
                bits = np.float32(value).view(np.uint32)  # the upper half, rounded to nearest even
                odd = np.uint32(np.uint32(bits >> _HIGH) & _LAST)
                half[b, j] = np.uint16(np.uint32(bits + _ROUND + odd) >> _HIGH)
        total[b] += row_sum
        if level is not None and count is not None and excess is not None:
            count[b] += n_above
            excess[b] += row_excess


@jit
def list_excess(values: Array, indptr: Array, level: Array, count: Array, excess: Array) -> None:
    for b in range(level.shape[0]):
        for p in range(indptr[b], indptr[b + 1]):
            over = values[p] - level[b]
            if over > _ZERO:
                count[b] += _ONE
                excess[b] += over


@jit
def unit_rows(table: Array, unit: Array, norm: Array) -> None:
    for b in range(table.shape[0]):
        row, made, square = table[b], unit[b], _ZERO
        for j in range(row.shape[0]):
            square += row[j] * row[j]
        norm[b] = max(np.sqrt(square), _TINY)
        scale = _ONE / norm[b]
        for j in range(row.shape[0]):
            made[j] = row[j] * scale


@jit
def unit_rows_gradient(gradient: Array, unit: Array, norm: Array, result: Array) -> None:
    for b in range(gradient.shape[0]):
        row, made, out, along = gradient[b], unit[b], result[b], _ZERO
        for j in range(row.shape[0]):
            along += row[j] * made[j]
        scale = _ONE / norm[b]
        if norm[b] <= _TINY:  # the length was clamped, so it does not depend on the row
            along = _ZERO
        for j in range(row.shape[0]):
            out[j] = (row[j] - along * made[j]) * scale


# The best k of a row. Where order matters, scores are compared as integers (:func:`to_keys`), so NaN and the two zeros
# need no special case. A first pass finds a level that k scores reach. A second one gathers all scores that reach it:
# slightly more than k. These are cut to k, sorted, and merged into the list.


@jit
def keep_best(tile: Array, values: Array, indices: Array, first: int) -> None:
    width, k = tile.shape[1], values.shape[1]
    n_groups = min(width, max(_LEAST_GROUPS, 4 * k))
    highest, keys = np.empty(n_groups, np.float32), np.empty(width, np.int32)
    scores, places = np.empty(width + 1, np.float32), np.empty(width + 1, np.int64)  # one spare place: see gather
    old, old_places = np.empty(k, np.float32), np.empty(k, np.int64)
    new, new_places = np.empty(k, np.float32), np.empty(k, np.int64)
    for b in range(tile.shape[0]):
        row, edge = np.ascontiguousarray(tile[b]), values[b, -1]  # no copy: tells numba that the row is contiguous
        if edge == -np.inf and k <= n_groups:
            group_maxima(row, highest)
            to_keys(highest, keys)
            edge = from_key(max(reached_by(keys[:n_groups], k), _LOWEST_KEY) - 1)
            if -_NORMAL < edge < _NORMAL:  # the processor may be set to read denormals as 0
                edge = -_NORMAL
        n = gather(row, first, edge, scores, places) if edge == edge else 0
        if n == 0:
            continue
        to_keys(scores[:n], keys)
        if n > k:
            cut(keys[:n], scores, places, k)
            n = k
        sort(keys[:n], scores, places, new, new_places)
        old[:], old_places[:] = values[b], indices[b]
        merge_best(old, old_places, new[:n], new_places, values[b], indices[b])


@jit_helper
def group_maxima(row: Array, highest: Array) -> None:
    """The largest of every n-th score, for n groups. NaN is skipped."""
    n = highest.shape[0]
    highest[:] = -np.inf
    for start in range(0, row.shape[0], n):
        part = row[start : start + n]
        for j in range(part.shape[0]):
            highest[j] = part[j] if part[j] > highest[j] else highest[j]


@jit_helper
def gather(row: Array, first: int, edge: Any, scores: Array, places: Array) -> int:
    """Scores above the edge, and NaN, in their order. Every score is written; ``n`` grows only if it stays."""
    n, width = 0, row.shape[0]
    whole = width - width % _CHUNK
    for start in range(0, whole, _CHUNK):
        news = np.int32(0)
        for j in range(start, start + _CHUNK):  # many scores at once; few chunks hold anything
            news |= np.int32(not row[j] <= edge)
        if news:
            for inner in range(start, start + _CHUNK, _BIT):
                news = np.int32(0)
                for j in range(inner, inner + _BIT):
                    news |= np.int32(not row[j] <= edge)
                if news:
                    for j in range(inner, inner + _BIT):
                        scores[n], places[n] = row[j], first + j
                        n += not row[j] <= edge
    for j in range(whole, width):
        scores[n], places[n] = row[j], first + j
        n += not row[j] <= edge
    return n


@jit_helper
def to_keys(scores: Array, keys: Array) -> None:
    """Integers in the order of the scores: -0 is 0, NaN is above all."""
    for j in range(scores.shape[0]):
        bits = np.float32(scores[j]).view(np.int32)
        size = np.int32(bits & _HIGHEST_KEY)
        key = np.int32(-size) if bits < 0 else size
        keys[j] = key if scores[j] == scores[j] else _HIGHEST_KEY


@jit_helper
def from_key(key: int) -> Any:
    size = np.int32(abs(key)).view(np.float32)
    return -size if key < 0 else size


@jit_helper
def reached_by(keys: Array, k: int) -> int:
    """A level that k keys reach, or more where some are equal: then it is the k-th largest. By halving."""
    low, high = int(keys.min()), int(keys.max()) + 1
    while high - low > 1:
        level = (low + high) // 2
        n = count_from(keys, level)
        if n < k:
            high = level
        else:
            low = level
        if n == k:
            break
    return low


@jit_helper
def count_from(keys: Array, level: int) -> int:
    least, n = np.int32(level), np.int32(0)
    for j in range(keys.shape[0]):
        n = np.int32(n + np.int32(keys[j] >= least))  # numba's default, int64, is half as fast
    return int(n)


@jit_helper
def cut(keys: Array, scores: Array, places: Array, k: int) -> None:
    """Move the k best to the front, in their order; of equal ones the first."""
    level = reached_by(keys, k)
    free = k - (count_from(keys, level + 1) if level < _HIGHEST_KEY else 0)
    n = 0
    for j in range(keys.shape[0]):
        if keys[j] > level or (keys[j] == level and free > 0):
            free -= keys[j] == level
            keys[n], scores[n], places[n] = keys[j], scores[j], places[j]
            n += 1


@jit_helper
def sort(keys: Array, scores: Array, places: Array, new: Array, new_places: Array) -> None:
    """Best first, of equal ones the first: the place of each is the number of scores before it."""
    for i in range(keys.shape[0]):
        place = count_from(keys[:i], keys[i])
        if keys[i] < _HIGHEST_KEY:
            place += count_from(keys[i + 1 :], int(keys[i]) + 1)
        new[place], new_places[place] = scores[i], places[i]


@jit_helper
def merge_best(old: Array, old_places: Array, new: Array, new_places: Array, best: Array, names: Array) -> None:
    """The first of two sorted lists as one; of equal ones the old comes first."""
    i, j = 0, 0
    for place in range(best.shape[0]):
        if j < new.shape[0] and old[i] == old[i] and not new[j] <= old[i]:
            best[place], names[place] = new[j], new_places[j]
            j += 1
        else:
            best[place], names[place] = old[i], old_places[i]
            i += 1


@jit
def count_taken(starts: Array, stops: Array, taken: Array, columns: Array, n: int) -> None:
    for b in range(taken.shape[0]):
        before = -1
        while taken[b] != before:  # the n-th one moves back by every listed column before it, until none is new
            before, n_before = taken[b], 0
            for p in range(starts[b], stops[b]):
                n_before += columns[p] < n + before
            taken[b] = n_before


@jit
def list_scores(queries: Array, starts: Array, stops: Array, items: Array, indices: Array, scores: Array) -> None:
    for b in range(queries.shape[0]):
        query = queries[b]
        for p in range(starts[b], stops[b]):
            item, score = items[indices[p]], _ZERO
            for j in range(query.shape[0]):
                score += query[j] * item[j]
            scores[p] = score


@jit
def list_gradients(
    queries: Array, starts: Array, stops: Array, to_queries: Array, items: Array, indices: Array, weights: Array
) -> None:
    for b in range(queries.shape[0]):
        out = to_queries[b]
        out[:] = _ZERO
        for p in range(starts[b], stops[b]):
            item, weight = items[indices[p]], weights[p]
            for j in range(out.shape[0]):
                out[j] += weight * item[j]


@jit
def item_gradients(
    columns: Array, queries: Array, to_items: Array, starts: Array, stops: Array, indices: Array, weights: Array
) -> None:
    first, last = columns[0], columns[-1] + 1
    for b in range(queries.shape[0]):
        query = queries[b, first:last]
        for p in range(starts[b], stops[b]):
            out, weight = to_items[indices[p], first:last], weights[p]
            for j in range(query.shape[0]):
                out[j] += weight * query[j]


@jit
def nth_others(uniform: Array, starts: Array, stops: Array, left: Array, items: Array, listed: Array) -> None:
    for b in range(uniform.shape[0]):
        start, stop, shares, out = starts[b], stops[b], uniform[b], items[b]
        most, last = np.float64(left[b]), left[b] - 1
        for j in range(shares.shape[0]):
            out[j] = min(np.int64(shares[j] * most), last)
        if stop - start <= _SHORT:
            for p in range(start, stop):  # every listed item at or below a place moves it on by one; many at once
                for j in range(shares.shape[0]):
                    out[j] += out[j] >= listed[p]
            continue
        for j in range(shares.shape[0]):  # the number of p with listed[p] - p at or below the place, by halving
            low, high = start, stop
            while low < high:
                middle = (low + high) // 2
                if listed[middle] - (middle - start) <= out[j]:
                    low = middle + 1
                else:
                    high = middle
            out[j] += low - start


@jit
def weighted_kth(
    best: Array, starts: Array, stops: Array, n_negatives: Array, n_drawn: Array, level: Array, scores: Array, k: int
) -> None:
    """Walk down both lists together, best first; a positive counts n_drawn, a negative n_negatives."""
    width, top = best.shape[1], np.empty(k, np.float32)
    for b in range(best.shape[0]):
        n = 0
        for p in range(starts[b], stops[b]):
            n = insert(top, n, scores[p])
        i, j, missing, kth = 0, 0, k * n_drawn[b], np.float32(-np.inf)
        while missing > 0 and (i < n or j < width):
            if i < n and (j == width or not top[i] < best[b, j]):
                kth, missing, i = top[i], missing - n_drawn[b], i + 1
            elif best[b, j] > -np.inf:
                kth, missing, j = best[b, j], missing - n_negatives[b], j + 1
            else:
                j = width
        level[b] = kth


@jit_helper
def insert(top: Array, n: int, score: Any) -> int:
    """Put a score into the first n of a list, best first; the last drops out of a full one. Returns the new n."""
    if n == top.shape[0]:
        if score <= top[n - 1]:
            return n
        n -= 1
    place = n
    while place > 0 and top[place - 1] < score:
        top[place] = top[place - 1]
        place -= 1
    top[place] = score
    return n + 1


@jit
def hide(tile: Array, starts: Array, stops: Array, indices: Array, first: int) -> None:
    width = tile.shape[1]
    for b in range(tile.shape[0]):
        for p in range(starts[b], stops[b]):
            place = indices[p] - first
            if 0 <= place < width:
                tile[b, place] = -np.inf


@jit
def add_votes(
    tile: Array,
    starts: Array,
    stops: Array,
    indices: Array,
    numbers: Array,
    indptr: Array,
    items: Array,
    values: Array,
    first: int,
) -> None:
    width = tile.shape[1]
    for b in range(tile.shape[0]):
        row = tile[b]
        for p in range(starts[b], stops[b]):
            number, begin, end = numbers[p], indptr[indices[p]], indptr[indices[p] + 1]
            if first > 0:
                begin += np.searchsorted(items[begin:end], first)
            for q in range(begin, end):
                place = items[q] - first
                if place >= width:
                    break
                row[place] += number * values[q]


@jit
def count_above(scores: Array, starts: Array, stops: Array, indices: Array, above: Array, equal: Array) -> None:
    for b in range(scores.shape[0]):
        row = np.ascontiguousarray(scores[b])
        for first in range(0, row.shape[0], _CACHED):  # a part stays in the L1 cache for all targets
            part = row[first : first + _CACHED]
            for p in range(starts[b], stops[b]):
                mine, over, level = row[indices[p]], np.int32(0), np.int32(0)
                for j in range(part.shape[0]):
                    over = np.int32(over + np.int32(part[j] > mine))
                    level = np.int32(level + np.int32(part[j] == mine))
                above[p] += over
                equal[p] += level
        for p in range(starts[b], stops[b]):
            equal[p] -= 1  # the target itself


@jit
def hits(lists: Array, flags: Array, starts: Array, stops: Array, indices: Array) -> None:
    for b in range(lists.shape[0]):
        flags[b] = 0.0
        for p in range(starts[b], stops[b]):  # few wanted items; many places are compared at once
            wanted = indices[p]
            for place in range(lists.shape[1]):
                flags[b, place] = 1.0 if lists[b, place] == wanted else flags[b, place]


@jit
def shuffled_first(indptr: Array, first: int, share: Array, words: Array, is_first: Array, done: Array) -> None:
    """Mark the first ``share[u]`` of each list u, from list ``first`` on, after Python's ``random.shuffle`` of it.

    ``words`` are the numbers that the generator draws, 32 bits each. ``done (2,)`` receives the list that there were
    too few words for, or the number of lists, and how many words the lists before it took.
    """
    n_lists, used = len(share), 0
    positions = np.empty(0, dtype=np.int64)
    for u in range(first, n_lists):
        start, n = indptr[u], indptr[u + 1] - indptr[u]
        if len(positions) < n:
            positions = np.empty(2 * n, dtype=np.int64)
        for i in range(n):
            positions[i] = start + i
        word = used
        for i in range(n - 1, 0, -1):
            drawn, bits = np.int64(i + 1), 0
            while (i + 1) >> bits:
                bits += 1
            while drawn > i:  # numbers of so many bits, until one is small enough
                if word == len(words):
                    done[0], done[1] = u, used
                    return
                drawn = np.int64(words[word]) >> (32 - bits)
                word += 1
            positions[i], positions[drawn] = positions[drawn], positions[i]
        for i in range(share[u]):
            is_first[positions[i]] = True
        used = word
    done[0], done[1] = n_lists, used
