"""Sequences of items in the order they happened: the batches of next-item training, and the tables they are packed in.

A query is a position of a sequence: given the items up to it, which one comes next? A batch has the sequences packed,
one row per position, so that no padding goes through a network or meets the catalogue.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf.queries import Batch
from topshelf.ragged import Ragged

# Sequences of one group are at most this many times as long as its shortest: more groups pad less, but are smaller.
SPREAD = 1.34


@dataclass(frozen=True, eq=False)
class SequenceBatch(Batch):
    """Positions of sequences as queries, Q = P, each with the item that comes next as its only positive.

    ``inputs``: the sequences, shortest first; their items one after another are the Q positions.
    """

    inputs: Ragged | None = None

    @property
    def sequences(self) -> Ragged:
        assert self.inputs is not None
        return self.inputs


class Group(NamedTuple):
    """Sequences of about one length, as a part of the packed rows and as a padded table."""

    rows: slice  # among the packed rows
    n: int  # sequences
    length: int  # of the longest
    place: Tensor | None  # (n * length,), the row, counted from rows.start, of each cell; None if nothing is padded
    real: Tensor | None  # the cells that are no padding, in the order of the rows


@dataclass(frozen=True, eq=False)
class Packed:
    """Sequences, none of them empty and shortest first, one row per item."""

    lists: Ragged

    @cached_property
    def position(self) -> Tensor:
        """The place of each row in its sequence, from 0, (P,)."""
        return _places(self.lists)

    @cached_property
    def from_end(self) -> Tensor:
        """The place of each row counted from the end of its sequence, (P,)."""
        return from_end(self.lists)

    @property
    def last(self) -> Tensor:
        """The last row of each sequence, (B,)."""
        return self.lists.indptr[1:] - 1

    @cached_property
    def groups(self) -> list[Group]:
        lengths = self.lists.counts.tolist()
        groups, start = [], 0
        for stop in range(1, len(lengths) + 1):
            if stop == len(lengths) or lengths[stop] > SPREAD * lengths[start]:
                groups.append(self._group(start, stop, lengths[stop - 1]))
                start = stop
        return groups

    def _group(self, start: int, stop: int, length: int) -> Group:
        part = self.lists.slice(start, stop)
        rows, n = slice(int(self.lists.indptr[start]), int(self.lists.indptr[stop])), stop - start
        if part.indices.numel() == n * length:
            return Group(rows, n, length, None, None)
        cells = torch.arange(length, device=part.indptr.device)
        # Padding is at the end, where no real position looks: any row will do for it, here the sequence's last.
        place = torch.minimum(part.indptr[:-1, None] + cells, part.indptr[1:, None] - 1).flatten()
        real = (cells < part.counts[:, None]).flatten().nonzero().squeeze(1)
        return Group(rows, n, length, place, real)


def padded(rows: Tensor, group: Group) -> Tensor:
    """The rows (P, d) of a group as a table (n, length, d)."""
    part = rows[group.rows]
    if group.place is not None:
        part = F.embedding(group.place, part)
    return part.reshape(group.n, group.length, -1)


def unpadded(table: Tensor, group: Group) -> Tensor:
    """A table (n, length, d) as the rows of its group."""
    rows = table.reshape(group.n * group.length, -1)
    return rows if group.real is None else rows.index_select(0, group.real)


def latest(lists: Ragged, n: int) -> Ragged:
    """The last ``n`` entries of each list, or all of a shorter one."""
    counts = lists.counts
    if not counts.numel() or int(counts.max()) <= n:
        return lists
    return lists.where(from_end(lists) < n)


def _places(lists: Ragged) -> Tensor:
    starts = torch.repeat_interleave(lists.indptr[:-1], lists.counts, output_size=lists.indices.numel())
    return torch.arange(lists.indices.numel(), device=lists.indices.device) - starts


def from_end(lists: Ragged) -> Tensor:
    """The place of each entry counted from the end of its list, 0 for the last, (P,)."""
    counts = lists.counts
    return torch.repeat_interleave(counts, counts, output_size=lists.indices.numel()) - 1 - _places(lists)
