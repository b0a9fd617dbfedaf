"""Noise on purpose: how a loss behaves when some of its positives are none."""

from __future__ import annotations

import numpy as np

from topshelf.data.interactions import Interactions
from topshelf.data.sampling import draw_distinct
from topshelf.data.splits import ROUNDING
from topshelf.errors import at_least

ROUNDS = 1000  # each round keeps at least half of its draws on average, so far fewer are needed


def add_false_positives(train: Interactions, ratio: float, seed: int = 0) -> Interactions:
    """Turn ceil(ratio * P_u) random negatives of each user into positives; P_u counts its positives.

    Never more than the user has negatives. The paper's noise (appendix); for the train part only. The result
    has no weights and no timestamps, for false interactions have none.
    """
    at_least("ratio", ratio, 0.0)
    counts = train.counts
    wanted = np.ceil(ratio * counts - ROUNDING).clip(0).astype(np.int64)
    wanted = np.minimum(wanted, train.n_items - counts)
    generator = np.random.default_rng(seed)
    # Redrawing is quick while half of the items stay free; the few fuller users choose from what is left.
    is_full = 2 * (counts + wanted) > train.n_items
    taken = train.rows() * train.n_items + train.indices
    added = draw_distinct(
        np.where(is_full, 0, wanted),
        taken,
        train.n_items,
        lambda users: generator.integers(train.n_items, size=len(users)),
        ROUNDS,
    )
    chosen = [_choose(train, user, int(wanted[user]), generator) for user in np.flatnonzero(is_full).tolist()]
    keys = np.concatenate([taken, added, *chosen])
    return Interactions.from_indices(keys // train.n_items, keys % train.n_items, train.users, train.items)


def _choose(train: Interactions, user: int, size: int, generator: np.random.Generator) -> np.ndarray:
    free = np.ones(train.n_items, dtype=bool)
    free[train.indices[train.indptr[user] : train.indptr[user + 1]]] = False
    return user * train.n_items + generator.choice(np.flatnonzero(free), size=size, replace=False)
