"""The losses made from NDCG against their formulas written as explicit loops in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from topshelf.errors import ConfigError
from topshelf.losses import (
    LISTWISE,
    approx_ndcg_loss,
    listwise_lambdaloss_at_k_loss,
    listwise_lambdarank_loss,
    neural_ndcg_loss,
    ranknet_loss,
)

FEW = settings(max_examples=25, deadline=None)
SEED = st.integers(0, 10_000)
CUTS = st.sampled_from([None, 1, 2, 5, 20])


def problem(seed, n_queries=4, length=6, grades=4):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(n_queries, length, generator=generator, dtype=torch.float64)
    relevance = torch.randint(grades, (n_queries, length), generator=generator)
    return scores, relevance, torch.rand(n_queries, length, generator=generator) < 0.35


def slowly(one_list, scores, relevance, mask):
    """``one_list(s, y)`` of each query's real places, 0 when all are of one relevance."""
    costs = []
    for q in range(scores.size(0)):
        kept = [i for i in range(scores.size(1)) if not mask[q, i]]
        s, y = [float(scores[q, i]) for i in kept], [int(relevance[q, i]) for i in kept]
        costs.append(one_list(s, y) if len(set(y)) > 1 else 0.0)
    return tensor(costs, dtype=torch.float64)


def log_rank(rank):
    return math.log2(rank + 1)


def dcg(y, k):
    return sum((2**grade - 1) / log_rank(r) for r, grade in enumerate(y[:k], start=1))


def ndcg(s, y, k=None):
    """Equal scores: the less relevant first."""
    order = sorted(range(len(s)), key=lambda i: (-s[i], y[i]))
    return dcg([y[i] for i in order], k) / dcg(sorted(y, reverse=True), k)


def ranks(s, y):
    order = sorted(range(len(s)), key=lambda i: (-s[i], y[i]))
    return [order.index(i) + 1 for i in range(len(s))]


def logistic(margin):
    return math.log(1 + math.exp(-margin))


def slow_lambdarank(s, y, k, tau):
    """The weight of a pair by swapping it and computing NDCG@K anew."""
    order = sorted(range(len(s)), key=lambda i: (-s[i], y[i]))
    best, cost = dcg(sorted(y, reverse=True), k), 0.0
    for i in range(len(s)):
        for j in range(len(s)):
            if y[i] > y[j]:
                swapped = [{i: j, j: i}.get(p, p) for p in order]
                change = abs(dcg([y[p] for p in swapped], k) - dcg([y[p] for p in order], k)) / best
                cost += change * logistic((s[i] - s[j]) / tau)
    return cost


def mu(pi_i, pi_j, k):
    eta = 1 / math.log2(abs(pi_i - pi_j) + 1) - 1 / math.log2(abs(pi_i - pi_j) + 2)
    worse = max(pi_i, pi_j)
    return eta / (1 - 1 / math.log2(worse + 1)) if k is not None and worse > k else eta


def slow_lambdaloss(s, y, k, tau, form):
    pi, cost = ranks(s, y), 0.0
    for i in range(len(s)):
        for j in range(len(s)):
            if form == "paper" and y[i] > 0 and y[j] == 0:
                cost += mu(pi[i], pi[j], k) * math.log(1 + math.exp((s[j] - s[i]) / tau))
            if form == "original" and y[i] > y[j]:
                gain = abs((2 ** y[i] - 1) - (2 ** y[j] - 1)) / dcg(sorted(y, reverse=True), k)
                cost += gain * mu(pi[i], pi[j], k) * logistic((s[i] - s[j]) / tau)
    return cost


def slow_approx_ndcg(s, y, tau):
    total = 0.0
    for i in range(len(s)):
        rank = 1 + sum(1 / (1 + math.exp((s[i] - s[j]) / tau)) for j in range(len(s)) if j != i)
        total += (2 ** y[i] - 1) / log_rank(rank)
    return 1 - total / dcg(sorted(y, reverse=True), None)


def neural_sort(s, tau):
    """The published relaxation, row by row, in numpy."""
    s = np.asarray(s)
    n = len(s)
    spread = np.abs(s[:, None] - s[None, :]) @ np.ones(n)
    rows = []
    for r in range(1, n + 1):
        logits = ((n + 1 - 2 * r) * s - spread) / tau
        weights = np.exp(logits - logits.max())
        rows.append(weights / weights.sum())
    return np.array(rows)


