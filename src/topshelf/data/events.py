"""What happened, row by row: repeats, order and times, which the sorted pairs of Interactions do not keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse

from topshelf.errors import DataError
from topshelf.ragged import Ragged
from topshelf.reprs import brief


@dataclass(frozen=True, eq=False)
class Events:
    """Every event, user by user in the order it happened: user ``u`` has ``indices[indptr[u]:indptr[u + 1]]``.

    The order is that of the times; equal times, and events without times, are in the order of the source.
    ``indptr (n_users + 1,)`` is int64 and ``indices (m,)`` int32, or int64 where the items are too many.
    ``timestamp`` (int64 or float64) and ``weight`` (float32) are aligned with ``indices``, or None.
    """

    indptr: np.ndarray
    indices: np.ndarray
    timestamp: np.ndarray | None = None
    weight: np.ndarray | None = None

    def __repr__(self) -> str:
        return brief(self)

    @classmethod
    def in_time(
        cls, indptr: np.ndarray, indices: np.ndarray, timestamp: np.ndarray | None, weight: np.ndarray | None
    ) -> Events:
        """From events that are user by user in the order of the source; times, where there are any, decide first."""
        small = indices.astype(np.int32 if not len(indices) or indices.max() < 2**31 else np.int64, copy=False)
        if timestamp is None:
            return cls(indptr, small, None, weight)
        order = _by_time(indptr, timestamp)
        return cls(indptr, small[order], timestamp[order], None if weight is None else weight[order])

    def __len__(self) -> int:
        return len(self.indices)

    def rows(self) -> np.ndarray:
        """User of each event, (m,)."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))

    def ragged(self) -> Ragged:
        """The items of each user in order, repeats included, as tensors."""
        return Ragged(torch.from_numpy(self.indptr.copy()), torch.from_numpy(self.indices.astype(np.int64)))

    def times(self) -> torch.Tensor | None:
        return None if self.timestamp is None else torch.from_numpy(self.timestamp.copy())

    def where(self, mask: np.ndarray) -> Events:
        """The events under ``mask (m,)``, in the same order."""
        return self._taken(bounds(mask)[self.indptr], mask)

    def of_users(self, start: int, stop: int) -> Events:
        """The events of the users ``start`` to ``stop``; nothing is copied."""
        first, last = int(self.indptr[start]), int(self.indptr[stop])
        return self._taken(self.indptr[start : stop + 1] - first, slice(first, last))

    def none(self) -> Events:
        """No events, of the same users."""
        return self._taken(np.zeros_like(self.indptr), slice(0, 0))

    def _taken(self, indptr: np.ndarray, chosen: np.ndarray | slice) -> Events:
        timestamp, weight = (None if x is None else x[chosen] for x in (self.timestamp, self.weight))
        return Events(indptr, self.indices[chosen], timestamp, weight)

    def over(self, is_user: np.ndarray, item: np.ndarray) -> Events:
        """The same events over fewer users and items: the users under ``is_user``, items renumbered by ``item``."""
        indptr = bounds(np.diff(self.indptr)[is_user])
        return Events(indptr, item[self.indices].astype(self.indices.dtype), self.timestamp, self.weight)

    def check(self, n_users: int, n_items: int, name: str) -> Events:
        """These events, or a DataError that says what is wrong with ``name``: for files, which may be damaged."""
        indices = torch.from_numpy(self.indices)
        lists = Ragged(torch.from_numpy(self.indptr), indices.long() if indices.is_floating_point() else indices)
        lists.check(n_items, name, n_lists=n_users)
        kinds = {"indices": (np.int32, np.int64), "timestamp": (np.int64, np.float64), "weight": (np.float32,)}
        for column, dtypes in kinds.items():
            if (values := getattr(self, column)) is None:
                continue
            if values.dtype not in dtypes or values.shape != self.indices.shape or not np.isfinite(values).all():
                shape = f"{values.dtype} of shape {values.shape}"
                raise DataError(f"{name} must have one finite number per event in {column}, got {shape}")
        if self.timestamp is not None:
            falls = self.timestamp[1:] < self.timestamp[:-1]
            starts = self.indptr[1:-1]
            falls[starts[(starts > 0) & (starts < len(self))] - 1] = False  # from one user to the next
            if falls.any():
                raise DataError(
                    f"{name} must be in the order of their times for each user, got event {falls.argmax() + 1}"
                )
        return self


def concatenate_events(parts: Sequence[Events]) -> Events:
    """All events of several sets over the same users; at equal times those of the earlier set come first."""
    if sum(len(part) > 0 for part in parts) < 2:
        return max(parts, key=len)
    rows = np.concatenate([part.rows() for part in parts])
    order = by_user(rows, len(parts[0].indptr) - 1)
    columns = (np.concatenate([part.indices for part in parts]), all_of(parts, "timestamp"), all_of(parts, "weight"))
    indptr = sum(part.indptr for part in parts)
    return Events.in_time(np.asarray(indptr), *(None if x is None else x[order] for x in columns))  # type: ignore[arg-type]


def all_of(parts: Sequence[Any], name: str) -> np.ndarray | None:
    """The values of one name of all parts that hold something; None where one of them has none."""
    values = [getattr(part, name) for part in parts if len(part)]
    return np.concatenate(values) if values and all(some is not None for some in values) else None


def bounds(counts: np.ndarray) -> np.ndarray:
    """Where each list begins and the last one ends, (n + 1,), from the lengths of the lists."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def by_user(rows: np.ndarray, n_users: int) -> np.ndarray:
    """The stable order of ``rows`` by user, (m,): a counting sort, many times faster than argsort."""
    n = len(rows)
    matrix = sparse.coo_array((np.ones(n, dtype=np.int8), (rows, np.arange(n))), shape=(n_users, max(n, 1)))
    order: np.ndarray = matrix.tocsr().indices
    return order


def _by_time(indptr: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The stable order by user and time of events that are in the order of users already."""
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    span = int(times.max()) - int(times.min()) + 1 if len(times) else 1
    if times.dtype.kind == "f" or span * len(indptr) >= 2**63:
        return np.lexsort((times, rows))
    # One number per event. Sorting moves events within their user only, which the stable sort does in linear time.
    rows *= span
    rows += times
    rows -= times.min()
    return np.argsort(rows, kind="stable")
