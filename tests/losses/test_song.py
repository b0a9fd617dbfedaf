"""SONG and SONG@K: values by explicit loops, and the gradient estimator of the paper written out."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from topshelf.errors import ConfigError
from topshelf.losses.song import SONG, SONGAtK, song_at_k_loss, song_loss
from topshelf.losses.state import first_rows

N_ITEMS = 40


def problem(seed, n_queries=4, n_positives=9, n_negatives=6):
    generator = torch.Generator().manual_seed(seed)
    return {
        "positive": torch.randn(n_positives, generator=generator, dtype=torch.float64),
        "negative": torch.randn(n_queries, n_negatives, generator=generator, dtype=torch.float64),
        "owner": torch.randint(n_queries, (n_positives,), generator=generator),
        "mask": torch.rand(n_queries, n_negatives, generator=generator) < 0.3,
        "log_q": torch.randn(n_negatives, generator=generator, dtype=torch.float64),
    }


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def slow_rank(p, i, scale=N_ITEMS):
    """ĝ and its derivatives by the positive's and each negative's score."""
    q, s_i = int(p["owner"][i]), float(p["positive"][i])
    rivals = [j for j in range(p["negative"].size(1)) if not p["mask"][q, j]]
    share = {j: math.exp(-float(p["log_q"][j])) for j in rivals}
    total = sum(share.values())
    over = {j: max(0.0, float(p["negative"][q, j]) - s_i + 1) for j in rivals}
    rank = sum(scale * share[j] / total * over[j] ** 2 for j in rivals)
    by_negative = {j: scale * share[j] / total * 2 * over[j] for j in rivals}
    return rank, -sum(by_negative.values()), by_negative


def slow(p, averages, gamma, weights, scale=N_ITEMS):
    """Values, gradients and averages after the step, from the formulas alone."""
    p = {name: tensor.detach() for name, tensor in p.items()}
    values, averages = [], list(averages)
    to_positive, to_negative = torch.zeros_like(p["positive"]), torch.zeros_like(p["negative"])
    for i in range(len(averages)):
        rank, by_positive, by_negative = slow_rank(p, i, scale)
        if not by_negative:
            values.append(0.0)
            continue
        g = rank if averages[i] < 0 else (1 - gamma) * averages[i] + gamma * rank
        averages[i] = g
        g = max(g, scale / N_ITEMS)
        values.append(-weights[i] / math.log2(1 + g))
        slope = weights[i] / (math.log2(g + 1) ** 2 * (g + 1) * math.log(2))
        to_positive[i] = slope * by_positive
        for j, derivative in by_negative.items():
            to_negative[p["owner"][i], j] += slope * derivative
    return torch.tensor(values, dtype=torch.float64), to_positive, to_negative, averages


def gradients(losses, p):
    return torch.autograd.grad(losses.sum(), (p["positive"], p["negative"]))


def differentiable(p):
    p["positive"].requires_grad_()
    p["negative"].requires_grad_()
    return p


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), gamma=st.sampled_from([0.1, 0.5, 1.0]), rank=st.sampled_from(["sum", "mean"]))
def test_song_has_the_value_and_the_gradient_of_the_papers_estimator(seed, gamma, rank):
    p = differentiable(problem(seed))
    averages = [-1.0, 3.0, 0.2, -1.0, 50.0, 7.0, 1.0, 0.0, 20.0]
    given_averages = torch.tensor(averages, dtype=torch.float64)
    found = song_loss(**p, n_items=N_ITEMS, gamma=gamma, average=given_averages, rank=rank)
    value, to_positive, to_negative, _ = slow(p, averages, gamma, [1.0] * 9, N_ITEMS if rank == "sum" else 1)
    assert_close(found, value)
    assert_close(gradients(found, p), (to_positive, to_negative))


@pytest.mark.parametrize("form", ["paper", "original"])
def test_song_at_k_has_the_value_and_the_gradient_of_the_papers_estimator(form):
    p = differentiable(problem(1))
    threshold = torch.tensor([0.3, -0.5, 1.0, 0.0], dtype=torch.float64)
    averages = [-1.0, 3.0, 0.2, -1.0, 50.0, 7.0, 1.0, 0.0, 20.0]
    given_averages = torch.tensor(averages, dtype=torch.float64)
    found = song_at_k_loss(**p, threshold=threshold, n_items=N_ITEMS, gamma=0.3, average=given_averages, form=form)
    over = (p["positive"].detach() - threshold[p["owner"]]).tolist()
    weights = [sigmoid(x) if form == "paper" else 2 * sigmoid(2 * x) for x in over]
    value, to_positive, to_negative, _ = slow(p, averages, 0.3, weights)
    assert_close(found, value)
    assert_close(gradients(found, p), (to_positive, to_negative))


def test_without_a_moving_average_the_gradient_is_the_derivative():
    p = differentiable(problem(2))
    assert torch.autograd.gradcheck(
        lambda s, n: song_loss(s, n, p["owner"], n_items=N_ITEMS, mask=p["mask"]), (p["positive"], p["negative"])
    )


def test_song_at_k_with_its_weight_held_at_one_is_song():
    p = differentiable(problem(3))
    average = torch.rand(9, dtype=torch.float64) * 30
    plain = song_loss(**p, n_items=N_ITEMS, gamma=0.4, average=average)
    held = song_at_k_loss(**p, threshold=None, n_items=N_ITEMS, gamma=0.4, average=average)
    assert_close(held, plain, rtol=0, atol=0)
    assert_close(gradients(held, p), gradients(plain, p), rtol=0, atol=0)
    far_above = song_at_k_loss(**p, threshold=torch.full((4,), -1e3), n_items=N_ITEMS, gamma=0.4, average=average)
    assert_close(far_above, plain)


def test_the_module_keeps_one_average_a_positive_and_moves_it_step_by_step():
    loss = SONG(n_positives=30, n_items=N_ITEMS, gamma=0.3, reduction="none").double()
    pair = torch.tensor([4, 29, 0, 7, 8, 9, 11, 2, 3])
    averages = [-1.0] * 9
    for seed in range(3):
        p = {**problem(seed), "owner": problem(0)["owner"]}
        found = loss(**p, pair=pair)
        value, _, _, averages = slow(p, averages, 0.3, [1.0] * 9)
        assert_close(found, value)
        assert_close(loss.g[pair], torch.tensor(averages, dtype=torch.float64))
    untouched = torch.ones(30, dtype=torch.bool).scatter_(0, pair, False)
    assert (loss.g[untouched] == -1).all()
    assert sum(buffer.numel() for buffer in loss.buffers()) == 30


def test_an_average_of_a_positive_without_negatives_stays():
    loss = SONG(n_positives=2, n_items=N_ITEMS, gamma=0.5)
    loss.g.copy_(torch.tensor([5.0, -1.0]))
    loss(torch.zeros(2), torch.zeros(2, 3), mask=torch.ones(2, 3, dtype=torch.bool), pair=torch.tensor([0, 1]))
    assert_close(loss.g, torch.tensor([5.0, -1.0]))


def test_of_a_positive_that_comes_twice_the_first_average_is_kept():
    loss = SONG(n_positives=1, n_items=1, gamma=1.0)
    loss(torch.zeros(2), torch.tensor([[1.0], [2.0]]), pair=torch.tensor([0, 0]))
    assert_close(loss.g, torch.tensor([4.0]))


def slow_threshold(before, k, eta, positive, negative):
    share = (sum(s <= before for s in positive) + (N_ITEMS - len(positive)) * mean(s <= before for s in negative)) / (
        N_ITEMS
    )
    return before - eta * (share - (1 - k / N_ITEMS))


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def test_thresholds_move_by_quantile_regression_over_positives_and_negatives():
    p = {**problem(4), "owner": torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 2]), "log_q": None}
    query = torch.tensor([5, 1, 3, 0])
    loss = SONGAtK(n_queries=7, n_positives=9, n_items=N_ITEMS, k=3, eta=0.1).double()
    loss.threshold.copy_(torch.linspace(-1, 1, 7))
    before = loss.threshold.clone()
    loss(**p, query=query, pair=torch.arange(9))
    for row, q in enumerate(query.tolist()):
        own = [float(s) for s, o in zip(p["positive"], p["owner"], strict=True) if o == row]
        rivals = [float(s) for s, hidden in zip(p["negative"][row], p["mask"][row], strict=True) if not hidden]
        expected = slow_threshold(float(before[q]), 3, 0.1, own, rivals)
        assert float(loss.threshold[q]) == pytest.approx(expected)
    assert_close(loss.threshold[[2, 4, 6]], before[[2, 4, 6]])


def test_thresholds_move_alike_in_the_ragged_and_the_pair_form():
    p, query = problem(6), torch.tensor([5, 1, 3, 0])
    ragged, pairs = (SONGAtK(n_queries=7, n_positives=9, n_items=N_ITEMS, eta=0.1).double() for _ in range(2))
    pair, owner = torch.arange(9), p["owner"]
    ragged(**p, query=query, pair=pair)
    pairs(p["positive"], p["negative"][owner], mask=p["mask"][owner], log_q=p["log_q"], query=query[owner], pair=pair)
    moved = query[owner.unique()]
    assert_close(pairs.threshold[moved], ragged.threshold[moved])
    assert (ragged.threshold[moved] != 0).all()


def test_thresholds_settle_at_the_kth_best_score():
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(2, N_ITEMS, generator=generator)
    loss = SONGAtK(n_queries=2, n_positives=4, n_items=N_ITEMS, k=5, eta=0.01)
    owner, positive = torch.tensor([0, 0, 1, 1]), scores[:, :2].reshape(-1)
    for _ in range(600):
        loss(positive, scores[:, 2:], owner, query=torch.arange(2), pair=torch.arange(4))
    ordered = scores.sort(1, descending=True).values
    assert (loss.threshold < ordered[:, 4]).all()
    assert (loss.threshold > ordered[:, 6]).all()


def test_first_rows_names_the_first_place_of_each_index():
    assert first_rows(torch.tensor([3, 1, 3, 0, 1, 3])).tolist() == [0, 1, 0, 3, 1, 0]
    assert first_rows(torch.zeros(0, dtype=torch.long)).tolist() == []


@pytest.mark.parametrize(
    ("settings_given", "message"),
    [
        ({"gamma": 0.0}, "gamma must be > 0, got 0.0"),
        ({"gamma": 1.5}, "gamma must be <= 1.0, got 1.5"),
        ({"eta": -0.1}, "eta must be > 0, got -0.1"),
        ({"k": 0}, "k must be >= 1, got 0"),
        ({"form": "old"}, "form must be one of paper, original, got 'old'"),
        ({"n_items": 0}, "n_items must be >= 1, got 0"),
    ],
)
def test_bad_settings_are_refused(settings_given, message):
    with pytest.raises(ConfigError, match=message):
        SONGAtK(**{"n_queries": 2, "n_positives": 3, "n_items": 9, **settings_given})


def test_it_says_when_it_is_not_told_which_positives_these_are():
    with pytest.raises(ConfigError, match="SONG needs pair"):
        SONG(n_positives=3, n_items=9)(torch.zeros(1), torch.zeros(1, 2))