def slow_neural_ndcg(s, y, k, tau, steps):
    matrix = neural_sort(s, tau)
    for _ in range(steps):
        matrix = matrix / matrix.sum(0, keepdims=True)
        matrix = matrix / matrix.sum(1, keepdims=True)
    gains = matrix @ np.array([2.0**grade - 1 for grade in y])
    found = sum(gains[r - 1] / log_rank(r) for r in range(1, len(s) + 1) if k is None or r <= k)
    return 1 - found / dcg(sorted(y, reverse=True), k)


@FEW
@given(seed=SEED, k=CUTS, tau=st.sampled_from([0.3, 1.0]))
def test_lambdarank_weighs_pairs_by_the_change_of_ndcg_when_they_are_swapped(seed, k, tau):
    p = problem(seed)
    assert_close(listwise_lambdarank_loss(*p, k=k, tau=tau), slowly(lambda s, y: slow_lambdarank(s, y, k, tau), *p))


@pytest.mark.parametrize("form", ["original", "paper"])
@FEW
@given(seed=SEED, k=CUTS, tau=st.sampled_from([0.3, 1.0]))
def test_lambdaloss_at_k_follows_its_formula(form, seed, k, tau):
    p = problem(seed)
    expected = slowly(lambda s, y: slow_lambdaloss(s, y, k, tau, form), *p)
    assert_close(listwise_lambdaloss_at_k_loss(*p, k=k, tau=tau, form=form), expected)


@FEW
@given(seed=SEED, tau=st.sampled_from([0.1, 1.0]))
def test_approx_ndcg_follows_its_formula(seed, tau):
    p = problem(seed)
    assert_close(approx_ndcg_loss(*p, tau=tau), slowly(lambda s, y: slow_approx_ndcg(s, y, tau), *p))


