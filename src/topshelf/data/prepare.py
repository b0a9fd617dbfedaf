"""Cleaning before the split: a rating floor and the k-core."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from topshelf.data.events import bounds
from topshelf.data.interactions import IdMap, Interactions
from topshelf.errors import ConfigError, DataError, at_least


def prepare(data: Interactions, *, min_rating: float | None = None, core: int = 0) -> tuple[Interactions, Interactions]:
    """Keep ratings >= ``min_rating``, then the ``core``-core. Returns what is kept, and what is below the floor.

    The k-core remains when users and items with fewer than k interactions are removed until none is left. Of several
    rows with one pair the first decides. What is below the floor is no positive, but the user has seen it: it comes
    back over the users and items that are kept.
    """
    at_least("core", core, 0)
    if min_rating is None and core <= 1:
        return data, data.none()
    is_kept = np.ones(len(data), dtype=bool) if min_rating is None else above(data, min_rating)
    is_below, rows = ~is_kept, data.rows()
    if core > 1:
        n_before = int(is_kept.sum())
        is_kept[is_kept] = core_mask(rows[is_kept], data.indices[is_kept], core)
        if not is_kept.any():
            raise empty_core(core, n_before)
    is_user = np.bincount(rows[is_kept], minlength=data.n_users) > 0
    is_item = np.bincount(data.indices[is_kept], minlength=data.n_items) > 0
    users, items = kept_ids(data.users, is_user), kept_ids(data.items, is_item)
    kept, below = (
        over(data.where(mask & is_user[rows] & is_item[data.indices]), is_user, is_item, users, items)
        for mask in (is_kept, is_below)
    )
    return replace(kept, notes=data.notes), below


def above(data: Interactions, min_rating: float) -> np.ndarray:
    """Mask of the ratings that reach the floor."""
    if data.weight is None:
        raise ConfigError(
            f"min_rating must be left out when the data have no ratings, got {min_rating!r}. "
            "Name the rating column with --rating-column (in Python weight=...)."
        )
    is_kept: np.ndarray = data.weight >= np.float32(min_rating)  # as weights are kept
    if not is_kept.any():
        raise DataError(f"no rating reaches min_rating {min_rating!r}; the highest is {float(data.weight.max())!r}.")
    return is_kept


def kept_ids(ids: IdMap, is_kept: np.ndarray) -> IdMap:
    """The ids under a mask."""
    return ids if is_kept.all() else IdMap(ids.values.filter(pl.Series(is_kept)))


def empty_core(core: int, n_before: int) -> DataError:
    return DataError(
        f"the {core}-core is empty: no group of users and items has {core} interactions each. "
        f"Use a smaller core than {core} (there were {n_before:,} interactions before this step)."
    )


def core_mask(users: np.ndarray, items: np.ndarray, core: int) -> np.ndarray:
    """Which of the pairs (user, item) are in the k-core, (n,)."""
    alive = np.arange(len(users))
    while True:
        enough = (np.bincount(users[alive]) >= core)[users[alive]] & (np.bincount(items[alive]) >= core)[items[alive]]
        if enough.all():
            break
        alive = alive[enough]
    mask = np.zeros(len(users), dtype=bool)
    mask[alive] = True
    return mask


def over(data: Interactions, is_user: np.ndarray, is_item: np.ndarray, users: IdMap, items: IdMap) -> Interactions:
    """The same interactions over id maps without the users and items that have none."""
    item = np.cumsum(is_item) - 1
    events = None if data.events is None else data.events.over(is_user, item)
    indptr, indices = bounds(data.counts[is_user]), item[data.indices]
    return replace(data, indptr=indptr, indices=indices, users=users, items=items, events=events)
