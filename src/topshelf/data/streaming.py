"""Cleaning and splitting of interactions in mapped arrays, one range of users after another.

Every step is the one of :mod:`topshelf.data.prepare` and :mod:`topshelf.data.splits`, which take all users at once.
What they need of all the data, such as the items that train has, is counted in a pass before: the results are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from topshelf.data.interactions import IdMap, Interactions
from topshelf.data.mapped import PartFiles
from topshelf.data.prepare import above, empty_core, kept_ids, over
from topshelf.data.shards import ROWS, Ranges, ranges_of, stored
from topshelf.data.shuffles import Shuffles
from topshelf.data.splits import (
    PARTS,
    SPLITS,
    by_moment,
    carve_validation,
    cut_place,
    last_parts,
    latest,
    left_out_of,
    one_moment,
    parts,
    ratio_mask,
    refuse_no_test,
    times_of,
)
from topshelf.errors import at_least, one_of

Cut = Callable[[int, Interactions], tuple[Interactions, Interactions]]  # first row, and a range of users: two parts


def clean(
    data: Interactions, folder: Path, *, min_rating: float | None = None, core: int = 0, at_once: int = ROWS
) -> tuple[Interactions, Interactions]:
    """What ``prepare`` returns, in mapped arrays."""
    at_least("core", core, 0)
    if min_rating is None and core <= 1:
        return data, data.none()
    is_kept = np.ones(len(data), dtype=bool) if min_rating is None else above(data, min_rating)
    is_below, ranges = ~is_kept, ranges_of(data.counts, at_once)
    n_before = int(is_kept.sum())
    users, items = _counts(data, is_kept, ranges)
    while core > 1 and (_has_few(users, core) or _has_few(items, core)):
        _peel(data, is_kept, users >= core, items >= core, ranges)
        users, items = _counts(data, is_kept, ranges)
    if not is_kept.any():
        raise empty_core(core, n_before)
    is_user, is_item = users > 0, items > 0
    ids = kept_ids(data.users, is_user), kept_ids(data.items, is_item)
    kept, below = (
        stored(_kept(data, mask, is_user, is_item, ids[1], ranges), folder, name, *ids) if mask.any() else None
        for name, mask in (("kept", is_kept), ("under", is_below))
    )
    assert kept is not None
    return replace(kept, notes=data.notes), below or kept.none()


def _has_few(counts: np.ndarray, core: int) -> bool:
    return bool(((counts > 0) & (counts < core)).any())


def _rows(data: Interactions, start: int, stop: int) -> tuple[slice, np.ndarray]:
    """Where the interactions of a range of users are, and the user of each."""
    rows = np.repeat(np.arange(start, stop), np.diff(data.indptr[start : stop + 1]))
    return slice(int(data.indptr[start]), int(data.indptr[stop])), rows


def _counts(data: Interactions, mask: np.ndarray, ranges: Ranges) -> tuple[np.ndarray, np.ndarray]:
    """How many interactions under the mask each user and each item has."""
    users, items = np.zeros(data.n_users, dtype=np.int64), np.zeros(data.n_items, dtype=np.int64)
    for start, stop in ranges:
        where, rows = _rows(data, start, stop)
        users[start:stop] = np.bincount(rows[mask[where]] - start, minlength=stop - start)
        items += np.bincount(data.indices[where][mask[where]], minlength=data.n_items)
    return users, items


def _peel(data: Interactions, mask: np.ndarray, is_user: np.ndarray, is_item: np.ndarray, ranges: Ranges) -> None:
    for start, stop in ranges:
        where, rows = _rows(data, start, stop)
        mask[where] &= is_user[rows] & is_item[data.indices[where]]


def _kept(
    data: Interactions, mask: np.ndarray, is_user: np.ndarray, is_item: np.ndarray, items: IdMap, ranges: Ranges
) -> Iterator[Interactions]:
    """The interactions under the mask over the users and items that are kept, range by range."""
    for start, stop in ranges:
        where, rows = _rows(data, start, stop)
        some, own = data.of_users(start, stop), is_user[start:stop]
        chosen = some.where(mask[where] & is_user[rows] & is_item[some.indices])
        yield over(chosen, own, is_item, IdMap.range(int(own.sum())), items)


def split(
    data: Interactions,
    below: Interactions,
    folder: Path,
    *,
    kind: str = "auto",
    test_fraction: float = 0.2,
    valid_fraction: float = 0.1,
    last_n: int = 1,
    seed: int = 0,
    split_seed: int = 0,
    at_once: int = ROWS,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write the parts of ``make_split`` into a folder; returns what its seal keeps of them, and counts and notes."""
    if one_of("split", kind, SPLITS) == "auto":
        kind = "ratio" if data.timestamp is None else "time"
    ranges = ranges_of(data.counts, at_once)
    cut, moment = _first_cut(data, ranges, kind, test_fraction, last_n, split_seed)
    carve = _carving(data, ranges, kind, valid_fraction, last_n, seed, moment)
    n_rest = 0
    sums: dict[str, Any] = {}
    with ExitStack() as opened:
        written = {name: opened.enter_context(PartFiles(folder, name)) for name in PARTS}
        for start, stop in ranges:
            some = data.of_users(start, stop)
            rest, test = cut(int(data.indptr[start]), some)
            n_rest += len(rest)
            train, valid = carve(rest)
            left_out, test = left_out_of(some, train, valid, test)
            made = (train, valid, test, left_out, below.of_users(start, stop))
            for name, part in zip(PARTS, made, strict=True):
                written[name].add(part)
        counts = {name: one.length for name, one in written.items()}
        for one in written.values():
            sums |= one.close()
    dropped = len(data) - n_rest - counts["test"]
    refuse_no_test(kind, counts["test"], dropped, test_fraction)
    lost = {"dropped_test": dropped, "dropped_valid": n_rest - counts["train"] - counts["valid"]}
    measured = {name: counts[name] for name in PARTS[:3]}
    return sums, {"split": kind, "users": data.n_users, "items": data.n_items, **measured, **lost}


