"""A split that changes after training: new interactions, users and items come in, and people are taken out."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from topshelf.data.datasets import Dataset
from topshelf.data.events import bounds, concatenate_events
from topshelf.data.ids import UNKNOWN, IdMap
from topshelf.data.interactions import Interactions, concatenate
from topshelf.data.splits import PARTS, Split
from topshelf.errors import ConfigError, DataError, TopshelfWarning

GROWN = "update"  # the kind of a split that has grown
_NAMED = 3  # ids that a message names


@dataclass(frozen=True, eq=False)
class Growth:
    """A split with new interactions, and the new ones of known users and items over the ids of before.

    ``split``: train is all that was known, test is what is new of known users and items, and ``left_out`` what is new
    of others. New ids follow the old ones, so that rows of the old split keep their places.
    """

    split: Split
    held_out: Split  # over the old ids: what the old model can be measured on
    counts: dict[str, int]


def grown(dataset: Dataset, table: pl.DataFrame, min_rating: float | None = None) -> Growth:
    """The split of ``dataset`` with the rows of a table of user, item and, where known, weight and timestamp.

    Pairs that are known are events only. What is rated below ``min_rating`` is seen and no positive, unless it was a
    positive before. Users and items that have nothing but such rows are left out.
    """
    split = dataset.split
    taken, below = _by_rating(table, min_rating)
    if not len(taken):
        what = "rows" if min_rating is None else f"rows rated {min_rating:g} or higher"
        raise DataError(f"there must be new interactions, got no {what} among {len(table):,}")
    users, items = _extended(split.users, taken["user"], "user"), _extended(split.items, taken["item"], "item")
    everything = dataset.interactions()
    old, old_below = (_widened(part, users, items) for part in (everything, split.below))
    new = _placed_in_time(Interactions.from_canonical(taken, users, items), old)
    is_repeat = np.isin(new.keys(), old.keys(), assume_unique=True)
    fresh = new.where(~is_repeat)
    if not len(fresh):
        raise DataError(
            f"there must be interactions that the run does not know, got {len(taken):,} rows that are all known"
        )
    is_known = (fresh.rows() < split.n_users) & (fresh.indices < split.n_items)
    test, left_out = fresh.where(is_known), fresh.where(~is_known)
    seen = _below(below, old_below, (old, fresh))
    train = _with_repeats(old, new)
    if old.events is None:
        test, left_out, seen = (replace(part, events=None) for part in (test, left_out, seen))
    counts = {
        "users": len(users) - split.n_users,
        "items": len(items) - split.n_items,
        "interactions": len(fresh),
        "repeats": int(is_repeat.sum()),
        "below": len(seen) - len(old_below),
    }
    whole = Split(train, train.none(), test, GROWN, {}, left_out, seen)
    return Growth(whole, _held_out(everything, test), counts)


def without_users(split: Split, rows: np.ndarray) -> Split:
    """The split without the users of ``rows``; the others keep their order, and every item stays."""
    is_kept = np.ones(split.n_users, dtype=bool)
    is_kept[rows] = False
    if not is_kept[split.train.rows()].any():
        raise DataError(
            f"some users with interactions in train must stay, got {len(rows):,} of {split.n_users:,} users to forget. "
            "Delete the run folder instead"
        )
    users = IdMap(split.users.values.filter(pl.Series(is_kept)))
    parts = {name: _of_users(part, is_kept, users) for name, part in split.parts.items()}
    measured = None
    if split.measured is not None:
        measured = (np.cumsum(is_kept) - 1)[split.measured[is_kept[split.measured]]]
    train, valid, test, left_out, below = (parts[name] for name in PARTS)
    return Split(train, valid, test, split.kind, dict(split.notes), left_out, below, measured)


def _of_users(data: Interactions, is_kept: np.ndarray, users: IdMap) -> Interactions:
    mask, events = is_kept[data.rows()], data.events
    if events is not None:
        events = events.where(is_kept[events.rows()]).over(is_kept, np.arange(data.n_items))
    weight, timestamp = (None if x is None else x[mask] for x in (data.weight, data.timestamp))
    indptr = bounds(data.counts[is_kept])
    return Interactions(indptr, data.indices[mask], users, data.items, weight, timestamp, events=events)


def _by_rating(table: pl.DataFrame, min_rating: float | None) -> tuple[pl.DataFrame, pl.DataFrame]:
    if min_rating is None:
        return table, table.clear()
    if "weight" not in table.columns:
        raise ConfigError(
            f"the run has data.min_rating = {min_rating:g}, so its new interactions must have ratings, got none. Name "
            "their column with --rating-column (in Python weight=...)"
        )
    is_taken = pl.col("weight").cast(pl.Float32) >= pl.lit(min_rating, pl.Float32)
    return table.filter(is_taken), table.filter(~is_taken)


def _extended(ids: IdMap, found: pl.Series, what: str) -> IdMap:
    """The ids, then those found that are not among them, in order. Numbers become text where one of them is text."""
    known = ids.find(found) != UNKNOWN
    new = found.filter(pl.Series(~known)).unique().sort()
    if not len(new):
        return ids
    if alike := [(one, like) for one in new.to_list() if (like := ids.similar(one)) is not None]:
        shown = ", ".join(f"{one!r} for {like!r}" for one, like in alike[:_NAMED])
        warnings.warn(
            f"{len(alike):,} of {len(new):,} new {what}s may be known {what}s with differently written ids, such as "
            f"{shown}. They are treated as new; write ids as in the run's data",
            TopshelfWarning,
            stacklevel=4,
        )
    if new.dtype == pl.String and ids.values.dtype == pl.Int64:
        numbers = new.cast(pl.Int64, strict=False)
        new = numbers if (numbers.cast(pl.String) == new).fill_null(False).all() else new
    if new.dtype != ids.values.dtype:
        return IdMap(pl.concat([ids.values.cast(pl.String), new.cast(pl.String).alias("id")]))
    return IdMap(pl.concat([ids.values, new.sort().alias("id")]))


def _widened(data: Interactions, users: IdMap, items: IdMap) -> Interactions:
    """The same interactions over more users and items."""
    more = len(users) - data.n_users
    events = data.events
    if events is not None:
        events = replace(events, indptr=_stretched(events.indptr, more))
    return replace(data, indptr=_stretched(data.indptr, more), users=users, items=items, events=events)


def _stretched(indptr: np.ndarray, more: int) -> np.ndarray:
    return np.concatenate([indptr, np.full(more, indptr[-1])])


def _placed_in_time(new: Interactions, old: Interactions) -> Interactions:
    """The new interactions; without times, where the old ones have some, at the last of those."""
    if old.events is None or old.events.timestamp is None or not len(old.events) or new.events is None:
        return new
    if new.events.timestamp is not None:
        return new
    warnings.warn(
        "the new interactions have no times, and the run's data do: they are placed after all others, in the order of "
        "their rows. Name their column with --time-column (in Python timestamp=...)",
        TopshelfWarning,
        stacklevel=4,
    )
    last = old.events.timestamp.max()
    times = np.full(len(new.events), last, dtype=old.events.timestamp.dtype)
    return replace(new, events=replace(new.events, timestamp=times))


def _with_repeats(old: Interactions, new: Interactions) -> Interactions:
    """The old interactions with the new events of their pairs."""
    if old.events is None or new.events is None:
        return replace(old, weight=None, timestamp=None, events=None)
    again = new.events.where(np.isin(new.event_keys(), old.keys()))
    return replace(old, weight=None, timestamp=None, events=concatenate_events([old.events, again]))


def _below(table: pl.DataFrame, old: Interactions, learned: tuple[Interactions, ...]) -> Interactions:
    """What is seen and no positive: the old such pairs and the new ones, without all that is a positive."""
    rows, cols = old.users.find(table["user"]), old.items.find(table["item"])
    is_known = (rows != UNKNOWN) & (cols != UNKNOWN)
    joined = old
    if is_known.any():
        values = (table[one].to_numpy()[is_known] if one in table.columns else None for one in ("weight", "timestamp"))
        new = Interactions.from_indices(rows[is_known], cols[is_known], old.users, old.items, *values)
        joined = concatenate(old, new)
    positives = np.concatenate([part.keys() for part in learned])
    return joined.where(~np.isin(joined.keys(), positives))


def _held_out(everything: Interactions, test: Interactions) -> Split:
    """All that was known as train, and the new pairs of known users and items as test, over the old ids."""
    users, items = everything.users, everything.items
    indptr = test.indptr[: len(users) + 1]
    part = Interactions(indptr, test.indices[: indptr[-1]], users, items)
    train = replace(everything, events=None)
    return Split(train, train.none(), part, GROWN)
