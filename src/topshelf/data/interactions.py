"""Interactions: who took what, as sorted pairs in compressed rows, and every event behind them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Unpack

import numpy as np
import polars as pl
import torch
from scipy import sparse

from topshelf.data.columns import LARGEST_RATING, canonical
from topshelf.data.events import Events, all_of, bounds, by_user, concatenate_events
from topshelf.data.frames import of_frame
from topshelf.data.ids import IdMap
from topshelf.data.matrices import cells_of
from topshelf.data.names import ColumnNames, Columns
from topshelf.data.notes import NO_NOTES, Notes
from topshelf.errors import DataError
from topshelf.ragged import Ragged


@dataclass(frozen=True, eq=False)
class Interactions:
    """Who took what: row ``u`` is ``indices[indptr[u]:indptr[u + 1]]``, sorted and unique.

    ``indptr (n_users + 1,)`` is int64, ``indices (n,)`` int64, or int32 where they are mapped from a file. ``weight``
    (ratings, float32) and ``timestamp`` (int64 or float64 seconds) are aligned with ``indices``, or None; of several
    rows with one pair they are the first row's. ``events`` has all rows of the source in the order they happened, or
    None where there is no such order, as in a matrix. ``notes`` say what the reading left out.
    """

    indptr: np.ndarray
    indices: np.ndarray
    users: IdMap
    items: IdMap
    weight: np.ndarray | None = None
    timestamp: np.ndarray | None = None
    notes: Notes = NO_NOTES
    events: Events | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        return f"Interactions({self.n_users} users, {self.n_items} items, {len(self)} interactions)"

    @property
    def n_users(self) -> int:
        return len(self.users)

    @property
    def n_items(self) -> int:
        return len(self.items)

    @property
    def counts(self) -> np.ndarray:
        """Interactions of each user, (n_users,)."""
        return np.diff(self.indptr)

    @property
    def item_counts(self) -> np.ndarray:
        """Interactions of each item, (n_items,)."""
        return np.bincount(self.indices, minlength=self.n_items)

    def rows(self) -> np.ndarray:
        """User of each interaction, (n,)."""
        return np.repeat(np.arange(self.n_users), self.counts)

    def ragged(self) -> Ragged:
        """The items of each user as tensors that share this object's memory: do not write to them."""
        return Ragged(*(torch.from_numpy(x if x.flags.writeable else x.copy()) for x in (self.indptr, self.indices)))

    def where(self, mask: np.ndarray) -> Interactions:
        """The interactions under ``mask (n,)`` and their events, with the same id maps."""
        events = None if self.events is None else self.events.where(np.append(mask, False)[self._pair_of_event])
        return self._taken(bounds(mask)[self.indptr], mask, events)

    @cached_property
    def _pair_of_event(self) -> np.ndarray:
        """Which interaction each event is of, (m,); n for one whose pair another part of a split has."""
        keys, wanted = self.keys(), self.event_keys()
        places = np.searchsorted(keys, wanted)
        return np.where(np.append(keys, -1)[places] == wanted, places, len(self))

    def of_users(self, start: int, stop: int) -> Interactions:
        """The interactions and events of the users ``start`` to ``stop``, numbered from 0; nothing is copied."""
        first, last = int(self.indptr[start]), int(self.indptr[stop])
        weight, timestamp = (None if x is None else x[first:last] for x in (self.weight, self.timestamp))
        events = None if self.events is None else self.events.of_users(start, stop)
        indptr, users = self.indptr[start : stop + 1] - first, IdMap.range(stop - start)
        return Interactions(indptr, self.indices[first:last], users, self.items, weight, timestamp, events=events)

    def none(self) -> Interactions:
        """No interactions, with the same id maps."""
        events = None if self.events is None else self.events.none()
        return self._taken(np.zeros_like(self.indptr), slice(0, 0), events)

    def _taken(self, indptr: np.ndarray, chosen: np.ndarray | slice, events: Events | None) -> Interactions:
        weight, timestamp = (None if x is None else x[chosen] for x in (self.weight, self.timestamp))
        return Interactions(indptr, self.indices[chosen], self.users, self.items, weight, timestamp, events=events)

    def keys(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """One number for each interaction of the users ``start`` to ``stop``, ascending.

        The same in all sets over the same id maps.
        """
        indptr = self.indptr[start : None if stop is None else stop + 1]
        rows = np.repeat(np.arange(start, start + len(indptr) - 1), np.diff(indptr))
        return rows * max(self.n_items, 1) + self.indices[indptr[0] : indptr[-1]]

    def event_keys(self) -> np.ndarray:
        """The :meth:`keys` of the pair of each event, (m,)."""
        assert self.events is not None
        return self.events.rows() * max(self.n_items, 1) + self.events.indices

    def without(self, *others: Interactions) -> Interactions:
        """The interactions that none of the others holds; each of theirs must be here."""
        if sum(map(len, others)) == len(self):
            return self.none()
        is_left, keys = np.ones(len(self), dtype=bool), self.keys()
        for other in others:
            is_left[np.searchsorted(keys, other.keys())] = False
        return self.where(is_left)

    def to_frame(self, *, events: bool = False) -> pl.DataFrame:
        """Table of external ids: ``user``, ``item`` and, where known, ``weight`` and ``timestamp``.

        One row per pair; with ``events`` one row per event, in the order it happened for each user.
        """
        rows = self if not events else self.events
        if rows is None:
            raise DataError("these interactions have no events: their source has no order. Leave out events=True.")
        ids = {"user": self.users.values.gather(rows.rows()), "item": self.items.values.gather(rows.indices)}
        columns: dict[str, Any] = {**ids, "weight": rows.weight, "timestamp": rows.timestamp}
        return pl.DataFrame({name: values for name, values in columns.items() if values is not None})

    def to_csr(self) -> sparse.csr_array:
        """A SciPy matrix, users by items, of the weights, or of ones where there are none.

        :meth:`from_csr` reads it again, but for weights of 0, which are no interactions there.
        """
        values = np.ones(len(self), dtype=np.float32) if self.weight is None else self.weight
        return sparse.csr_array((values, self.indices, self.indptr), shape=(self.n_users, self.n_items), copy=True)

    @classmethod
    def from_frame(cls, frame: Any, **columns: Unpack[ColumnNames]) -> Interactions:
        """From a Polars or pandas frame; columns not named are guessed, ``"none"`` leaves one out.

        Dense indices follow the sorted ids. Of several rows with one pair the first gives the weight and the time;
        ``notes`` count the others, and ``events`` keep them. ``dates`` is ``"day-first"`` or ``"month-first"``, for
        text such as 12/01/2020.
        """
        table, notes = canonical(of_frame(frame, "the table"), Columns(**columns), "the table")
        return cls.from_canonical(table, notes=notes)

    @classmethod
    def from_canonical(
        cls, table: pl.DataFrame, users: IdMap | None = None, items: IdMap | None = None, notes: Notes = NO_NOTES
    ) -> Interactions:
        """From a checked table with our column names, such as :func:`read` returns; ids not given are those in it."""
        users = IdMap.sorted_from(table["user"]) if users is None else users
        items = IdMap.sorted_from(table["item"]) if items is None else items
        values = (table[name].to_numpy() if name in table.columns else None for name in ("weight", "timestamp"))
        data = cls.from_indices(users.index(table["user"]), items.index(table["item"]), users, items, *values)
        return replace(data, notes=notes + replace(data.notes, rows=0 if notes.rows else len(table)))

    @classmethod
    def from_csr(cls, matrix: Any) -> Interactions:
        """From a SciPy sparse matrix or a 2-D array, users by items; ids are the row and column numbers.

        Zeros, stored or not, are no interactions, and neither are NaN and masked cells, which are unknown. The other
        values become weights, unless all of them are 1.
        """
        cells = cells_of(matrix)
        users, items = (IdMap.range(n) for n in cells.shape)
        weight = None if (cells.values == 1).all() else cells.values
        data = cls.from_indices(cells.rows, cells.cols, users, items, weight=weight)
        return replace(data, notes=replace(data.notes, unknown_cells=cells.n_unknown), events=None)

    @classmethod
    def from_indices(
        cls,
        rows: np.ndarray,
        cols: np.ndarray,
        users: IdMap,
        items: IdMap,
        weight: np.ndarray | None = None,
        timestamp: np.ndarray | None = None,
    ) -> Interactions:
        """From dense indices, one pair per event; of several equal pairs the first is kept, and all are ``events``."""
        rows, cols = _checked_index("user", rows, len(users)), _checked_index("item", cols, len(items))
        if len(rows) != len(cols):
            raise DataError(f"rows and cols must be of the same length, got {len(rows)} and {len(cols)}.")
        weight, timestamp = _values("weight", weight, len(rows)), _values("timestamp", timestamp, len(rows))
        order = by_user(rows, len(users))
        indptr = bounds(np.bincount(rows, minlength=len(users)))
        n_rows, cols = len(rows), cols[order]
        weight, timestamp = (None if x is None else x[order] for x in (weight, timestamp))
        del rows, order  # of millions of rows, each takes as much as the result
        key = np.repeat(np.arange(len(users)) * max(len(items), 1), np.diff(indptr)) + cols
        order = np.argsort(key, kind="stable")  # quick, for users are in order; of equal pairs the first stays first
        key = key[order]
        is_first = np.append(True, key[1:] != key[:-1]) if len(key) else np.zeros(0, dtype=bool)
        first = order[is_first]
        del key, order
        notes, events = Notes(repeats=n_rows - len(first), rows=n_rows), Events.in_time(indptr, cols, timestamp, weight)
        weight, timestamp = (None if x is None else x[first] for x in (weight, timestamp))
        return cls(bounds(is_first)[indptr], cols[first], users, items, weight, timestamp, notes, events)


def _values(name: str, values: Any, n: int) -> np.ndarray | None:
    """Weights as float32 or times as int64 or float64, one finite number for each of n pairs."""
    if values is None:
        return None
    values = np.asarray(values)
    if values.shape != (n,):
        raise DataError(f"{name} must have one value for each of the {n} interactions, got shape {values.shape}.")
    most = LARGEST_RATING if name == "weight" else np.finfo(np.float64).max
    if n and values.dtype.kind == "f" and not (-most <= values.min() and values.max() <= most):  # NaN fails too
        place = int(np.argmin(np.abs(values) <= most))
        raise DataError(f"{name} must be finite, got {values[place]} in place {place}.")
    dtype = np.float32 if name == "weight" else np.float64 if values.dtype.kind == "f" else np.int64
    return values.astype(dtype, copy=False)


def _checked_index(name: str, index: Any, size: int) -> np.ndarray:
    """Dense indices as int64, all of them inside the map: compiled code follows them without looking."""
    index = np.asarray(index)
    if index.ndim != 1 or (index.size and index.dtype.kind not in "iu"):
        raise DataError(
            f"{name} indices must be whole numbers in one dimension, got {index.dtype} of shape {index.shape}."
        )
    is_outside = (index < 0) | (index >= size)
    if is_outside.any():
        raise DataError(f"{name} index {index[is_outside][0]} is outside the {size} known {name}s (0 to {size - 1}).")
    return index.astype(np.int64, copy=False)


def concatenate(first: Interactions, *others: Interactions) -> Interactions:
    """All interactions and events of several sets over the same id maps, such as train and validation."""
    sets = (first, *others)
    for name, other in itertools.product(("users", "items"), others):
        one, two = getattr(first, name), getattr(other, name)
        if one is not two and not one.values.equals(two.values):
            raise DataError(f"only interactions over the same {name} can be concatenated, got {one} and {two}.")
    rows, cols = (np.concatenate(parts) for parts in ([s.rows() for s in sets], [s.indices for s in sets]))
    values = (all_of(sets, name) for name in ("weight", "timestamp"))
    data = Interactions.from_indices(rows, cols, first.users, first.items, *values)
    events = [some.events for some in sets if some.events is not None]
    is_known = all(some.events is not None for some in sets if len(some))
    return replace(data, events=concatenate_events(events) if events and is_known else None)
