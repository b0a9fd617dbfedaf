"""Noise on purpose: how a loss behaves when some of its positives are none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from topshelf.data.interactions import Interactions, concatenate
from topshelf.data.sampling import draw_distinct
from topshelf.data.splits import ROUNDING
from topshelf.errors import at_least

ROUNDS = 1000  # each round keeps at least half of its draws on average, so far fewer are needed


def add_false_positives(
    train: Interactions, ratio: float, seed: int = 0, *, exclude: Interactions | None = None
) -> Interactions:
    """Turn ceil(ratio * P_u) random negatives of each user into positives; P_u counts its positives.

    ``exclude`` holds interactions that are never drawn: validation and test, for a split must stay disjoint.
    Never more than the user has negatives. The paper's noise (appendix); for the train part only. The result
    has no weights, timestamps and events, for false interactions have none.
    """
    at_least("ratio", ratio, 0.0)
    n_items = train.n_items
    known = train if exclude is None else concatenate(train, exclude)
    wanted = np.ceil(ratio * train.counts - ROUNDING).clip(0).astype(np.int64)
    wanted = np.minimum(wanted, n_items - known.counts)
    generator = np.random.default_rng(seed)
    # Redrawing is quick while half of the items stay free; the few fuller users choose from what is left.
    is_full = 2 * (known.counts + wanted) > n_items
    added = draw_distinct(
        np.where(is_full, 0, wanted),
        known.keys(),
        n_items,
        lambda users: generator.integers(n_items, size=len(users)),
        ROUNDS,
    )
    chosen = [_choose(known, user, int(wanted[user]), generator) for user in np.flatnonzero(is_full).tolist()]
    keys = np.concatenate([train.keys(), added, *chosen])
    noisy = Interactions.from_indices(keys // n_items, keys % n_items, train.users, train.items)
    return replace(noisy, events=None)


def _choose(known: Interactions, user: int, size: int, generator: np.random.Generator) -> np.ndarray:
    free = np.ones(known.n_items, dtype=bool)
    free[known.indices[known.indptr[user] : known.indptr[user + 1]]] = False
    return user * known.n_items + generator.choice(np.flatnonzero(free), size=size, replace=False)
