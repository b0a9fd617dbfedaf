"""Sequences in three parts: each user's events in order, cut into train, validation and test."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import torch

from topshelf.data.events import Events, bounds
from topshelf.data.ids import IdMap
from topshelf.data.interactions import Interactions
from topshelf.data.splits import Through
from topshelf.errors import ConfigError, DataError, one_of, positive
from topshelf.ragged import Ragged
from topshelf.reprs import brief, brief_tuple

SequenceKind = Literal["last", "time"]
SEQUENCE_KINDS = ("last", "time")
Targets = Literal["first", "each"]
TARGETS = ("first", "each")


class Asked(NamedTuple):
    """What is asked of held-out events: after these items, which one comes next?"""

    rows: np.ndarray  # (Q,), the user
    place: np.ndarray  # (Q,), the place of the event among the user's: all before it are known
    item: np.ndarray  # (Q,), the item of the event

    def __repr__(self) -> str:
        return brief_tuple(self)


@dataclass(frozen=True, eq=False)
class SequenceSplit:
    """Every user's events in the order they happened, with two cuts per user. Repeats are kept.

    A user's first ``train_end (U,)`` events are train, those from there to ``valid_end (U,)`` validation, the rest
    test. ``notes`` counts users and events that are not measured. ``left_out (m,)``: held-out events that nothing is
    asked of, because train does not know their item.
    """

    events: Events
    users: IdMap
    items: IdMap
    train_end: np.ndarray
    valid_end: np.ndarray
    kind: str
    notes: dict[str, int]
    left_out: np.ndarray

    def __repr__(self) -> str:
        return brief(self)

    @property
    def n_users(self) -> int:
        return len(self.users)

    @property
    def n_items(self) -> int:
        return len(self.items)

    @cached_property
    def _all(self) -> Ragged:
        return self.events.ragged()

    def sequences(self, through: Through) -> Ragged:
        """The items of each user in order, in train; in train and validation; or all."""
        if through in ("all", "below"):
            return self._all
        ends = torch.from_numpy(self.train_end if through == "train" else self.valid_end)
        owner = self._all.owner()
        place = torch.arange(owner.numel()) - self._all.indptr[:-1][owner]
        return self._all.where(place < ends[owner])

    def sets(self, through: Through) -> Ragged:
        """The same as sets of items, ascending and without repeats."""
        return as_sets(self.sequences(through), self.n_items)

    def asked(self, part: Literal["valid", "test"], targets: Targets = "first") -> Asked:
        """The held-out events of a part that are to be found: each user's "first", or "each" of them."""
        counts = np.diff(self.events.indptr)
        start, stop = (self.train_end, self.valid_end) if part == "valid" else (self.valid_end, counts)
        rows = self.events.rows()
        place = np.arange(len(rows)) - self.events.indptr[:-1][rows]
        chosen = (place >= start[rows]) & (place < stop[rows]) & ~self.left_out & (place > 0)
        if one_of("targets", targets, TARGETS) == "first":
            chosen &= place == start[rows]
        return Asked(rows[chosen], place[chosen], self.events.indices[chosen].astype(np.int64))

    def before(self, asked: Asked) -> Ragged:
        """All items of the users before the events, in order."""
        starts = self._all.indptr[torch.from_numpy(asked.rows)]
        indptr = torch.from_numpy(bounds(asked.place))
        counts = torch.from_numpy(asked.place)
        shift = torch.repeat_interleave(starts - indptr[:-1], counts)
        return Ragged(indptr, self._all.indices[shift + torch.arange(int(indptr[-1]))])

    def is_repeat(self, asked: Asked) -> np.ndarray:
        """Which of the events are of items that the user had before, (Q,)."""
        pairs, first = np.unique(self.events.rows() * self.n_items + self.events.indices, return_index=True)
        at = np.searchsorted(pairs, asked.rows * self.n_items + asked.item)
        repeats: np.ndarray = first[at] - self.events.indptr[asked.rows] < asked.place
        return repeats

    def without_test(self) -> SequenceSplit:
        """The same with no test part: its events are not there."""
        rows = self.events.rows()
        kept = np.arange(len(rows)) - self.events.indptr[:-1][rows] < self.valid_end[rows]
        return replace(self, events=self.events.where(kept), left_out=self.left_out[kept])

    def check(self) -> SequenceSplit:
        """This split, or a DataError: what a file says may be damaged, and compiled code trusts every index."""
        self.events.check(self.n_users, self.n_items, "the events")
        counts = np.diff(self.events.indptr)
        for name in ("train_end", "valid_end"):
            ends = getattr(self, name)
            if ends.dtype != np.int64 or ends.shape != counts.shape:
                raise DataError(f"{name} must be one int64 per user ({len(counts)}), got {ends.dtype} of {ends.shape}")
        if not ((self.train_end >= 0) & (self.train_end <= self.valid_end) & (self.valid_end <= counts)).all():
            raise DataError("train must end before validation, and that within the user's events")
        if self.left_out.dtype != np.bool_ or self.left_out.shape != self.events.indices.shape:
            raise DataError(f"left_out must be one flag per event, got {self.left_out.dtype} of {self.left_out.shape}")
        return self


