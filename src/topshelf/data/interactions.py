"""Interactions in compressed rows, and the maps between external ids and dense indices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import torch
from scipy import sparse

from topshelf.data.columns import Columns, canonical, narrow, plain_frame
from topshelf.errors import DataError
from topshelf.ragged import Ragged


class IdMap:
    """Dense index to external id and back. Ids are integers or text; others (UUIDs) become text."""

    def __init__(self, values: pl.Series) -> None:
        values = narrow(values)
        self.values = (values if values.dtype == pl.Int64 else values.cast(pl.String)).alias("id")
        if self.values.null_count() or self.values.n_unique() != len(self.values):
            raise DataError(f"ids must be unique and present, got {len(values)} of which {values.n_unique()} differ.")

    @classmethod
    def range(cls, n: int) -> IdMap:
        """The ids 0 to n - 1, each its own index."""
        return cls(pl.int_range(n, eager=True))

    @classmethod
    def sorted_from(cls, ids: pl.Series) -> IdMap:
        """Distinct ids in order: integers by value, text by character (so "10" comes before "9")."""
        return cls(ids.unique().sort())

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"IdMap({len(self)} ids, {self.values.dtype})"

    def ids(self, index: Any) -> list[Any]:
        """External ids of dense indices."""
        return self.values.gather(np.asarray(index, dtype=np.int64).ravel()).to_list()

    def index(self, ids: Any) -> np.ndarray:
        """Dense indices of external ids, or of one id; an unknown id is an error."""
        if isinstance(ids, (str, int, float, np.generic)):
            ids = [ids]
        elif not hasattr(ids, "__len__"):
            ids = list(ids)  # named again in the message
        wanted = self._series(ids)
        numbered = pl.DataFrame({"id": self.values}).with_row_index("index")
        found = pl.DataFrame({"id": wanted}).join(numbered, on="id", how="left", maintain_order="left")["index"]
        if found.null_count():
            unknown = [value for value, is_unknown in zip(ids, found.is_null(), strict=True) if is_unknown]
            first = ", ".join(repr(value) for value in unknown[:5])
            raise DataError(
                f"{len(unknown)} of {len(wanted)} ids are unknown, such as {first}. "
                f"The {len(self)} known ids are like {self.ids(range(min(3, len(self))))}."
            )
        return found.cast(pl.Int64).to_numpy()

    def get(self, id: Any) -> int | None:
        """Dense index of one id, or None."""
        key = self._key(id)
        return None if key is None else self._positions.get(key)

    @cached_property
    def _positions(self) -> dict[Any, int]:
        return {value: position for position, value in enumerate(self.values.to_list())}

    def _key(self, id: Any) -> Any:
        if self.values.dtype == pl.String:
            return str(id)
        try:  # the command line and HTTP hand over integer ids as text
            key = int(id)
        except (TypeError, ValueError, OverflowError):
            return None
        # int() rounds 4.9 down and reads "4_0" as 40; neither is an id of ours.
        is_same = "_" not in id if isinstance(id, str) else bool(key == id)
        return key if is_same and -(2**63) <= key < 2**63 else None

    def _series(self, ids: Any) -> pl.Series:
        if isinstance(ids, pl.Series) and (ids.dtype.is_integer() or ids.dtype == pl.String):
            return ids.cast(self.values.dtype, strict=False)
        if isinstance(ids, np.ndarray) and ids.dtype.kind in "iu":
            return pl.Series(ids).cast(self.values.dtype, strict=False)
        return pl.Series([self._key(value) for value in ids], dtype=self.values.dtype)


@dataclass(frozen=True, eq=False)
class Interactions:
    """Who took what: row ``u`` is ``indices[indptr[u]:indptr[u + 1]]``, sorted and unique.

    ``indptr (n_users + 1,)`` and ``indices (n,)`` are int64. ``weight`` (ratings, float32) and ``timestamp``
    (int64 or float64 seconds) are aligned with ``indices``, or None.
    """

    indptr: np.ndarray
    indices: np.ndarray
    users: IdMap
    items: IdMap
    weight: np.ndarray | None = None
    timestamp: np.ndarray | None = None

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
    ) -> Interactions:
        """From a Polars or pandas frame; columns not named are guessed, ``"none"`` leaves one out.

        Dense indices follow the sorted ids. Of several rows with the same user and item the first is kept.
        """
        wanted = Columns(user, item, weight, timestamp)
        table = canonical(plain_frame(frame, wanted, "the table"), wanted, "the table")
        return cls.from_canonical(table, IdMap.sorted_from(table["user"]), IdMap.sorted_from(table["item"]))

    @classmethod
    def from_canonical(cls, table: pl.DataFrame, users: IdMap, items: IdMap) -> Interactions:
        """From a checked table with our column names (see ``columns.canonical``) and given id maps."""
        extra = {name: table[name].to_numpy() for name in ("weight", "timestamp") if name in table.columns}
        return cls.from_indices(users.index(table["user"]), items.index(table["item"]), users, items, **extra)

    @classmethod
    def from_csr(cls, matrix: Any) -> Interactions:
        """From a SciPy sparse matrix or a 2-D array, users by items; ids are the row and column numbers.

        Stored zeros are no interactions. The other values become weights, unless all of them are 1.
        """
        if np.ndim(matrix) != 2 and not sparse.issparse(matrix):
            raise DataError(f"matrix must have 2 dimensions (users, items), got {np.ndim(matrix)}.")
        table = sparse.coo_array(matrix)
        kept = table.data != 0
        if not kept.any():
            raise DataError(f"matrix must hold at least one interaction, got none in shape {table.shape}.")
        users, items = IdMap.range(table.shape[0]), IdMap.range(table.shape[1])
        weight = None if (table.data[kept] == 1).all() else table.data[kept]
        return cls.from_indices(table.coords[0][kept], table.coords[1][kept], users, items, weight=weight)

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
        rows, cols = np.asarray(rows, dtype=np.int64), np.asarray(cols, dtype=np.int64)
        _check_range("user", rows, len(users))
        _check_range("item", cols, len(items))
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
            None if weight is None else np.asarray(weight)[order].astype(np.float32),
            None if timestamp is None else _seconds(np.asarray(timestamp)[order]),
        )


def _seconds(timestamp: np.ndarray) -> np.ndarray:
    return timestamp.astype(np.float64 if timestamp.dtype.kind == "f" else np.int64)


def _check_range(name: str, index: np.ndarray, size: int) -> None:
    if len(index) and not (index.min() >= 0 and index.max() < size):
        wrong = index[(index < 0) | (index >= size)][0]
        raise DataError(f"{name} index {wrong} is outside the {size} known {name}s (0 to {size - 1}).")


def merge(first: Interactions, *others: Interactions) -> Interactions:
    """All interactions of several sets over the same id maps, such as train and validation."""
    sets = (first, *others)

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
