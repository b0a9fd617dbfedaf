"""Distinct draws."""

from __future__ import annotations

import numpy as np

from topshelf.data.sampling import draw_distinct


def test_draws_are_new_distinct_and_as_many_as_needed():
    generator = np.random.default_rng(0)
    taken = np.array([0, 1, 12])  # user 0 has items 0 and 1, user 1 has item 2 of 10
    keys = draw_distinct(np.array([8, 3]), taken, 10, lambda users: generator.integers(10, size=len(users)), 1000)
    assert keys[:8].tolist() == list(range(2, 10))
    assert len(set(keys[8:].tolist()) - {12}) == 3
    assert keys.min() >= 2
    assert keys.max() < 20


def test_rounds_bound_the_work():
    empty = np.empty(0, dtype=np.int64)
    assert draw_distinct(np.array([2]), empty, 10, lambda users: np.zeros_like(users), rounds=3).tolist() == [0]


def test_many_equal_draws_leave_each_pair_once_and_in_order():
    generator = np.random.default_rng(1)
    needed = generator.integers(0, 30, size=500)
    taken = np.unique(generator.integers(500 * 60, size=2000))
    keys = draw_distinct(
        needed, taken, 60, lambda users: np.minimum(generator.geometric(0.05, len(users)) - 1, 59), rounds=5
    )
    assert (np.diff(keys) > 0).all()
    assert not np.isin(keys, taken).any()
    assert (np.bincount(keys // 60, minlength=500) <= needed).all()
