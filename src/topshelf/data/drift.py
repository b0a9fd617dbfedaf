"""Generated interactions whose users, items and tastes change with time."""

from __future__ import annotations

import numpy as np
import polars as pl

from topshelf.errors import at_least, at_most

WEEK = 7 * 24 * 3600  # seconds
_START = 1_700_000_000
_INSIDE = 0.8  # share of the draws from the block of the user's taste
_EARLY = 0.5  # share of the users and items that are there from the first week on


def drifting(
    n_users: int,
    n_items: int,
    *,
    weeks: int = 20,
    per_week: float = 4.0,
    blocks: int = 10,
    drift: float = 0.05,
    half_life: float = 8.0,
    seed: int = 0,
) -> pl.DataFrame:
    """A table of user, item and timestamp, in order of time; the same arguments give the same table.

    Half of the users and items are there from the start, the others arrive one week or another. Every week a user
    draws a Poisson number of new items, ``per_week`` on average, four of five from the block of items that the user
    likes. With a chance of ``drift`` a user likes another block from that week on. In a block the item of rank r is
    drawn in proportion to 1 / r; an item's weight halves every ``half_life`` weeks after it arrived.
    """
    at_least("n_users", n_users, 1)
    at_least("weeks", weeks, 1)
    at_most("blocks", at_least("blocks", blocks, 1), n_items, "n_items")
    at_most("drift", at_least("drift", drift, 0.0), 1.0)
    generator = np.random.default_rng(seed)
    item_block = generator.integers(blocks, size=n_items)
    strength = 1.0 / (1 + generator.permutation(n_items) // blocks)
    arrives, joins = (_arrivals(n, weeks, generator) for n in (n_items, n_users))
    taste = generator.integers(blocks, size=n_users)
    has = np.zeros((n_users, n_items), dtype=bool)
    parts = []
    for week in range(weeks):
        moves = generator.random(n_users) < drift
        taste = np.where(moves, generator.integers(blocks, size=n_users), taste)
        weight = np.where(arrives <= week, strength * 0.5 ** ((week - arrives) / half_life), 0.0)
        chances = _chances(weight, item_block, blocks)
        for user in np.flatnonzero(joins <= week):
            open_items = np.where(has[user], 0.0, chances[taste[user]])
            n = min(int(generator.poisson(per_week)), int((open_items > 0).sum()))
            if n:
                drawn = generator.choice(n_items, size=n, replace=False, p=open_items / open_items.sum())
                has[user, drawn] = True
                times = _START + week * WEEK + np.sort(generator.integers(WEEK, size=n))
                parts.append(pl.DataFrame({"user": np.full(n, user), "item": drawn, "timestamp": times}))
    return pl.concat(parts).sort("timestamp", maintain_order=True)


def _arrivals(n: int, weeks: int, generator: np.random.Generator) -> np.ndarray:
    """The week from which on each of n is there."""
    return np.where(generator.random(n) < _EARLY, 0, generator.integers(weeks, size=n))


def _chances(weight: np.ndarray, item_block: np.ndarray, blocks: int) -> np.ndarray:
    """For the taste of each block, how likely each item is drawn, (blocks, n_items), up to a factor."""
    inside = weight * (item_block == np.arange(blocks)[:, None])
    within = inside / np.maximum(inside.sum(1, keepdims=True), 1e-300)
    return _INSIDE * within + (1 - _INSIDE) * weight / max(weight.sum(), 1e-300)
