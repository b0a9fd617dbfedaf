"""Intervals and paired tests: cases that can be counted, and their promises on simulated data."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from topshelf import statistics
from topshelf.errors import ConfigError, DataError
from topshelf.statistics import bootstrap_interval, bootstrap_intervals, paired_test


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    n_covered = 0
    for seed in range(200):
        low, high = bootstrap_interval(rng.exponential(size=80), n_resamples=300, seed=seed)
        n_covered += low <= 1.0 <= high
    assert 0.88 <= n_covered / 200 <= 0.98


def test_the_interval_is_about_the_normal_one_for_many_users():
    values = np.random.default_rng(1).normal(3.0, 2.0, size=2000)
    low, high = bootstrap_interval(values, n_resamples=4000)
    reach = 1.96 * values.std() / np.sqrt(2000)
    assert low == pytest.approx(values.mean() - reach, abs=0.1 * reach)
    assert high == pytest.approx(values.mean() + reach, abs=0.1 * reach)


def test_a_constant_has_an_interval_of_no_width():
    assert bootstrap_interval([0.25] * 7) == (0.25, 0.25)


def test_one_user_has_an_interval_of_no_width():
    assert bootstrap_interval([0.5]) == (0.5, 0.5)


def test_intervals_follow_the_seed_and_nothing_else():
    values = np.random.default_rng(2).random(50)
    assert bootstrap_interval(values, seed=5) == bootstrap_interval(values, seed=5)
    assert bootstrap_interval(values, seed=5) != bootstrap_interval(values, seed=6)


def test_columns_are_resampled_together():
    columns = np.random.default_rng(3).random((40, 3))
    low, high = bootstrap_intervals(columns, seed=7)
    for j in range(3):
        assert bootstrap_interval(columns[:, j], seed=7) == pytest.approx((low[j], high[j]), rel=1e-12)


def test_a_small_buffer_changes_nothing(monkeypatch):
    a, b = np.random.default_rng(4).random((2, 24))
    whole = paired_test(a, b, n_permutations=500)
    monkeypatch.setattr(statistics, "MAX_DRAWS", 100)
    assert paired_test(a, b, n_permutations=500) == whole


def exact_p(difference: list[float]) -> float:
    """Share of all sign patterns whose sum is at least as far from zero as the one observed."""
    observed = abs(sum(difference))
    sums = [
        abs(sum(sign * d for sign, d in zip(signs, difference, strict=True)))
        for signs in product((1, -1), repeat=len(difference))
    ]
    return sum(total >= observed - 1e-12 for total in sums) / len(sums)


@pytest.mark.parametrize(
    "difference", [[0.3], [0.1, 0.2, 0.3], [0.1, -0.2, 0.3, 0.3, 0.7, 0.1], [0.5, 0.5, 0.0, 0.5, 0.0]]
)
def test_p_values_approach_the_count_over_all_flips(difference):
    found = paired_test(difference, [0.0] * len(difference), n_permutations=20_000)
    assert found.p_value == pytest.approx(exact_p(difference), abs=0.015)


def test_all_flips_of_three_equal_differences_by_hand():
    # only +++ and --- reach the observed sum: 2 of 8 patterns
    assert exact_p([0.1, 0.1, 0.1]) == 2 / 8
    assert paired_test([0.1] * 3, [0.0] * 3).p_value == pytest.approx(2 / 8, abs=0.02)


def test_sums_equal_but_for_rounding_count_as_extreme():
    assert paired_test([0.1, 0.2, -0.3], [0.0] * 3, n_permutations=200).p_value == 1


def test_identical_models_do_not_differ():
    values = np.random.default_rng(5).random(30)
    found = paired_test(values, values)
    assert (found.difference, found.low, found.high, found.p_value, found.n) == (0, 0, 0, 1, 30)


def test_a_clear_difference_reaches_the_smallest_p_value():
    a = np.random.default_rng(6).random(60)
    found = paired_test(a + 0.1, a, n_permutations=999)
    assert found.p_value == 1 / 1000
    assert found.difference == pytest.approx(0.1)
    assert found.low == pytest.approx(0.1)
    assert found.high == pytest.approx(0.1)


def test_swapping_the_models_turns_the_sign_and_keeps_the_p_value():
    a, b = np.random.default_rng(7).random((2, 40))
    forth, back = paired_test(a, b), paired_test(b, a)
    assert forth.difference == -back.difference
    assert forth.p_value == back.p_value


def test_p_values_are_uniform_when_the_models_are_alike():
    rng = np.random.default_rng(8)
    p_values = np.array(
        [
            paired_test(rng.random(25), rng.random(25), n_permutations=199, n_resamples=1, seed=seed).p_value
            for seed in range(400)
        ]
    )
    for level in (0.05, 0.25, 0.5, 0.75):
        deviation = 4 * np.sqrt(level * (1 - level) / 400)
        assert (p_values <= level).mean() == pytest.approx(level, abs=deviation)


def test_different_numbers_of_users_are_refused():
    with pytest.raises(DataError, match="got 2 and 3 values"):
        paired_test([0.1, 0.2], [0.1, 0.2, 0.3])


@pytest.mark.parametrize(
    ("values", "message"), [([], r"shape \(0,\)"), ([[1.0]], r"shape \(1, 1\)"), ([1.0, np.nan], "got nan")]
)
def test_values_that_have_no_mean_are_refused(values, message):
    with pytest.raises(DataError, match=message):
        bootstrap_interval(values)


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0, float("nan")])
def test_levels_that_are_no_share_are_refused(level):
    with pytest.raises(ConfigError, match="level must lie between 0 and 1"):
        bootstrap_interval([1.0, 2.0], level=level)


def test_no_resamples_and_no_permutations_are_refused():
    with pytest.raises(ConfigError, match="n_resamples must be >= 1"):
        bootstrap_interval([1.0], n_resamples=0)
    with pytest.raises(ConfigError, match="n_permutations must be >= 1"):
        paired_test([1.0], [1.0], n_permutations=0)
