"""Each metric against a slow reference in plain Python, and the laws that every metric must keep."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from topshelf.errors import DataError
from topshelf.metrics import (
    GAINS,
    METRICS,
    auc,
    catalogue_coverage,
    every_metric,
    item_exposure,
    ndcg_at_k,
    popularity_lift,
)


def plain_ndcg(hits: list[int], n_relevant: int) -> float:
    gain = sum(hit / math.log2(rank + 1) for rank, hit in enumerate(hits, 1))
    ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(len(hits), n_relevant) + 1))
    return gain / ideal if n_relevant else 0.0


def plain_recall(hits: list[int], n_relevant: int) -> float:
    return sum(hits) / n_relevant if n_relevant else 0.0


def plain_precision(hits: list[int], n_relevant: int) -> float:
    return sum(hits) / len(hits)


def plain_hit_rate(hits: list[int], n_relevant: int) -> float:
    return 1.0 if 1 in hits else 0.0


def plain_mrr(hits: list[int], n_relevant: int) -> float:
    return 1 / (hits.index(1) + 1) if 1 in hits else 0.0


def plain_map(hits: list[int], n_relevant: int) -> float:
    total = sum(sum(hits[:rank]) / rank for rank in range(1, len(hits) + 1) if hits[rank - 1])
    return total / min(len(hits), n_relevant) if n_relevant else 0.0


def plain_f1(hits: list[int], n_relevant: int) -> float:
    precision, recall = plain_precision(hits, n_relevant), plain_recall(hits, n_relevant)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


REFERENCES = {
    "ndcg": plain_ndcg,
    "recall": plain_recall,
    "precision": plain_precision,
    "hit_rate": plain_hit_rate,
    "mrr": plain_mrr,
    "map": plain_map,
    "f1": plain_f1,
}

flag_lists = st.lists(st.integers(0, 1), min_size=1, max_size=12)


def value_of(name: str, hits: list[int], n_relevant: int) -> float:
    return float(METRICS[name](torch.tensor([hits]), torch.tensor([n_relevant])))


def test_every_metric_has_a_reference():
    assert list(METRICS) == list(REFERENCES)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32, torch.float64])
def test_metrics_equal_their_references_row_by_row(name, dtype):
    generator = torch.Generator().manual_seed(0)
    hits = torch.randint(0, 2, (200, 7), generator=generator)
    n_relevant = hits.sum(1) + torch.randint(0, 10, (200,), generator=generator)
    expected = [REFERENCES[name](*row) for row in zip(hits.tolist(), n_relevant.tolist(), strict=True)]
    found = METRICS[name](hits.to(dtype), n_relevant)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=1e-15)


def test_ndcg_by_hand():
    found = value_of("ndcg", [0, 1, 1], 2)
    assert found == pytest.approx((1 / math.log2(3) + 1 / math.log2(4)) / (1 + 1 / math.log2(3)), rel=1e-15)


def test_average_precision_by_hand():
    assert value_of("map", [1, 0, 1], 5) == pytest.approx((1 / 1 + 2 / 3) / 3, rel=1e-15)


def test_f1_by_hand():
    precision, recall = 2 / 4, 2 / 3
    expected = 2 * precision * recall / (precision + recall)
    assert value_of("f1", [1, 0, 0, 1], 3) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("name", METRICS)
def test_a_query_without_relevant_items_is_worth_nothing(name):
    assert value_of(name, [0, 0, 0], 0) == 0


@pytest.mark.parametrize("name", METRICS)
@settings(max_examples=60, deadline=None)
@given(hits=flag_lists, unlisted=st.integers(0, 10))
def test_values_lie_between_zero_and_one(name, hits, unlisted):
    assert 0 <= value_of(name, hits, sum(hits) + unlisted) <= 1 + 1e-12


@pytest.mark.parametrize("name", METRICS)
@settings(max_examples=60, deadline=None)
@given(hits=flag_lists, unlisted=st.integers(1, 10), data=st.data())
def test_one_more_hit_never_lowers_a_metric(name, hits, unlisted, data):
    place = data.draw(st.integers(0, len(hits) - 1))
    better = [*hits[:place], 1, *hits[place + 1 :]]
    n_relevant = sum(hits) + unlisted
    assert value_of(name, better, n_relevant) >= value_of(name, hits, n_relevant) - 1e-12


@pytest.mark.parametrize("name", METRICS)
@settings(max_examples=60, deadline=None)
@given(hits=flag_lists.filter(lambda hits: len(hits) > 1), unlisted=st.integers(0, 10), data=st.data())
def test_a_hit_that_moves_up_never_lowers_a_metric(name, hits, unlisted, data):
    place = data.draw(st.integers(0, len(hits) - 2))
    moved = [*hits[:place], *sorted(hits[place : place + 2], reverse=True), *hits[place + 2 :]]
    n_relevant = sum(hits) + unlisted
    assert value_of(name, moved, n_relevant) >= value_of(name, hits, n_relevant) - 1e-12


@pytest.mark.parametrize("name", ["recall", "hit_rate", "mrr"])
@settings(max_examples=60, deadline=None)
@given(hits=flag_lists, unlisted=st.integers(0, 10))
def test_longer_lists_never_find_less(name, hits, unlisted):
    values = [value_of(name, hits[:k], sum(hits) + unlisted) for k in range(1, len(hits) + 1)]
    assert values == sorted(values)


@pytest.mark.parametrize("name", ["ndcg", "hit_rate", "mrr", "map"])
@pytest.mark.parametrize("n_relevant", [1, 3, 5, 9])
def test_the_best_possible_list_is_worth_one(name, n_relevant):
    hits = [1] * min(5, n_relevant) + [0] * max(0, 5 - n_relevant)
    assert value_of(name, hits, n_relevant) == pytest.approx(1, rel=1e-15)


@pytest.mark.parametrize("name", METRICS)
def test_rows_do_not_touch_each_other(name):
    hits = torch.randint(0, 2, (20, 5), generator=torch.Generator().manual_seed(1)).double()
    n_relevant = hits.sum(1).long() + 2
    order = torch.randperm(20, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(METRICS[name](hits[order], n_relevant[order]), METRICS[name](hits, n_relevant)[order])


def plain_graded_ndcg(grades: list[int], others: list[int], form: str) -> float:
    """The grades at the places, and the grades of the items that are not listed."""
    gain = {"exponential": lambda y: 2**y - 1, "linear": lambda y: y}[form]
    best = sorted([*grades, *others], reverse=True)[: len(grades)]
    worth, most = (sum(gain(y) / math.log2(r + 2) for r, y in enumerate(some)) for some in (grades, best))
    return worth / most if most else 0.0


def graded_ndcg(grades: list[int], others: list[int], form: str) -> float:
    gains = GAINS[form](torch.tensor([grades]))
    ideal = GAINS[form](torch.tensor([[*grades, *others]])).sort(descending=True).values
    return float(ndcg_at_k(gains, ideal))


grade_lists = st.lists(st.integers(0, 4), min_size=1, max_size=10)
forms = pytest.mark.parametrize("form", GAINS)


@forms
@settings(max_examples=100, deadline=None)
@given(grades=grade_lists, others=st.lists(st.integers(0, 4), max_size=6))
def test_graded_ndcg_equals_its_reference(form, grades, others):
    expected = plain_graded_ndcg(grades, others, form)
    assert graded_ndcg(grades, others, form) == pytest.approx(expected, rel=1e-14)
    assert 0 <= expected <= 1


def test_graded_ndcg_by_hand():
    ideal = 7 + 1 / math.log2(3)
    assert graded_ndcg([0, 3], [1], "exponential") == pytest.approx(7 / math.log2(3) / ideal)
    assert graded_ndcg([0, 3], [1], "linear") == pytest.approx(3 / math.log2(3) / (3 + 1 / math.log2(3)))


@forms
@settings(max_examples=60, deadline=None)
@given(grades=grade_lists.filter(any))
def test_the_perfect_order_is_worth_one_and_no_other_is_worth_more(form, grades):
    assert graded_ndcg(sorted(grades, reverse=True), [], form) == pytest.approx(1, rel=1e-15)
    assert graded_ndcg(grades, [], form) <= 1 + 1e-15


@settings(max_examples=60, deadline=None)
@given(hits=flag_lists, unlisted=st.integers(0, 10))
def test_both_gains_and_the_binary_form_agree_on_zeros_and_ones(hits, unlisted):
    binary = value_of("ndcg", hits, sum(hits) + unlisted)
    for form in GAINS:
        assert graded_ndcg(hits, [1] * unlisted, form) == pytest.approx(binary, rel=1e-14)


@forms
@settings(max_examples=60, deadline=None)
@given(grades=grade_lists, others=st.lists(st.integers(0, 4), max_size=6), n=st.integers(1, 5))
def test_irrelevant_items_that_are_not_listed_change_nothing(form, grades, others, n):
    assert graded_ndcg(grades, [*others, *[0] * n], form) == graded_ndcg(grades, others, form)


@forms
@settings(max_examples=60, deadline=None)
@given(grades=grade_lists, n=st.integers(1, 5))
def test_irrelevant_items_after_all_others_change_nothing(form, grades, n):
    assert graded_ndcg([*grades, *[0] * n], [], form) == pytest.approx(graded_ndcg(grades, [], form), rel=1e-14)


@forms
@settings(max_examples=60, deadline=None)
@given(grades=grade_lists.filter(lambda grades: len(grades) > 1), data=st.data())
def test_a_better_item_that_moves_up_never_lowers_ndcg(form, grades, data):
    at = data.draw(st.integers(0, len(grades) - 2))
    moved = [*grades[:at], *sorted(grades[at : at + 2], reverse=True), *grades[at + 2 :]]
    assert graded_ndcg(moved, [], form) >= graded_ndcg(grades, [], form) - 1e-15


@settings(max_examples=60, deadline=None)
@given(grades=grade_lists)
def test_a_factor_on_linear_gains_changes_nothing(grades):
    gains, ideal = torch.tensor([grades]), torch.tensor([sorted(grades, reverse=True)])
    assert float(ndcg_at_k(3 * gains, 3 * ideal)) == pytest.approx(float(ndcg_at_k(gains, ideal)), rel=1e-14)


@pytest.mark.parametrize("name", [name for name in METRICS if name != "ndcg"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float64])
def test_the_other_metrics_ask_only_whether_a_gain_is_above_zero(name, dtype):
    gains = torch.tensor([[0, 3, 0, 7], [0.5, 0, 0, 1], [0, 0, 0, 0]]).to(dtype)
    n_relevant = torch.tensor([3, 5, 2])
    assert torch.equal(METRICS[name](gains, n_relevant), METRICS[name](gains > 0, n_relevant))


@pytest.mark.parametrize("graded", [False, True])
def test_every_metric_at_every_cutoff_at_once_is_each_of_them_alone(graded):
    generator = torch.Generator().manual_seed(3)
    gains = torch.randint(0, 4 if graded else 2, (50, 9), generator=generator).double()
    n_relevant = (gains > 0).sum(1) + 2
    ideal = gains.sort(descending=True).values if graded else None
    values = every_metric(gains, n_relevant, (2, 9), ideal)
    assert list(values) == [f"{name}@{k}" for name in METRICS for k in (2, 9)]
    for name, metric in METRICS.items():
        for k in (2, 9):
            of = ideal if graded and name == "ndcg" else n_relevant
            assert torch.equal(values[f"{name}@{k}"], metric(gains[:, :k], of))


def plain_auc(scores: list[float], relevant: set[int], masked: set[int]) -> float:
    others = [j for j in range(len(scores)) if j not in relevant | masked]
    if not relevant or not others:
        return math.nan
    right = sum((scores[i] > scores[j]) + (scores[i] == scores[j]) / 2 for i in relevant for j in others)
    return right / (len(relevant) * len(others))


def auc_of(scores: list[float], relevant: set[int], masked: set[int]) -> float:
    candidates = [j for j in range(len(scores)) if j not in masked]
    above = sum(scores[j] > scores[i] for i in relevant for j in candidates)
    equal = sum(scores[j] == scores[i] for i in relevant for j in candidates if j != i)
    counts = (above, equal, len(relevant), len(candidates))
    return float(auc(*(torch.tensor([count]) for count in counts)))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["relevant", "masked", "other"])), min_size=1))
def test_auc_counts_pairs_with_ties_as_half(table):
    scores = [float(score) for score, _ in table]
    relevant = {j for j, (_, kind) in enumerate(table) if kind == "relevant"}
    masked = {j for j, (_, kind) in enumerate(table) if kind == "masked"}
    assert auc_of(scores, relevant, masked) == pytest.approx(plain_auc(scores, relevant, masked), nan_ok=True)


def lists() -> Tensor:
    return torch.tensor([[0, 1], [1, 3], [1, -1]])


def test_coverage_is_the_share_of_items_in_any_list():
    exposure = item_exposure(lists(), 5)
    assert exposure.tolist() == [1, 3, 0, 1, 0]
    assert catalogue_coverage(exposure) == 3 / 5


def test_popularity_lift_weighs_items_by_how_often_they_are_listed():
    item_counts = torch.tensor([10, 4, 1, 3, 2])
    recommended = (1 * 10 + 3 * 4 + 1 * 3) / 5
    assert popularity_lift(item_exposure(lists(), 5), item_counts) == pytest.approx(recommended / (20 / 5))


def test_lists_of_the_whole_catalogue_have_no_popularity_lift():
    exposure = item_exposure(torch.arange(6).repeat(3, 1), 6)
    assert popularity_lift(exposure, torch.tensor([5, 0, 2, 9, 1, 1])) == pytest.approx(1)


def test_popularity_of_nothing_is_undefined():
    assert math.isnan(popularity_lift(item_exposure(torch.tensor([[-1]]), 2), torch.tensor([1, 2])))


def test_popularity_of_another_catalogue_is_refused():
    with pytest.raises(DataError, match="item_counts must hold 2 items, got 3"):
        popularity_lift(torch.tensor([1, 0]), torch.tensor([1, 2, 3]))
