"""Scores by how active users are."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from benches import measured, place, results_of
from topshelf.bench.activity import activity_grid, by_activity
from topshelf.bench.worker import ACTIVITY


def active(method, values, counts, seed=0):
    run = measured(method, values, seed=seed)
    users = run.users().with_columns(pl.Series(ACTIVITY, np.asarray(counts, dtype=np.float32)))
    return type(run)(**{**vars(run), "users": lambda: users})


def test_groups_hold_all_users_and_equal_counts_are_never_parted():
    rng = np.random.default_rng(0)
    values, counts = rng.random(200), rng.integers(5, 40, 200)
    counts[:90] = 7
    found = by_activity(results_of([active("a", values, counts)]))
    assert sum(one.users for one in found) == 200
    assert [one.low for one in found[1:]] == [one.high + 1 for one in found[:-1]]
    for one in found:
        inside = (counts >= one.low) & (counts <= one.high)
        assert one.score == pytest.approx(values.astype(np.float32)[inside].mean(), rel=1e-5)


def test_users_that_were_not_measured_do_not_count_and_seeds_are_meaned():
    runs = [active("a", [0.2, np.nan, 0.4], [3, 3, 9], seed=0), active("a", [0.4, 0.9, 0.6], [3, 3, 9], seed=1)]
    few, many = by_activity(results_of(runs))
    assert (few.low, few.high, many.low, many.high) == (3, 3, 4, 9)
    assert few.score == pytest.approx((0.2 + 0.65) / 2, rel=1e-6)
    assert many.score == pytest.approx(0.5, rel=1e-6)
    grid = activity_grid([few, many])
    assert grid.header == ("data", "method", "3", "4 to 9")
    assert grid.rows == (("clicks", "a", "0.4250", "0.5000"),)


def test_one_count_is_one_group_and_runs_without_counts_have_none():
    assert [(one.low, one.high) for one in by_activity(results_of([active("a", [0.1, 0.2], [4, 4])]))] == [(4, 4)]
    bare = results_of([measured("a", [0.1, 0.2])])
    assert by_activity(bare) == []
    assert activity_grid([]) is None
    assert bare.places == [place("a")]