@FEW
@given(seed=SEED, k=CUTS, tau=st.sampled_from([0.5, 1.0, 5.0]), steps=st.sampled_from([0, 1, 50]))
def test_neural_ndcg_follows_its_formula(seed, k, tau, steps):
    p = problem(seed)
    expected = slowly(lambda s, y: slow_neural_ndcg(s, y, k, tau, steps), *p)
    assert_close(neural_ndcg_loss(*p, k=k, tau=tau, steps=steps), expected, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize(
    "loss",
    [
        lambda *p: listwise_lambdarank_loss(*p, k=3),
        lambda *p: listwise_lambdaloss_at_k_loss(*p, k=2),
        lambda *p: listwise_lambdaloss_at_k_loss(*p, k=2, form="paper"),
        lambda *p: approx_ndcg_loss(*p, tau=0.7),
        lambda *p: neural_ndcg_loss(*p, k=3, steps=10),
    ],
    ids=["lambdarank", "lambdaloss@k", "lambdaloss@k of the paper", "approx ndcg", "neural ndcg"],
)
def test_gradcheck(loss):
    """Ranks do not move under the small steps of the check, so weights without gradient are checked too."""
    scores, relevance, mask = problem(1)
    assert torch.autograd.gradcheck(lambda s: loss(s, relevance, mask), scores.requires_grad_())


@pytest.mark.parametrize("form", ["original", "paper"])
def test_lambdaloss_at_k_of_the_lists_length_or_more_is_lambdaloss(form):
    p = problem(2)
    whole = listwise_lambdaloss_at_k_loss(*p, k=None, form=form)
    for k in (6, 7, 1000):
        assert_close(listwise_lambdaloss_at_k_loss(*p, k=k, form=form), whole)
    assert not torch.allclose(listwise_lambdaloss_at_k_loss(*p, k=1, form=form), whole)


def test_the_forms_of_lambdaloss_at_k_differ_by_the_best_dcg_when_relevance_is_binary():
    scores, relevance, mask = problem(3, grades=2)
    best = slowly(lambda s, y: dcg(sorted(y, reverse=True), 3), scores, relevance, mask)
    original = listwise_lambdaloss_at_k_loss(scores, relevance, mask, k=3)
    assert_close(listwise_lambdaloss_at_k_loss(scores, relevance, mask, k=3, form="paper"), original * best)


def test_lambdaloss_at_k_of_the_paper_takes_positives_from_where_it_is_told():
    scores, relevance, mask = problem(4)
    found = listwise_lambdaloss_at_k_loss(scores, relevance, mask, form="paper", positive_from=2)
    # The same relevances in between would rank equal scores differently, but there are none.
    assert_close(found, listwise_lambdaloss_at_k_loss(scores, relevance >= 2, mask, form="paper"))


def test_lambda_weights_are_the_papers():
    """LambdaLoss@5 on 20 places in order of score: the weight of a pair is what its gradient is multiplied by."""
    scores = torch.arange(2.0, 0.0, -0.1, dtype=torch.float64).unsqueeze(0).requires_grad_()
    for first, second, expected in [
        (1, 2, 1 - 1 / math.log2(3)),
        (5, 4, 1 - 1 / math.log2(3)),
        (5, 6, (1 - 1 / math.log2(3)) / (1 - 1 / math.log2(7))),
        (20, 1, (1 / math.log2(20) - 1 / math.log2(21)) / (1 - 1 / math.log2(21))),
    ]:
        relevance = torch.zeros(1, 20)
        relevance[0, first - 1] = 1
        (gradient,) = torch.autograd.grad(listwise_lambdaloss_at_k_loss(scores, relevance, form="paper").sum(), scores)
        slope = torch.sigmoid(scores[0, second - 1] - scores[0, first - 1]).detach()
        assert float(gradient[0, second - 1] / slope) == pytest.approx(expected)
    assert expected < 0.005  # what the paper says of pairs nearly 20 places apart


@pytest.mark.parametrize("name", ["lambdarank", "lambdaloss_at_k"])
def test_equal_scores_are_ranked_with_the_less_relevant_first(name):
    """A model that scores everything alike is at the worst of its orders, so it has something to learn from."""
    relevance = tensor([[0, 3, 1]])
    tied = LISTWISE[name](reduction="none")(torch.zeros(1, 3).double(), relevance)
    just_so = tensor([[2e-9, 0.0, 1e-9]], dtype=torch.float64)  # 0 before 1 before 3
    assert_close(tied, LISTWISE[name](reduction="none")(just_so, relevance))


def test_lambdarank_of_two_places_is_a_multiple_of_ranknet():
    scores, relevance = tensor([[0.3, 0.9]]), tensor([[1, 0]])
    swap = 1 - 1 / math.log2(3)
    assert_close(listwise_lambdarank_loss(scores, relevance), swap * ranknet_loss(scores, relevance))


@FEW
@given(seed=SEED, k=CUTS)
def test_smooth_ndcg_at_a_tiny_temperature_is_ndcg(seed, k):
    p = problem(seed)
    assert_close(neural_ndcg_loss(*p, k=k, tau=1e-9), slowly(lambda s, y: 1 - ndcg(s, y, k), *p))
    assert_close(approx_ndcg_loss(*p, tau=1e-9), slowly(lambda s, y: 1 - ndcg(s, y), *p))


def test_gains_of_fractional_grades_are_normalised_too():
    """One place of relevance 0.5 at rank 2 of 3: NDCG is 1 / log2(3), though its gain is below 1."""
    scores, relevance = tensor([[2.0, 1.0, 0.0]]), tensor([[0.0, 0.5, 0.0]])
    expected = tensor([1 - 1 / math.log2(3)])
    assert_close(approx_ndcg_loss(scores, relevance, tau=1e-3), expected)
    assert_close(neural_ndcg_loss(scores, relevance, tau=1e-3), expected)


def test_sinkhorn_steps_use_every_place_up_exactly_once():
    scores, relevance, _ = problem(7)
    rough, fair = [], []
    for place in range(6):
        alone = torch.zeros_like(relevance)
        alone[:, place] = 1
        rough.append(soft_mass(scores, alone, 0))
        fair.append(soft_mass(scores, alone, 300))
    assert_close(torch.stack(fair), torch.ones(6, 4, dtype=torch.float64), atol=1e-6, rtol=0)
    assert (torch.stack(rough) - 1).abs().max() > 0.01


def soft_mass(scores, relevance, steps):
    """How much of the one relevant place all ranks hold, from differences of NeuralNDCG at cut-offs, (Q,)."""
    held = torch.zeros(scores.size(0), dtype=torch.float64)
    before = torch.zeros_like(held)
    for k in range(1, 7):
        now = 1 - neural_ndcg_loss(scores, relevance, k=k, steps=steps)
        held += (now - before) * math.log2(k + 1)
        before = now
    return held


@pytest.mark.parametrize(
    ("name", "bad", "message"),
    [
        ("lambdaloss_at_k", {"form": "other"}, "form must be one of original, paper, got 'other'"),
        ("neural_ndcg", {"steps": -1}, "steps must be >= 0, got -1"),
    ],
)
def test_bad_settings_are_refused_with_the_value_received(name, bad, message):
    with pytest.raises(ConfigError, match=message):
        LISTWISE[name](**bad)
