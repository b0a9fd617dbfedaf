"""Train, validation and test: at random, by each user's last items, or by one moment in time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from topshelf.data.events import Events, concatenate_events
from topshelf.data.interactions import IdMap, Interactions
from topshelf.data.shuffles import Shuffles
from topshelf.errors import ConfigError, DataError, at_least, one_of, positive
from topshelf.ragged import Ragged, merge

SPLITS = ("auto", "ratio", "last", "time")
CARVINGS = ("random", "last", "time")
PARTS = ("train", "valid", "test", "left_out", "below")
USERS_AT_ONCE = 1 << 16  # whose parts are compared at once: all of them would be as large as the data once more
ROUNDING = 1e-9  # forgives errors such as 0.1 * 30 = 3.0000000000000004 when a share is rounded


Through = Literal["train", "valid", "all", "below"]
# Each of them holds all that is in the one before.
_SEEN: dict[Through, tuple[str, ...]] = {"train": PARTS[:1], "valid": PARTS[:2], "all": PARTS[:4], "below": PARTS}


@dataclass(frozen=True, eq=False)
class Split:
    """Three parts over the same users and items, and two that are neither learned from nor measured.

    ``left_out`` holds the interactions that no part has, because train does not know their user or item: nothing can be
    measured on them, but they happened. ``notes`` counts them by the part that they would have been in. ``below`` holds
    what is rated below ``min_rating``: no positives, but seen. Both are empty unless given. ``measured`` are the users,
    ascending, that an evaluation ranks items for; None: all.
    """

    train: Interactions
    valid: Interactions
    test: Interactions
    kind: str
    notes: dict[str, int] = field(default_factory=dict)
    left_out: Interactions = None  # type: ignore[assignment]
    below: Interactions = None  # type: ignore[assignment]
    measured: np.ndarray | None = None
    _lists: dict[tuple[str, ...], Ragged] = field(default_factory=dict, init=False, repr=False)

    def __repr__(self) -> str:
        counts = ", ".join(f"{name} {len(part):,}" for name, part in self.parts.items() if len(part))
        return f"Split({self.kind}: {self.n_users:,} users, {self.n_items:,} items; {counts})"

    def __post_init__(self) -> None:
        for name in PARTS:
            if getattr(self, name) is None:
                object.__setattr__(self, name, self.train.none())

    @property
    def parts(self) -> dict[str, Interactions]:
        """All five by name."""
        return {name: getattr(self, name) for name in PARTS}

    def lists(self, part: str) -> Ragged:
        """The items of each user in one part; made once."""
        return self._joined((one_of("part", part, PARTS),))

    def seen(self, through: Through) -> Ragged:
        """The items of each user in train; in train and validation; in all that may be learned from; made once.

        ``"below"`` adds what was rated too low to be learned from: all that a user has, and is never recommended.
        """
        return self._joined(tuple(name for name in _SEEN[through] if name == "train" or len(getattr(self, name))))

    def events(self, through: Through) -> Events | None:
        """What happened in the same parts, in order and with repeats; None where the source did not say."""
        parts = [getattr(self, name) for name in _SEEN[through]]
        happened = [part.events for part in parts if len(part) or part.events is not None]
        return None if any(some is None for some in happened) else concatenate_events(happened)

    def _joined(self, names: tuple[str, ...]) -> Ragged:
        if names not in self._lists:
            parts = [getattr(self, name).ragged() for name in names]
            self._lists[names] = merge(*parts) if len(parts) > 1 else parts[0]
        return self._lists[names]

    def check(self) -> Split:
        """This split, or a DataError: all indices exist, no interaction is in two parts. Compiled code trusts it."""
        return self._checked

    @cached_property
    def _checked(self) -> Split:
        for name in PARTS:
            self.lists(name).check(self.n_items, f"the {name} part", n_lists=self.n_users, unique=True)
        _check_disjoint(self.parts)
        if self.measured is not None:
            _check_measured(self.measured, self.n_users)
        return self

    def measure_some(self, n: int | None, seed: int = 0) -> Split:
        """The same split, measured on at most ``n`` users, drawn among those with something to find."""
        if n is None:
            return self
        able = np.flatnonzero((self.test if len(self.test) else self.valid).counts)
        drawn = np.random.default_rng([seed, 4]).permutation(able)[: at_least("measured_users", n, 1)]
        return replace(self, measured=np.sort(drawn))

    @property
    def users(self) -> IdMap:
        return self.train.users

    @property
    def items(self) -> IdMap:
        return self.train.items

    @property
    def n_users(self) -> int:
        return self.train.n_users

    @property
    def n_items(self) -> int:
        return self.train.n_items


def through_refit(refit: bool | Literal["all"]) -> Through:
    """What a model has seen by the setting ``train.refit``: train alone, validation too, or all."""
    if refit == "all":
        return "all"
    return "valid" if refit else "train"


def _check_measured(users: np.ndarray, n_users: int) -> None:
    is_right = users.ndim == 1 and users.dtype == np.int64 and bool((users[1:] > users[:-1]).all())
    if not is_right or (len(users) and not (users[0] >= 0 and users[-1] < n_users)):
        raise DataError(f"measured must be indices of the {n_users} users, ascending without repeats, got {users!r}")


def _check_disjoint(parts: Mapping[str, Interactions]) -> None:
    """Refuse an interaction that two parts hold."""
    n_users = next(iter(parts.values())).n_users
    for start in range(0, n_users, USERS_AT_ONCE):
        keys = {name: part.keys(start, min(start + USERS_AT_ONCE, n_users)) for name, part in parts.items()}
        joined = np.sort(np.concatenate(list(keys.values())), kind="stable")  # stable: merges sorted runs
        shared = joined[1:][joined[1:] == joined[:-1]]
        if len(shared):
            one, other = [name for name, some in keys.items() if shared[0] in some][:2]
            users, items = parts[one].users, parts[one].items
            user, item = divmod(int(shared[0]), len(items))
            raise DataError(
                f"{one} and {other} must not share an interaction, got item {items.ids([item])[0]} of user "
                f"{users.ids([user])[0]} in both; split the data again"
            )


def ratio_split(
    interactions: Interactions, *, test_fraction: float = 0.2, seed: int = 0
) -> tuple[Interactions, Interactions]:
    """The paper's split: each user's items shuffled, the first floor((1 - test_fraction) n) are train.

    Test items that no train list holds are dropped. A user's only item stays in train. Same draws as
    ``random.seed(seed)`` followed by one ``random.shuffle`` for each user, users and items in dense order.
    """
    return parts(interactions, ratio_mask(interactions, test_fraction, Shuffles(seed)))


def ratio_mask(interactions: Interactions, test_fraction: float, shuffles: Shuffles) -> np.ndarray:
    """Mask of what :func:`ratio_split` keeps in train; the draws go on from those for the users before."""
    _fraction("test_fraction", test_fraction)
    counts = interactions.counts
    share = np.maximum(1, np.floor((1 - test_fraction) * counts + ROUNDING)).astype(np.int64)
    return shuffles.first(interactions.indptr, np.minimum(share, counts))


def last_split(interactions: Interactions, *, last_n: int = 1) -> tuple[Interactions, Interactions]:
    """Each user's latest ``last_n`` are test; users with no more than that keep all in train.

    Equal times are ordered by item index. Test items that no train list holds are dropped. An event of a pair in train
    that happened after the user's first test item is one of test's ``events``.
    """
    return last_parts(interactions, latest(interactions, last_n))


def last_parts(
    interactions: Interactions, is_last: np.ndarray, known: np.ndarray | None = None
) -> tuple[Interactions, Interactions]:
    """The parts of :func:`last_split`, by a mask of what is test; ``known`` as in :func:`parts`."""
    return _without_future(*parts(interactions, ~is_last, known), interactions.where(is_last))


def time_split(interactions: Interactions, *, test_fraction: float = 0.2) -> tuple[Interactions, Interactions]:
    """Everything strictly before one moment is train, the rest test, so train knows nothing of the future.

    About ``1 - test_fraction`` of the interactions lie before that moment. Test interactions of users or
    items that train does not know are dropped. A later event of a pair in train is one of test's ``events``.
    """
    return by_moment(interactions, cut_moment(times_of(interactions), test_fraction))


def carve_validation(
    train: Interactions,
    *,
    fraction: float = 0.1,
    seed: int | np.random.Generator = 0,
    kind: str = "random",
    last_n: int = 1,
) -> tuple[Interactions, Interactions]:
    """Take a validation part out of train.

    ``random``: max(floor(fraction n), 1) items of each user; users with fewer than 2 items keep them. Such
    items may then be missing from train; they are kept, they are only hard.
    ``last``: each user's latest ``last_n``.
    ``time``: everything from one moment on, without users and items that the rest of train does not know.
    """
    if fraction == 0:
        return train, train.none()
    _fraction("valid_fraction", fraction)
    if one_of("kind", kind, CARVINGS) == "time":
        return by_moment(train, cut_moment(times_of(train), fraction))
    is_valid = latest(train, last_n) if kind == "last" else _random_share(train, fraction, seed)
    rest, valid = train.where(~is_valid), train.where(is_valid)
    return _without_future(rest, valid, valid) if kind == "last" else (rest, valid)


def make_split(
    interactions: Interactions,
    *,
    kind: str = "auto",
    test_fraction: float = 0.2,
    valid_fraction: float = 0.1,
    last_n: int = 1,
    seed: int = 0,
    split_seed: int = 0,
) -> Split:
    """Split in three. ``auto`` is ``time`` when there are timestamps, else ``ratio``.

    A ``test_fraction`` of 0 leaves the test part empty, whatever the kind. ``split_seed`` draws the test part and
    ``seed`` the validation part, so runs with different seeds are measured on the same test part. Pairs are split;
    their events go with them, but in a split by time, or of the last items, never to a part before their moment.
    """
    if one_of("split", kind, SPLITS) == "auto":
        kind = "ratio" if interactions.timestamp is None else "time"
    if test_fraction == 0:
        rest, test = interactions, interactions.none()
    elif kind == "ratio":
        rest, test = ratio_split(interactions, test_fraction=test_fraction, seed=split_seed)
    elif kind == "last":
        rest, test = last_split(interactions, last_n=last_n)
    else:
        rest, test = time_split(interactions, test_fraction=test_fraction)
    carving = "random" if kind == "ratio" else kind
    train, valid = carve_validation(rest, fraction=valid_fraction, seed=seed, kind=carving, last_n=last_n)
    dropped = len(interactions) - len(rest) - len(test)
    notes = {"dropped_test": dropped, "dropped_valid": len(rest) - len(train) - len(valid)}
    refuse_no_test(kind, len(test), dropped, test_fraction)
    left_out, test = left_out_of(interactions, train, valid, test)
    return Split(train, valid, test, kind, notes, left_out)


def refuse_no_test(kind: str, n_test: int, dropped: int, test_fraction: float) -> None:
    if test_fraction and not n_test:
        if not dropped:
            raise DataError(f"the {kind} split leaves no test interactions: no user has enough items. Use more data.")
        other = "last" if kind == "ratio" else "ratio"
        raise DataError(
            f"the {kind} split leaves no test interactions ({dropped:,} were dropped: their users or items are not in "
            f"train). Use more data, or another split: --set data.split={other} (in Python split={other!r})."
        )


def left_out_of(
    interactions: Interactions, train: Interactions, valid: Interactions, test: Interactions
) -> tuple[Interactions, Interactions]:
    """What no part has, and the test part without its events."""
    left_out = interactions.without(train, valid, test)
    if len(left_out) and test.events is not None:  # what was dropped from validation may have later events
        test = replace(test, events=test.events.where(~np.isin(test.event_keys(), left_out.keys())))
    return left_out, test


def parts(
    interactions: Interactions, is_train: np.ndarray, known: np.ndarray | None = None, drop_new_users: bool = False
) -> tuple[Interactions, Interactions]:
    """Train and test by a mask; test without the items that train does not have.

    ``known``: whether train has each item, (n_items,), where these are the interactions of some users only.
    """
    train = interactions.where(is_train)
    is_test = ~is_train & (train.item_counts > 0 if known is None else known)[interactions.indices]
    if drop_new_users:
        is_test &= (train.counts > 0)[interactions.rows()]
    return train, interactions.where(is_test)


def latest(interactions: Interactions, last_n: int) -> np.ndarray:
    """Mask of each user's latest ``last_n``, for users who have more than that."""
    at_least("last_n", last_n, 1)
    rows = interactions.rows()
    order = np.lexsort((interactions.indices, times_of(interactions), rows))
    from_end = interactions.indptr[rows + 1] - 1 - np.arange(len(rows))
    mask = np.zeros(len(rows), dtype=bool)
    mask[order] = (from_end < last_n) & (interactions.counts[rows] > last_n)
    return mask


