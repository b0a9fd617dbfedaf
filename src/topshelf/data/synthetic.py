"""Generated interactions with a known structure: blocks of taste and a few popular items."""

from __future__ import annotations

import numpy as np

from topshelf.data.events import Events
from topshelf.data.interactions import IdMap, Interactions
from topshelf.data.sampling import draw_distinct
from topshelf.errors import ConfigError, at_least

INSIDE = 0.8  # share of the draws that stay in the user's own block
SPREAD = 0.5  # of the log of the users' counts: the busiest 2% have about three times the typical number
USERS_AT_ONCE = 1 << 16  # bounds the memory beyond the result itself
ROUNDS = 20  # of redrawing; very popular items repeat, so a few users may end up with less
START, YEAR = 1_700_000_000, 365 * 24 * 3600  # seconds


def generate(
    n_users: int,
    n_items: int,
    *,
    interactions_per_user: int = 20,
    blocks: int = 10,
    skew: float = 1.0,
    timestamps: bool = False,
    seed: int = 0,
) -> Interactions:
    """Users and items belong to blocks; four of five interactions stay in the user's block.

    Inside a block the item of rank r is drawn in proportion to 1 / r**skew. Each user has about
    ``interactions_per_user`` items, at most half of the catalogue. The same arguments give the same data.
    """
    at_least("n_users", n_users, 1)
    at_least("interactions_per_user", interactions_per_user, 1)
    at_least("skew", skew, 0.0)
    if not 1 <= blocks <= n_items:
        raise ConfigError(f"blocks must be between 1 and n_items ({n_items}), got {blocks!r}")
    generator = np.random.default_rng(seed)
    name = generator.permutation(n_items)  # so that the index of an item tells nothing about its popularity
    block = generator.integers(blocks, size=n_users)
    spread = generator.lognormal(-(SPREAD**2) / 2, SPREAD, size=n_users)
    needed = np.rint(interactions_per_user * spread).astype(np.int64).clip(1, max(1, n_items // 2))
    popularity = np.cumsum(np.arange(1, -(-n_items // blocks) + 1, dtype=np.float64) ** -skew)
    parts = [
        _items_of(needed[chunk], block[chunk], blocks, name, popularity, generator)
        for chunk in (slice(start, start + USERS_AT_ONCE) for start in range(0, n_users, USERS_AT_ONCE))
    ]
    counts = np.concatenate([part[0] for part in parts])
    indices = np.concatenate([part[1] for part in parts])
    times = START + generator.integers(YEAR, size=len(indices)) if timestamps else None
    indptr = np.concatenate([[0], np.cumsum(counts)])
    events = None if times is None else Events.in_time(indptr, indices, times, None)
    return Interactions(indptr, indices, IdMap.range(n_users), IdMap.range(n_items), timestamp=times, events=events)


def _items_of(
    needed: np.ndarray,
    block: np.ndarray,
    blocks: int,
    name: np.ndarray,
    popularity: np.ndarray,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Counts and sorted items of some users."""

    def draw(users: np.ndarray) -> np.ndarray:
        rank = np.searchsorted(popularity, generator.random(len(users)) * popularity[-1], side="right")
        elsewhere = generator.integers(blocks, size=len(users))
        own = np.where(generator.random(len(users)) < INSIDE, block[users], elsewhere)
        place = rank * blocks + own
        return name[np.where(place < len(name), place, own)]  # the last rank is missing in some blocks

    keys = draw_distinct(needed, np.empty(0, dtype=np.int64), len(name), draw, ROUNDS)
    return np.bincount(keys // len(name), minlength=len(needed)), keys % len(name)