def _first_cut(
    data: Interactions, ranges: Ranges, kind: str, fraction: float, last_n: int, seed: int
) -> tuple[Cut, float | None]:
    """How the test part is cut off, and the moment, of a split by time."""
    if kind == "time":
        moment = moment_of(times_of(data), fraction)
        known = _known_before(data, ranges, moment)
        return (lambda _, some: by_moment(some, moment, known)), moment
    is_train, shuffles = np.empty(len(data), dtype=bool), Shuffles(seed)
    for start, stop in ranges:
        some = data.of_users(start, stop)
        mask = ratio_mask(some, fraction, shuffles) if kind == "ratio" else ~latest(some, last_n)
        is_train[data.indptr[start] : data.indptr[stop]] = mask
    known = _counts(data, is_train, ranges)[1] > 0

    def cut(first: int, some: Interactions) -> tuple[Interactions, Interactions]:
        mask = is_train[first : first + len(some)]
        return parts(some, mask, known) if kind == "ratio" else last_parts(some, ~mask, known)

    return cut, None


def _carving(
    data: Interactions, ranges: Ranges, kind: str, fraction: float, last_n: int, seed: int, moment: float | None
) -> Callable[[Interactions], tuple[Interactions, Interactions]]:
    """How the validation part is cut off; called for each range once, in order."""
    if moment is not None and fraction:
        second = moment_of(times_of(data), fraction, before=moment)
        known = _known_before(data, ranges, second)
        return lambda rest: by_moment(rest, second, known)
    options: dict[str, Any] = {"fraction": fraction, "kind": "random" if kind == "ratio" else kind, "last_n": last_n}
    generator = np.random.default_rng(seed)
    return lambda rest: carve_validation(rest, seed=generator, **options)


def _known_before(data: Interactions, ranges: Ranges, moment: float) -> np.ndarray:
    """Whether each item has an interaction before a moment, (n_items,)."""
    known, times = np.zeros(data.n_items, dtype=bool), times_of(data)
    for start, stop in ranges:
        where = slice(int(data.indptr[start]), int(data.indptr[stop]))
        known[data.indices[where][times[where] < moment]] = True
    return known


def moment_of(times: np.ndarray, fraction: float, *, before: float | None = None, at_once: int = ROWS) -> float:
    """``cut_moment`` of the times, or of those before a moment, without sorting them: by bisection, pass after pass."""

    def chunks() -> Iterator[np.ndarray]:
        for start in range(0, len(times), at_once):
            some = times[start : start + at_once]
            yield _ordered(some if before is None else some[some < before])

    ends = [(len(some), int(some.min()), int(some.max())) for some in chunks() if len(some)]
    place = cut_place(sum(n for n, _, _ in ends), fraction)
    low = first = min(least for _, least, _ in ends)
    high = max(most for _, _, most in ends)
    while low < high:
        middle = (low + high) // 2
        if sum(int((some <= middle).sum()) for some in chunks()) > place:
            high = middle
        else:
            low = middle + 1
    if low == first:  # many events share the first moment: cut right after it
        later = [int(some[some > first].min()) for some in chunks() if (some > first).any()]
        if not later:
            raise one_moment(_moment(first, times.dtype))
        low = min(later)
    return _moment(low, times.dtype)


def _ordered(times: np.ndarray) -> np.ndarray:
    """Whole numbers in the same order as the times."""
    if times.dtype.kind != "f":
        return times
    bits = (times + 0.0).view(np.int64)  # with one zero
    return np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)


def _moment(place: int, dtype: np.dtype[Any]) -> Any:
    if dtype.kind != "f":
        return dtype.type(place)
    bits = np.int64(place if place >= 0 else place ^ (2**63 - 1))
    return bits.view(np.float64)
