"""What is evaluated: who asks, what they should find, and what may be ranked.

``empty`` says what a query with nothing to find is worth. A mean depends on it, so it is named beside every number.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from topshelf import kernels
from topshelf.data import Interactions
from topshelf.errors import ConfigError, DataError, one_of
from topshelf.metrics import GAINS
from topshelf.queries import QuerySet
from topshelf.ragged import Ragged, merge
from topshelf.reprs import brief

ItemLists = Ragged | Interactions
PROTOCOLS = {"standard": "skip", "paper": "zero"}  # each with what users with nothing to find are worth
OWN_PROTOCOL = "given"
_BLOCK = 1 << 22  # numbers that a fingerprint takes at once
NEXT_ITEM = {True: "next-unseen-item", False: "next-item"}  # by whether items that the user had are left out
EMPTY = {"skip": "are left out", "zero": "count as 0", "one": "count as 1"}


@dataclass(frozen=True, eq=False)
class EvalSet:
    """The queries of an evaluation with the items they should find.

    queries     who asks; the engine takes their vectors beside it
    relevant    the items to find, per query
    grades      (P,) how relevant each of them is, >= 0, 0 being irrelevant; None: all alike
    gain        how NDCG turns a grade y into a gain: "exponential", 2^y - 1, or "linear", y
    exclude     items that are never listed, per query
    candidates  the items that are ranked, per query; None: the whole catalogue
    empty       queries with nothing to find: "skip", left out; "zero" or "one", worth 0 or 1 in every metric at K
    measured    the queries that are measured, ascending, where only some are; None: all
    protocol    the name of the rule that made these lists, shown with the numbers

    ``relevant``, ``exclude`` and ``candidates`` are sets: ascending, without repeats. A relevant item that is no
    candidate is a miss; AUC leaves it out.
    """

    queries: QuerySet
    relevant: Ragged
    grades: Tensor | None = None
    gain: str = "exponential"
    exclude: Ragged | None = None
    candidates: Ragged | None = None
    empty: str = "skip"
    protocol: str = OWN_PROTOCOL
    measured: Tensor | None = None
    _checked: tuple[object, ...] = field(default=(), repr=False)  # what was checked, so that it is checked once

    def __repr__(self) -> str:
        return brief(self)

    def __post_init__(self) -> None:
        one_of("empty", self.empty, EMPTY)
        if not isinstance(self.queries, QuerySet):
            got = type(self.queries).__name__
            raise DataError(f"queries must be a QuerySet, such as QuerySet.known(n) for n known users, got {got}")
        one_of("gain", self.gain, GAINS)
        for name, lists in (("relevant", self.relevant), ("exclude", self.exclude), ("candidates", self.candidates)):
            if not isinstance(lists, Ragged) and (lists is not None or name == "relevant"):
                raise DataError(f"{name} must be a Ragged, got {type(lists).__name__}; Interactions have .ragged()")

    def checked(self, n_items: int) -> EvalSet:
        """The same, fit for compiled code: on the CPU, every list checked, candidates without what is excluded."""
        if self._is_checked(n_items):
            return self

        def lists(name: str) -> Ragged | None:
            given: Ragged | None = getattr(self, name)
            if given is None:
                return None
            return given.check(n_items, name, n_lists=len(self.queries), unique=True).to("cpu")

        relevant, exclude, candidates = lists("relevant"), lists("exclude"), lists("candidates")
        assert relevant is not None
        grades = None if self.grades is None else _checked_grades(self.grades, relevant).cpu()
        if grades is not None:
            relevant, grades = relevant.where(grades > 0), grades[grades > 0]
        if exclude is not None:
            _refuse_hidden(relevant, exclude)
            if candidates is not None:
                candidates = candidates.where(exclude.find(candidates.owner(), candidates.indices) < 0)
        checked = replace(self, relevant=relevant, grades=grades, exclude=exclude, candidates=candidates)
        return checked.trusted(n_items)

    def trusted(self, n_items: int) -> EvalSet:
        """The same, for lists that were checked as :meth:`checked` does; a set with other lists is checked again."""
        return replace(self, _checked=(n_items, len(self.queries), *self._parts()))

    def _is_checked(self, n_items: int) -> bool:
        known, parts = self._checked, self._parts()
        return known[:2] == (n_items, len(self.queries)) and all(a is b for a, b in zip(known[2:], parts, strict=True))

    def _parts(self) -> tuple[object, ...]:
        return self.relevant, self.grades, self.exclude, self.candidates

    @property
    def evaluated(self) -> Tensor:
        """The queries that count, ascending."""
        rows = torch.arange(len(self.relevant)) if self.measured is None else self.measured
        return rows[self.relevant.counts[rows] > 0] if self.empty == "skip" else rows

    @property
    def n_skipped(self) -> int:
        """How many queries have nothing to find and are left out."""
        return (len(self.relevant) if self.measured is None else self.measured.numel()) - self.evaluated.numel()

    @cached_property
    def targets(self) -> Ragged:
        """The relevant items that can be ranked."""
        if self.candidates is None:
            return self.relevant
        return self.relevant.where(self.candidates.find(self.relevant.owner(), self.relevant.indices) >= 0)

    def n_ranked(self, rows: Tensor, n_items: int) -> Tensor:
        """How many items may be listed for each of the rows."""
        if self.candidates is not None:
            return self.candidates.counts[rows]
        return n_items - (torch.zeros_like(rows) if self.exclude is None else self.exclude.counts[rows])

    def ranked_gains(self, rows: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """What :func:`topshelf.metrics.every_metric` takes: gains (B, K), n_relevant (B,), ideal (B, K) or None.

        Shapes: rows (B,); places (B, K), the item at each place, -1 where there is none.
        """
        wanted = self.relevant.select(rows)
        if self.grades is None:
            return kernels.hits(places, wanted.indptr, wanted.indices), wanted.counts, None
        entries = Ragged(self.relevant.indptr, torch.arange(self.grades.numel())).select(rows).indices
        gains = GAINS[self.gain](self.grades[entries])
        owner = torch.arange(len(wanted)).repeat_interleave(places.size(1))
        entry = wanted.find(owner, places.flatten())
        at_places = torch.zeros(places.numel(), dtype=torch.float64)
        at_places[entry >= 0] = gains[entry[entry >= 0]]
        return at_places.view_as(places), wanted.counts, _highest(wanted, gains, places.size(1))

    def fingerprint(self) -> int:
        """The same for evaluations that can be compared: those with the same lists and gains."""
        parts = [lists for lists in (self.relevant, self.exclude, self.candidates) if lists is not None]
        tensors = [tensor for lists in parts for tensor in (lists.indptr, lists.indices)]
        tensors += [] if self.grades is None else [GAINS[self.gain](self.grades)]
        tensors += [] if self.measured is None else [self.measured]
        value = 0
        for block in (block for tensor in tensors for block in tensor.split(_BLOCK)):
            same = block if block.is_floating_point() else block.long()  # whether or not they are mapped from a file
            value = zlib.crc32(same.cpu().contiguous().numpy().data, value)
        return value


def _highest(lists: Ragged, gains: Tensor, k: int) -> Tensor:
    """The k highest gains of each list, best first, 0 after the last, (B, k)."""
    owner = lists.owner()
    order = gains.argsort(descending=True)
    order = order[owner[order].argsort(stable=True)]
    place = torch.arange(owner.numel()) - lists.indptr[owner]
    best = torch.zeros(len(lists), k, dtype=torch.float64)
    best[owner[place < k], place[place < k]] = gains[order][place < k]
    return best


def _checked_grades(grades: Tensor, relevant: Ragged) -> Tensor:
    if grades.shape != relevant.indices.shape:
        raise DataError(
            f"grades must have one value for each of the {relevant.indices.numel()} relevant items, "
            f"got shape {tuple(grades.shape)}"
        )
    wrong = ~((grades >= 0) & (grades < 1024))  # NaN too; 2^1024 is not finite
    if bool(wrong.any()):
        raise DataError(f"grades must be from 0 to 1023, got {grades[wrong][0].item()}")
    return grades


def _refuse_hidden(relevant: Ragged, exclude: Ragged) -> None:
    hidden = exclude.find(relevant.owner(), relevant.indices) >= 0
    if bool(hidden.any()):
        at = int(hidden.nonzero()[0])
        raise DataError(
            f"a relevant item must not be masked, got item {int(relevant.indices[at])} of query "
            f"{int(relevant.owner()[at])} in the training or validation lists too; split the data again"
        )


def protocol_set(
    relevant: ItemLists,
    train: ItemLists,
    valid: ItemLists | None,
    protocol: str,
    empty: str | None,
    n_users: int,
    n_items: int,
) -> tuple[EvalSet, Tensor]:
    """What a protocol evaluates, and how often each item is in train."""
    one_of("protocol", protocol, PROTOCOLS)
    _refuse_other_ids(relevant=relevant, train=train, valid=valid)
    wanted, seen = _lists("relevant", relevant, n_users, n_items), _lists("train", train, n_users, n_items)
    held = None if valid is None else _lists("valid", valid, n_users, n_items)
    masked = seen if held is None or protocol == "paper" else _union(seen, held)
    _refuse_hidden(wanted, masked)
    empty = PROTOCOLS[protocol] if empty is None else empty
    evalset = EvalSet(QuerySet.known(n_users), wanted, exclude=masked, empty=empty, protocol=protocol)
    return evalset.trusted(n_items), torch.bincount(seen.indices, minlength=n_items)


def list_set(
    relevant: ItemLists | EvalSet,
    train: ItemLists | None,
    valid: ItemLists | None,
    protocol: str | None,
    empty: str | None,
    n_items: int,
) -> tuple[EvalSet, Tensor | None]:
    """What given lists are measured on: :func:`protocol_set` where the training items are known."""
    if isinstance(relevant, EvalSet):
        _refuse_options("an EvalSet has its own", train=train, valid=valid, protocol=protocol, empty=empty)
        return relevant, None
    n_users = len(_ragged("relevant", relevant))
    if train is not None:
        return protocol_set(relevant, train, valid, protocol or "standard", empty, n_users, n_items)
    _refuse_options("it needs train", valid=valid, protocol=protocol)
    wanted = _lists("relevant", relevant, n_users, n_items)
    return EvalSet(QuerySet.known(n_users), wanted, empty=empty or "skip").trusted(n_items), None


def _refuse_options(why: str, **options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"{name} must be left out here ({why}), got {value!r}")


def _refuse_other_ids(**parts: object) -> None:
    """Parts that were read one by one have ids of their own, and the same index would mean another user or item."""
    known = {name: part for name, part in parts.items() if isinstance(part, Interactions)}
    for name, part in known.items():
        first = next(iter(known))
        for ids in ("users", "items"):
            ours, theirs = getattr(known[first], ids), getattr(part, ids)
            if ours is not theirs and not ours.values.equals(theirs.values):
                raise DataError(f"{name} must have the {ids} of {first}, got other ids; make the parts by one split")


def _union(train: Ragged, valid: Ragged) -> Ragged:
    masked = merge(train, valid)
    repeated = masked.indices[1:] == masked.indices[:-1]
    starts = masked.indptr[1:-1]
    repeated[starts[(starts > 0) & (starts < masked.indices.numel())] - 1] = False  # from one list to the next
    if bool(repeated.any()):
        at = int(repeated.nonzero()[0])
        raise DataError(
            f"train and valid must not share items, got item {int(masked.indices[at])} "
            f"in both for query {int(masked.owner()[at])}; split the data again"
        )
    return masked


def _lists(name: str, given: ItemLists, n_queries: int, n_items: int) -> Ragged:
    """Lists on the CPU that may be trusted: one per query, of items that are there, ascending without repeats."""
    return _ragged(name, given).check(n_items, name, n_lists=n_queries, unique=True).to("cpu")


def _ragged(name: str, given: ItemLists) -> Ragged:
    lists = given.ragged() if isinstance(given, Interactions) else given
    if not isinstance(lists, Ragged):
        raise DataError(
            f"{name} must be Interactions or a Ragged, got {type(given).__name__}; Interactions.from_frame and "
            "Interactions.from_csr make them of tables"
        )
    return lists
