"""Ragged lists of item indices, one list per query: positives, seen items, excluded items, sequences."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from topshelf.errors import DataError
from topshelf.reprs import brief

MERGED = 1 << 22  # entries that are merged at once


@dataclass(frozen=True, eq=False)
class Ragged:
    """Lists of different lengths in two tensors: list ``q`` is ``indices[indptr[q]:indptr[q + 1]]``.

    ``indptr (Q + 1,)`` is int64 and ``indices (P,)`` int64, or int32 where they are mapped from a file; lists that are
    selected or sliced have int64. Whether a list is a set (ascending, without repeats) or a
    sequence (in order, repeats allowed) depends on its use; ``check(..., unique=True)`` asks for sets.
    """

    indptr: Tensor
    indices: Tensor

    def __repr__(self) -> str:
        return brief(self)

    def __len__(self) -> int:
        return self.indptr.numel() - 1

    @property
    def counts(self) -> Tensor:
        """Length of each list, (Q,)."""
        return self.indptr.diff()

    def owner(self) -> Tensor:
        """Which list each index belongs to, (P,)."""
        return torch.repeat_interleave(
            torch.arange(len(self), device=self.indptr.device), self.counts, output_size=self.indices.numel()
        )

    def select(self, rows: Tensor) -> Ragged:
        """The lists of ``rows (R,)``, in that order, by index arithmetic: no Python per row, and no copy of one row."""
        if rows.numel() == 1:
            return self.slice(row := int(rows), row + 1)
        counts = self.counts[rows]
        indptr = _bounds(counts)
        total = int(indptr[-1])
        shift = torch.repeat_interleave(self.indptr[rows] - indptr[:-1], counts, output_size=total)
        return Ragged(indptr, self.indices[shift + torch.arange(total, device=rows.device)].long())

    def checked_select(self, rows: Tensor, n_items: int, name: str) -> Ragged:
        """:meth:`select` with a :meth:`check` of those lists alone: its cost does not depend on the others.

        For lists that compiled code reads. ``rows`` must be there; types are the caller's to check.
        """
        starts, stops = self.indptr[rows], self.indptr[rows + 1]
        if bool(((starts < 0) | (stops < starts) | (stops > self.indices.numel())).any()):
            self.check(n_items, name)  # says what is wrong
        lists = self.select(rows)
        if lists.indices.numel():
            low, high = torch.aminmax(lists.indices)
            if int(low) < 0 or int(high) >= n_items:
                self.check(n_items, name)
        return lists

    def find(self, rows: Tensor, indices: Tensor) -> Tensor:
        """Where in ``self.indices`` list ``rows[i]`` holds ``indices[i]``, -1 where it does not; lists must be sets.

        A search in each list, so that it takes the memory of what is asked for, whatever the lists are.
        """
        if self.indices.numel() == 0 or indices.numel() == 0:
            return torch.full_like(indices, -1)
        last = self.indices.numel() - 1
        low, end = self.indptr[rows], self.indptr[rows + 1]
        high = end.clone()
        for _ in range(int((end - low).max()).bit_length()):
            middle = (low + high) // 2
            is_before = (low < high) & (self.indices[middle.clamp(max=last)] < indices)
            low, high = torch.where(is_before, middle + 1, low), torch.where(is_before, high, middle)
        is_here = (low < end) & (self.indices[low.clamp(max=last)] == indices) & (indices >= 0)
        return torch.where(is_here, low, -1)

    def where(self, kept: Tensor) -> Ragged:
        """The entries under ``kept (P,)``."""
        return Ragged(_bounds(kept)[self.indptr], self.indices[kept])

    def slice(self, start: int, stop: int) -> Ragged:
        """The lists ``start`` to ``stop``, without copying their indices if they are int64."""
        indptr = self.indptr[start : stop + 1]
        return Ragged(indptr - indptr[0], self.indices[int(indptr[0]) : int(indptr[-1])].long())

    def matrix(self, values: Tensor, n_columns: int) -> Tensor:
        """A sparse (CSR) matrix (Q, n_columns) with ``values (P,)`` at the indices of the lists."""
        with warnings.catch_warnings():
            # torch warns once per process; only products with dense tables are made here.
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
            size = (len(self), n_columns)
            return torch.sparse_csr_tensor(self.indptr, self.indices.long(), values, size, check_invariants=False)

    def check(self, n_items: int, name: str, *, n_lists: int | None = None, unique: bool = False) -> Ragged:
        """These lists, or a DataError that says what is wrong with ``name``: compiled code trusts every number in them.

        For where lists enter the process. ``n_lists`` is how many there must be, ``unique`` asks for ascending
        indices without repeats in each list.
        """
        self.check_shape(name, n_lists)
        first, last, total, falls = int(self.indptr[0]), int(self.indptr[-1]), self.indices.numel(), self.counts < 0
        low, high = (int(end) for end in torch.aminmax(self.indptr))
        if first != 0 or last != total or low < 0 or high > total or bool(falls.any()):
            where = f", with a step down after list {int(falls.int().argmax())}" if bool(falls.any()) else ""
            where = where or f", by {low} and {high}" * (low < 0 or high > total)  # whose differences wrapped around
            raise DataError(
                f"{name}.indptr must ascend from 0 to the number of indices ({total}), got {first} to {last}{where}"
            )
        outside = f"but there are {n_items} items (0 to {n_items - 1})" if n_items else "but there are no items"
        _refuse_first(self, (self.indices < 0) | (self.indices >= n_items), name, outside)
        if unique and total > 1:
            repeats = torch.zeros(total, dtype=torch.bool, device=self.indices.device)
            repeats[1:] = self.indices[1:] <= self.indices[:-1]
            repeats[self.indptr[:-1][self.counts > 0]] = False  # the first entry of a list has none before it
            _refuse_first(self, repeats, name, "but the items of a list must ascend without repeats")
        return self

    def check_shape(self, name: str, n_lists: int | None = None) -> None:
        """The part of :meth:`check` that reads no list: types, and how many lists there are."""
        _check_tensor(f"{name}.indptr", self.indptr, at_least=1)
        _check_tensor(f"{name}.indices", self.indices, torch.int32, at_least=0)
        if n_lists is not None and len(self) != n_lists:
            raise DataError(f"{name} must have one list per query ({n_lists}), got {len(self)} lists")

    def to(self, device: torch.device | str) -> Ragged:
        return Ragged(self.indptr.to(device), self.indices.to(device))


def _check_tensor(name: str, value: Tensor, *more: torch.dtype, at_least: int) -> None:
    got = f"{tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
    is_whole = isinstance(value, Tensor) and value.dtype in (torch.int64, *more)
    if not is_whole or value.dim() != 1 or value.numel() < at_least:
        least = f" with at least {at_least} number" if at_least else ""
        raise DataError(f"{name} must be a one-dimensional int64 tensor{least}, got {got}")


def _refuse_first(lists: Ragged, wrong: Tensor, name: str, rule: str) -> None:
    if bool(wrong.any()):
        place = int(wrong.int().argmax())
        # indptr may repeat: the list that holds a place is the last one that starts at or before it.
        row = int(torch.searchsorted(lists.indptr, place, right=True)) - 1
        raise DataError(f"{name} names item {int(lists.indices[place])} in list {row}, {rule}")


def merge(first: Ragged, *others: Ragged) -> Ragged:
    """Union of several sets of lists over the same queries, ascending; the lists must not share an index."""
    parts = (first, *others)
    indptr = torch.stack([part.indptr for part in parts]).sum(0)
    indices = torch.empty(int(indptr[-1]), dtype=first.indices.dtype, device=first.indices.device)
    start = 0
    while start < len(first):  # a range of lists at a time: sorting takes several times the memory of what is sorted
        stop = max(start + 1, int(torch.searchsorted(indptr, indptr[start] + MERGED, right=True)) - 1)
        some = [part.slice(start, stop) for part in parts]
        rows, own = torch.cat([part.owner() for part in some]), torch.cat([part.indices for part in some])
        indices[int(indptr[start]) : int(indptr[stop])] = ragged_from_pairs(rows, own, stop - start).indices
        start = stop
    return Ragged(indptr, indices)


def ragged_from_pairs(rows: Tensor, indices: Tensor, n_rows: int) -> Ragged:
    """Ascending lists from pairs (row, index), given in any order."""
    span = int(indices.max()) + 1 if indices.numel() else 1
    order = torch.argsort(rows * span + indices)
    return Ragged(_bounds(torch.bincount(rows, minlength=n_rows)), indices[order])


def _bounds(counts: Tensor) -> Tensor:
    """Where each list begins and the last one ends, (n + 1,), from the lengths of the lists."""
    indptr = torch.zeros(counts.numel() + 1, dtype=torch.int64, device=counts.device)
    torch.cumsum(counts, 0, out=indptr[1:])
    return indptr
