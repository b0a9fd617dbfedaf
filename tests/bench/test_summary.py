"""Means, intervals and tests, against scipy and slow forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benches import measured, place, results_of
from topshelf.bench.report import Report
from topshelf.bench.summary import comparison_frame, comparisons, mean_gains, score_frame, scores
from topshelf.statistics import holm, mean_interval, paired_test

RNG = np.random.default_rng(5)
USERS = RNG.random((6, 40)).astype(np.float32).astype(float)
P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def test_means_and_intervals_over_seeds_are_those_of_scipy():
    results = results_of([measured("one", USERS[seed], seed=seed) for seed in range(3)])
    (score,) = scores(results).values()
    values = [run.metrics["standard"]["ndcg@5"] for run in results.runs]
    expected = stats.t.interval(0.95, 2, loc=np.mean(values), scale=stats.sem(values))
    assert score.n == 3
    assert (score.low, score.high) == pytest.approx(expected, rel=1e-12)
    assert score.mean == pytest.approx(np.mean(values), rel=1e-12)
    assert score.deviation == pytest.approx(stats.tstd(values), rel=1e-12)
    assert mean_interval([1.0, 3.0]) == pytest.approx(stats.t.interval(0.95, 1, loc=2, scale=1), rel=1e-12)


def test_one_seed_has_no_interval():
    (score,) = scores(results_of([measured("one", USERS[0])])).values()
    assert all(map(math.isnan, (score.deviation, score.low, score.high)))
    frame = score_frame(results_of([measured("one", USERS[0])]))
    assert frame["low"].to_list() == [None]


def test_holm_on_a_known_example():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.2]) == [0.2]


@given(P_VALUES)
def test_holm_is_monotone_and_never_below_the_value_or_above_one(p_values):
    adjusted = holm(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, adjusted, strict=True))
    order = np.argsort(p_values, kind="stable")
    assert (np.diff(np.array(adjusted)[order]) >= 0).all()
    assert min(adjusted) == pytest.approx(min(1.0, len(p_values) * min(p_values)))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8, unique=True))
def test_holm_is_its_slow_form(p_values):
    m, expected = len(p_values), []
    for p in p_values:
        smaller = sorted(q for q in p_values if q <= p)
        expected.append(max(min(1.0, (m - rank) * q) for rank, q in enumerate(smaller)))
    assert holm(p_values) == pytest.approx(expected, rel=1e-12)


def test_ours_is_tested_against_the_best_other_of_its_group_on_means_over_seeds():
    runs = [
        measured(name, USERS[at] * scale, seed=seed)
        for seed in (0, 1)
        for at, (name, scale) in enumerate([("ours", 1.2), ("best", 1.0), ("worst", 0.1)], start=seed * 3)
    ]
    (one,) = comparisons(results_of(runs, ours="ours"))
    a, b = (
        np.mean([run.users()["standard/ndcg@5"].to_numpy() for run in runs if run.method == name], axis=0, dtype=float)
        for name in ("ours", "best")
    )
    test = paired_test(a, b)
    assert (one.other, one.draws, one.n) == (place("best"), ((-1, 0), (-1, 1)), 40)
    assert (one.difference, one.low, one.high, one.p_value) == pytest.approx(
        (test.difference, test.low, test.high, test.p_value), rel=1e-6
    )
    assert one.gain == pytest.approx(a.mean() / b.mean() - 1)
    assert one.p_holm == one.p_value  # a single comparison
    assert comparison_frame([one]).height == 1


def test_seeds_that_one_of_them_lacks_and_other_test_lists_are_left_out():
    ours = [measured("ours", USERS[seed], seed=seed) for seed in (0, 1, 2)]
    other = [measured("other", USERS[3], seed=1), measured("other", USERS[4], seed=2, lists=8)]
    other += [measured("other", USERS[5], seed=5)]
    (one,) = comparisons(results_of(ours + other, ours="ours"))
    assert one.draws == ((-1, 1),)
    assert one.ours == pytest.approx(USERS[1].mean(), rel=1e-6)
    apart = [measured("ours", USERS[0]), measured("other", USERS[1], seed=1)]
    assert comparisons(results_of(apart, ours="ours")) == []
    assert comparisons(results_of(apart)) == []


def test_users_that_one_of_them_did_not_measure_are_left_out():
    hole = USERS[1].copy()
    hole[:10] = math.nan
    (one,) = comparisons(results_of([measured("ours", USERS[0]), measured("other", hole)], ours="ours"))
    assert one.n == 30
    assert one.ours == pytest.approx(USERS[0][10:].mean(), rel=1e-6)


def test_a_tie_has_no_difference():
    runs = [measured("ours", USERS[0]), measured("same", USERS[0]), measured("too", USERS[0])]
    (one,) = comparisons(results_of(runs, ours="ours"))
    assert (one.other.method, one.difference, one.gain, one.p_value) == ("same", 0, 0, 1)


def groups_of(scales):
    return [
        measured(name, USERS[at] * scale, group=group, data=data)
        for data in ("clicks", "books")
        for group, pair in scales.items()
        for at, (name, scale) in enumerate(pair.items())
    ]


def test_holm_is_over_all_comparisons_of_a_metric_and_classics_stand_outside():
    runs = groups_of({"MF": {"ours": 1.0, "SL": 0.9}, "GCN": {"ours": 0.7, "SL": 0.9}})
    runs += [measured("EASE", USERS[5], group="classics"), measured("pop", USERS[5] / 9, group="classics")]
    found = comparisons(results_of(runs, ours="ours", own_groups=frozenset({"classics"})))
    assert [(one.place.group, one.place.data, one.other.method, one.among) for one in found] == [
        ("MF", "clicks", "SL", "MF"),
        ("MF", "clicks", "EASE", "outside"),
        ("GCN", "clicks", "SL", "GCN"),
        ("GCN", "clicks", "EASE", "outside"),
        ("MF", "books", "SL", "MF"),
        ("GCN", "books", "SL", "GCN"),
    ]
    assert [one.p_holm for one in found] == holm([one.p_value for one in found])


def test_the_mean_gain_is_over_groups_and_data_with_an_interval_around_it():
    scales = {"MF": {"ours": 1.5, "SL": 1.0}, "GCN": {"ours": 1.2, "SL": 1.0}}
    runs = groups_of(scales)
    published = {
        (place(name, group="MF", data=data), "ndcg@5"): value
        for data in ("clicks", "books")
        for name, value in (("ours", 0.3), ("SL", 0.2))
    }
    results = results_of(runs, ours="ours", published=published)
    found = comparisons(results)
    (gain,) = mean_gains(results, found, n_resamples=200)
    assert gain.n == 4
    assert gain.gain == pytest.approx(np.mean([one.gain for one in found]))
    assert gain.low < gain.gain < gain.high
    assert gain.published is None  # of GCN nothing was published
    both = {
        (place(name, group=group, data=data), "ndcg@5"): value
        for data in ("clicks", "books")
        for group in scales
        for name, value in (("ours", 0.3), ("SL", 0.2))
    }
    (gain,) = mean_gains(results_of(runs, ours="ours", published=both), found, n_resamples=20)
    assert gain.published == pytest.approx(0.5)
    assert mean_gains(results, found[:1]) == []


def test_a_rival_without_any_hit_has_no_gain_and_breaks_nothing():
    runs = groups_of({"MF": {"ours": 1.0, "SL": 0.0}, "GCN": {"ours": 1.0, "SL": 1.0}})
    made = Report.of(results_of(runs, ours="ours"))
    assert math.isnan(made.comparisons[0].gain)
    assert made.gains == []


def test_a_rival_with_a_hit_of_one_user_has_an_interval_without_end():
    rare = np.zeros(40)
    rare[0] = 0.5
    runs = [
        measured(name, values, group=group) for group in "ab" for name, values in (("ours", USERS[0]), ("SL", rare))
    ]
    (gain,) = Report.of(results_of(runs, ours="ours")).gains
    assert gain.high == math.inf


def test_published_figures_are_compared_under_the_papers_protocol_alone():
    runs = [measured("one", USERS[0], protocol=name) for name in ("paper", "standard")]
    both = results_of(runs, protocols=("paper", "standard"), published={(place("one"), "ndcg@5"): 0.5})
    found = scores(both)
    assert found[place("one"), "paper", "ndcg@5"].difference == pytest.approx(USERS[0].mean() / 0.5 - 1, rel=1e-4)
    assert found[place("one"), "standard", "ndcg@5"].published is None
    alone = results_of(runs[1:], published={(place("one"), "ndcg@5"): 0.5})
    assert scores(alone)[place("one"), "standard", "ndcg@5"].published == 0.5
