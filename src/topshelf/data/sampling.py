"""Drawing distinct (user, item) pairs, many users at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Draw = Callable[[np.ndarray], np.ndarray]  # users (n,) -> one drawn item for each (n,)


def draw_distinct(needed: np.ndarray, taken: np.ndarray, n_items: int, draw: Draw, rounds: int) -> np.ndarray:
    """Sorted keys ``user * n_items + item`` of new pairs: ``needed (n_users,)`` a user, none ``taken``.

    Rejected draws are drawn again, at most ``rounds`` times, so the items of a user follow ``draw`` without
    replacement. ``taken`` is sorted. Fewer pairs come back only where ``rounds`` ran out.
    """
    drawn = np.empty(0, dtype=np.int64)
    missing = needed.astype(np.int64)
    for _ in range(rounds):
        users = np.repeat(np.arange(len(missing)), missing)
        if not len(users):
            break
        keys = np.sort(users * n_items + draw(users))
        keys = keys[np.append(True, keys[1:] != keys[:-1])]  # np.unique would hash them first, far slower on millions
        keys = keys[~_contains(taken, keys) & ~_contains(drawn, keys)]
        missing = missing - np.bincount(keys // n_items, minlength=len(missing))
        drawn = np.sort(np.concatenate([drawn, keys]), kind="stable")  # stable: merges two sorted runs
    return drawn


def _contains(ordered: np.ndarray, keys: np.ndarray) -> np.ndarray:
    if not len(ordered):
        return np.zeros(len(keys), dtype=bool)
    places = np.searchsorted(ordered, keys)
    contained: np.ndarray = ordered[np.minimum(places, len(ordered) - 1)] == keys
    return contained
