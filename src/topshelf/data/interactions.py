"""Interactions in compressed rows."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import torch
from scipy import sparse

from topshelf.data.columns import LARGEST_RATING, canonical
from topshelf.data.frames import of_frame
from topshelf.data.ids import IdMap
from topshelf.data.memory import available, size
from topshelf.data.names import Columns
from topshelf.data.notes import NO_NOTES, Notes
from topshelf.errors import DataError
from topshelf.ragged import Ragged


@dataclass(frozen=True, eq=False)
class Interactions:
    """Who took what: row ``u`` is ``indices[indptr[u]:indptr[u + 1]]``, sorted and unique.

    ``indptr (n_users + 1,)`` and ``indices (n,)`` are int64. ``weight`` (ratings, float32) and ``timestamp``
    (int64 or float64 seconds) are aligned with ``indices``, or None. ``notes`` say what the reading left out.
    """

    indptr: np.ndarray
    indices: np.ndarray
    users: IdMap
    items: IdMap
    weight: np.ndarray | None = None
    timestamp: np.ndarray | None = None
    notes: Notes = NO_NOTES

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
        """The interactions under ``mask (n,)``, with the same id maps."""
        running = np.concatenate([[0], np.cumsum(mask, dtype=np.int64)])
        return Interactions(
            running[self.indptr],
            self.indices[mask],
            self.users,
            self.items,
            None if self.weight is None else self.weight[mask],
            None if self.timestamp is None else self.timestamp[mask],
        )

    def none(self) -> Interactions:
        """No interactions, with the same id maps."""
        return self.where(np.zeros(len(self), dtype=bool))

    def keys(self) -> np.ndarray:
        """One number for each interaction, ascending, (n,): the same in all sets over the same id maps."""
        return self.rows() * max(self.n_items, 1) + self.indices

    def without(self, *others: Interactions) -> Interactions:
        """The interactions that none of the others holds; each of theirs must be here."""
        if sum(map(len, others)) == len(self):
            return self.none()
        is_left, keys = np.ones(len(self), dtype=bool), self.keys()
        for other in others:
            is_left[np.searchsorted(keys, other.keys())] = False
        return self.where(is_left)

    def to_frame(self) -> pl.DataFrame:
        """Table of external ids: ``user``, ``item`` and, where known, ``weight`` and ``timestamp``."""
        columns: dict[str, Any] = {
            "user": self.users.values.gather(self.rows()),
            "item": self.items.values.gather(self.indices),
        }
        if self.weight is not None:
            columns["weight"] = self.weight
        if self.timestamp is not None:
            columns["timestamp"] = self.timestamp
        return pl.DataFrame(columns)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        user: str | None = None,
        item: str | None = None,
        weight: str | None = None,
        timestamp: str | None = None,
        dates: str | None = None,
    ) -> Interactions:
        """From a Polars or pandas frame; columns not named are guessed, ``"none"`` leaves one out.

        Dense indices follow the sorted ids. Of several rows with the same user and item the first is kept; ``notes``
        count the others. ``dates`` is ``"day-first"`` or ``"month-first"``, for text such as 12/01/2020.
        """
        table, notes = canonical(
            of_frame(frame, "the table"), Columns(user, item, weight, timestamp, dates), "the table"
        )
        return cls.from_canonical(table, IdMap.sorted_from(table["user"]), IdMap.sorted_from(table["item"]), notes)

    @classmethod
    def from_canonical(
        cls, table: pl.DataFrame, users: IdMap, items: IdMap, notes: Notes | None = None
    ) -> Interactions:
        """From a checked table with our column names (see ``columns.canonical``) and given id maps."""
        extra = {name: table[name].to_numpy() for name in ("weight", "timestamp") if name in table.columns}
        found = cls.from_indices(users.index(table["user"]), items.index(table["item"]), users, items, **extra)
        return found if notes is None else replace(found, notes=notes + replace(found.notes, rows=0))

    @classmethod
    def from_csr(cls, matrix: Any) -> Interactions:
        """From a SciPy sparse matrix or a 2-D array, users by items; ids are the row and column numbers.

        Zeros, stored or not, are no interactions, and neither are NaN and masked cells, which are unknown. The other
        values become weights, unless all of them are 1.
        """
        table = _cells(matrix)
        is_unknown = np.isnan(table.data) if table.data.dtype.kind == "f" else np.zeros(table.data.shape, dtype=bool)
        kept = (table.data != 0) & ~is_unknown
        if not kept.any():
            raise DataError(f"matrix must hold at least one interaction, got none in shape {table.shape}.")
        rows, cols, values = table.coords[0][kept], table.coords[1][kept], table.data[kept]
        beyond = np.abs(values.astype(np.float64)) > LARGEST_RATING
        if beyond.any():
            place = int(beyond.argmax())
            raise DataError(
                f"matrix must hold finite numbers up to {LARGEST_RATING:.3g}, got {values[place]} in row "
                f"{rows[place]}, column {cols[place]}. Put NaN where a value is unknown."
            )
        if 8 * sum(table.shape) > (free := available()):
            raise DataError(f"matrix of shape {table.shape} has more ids than fit into memory ({size(free)} are free).")
        users, items = IdMap.range(table.shape[0]), IdMap.range(table.shape[1])
        weight = None if (values == 1).all() else values
        found = cls.from_indices(rows, cols, users, items, weight=weight)
        return replace(found, notes=replace(found.notes, unknown_cells=int(is_unknown.sum())))

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
        """From dense indices in any order; of several equal pairs the first is kept."""
        rows, cols = _checked_index("user", rows, len(users)), _checked_index("item", cols, len(items))
        if len(rows) != len(cols):
            raise DataError(f"rows and cols must be of the same length, got {len(rows)} and {len(cols)}.")
        weight, timestamp = _values("weight", weight, len(rows)), _values("timestamp", timestamp, len(rows))
        key = rows * max(len(items), 1) + cols
        order = np.argsort(key, kind="stable")  # stable: the first of equal pairs stays first
        key = key[order]
        order = order[np.concatenate([[True], key[1:] != key[:-1]])] if len(key) else order
        indptr = np.concatenate([[0], np.cumsum(np.bincount(rows[order], minlength=len(users)))])
        return cls(
            indptr.astype(np.int64),
            cols[order],
            users,
            items,
            None if weight is None else weight[order].astype(np.float32),
            None if timestamp is None else _seconds(timestamp[order]),
            Notes(repeats=len(rows) - len(order), rows=len(rows)),
        )


def _cells(matrix: Any) -> sparse.coo_array:
    """The cells of a matrix of real numbers; its indices are checked before compiled code follows them."""
    try:
        if sparse.issparse(matrix):
            if hasattr(matrix, "check_format"):
                matrix.check_format(full_check=True)
        else:
            hidden = np.ma.getmaskarray(matrix) if np.ma.isMaskedArray(matrix) else None
            matrix = np.asarray(matrix) if hidden is None else np.where(hidden, 0, np.asarray(matrix))
        if matrix.ndim != 2:
            raise DataError(f"matrix must have 2 dimensions (users, items), got {matrix.ndim}.")
        if matrix.dtype.kind not in "biuf":
            raise DataError(f"matrix must hold real numbers, got {matrix.dtype}.")
        return sparse.coo_array(matrix)
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        raise DataError(f"matrix cannot be read: {error}. It must hold numbers, users by items.") from error


def _values(name: str, values: Any, n: int) -> np.ndarray | None:
    """Weights or times beside n pairs: one finite number each."""
    if values is None:
        return None
    values = np.asarray(values)
    if values.shape != (n,):
        raise DataError(f"{name} must have one value for each of the {n} interactions, got shape {values.shape}.")
    most = LARGEST_RATING if name == "weight" else np.finfo(np.float64).max
    if n and values.dtype.kind == "f" and not (-most <= values.min() and values.max() <= most):  # NaN fails too
        place = int(np.argmin(np.abs(values) <= most))
        raise DataError(f"{name} must be finite, got {values[place]} in place {place}.")
    return values


def _seconds(timestamp: np.ndarray) -> np.ndarray:
    return timestamp.astype(np.float64 if timestamp.dtype.kind == "f" else np.int64)


def _checked_index(name: str, index: Any, size: int) -> np.ndarray:
    """Dense indices as int64, all of them inside the map: compiled code follows them without looking."""
    index = np.asarray(index)
    if index.ndim != 1 or (index.size and index.dtype.kind not in "iu"):
        raise DataError(
            f"{name} indices must be whole numbers in one dimension, got {index.dtype} of shape {index.shape}."
        )
    if index.dtype == np.uint64 and index.size and index.max() >= 2**63:
        raise DataError(f"{name} index {index.max()} is outside the {size} known {name}s (0 to {size - 1}).")
    index = index.astype(np.int64, copy=False)
    _check_range(name, index, size)
    return index


def _check_range(name: str, index: np.ndarray, size: int) -> None:
    if len(index) and not (index.min() >= 0 and index.max() < size):
        wrong = index[(index < 0) | (index >= size)][0]
        raise DataError(f"{name} index {wrong} is outside the {size} known {name}s (0 to {size - 1}).")


def merge(first: Interactions, *others: Interactions) -> Interactions:
    """All interactions of several sets over the same id maps, such as train and validation."""
    sets = (first, *others)
    for name, other in itertools.product(("users", "items"), others):
        one, two = getattr(first, name), getattr(other, name)
        if one is not two and not one.values.equals(two.values):
            raise DataError(f"only interactions over the same {name} can be merged, got {one} and {two}.")

    def all_of(name: str) -> np.ndarray | None:
        parts = [getattr(some, name) for some in sets]
        return None if any(part is None for part in parts) else np.concatenate(parts)

    return Interactions.from_indices(
        np.concatenate([some.rows() for some in sets]),
        np.concatenate([some.indices for some in sets]),
        first.users,
        first.items,
        all_of("weight"),
        all_of("timestamp"),
    )