def split_sequences(
    data: Interactions,
    *,
    kind: SequenceKind = "last",
    test_fraction: float = 0.1,
    valid_fraction: float = 0.1,
    is_ordered: bool = False,
) -> SequenceSplit:
    """Cut every user's events: "last", the last one is test and the one before it validation; or by "time".

    "last" takes users with at least 3 events; those with fewer are in train whole. "time" cuts all users at the same
    two moments, so that train knows nothing of the future: about ``test_fraction`` of the events are from the second
    moment on, and ``valid_fraction`` of the others from the first. Held-out events of items that train does not know
    are then not asked for. ``is_ordered``: events without times are in order, as in a file with one user per line.
    """
    events = data.events
    if events is None or (events.timestamp is None and not is_ordered):
        raise DataError(
            "sequences need an order, and the data have no times. Name their column with --time-column (in Python "
            "timestamp=...), or, where the rows are in order already, set data.order = 'file'"
        )
    counts = np.diff(events.indptr)
    if one_of("split", kind, SEQUENCE_KINDS) == "last":
        held = counts >= 3
        train_end, valid_end = counts - 2 * held, counts - held
        if not held.any():
            raise DataError(
                f"no user has the 3 events that the split 'last' needs, one per part; the longest has {counts.max()}. "
                "Is the user column the right one?"
            )
        notes = {"short": int((~held).sum())}
    else:
        train_end, valid_end = _by_moments(events, test_fraction, valid_fraction)
        notes = {}
    return _with_notes(data, train_end, valid_end, kind, notes)


def _with_notes(
    data: Interactions, train_end: np.ndarray, valid_end: np.ndarray, kind: str, notes: dict[str, int]
) -> SequenceSplit:
    events = data.events
    assert events is not None
    rows = events.rows()
    place = np.arange(len(rows)) - events.indptr[:-1][rows]
    is_train = place < train_end[rows]
    known = np.zeros(data.n_items, dtype=bool)
    known[events.indices[is_train]] = True
    is_new = ~is_train & ~known[events.indices]
    # A split by time leaves them out, as the other splits by time do; after "last" they are asked for, and missed.
    left_out = is_new if kind == "time" else np.zeros_like(is_new)
    notes = {**notes, "one": int((train_end == 1).sum()), "none": int((train_end == 0).sum()), "new": int(is_new.sum())}
    split = SequenceSplit(events, data.users, data.items, train_end, valid_end, kind, notes, left_out)
    if not (train_end > 1).any():
        raise DataError(f"the {kind} split leaves no user with 2 events in train: there is nothing to learn from")
    return split


def _by_moments(events: Events, test_fraction: float, valid_fraction: float) -> tuple[np.ndarray, np.ndarray]:
    times = events.timestamp
    if times is None:
        raise DataError("the split 'time' needs times, and the data have none. Use data.split = 'last'")
    for name, value in (("test_fraction", test_fraction), ("valid_fraction", valid_fraction)):
        if not positive(name, value) < 1:
            raise ConfigError(f"{name} must be < 1, got {value!r}")
    second = np.quantile(times, 1 - test_fraction, method="higher")
    first = (
        np.quantile(times[times < second], 1 - valid_fraction, method="higher") if (times < second).any() else second
    )
    ends = [np.add.reduceat(np.append(times < moment, False), events.indptr[:-1]) for moment in (first, second)]
    is_none = np.diff(events.indptr) == 0
    train_end, valid_end = (np.where(is_none, 0, end).astype(np.int64) for end in ends)
    if not train_end.any():
        raise DataError("a split by time needs at least three different moments; use data.split = 'last'")
    return train_end, valid_end


def as_sets(lists: Ragged, n_items: int) -> Ragged:
    """The lists as sets: ascending and without repeats."""
    keys = torch.unique(lists.owner() * max(n_items, 1) + lists.indices)
    counts = torch.bincount(keys // max(n_items, 1), minlength=len(lists))
    indptr = torch.zeros_like(lists.indptr)
    torch.cumsum(counts, 0, out=indptr[1:])
    return Ragged(indptr, keys % max(n_items, 1))