def by_moment(
    interactions: Interactions, cut: float, known: np.ndarray | None = None
) -> tuple[Interactions, Interactions]:
    """What is before a moment, and what is after it; ``known`` as in :func:`parts`."""
    before, after = parts(interactions, times_of(interactions) < cut, known, drop_new_users=True)
    return _moved(before, after, lambda times, _: times >= cut)


def _without_future(
    before: Interactions, after: Interactions, held_out: Interactions
) -> tuple[Interactions, Interactions]:
    """The parts with each user's events after the first that was held out from them moved to the later part."""
    first = np.full(before.n_users, np.inf)
    np.minimum.at(first, held_out.rows(), times_of(held_out))
    return _moved(before, after, lambda times, users: times > first[users])


def _moved(
    before: Interactions, after: Interactions, is_late: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> tuple[Interactions, Interactions]:
    if before.events is None or after.events is None or before.events.timestamp is None:
        return before, after
    late = is_late(before.events.timestamp, before.events.rows())
    later = concatenate_events([after.events, before.events.where(late)])
    return replace(before, events=before.events.where(~late)), replace(after, events=later)


def cut_moment(times: np.ndarray, fraction: float) -> float:
    """The first moment after the earlier ``1 - fraction`` of the times."""
    moments = np.sort(times)
    cut = moments[cut_place(len(moments), fraction)]
    if cut == moments[0]:  # many events share the first moment: cut right after it
        later = moments[moments > cut]
        if not len(later):
            raise one_moment(cut)
        cut = later[0]
    return cut


def cut_place(n: int, fraction: float) -> int:
    """Which of n times, in order, is the first that is held out."""
    return min(math.floor((1 - _fraction("test_fraction", fraction)) * n + ROUNDING), n - 1)


def one_moment(cut: float) -> DataError:
    return DataError(
        f"a split by time needs at least two different timestamps, got only {cut}. Use split 'ratio' instead."
    )


def _random_share(train: Interactions, fraction: float, seed: int | np.random.Generator) -> np.ndarray:
    rows, counts = train.rows(), train.counts
    share = np.where(counts >= 2, np.maximum(np.floor(fraction * counts + ROUNDING), 1), 0)
    order = np.lexsort((np.random.default_rng(seed).random(len(rows)), rows))
    mask = np.zeros(len(rows), dtype=bool)
    mask[order] = np.arange(len(rows)) - train.indptr[rows] < share[rows]
    return mask


def times_of(interactions: Interactions) -> np.ndarray:
    if interactions.timestamp is None:
        raise DataError(
            "this split needs timestamps, and the data have none. Name their column with --time-column "
            "(in Python timestamp=...), or use split 'ratio'."
        )
    return interactions.timestamp


def _fraction(name: str, value: float) -> float:
    if not positive(name, value) < 1:
        raise ConfigError(f"{name} must be < 1, got {value!r}")
    return value
