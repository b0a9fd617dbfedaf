"""Rows on disk, column by column, and sorted into interactions one range of users after another.

Nothing here holds more than one column of the source, or the rows of one range, beside a few numbers per user and item.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from topshelf.data.columns import OpenTable, refuse_empty, refuse_missing, whole_ids
from topshelf.data.events import Events, bounds
from topshelf.data.ids import UNKNOWN, IdMap
from topshelf.data.interactions import Interactions
from topshelf.data.mapped import ArrayFile, PartFiles, interactions_of, open_array
from topshelf.data.names import ID_ROLES
from topshelf.data.notes import Notes
from topshelf.errors import DataError

ROWS = 1 << 22  # rows of a range of users, and rows that are moved at once: about 500 MB on their way
SPREAD = 4  # places of a table of ids for each id, at most
Ranges = list[tuple[int, int]]


@dataclass(frozen=True)
class StoredRows:
    """The rows of a source as mapped arrays: dense users and items, weights and times where there are any."""

    columns: dict[str, np.ndarray]
    users: IdMap
    items: IdMap
    notes: Notes

    def __len__(self) -> int:
        return len(self.columns["user"])


def store_rows(
    table: OpenTable, folder: Path, at_once: int = ROWS, known_ids: dict[str, IdMap] | None = None
) -> StoredRows:
    """Read a source column by column; the same rows are refused, with the same words, as by ``table.table()``.

    ``known_ids``: those of ``user`` and ``item``, where the source is a part of something; default: those in it.
    """
    columns, ids, n_rows = {}, dict(known_ids or {}), 0
    missing: list[DataError] = []
    wrong: list[DataError] = []
    for role, name in table.names.items():
        column = table.column(role)
        n_rows = len(column)
        try:
            refuse_missing(column, role, table)
        except DataError as error:  # other columns may be worse: they are converted before any is checked
            missing.append(error)
            continue
        if role not in ID_ROLES:
            columns[role] = _store(folder / f"{role}.npy", [_number(role, column)])
            continue
        try:
            column = whole_ids(column, role, name, table.source)
        except DataError as error:
            wrong.append(error)
            continue
        known = ids[role] if role in ids else IdMap.sorted_from(column)
        ids[role] = known
        chunks = (column[start : start + at_once] for start in range(0, n_rows, at_once))
        columns[role] = _store(folder / f"{role}.npy", map(_indexer(known), chunks), _index_type(known))
    refuse_empty(n_rows, table.source)
    for problem in (*missing, *wrong):
        raise problem
    return StoredRows(columns, ids["user"], ids["item"], table.notes(n_rows))


def _number(role: str, column: pl.Series) -> np.ndarray:
    values = column.to_numpy()
    return values.astype(np.float32 if role == "weight" else values.dtype, copy=False)


def _index_type(ids: IdMap) -> type[np.signedinteger[Any]]:
    return np.int32 if len(ids) < 2**31 else np.int64


def _indexer(ids: IdMap) -> Callable[[pl.Series], np.ndarray]:
    """``ids.index``; of whole numbers that are close together by a table, many times faster for many rows."""
    if ids.values.dtype != pl.Int64 or not len(ids):
        return ids.index
    values = ids.values.to_numpy()
    low, span = int(values.min()), int(values.max()) - int(values.min()) + 1
    if span > SPREAD * len(ids) + ROWS:
        return ids.index
    table = np.full(span, UNKNOWN, dtype=_index_type(ids))
    table[values - low] = np.arange(len(ids))

    def index(some: pl.Series) -> np.ndarray:
        if some.dtype != pl.Int64 or len(some) == 0 or some.min() < low or some.max() >= low + span:  # type: ignore[operator]
            return ids.index(some)
        found = table[some.to_numpy() - low]
        return ids.index(some) if (found == UNKNOWN).any() else found  # which says what is unknown

    return index


def _store(path: Path, chunks: Any, dtype: Any = None) -> np.ndarray:
    file = None
    for chunk in chunks:
        file = file or ArrayFile(path, dtype or chunk.dtype)
        file.append(chunk)
    if file is None:
        return np.empty(0, dtype=dtype)
    known = file.close()
    return open_array(path, known["dtype"], known["length"])


def ranges_of(counts: np.ndarray, n: int = ROWS) -> Ranges:
    """Ranges of users with about ``n`` rows each; a user with more has a range of its own."""
    ends, ranges, start = np.cumsum(counts), [], 0
    while start < len(counts):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + n, side="right")))
        ranges.append((start, stop))
        start = stop
    return ranges or [(0, 0)]


def sort_rows(rows: StoredRows, folder: Path, at_once: int = ROWS) -> Interactions:
    """The interactions of stored rows as ``Interactions.from_canonical`` makes them, in mapped arrays."""
    counts = _counted(rows.columns["user"], len(rows.users), at_once)
    ranges = ranges_of(counts, at_once)
    grouped = _grouped(rows, folder, counts, ranges, at_once)
    repeats = 0

    def sorted_ranges() -> Iterator[Interactions]:
        nonlocal repeats
        for (start, stop), columns in zip(ranges, grouped, strict=True):
            user, item = columns.pop("user").astype(np.int64) - start, columns.pop("item")
            data = Interactions.from_indices(user, item, IdMap.range(stop - start), rows.items, **columns)
            repeats += data.notes.repeats
            yield data

    data = stored(sorted_ranges(), folder, "all", rows.users, rows.items)
    return replace(data, notes=rows.notes + Notes(repeats=repeats))


def stored(ranges: Iterator[Interactions], folder: Path, name: str, users: IdMap, items: IdMap) -> Interactions:
    """Ranges of users, one after another, as interactions in mapped arrays."""
    with PartFiles(folder, name) as part:
        for some in ranges:
            part.add(some)
        known = part.close()
    arrays = {
        key.removeprefix(f"{name}-"): open_array(folder / f"{key}.npy", one["dtype"], one["length"])
        for key, one in known.items()
    }
    own = {key: arrays.pop(key) for key in list(arrays) if not key.startswith("events_")}
    events = Events(**{key.removeprefix("events_"): values for key, values in arrays.items()}) if arrays else None
    return interactions_of(own, users, items, events)


def _counted(index: np.ndarray, size: int, at_once: int) -> np.ndarray:
    counts = np.zeros(size, dtype=np.int64)
    for start in range(0, len(index), at_once):
        counts += np.bincount(index[start : start + at_once], minlength=size)
    return counts


def _grouped(
    rows: StoredRows, folder: Path, counts: np.ndarray, ranges: Ranges, at_once: int
) -> Iterator[dict[str, np.ndarray]]:
    """The rows of each range of users, in the order of the source."""
    range_of = np.repeat(np.arange(len(ranges), dtype=np.int32), [stop - start for start, stop in ranges])
    sizes = np.add.reduceat(counts, [start for start, _ in ranges]) if len(counts) else np.zeros(1, dtype=np.int64)
    begin = bounds(sizes)
    with ExitStack() as opened:
        out = {name: opened.enter_context((folder / f"grouped-{name}").open("wb+")) for name in rows.columns}
        place = begin[:-1].copy()
        for first in range(0, len(rows), at_once):
            group = range_of[rows.columns["user"][first : first + at_once]]
            order, ends = np.argsort(group, kind="stable"), bounds(np.bincount(group, minlength=len(ranges)))
            for name, values in rows.columns.items():
                _scatter(out[name], values[first : first + at_once][order], ends, place)
            place += np.diff(ends)
        for one, size in zip(begin[:-1].tolist(), sizes.tolist(), strict=True):
            yield {name: _read(out[name], values.dtype, one, size) for name, values in rows.columns.items()}


def _scatter(file: Any, values: np.ndarray, ends: np.ndarray, place: np.ndarray) -> None:
    for group in np.flatnonzero(np.diff(ends)).tolist():
        file.seek(int(place[group]) * values.itemsize)
        file.write(np.ascontiguousarray(values[ends[group] : ends[group + 1]]).data)


def _read(file: Any, dtype: np.dtype[Any], first: int, size: int) -> np.ndarray:
    file.seek(first * dtype.itemsize)
    return np.fromfile(file, dtype=dtype, count=size)
