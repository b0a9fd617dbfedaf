"""Cleaning before the split: one row per pair, a rating floor, and the k-core."""

from __future__ import annotations

import numpy as np
import polars as pl

from topshelf.data.columns import Table, canonical
from topshelf.data.interactions import IdMap
from topshelf.data.names import GUESS
from topshelf.data.notes import Notes
from topshelf.errors import ConfigError, DataError, at_least


def prepare(frame: pl.DataFrame | pl.LazyFrame, *, min_rating: float | None = None, core: int = 0) -> pl.DataFrame:
    """Keep the first row of each (user, item), then ratings >= ``min_rating``, then the ``core``-core.

    The k-core remains when users and items with fewer than k interactions are removed until none is left.
    ``frame`` has our column names, as ``read`` returns it; columns under other common names are found too.
    """
    return prepared(canonical(frame.lazy(), GUESS, "the table"), min_rating=min_rating, core=core).frame


def prepared(table: Table, *, min_rating: float | None = None, core: int = 0) -> Table:
    """A table that was read, cleaned; its notes count the repeated rows."""
    at_least("core", core, 0)
    frame = table.frame.unique(subset=["user", "item"], keep="first", maintain_order=True)
    notes = table.notes + Notes(repeats=len(table.frame) - len(frame))
    if min_rating is not None:
        frame = _above(frame, min_rating)
    return Table(_k_core(frame, core) if core > 1 else frame, notes)


def _above(table: pl.DataFrame, min_rating: float) -> pl.DataFrame:
    if "weight" not in table.columns:
        raise ConfigError(
            f"min_rating must be left out when the data have no ratings, got {min_rating!r}. "
            "Name the rating column with --rating-column (in Python weight=...)."
        )
    kept = table.filter(pl.col("weight") >= min_rating)
    if kept.is_empty():
        raise DataError(f"no rating reaches min_rating {min_rating!r}; the highest is {table['weight'].max()!r}.")
    return kept


def _k_core(table: pl.DataFrame, core: int) -> pl.DataFrame:
    users, items = (IdMap.sorted_from(table[role]).index(table[role]) for role in ("user", "item"))
    kept = core_mask(users, items, core)
    if not kept.any():
        raise DataError(
            f"the {core}-core is empty: no group of users and items has {core} interactions each. "
            f"Use a smaller core than {core} (there were {len(table):,} interactions before this step)."
        )
    return table.filter(pl.Series(kept))


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
