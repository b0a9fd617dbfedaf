"""New interactions after training, of known and of new users."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf.data import IdMap
from topshelf.data.events import bounds
from topshelf.data.ids import UNKNOWN
from topshelf.errors import DataError, TopshelfWarning
from topshelf.ragged import Ragged

_NAMED = 5  # unknown items that a message names


@dataclass(frozen=True)
class Arrivals:
    """Some users with their whole histories: the interactions in the data, and those after training."""

    users: IdMap  # R names: for known users, their ids in the data
    rows: Tensor  # (R,), their rows in the data, or UNKNOWN
    lists: Ragged  # R lists of items: their histories
    seen: Ragged  # R lists of items that are never recommended to them: the same, and what they rated too low
    sequences: Ragged | None  # R lists of what they did, in order and with repeats; None if the order is unknown

    @property
    def is_known(self) -> Tensor:
        return self.rows != UNKNOWN


def arrive(
    histories: Any, taken: Ragged, seen: Ragged, users: IdMap, items: IdMap, events: Ragged | None = None
) -> Arrivals:
    """The users of ``histories`` over the data's ``users`` and ``items``.

    ``taken`` has the items of each user in the data, ``seen`` also those rated too low to count as positives, and
    ``events`` what each user did, in order. New items follow in the order of ``histories``.

    ``histories`` maps user ids to item ids; a known user keeps the items in the data. In a sequence of lists, all users
    are new and their positions are their names. Unknown items are skipped, and a :class:`TopshelfWarning` counts and
    names them.
    """
    named = _named(histories)
    rows = torch.full((len(named),), UNKNOWN)
    if isinstance(histories, Mapping):
        rows = torch.from_numpy(users.find(list(named)).copy())
        _say_similar([name for name, row in zip(named, rows.tolist(), strict=True) if row == UNKNOWN], users)
    known = iter(users.ids(rows[rows != UNKNOWN]))
    names = [name if row == UNKNOWN else next(known) for name, row in zip(named, rows.tolist(), strict=True)]
    owner = np.repeat(np.arange(len(named)), [len(some) for some in named.values()])
    index = _known_items([item for some in named.values() for item in some], items, bool((rows != UNKNOWN).any()))
    is_item = index != UNKNOWN
    whole = all(isinstance(name, int | np.integer) for name in names)
    ids = IdMap(pl.Series([name if whole else str(name) for name in names], dtype=None if names else pl.Int64))

    def joined(known: Ragged) -> Ragged:
        old = known.select(rows[rows != UNKNOWN])
        old_owner = (rows != UNKNOWN).nonzero().squeeze(1)[old.owner()]
        owners = np.concatenate([old_owner.numpy(), owner[is_item]])
        keys = np.unique(owners * len(items) + np.concatenate([old.indices.numpy(), index[is_item]]))
        owners, indices = np.divmod(keys, max(len(items), 1))
        indptr = bounds(np.bincount(owners, minlength=len(named)))
        return Ragged(torch.from_numpy(indptr), torch.from_numpy(indices))

    lists = joined(taken)
    given = Ragged(
        torch.from_numpy(bounds(np.bincount(owner[is_item], minlength=len(named)))), torch.from_numpy(index[is_item])
    )
    return Arrivals(ids, rows, lists, lists if seen is taken else joined(seen), _followed(rows, events, given))


def _followed(rows: Tensor, events: Ragged | None, given: Ragged) -> Ragged | None:
    """What known users did, then what is given; None if a user is known and ``events`` are not."""
    is_known = rows != UNKNOWN
    if not bool(is_known.any()):
        return given
    if events is None:
        return None
    old = events.select(rows[is_known])
    owner = torch.cat([is_known.nonzero().squeeze(1)[old.owner()], given.owner()])
    order = torch.argsort(owner, stable=True)
    counts = given.counts
    counts[is_known] += old.counts
    return Ragged(F.pad(counts.cumsum(0), (1, 0)), torch.cat([old.indices, given.indices])[order])


def _say_similar(new: list[Any], users: IdMap) -> None:
    """Warn of new users with a known id written in another way: 141 or 141.0 for 00141."""
    alike = {known: name for name in new if (known := users.similar(name)) is not None}
    if alike:
        known, name = next(iter(alike.items()))
        warnings.warn(
            f"{len(alike):,} of {len(new):,} new users may be known users with differently written ids, such as "
            f"{name!r} for {known!r}. They are treated as new; write ids as in the run's data",
            TopshelfWarning,
            stacklevel=3,
        )


def _named(histories: Any) -> dict[Any, list[Any]]:
    if isinstance(histories, str) or hasattr(histories, "columns") or not isinstance(histories, Iterable):
        raise DataError(
            "histories must map each user to a list of item ids, or be a sequence of such lists, got "
            f"{type(histories).__name__}. From a polars frame: dict(frame.group_by('user').agg('item').iter_rows())"
        )
    named = dict(histories if isinstance(histories, Mapping) else enumerate(histories))
    for name, some in named.items():
        if isinstance(some, str) or not isinstance(some, Iterable):
            raise DataError(f"the history of user {name!r} must be a list of item ids, got {some!r}")
    return {name: list(some) for name, some in named.items()}


def _known_items(wanted: list[Any], items: IdMap, may_be_none: bool) -> np.ndarray:
    """The index of each item, or UNKNOWN, with a warning. Refused if all are unknown, unless ``may_be_none``."""
    index = items.find(wanted)
    unknown = list(dict.fromkeys(item for item, at in zip(wanted, index.tolist(), strict=True) if at == UNKNOWN))
    if not unknown:
        return index
    first = ", ".join(repr(item) for item in unknown[:_NAMED]) + ", ..." * (len(unknown) > _NAMED)
    n_rows = int((index == UNKNOWN).sum())
    if n_rows == len(wanted) and not may_be_none:
        like = ", ".join(map(repr, items.ids(range(min(3, len(items))))))
        raise DataError(
            f"none of the {len(unknown)} items is in the run's data, got {first}; its items look like {like}"
        )
    warnings.warn(
        f"{n_rows:,} of {len(wanted):,} interactions are skipped, because their items are not in the run's data "
        f"({len(unknown):,} items): {first}. Train again to recommend them",
        TopshelfWarning,
        stacklevel=2,
    )
    return index
