"""SL and SL@K of graded lists against their formulas written as explicit loops in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from topshelf.losses import listwise_slatk_loss, listwise_softmax_loss, slatk_loss, softmax_loss

FEW = settings(max_examples=25, deadline=None)
SEED = st.integers(0, 10_000)


def problem(seed, n_queries=4, length=6, grades=4):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(n_queries, length, generator=generator, dtype=torch.float64)
    relevance = torch.randint(grades, (n_queries, length), generator=generator)
    return scores, relevance, torch.rand(n_queries, length, generator=generator) < 0.35


def threshold_of(s, k):
    return sorted(s, reverse=True)[min(k, len(s)) - 1]


def slow(scores, relevance, mask, tau, *, least=1, weight=lambda s_i, q, s: 1.0):
    """Explicit loops; ``weight`` of the score s_i in query q, whose scores are s."""
    costs = []
    for q in range(scores.size(0)):
        kept = [i for i in range(scores.size(1)) if not mask[q, i]]
        s, y = [float(scores[q, i]) for i in kept], [int(relevance[q, i]) for i in kept]
        positives = [i for i in range(len(s)) if y[i] >= least]
        cost = 0.0
        if len(set(y)) > 1 and positives:
            total = sum(2 ** y[i] - 1 for i in positives)
            for i in positives:
                softmax = math.exp(s[i] / tau) / sum(math.exp(v / tau) for v in s)
                cost -= (2 ** y[i] - 1) / total * weight(s[i], q, s) * math.log(softmax)
        costs.append(cost)
    return tensor(costs, dtype=torch.float64)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


@FEW
@given(seed=SEED, tau=st.sampled_from([0.3, 1.0]), least=st.sampled_from([1, 2, 3]))
def test_softmax_of_grades_follows_its_formula(seed, tau, least):
    p = problem(seed)
    assert_close(listwise_softmax_loss(*p, tau=tau, positive_from=least), slow(*p, tau, least=least))


@FEW
@given(seed=SEED, k=st.sampled_from([1, 3, 5, 9]), tau_weight=st.sampled_from([0.2, 1.0]))
def test_slatk_of_grades_follows_its_formula(seed, k, tau_weight):
    p = problem(seed)
    expected = slow(*p, 0.5, weight=lambda s_i, q, s: sigmoid((s_i - threshold_of(s, k)) / tau_weight))
    assert_close(listwise_slatk_loss(*p, k=k, tau=0.5, tau_weight=tau_weight), expected)


def test_any_relevance_above_0_is_positive_unless_said_otherwise():
    scores, relevance = tensor([[0.2, 1.0, -0.5]]), tensor([[0.5, 0.0, 0.0]])
    assert_close(listwise_softmax_loss(scores, relevance), softmax_loss(scores[:, 0], scores, tau=1.0))
    assert listwise_softmax_loss(scores, relevance, positive_from=1.0) == 0
    assert listwise_slatk_loss(scores, relevance, positive_from=1.0) == 0


def test_gradcheck_of_softmax():
    scores, relevance, mask = problem(1)
    loss = lambda s: listwise_softmax_loss(s, relevance, mask, tau=0.4)  # noqa: E731
    assert torch.autograd.gradcheck(loss, scores.requires_grad_())


@pytest.mark.parametrize("detach_weight", [False, True])
def test_gradient_of_slatk_holds_the_threshold_and_if_told_the_weight_fixed(detach_weight):
    """Differences of the slow formula, with β (and the weight) kept where they were."""
    scores, relevance, mask = problem(2)
    given_scores = scores.clone().requires_grad_()
    cost = listwise_slatk_loss(given_scores, relevance, mask, k=3, tau=0.5, tau_weight=0.7, detach_weight=detach_weight)
    (found,) = torch.autograd.grad(cost.sum(), given_scores)
    real = [[float(s) for s, m in zip(scores[q], mask[q], strict=True) if not m] for q in range(4)]
    step, expected = 1e-6, torch.zeros_like(scores)

    def cost_at(moved, at):
        def weight(s_i, q, s):
            before = real[q][s.index(s_i)] if detach_weight else s_i
            return sigmoid((before - threshold_of(real[q], 3)) / 0.7)

        return float(slow(moved, relevance, mask, 0.5, weight=weight)[at])

    for q in range(4):
        for i in range(6):
            there = torch.zeros_like(scores)
            there[q, i] = step
            expected[q, i] = (cost_at(scores + there, q) - cost_at(scores - there, q)) / (2 * step)
    assert_close(found, expected, atol=1e-7, rtol=1e-6)


def test_slatk_with_a_large_tau_weight_is_half_the_softmax_loss():
    p = problem(3)
    assert_close(listwise_slatk_loss(*p, tau=0.3, tau_weight=1e12), listwise_softmax_loss(*p, tau=0.3) / 2)


def test_binary_relevance_gives_the_mean_of_the_ragged_losses_over_the_whole_list():
    scores, _, mask = problem(4)
    relevance = tensor([[1, 0, 0, 1, 0, 1], [0, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 1]])
    mask = mask & (relevance == 0)
    mask[:, 2:4] = False
    owner, place = relevance.nonzero(as_tuple=True)
    counts = relevance.sum(1)

    def mean_by_query(each):
        return torch.zeros(4, dtype=torch.float64).index_add(0, owner, each) / counts

    each = softmax_loss(scores[owner, place], scores, owner, tau=0.4, mask=mask)
    assert_close(listwise_softmax_loss(scores, relevance, mask, tau=0.4), mean_by_query(each))
    threshold = scores.masked_fill(mask, -math.inf).topk(2).values[:, -1]
    each = slatk_loss(scores[owner, place], scores, owner, threshold=threshold, tau=0.4, tau_weight=0.6, mask=mask)
    assert_close(listwise_slatk_loss(scores, relevance, mask, k=2, tau=0.4, tau_weight=0.6), mean_by_query(each))


def test_gains_outweigh_by_grade():
    """One positive of grade 3 has gain 7 of 8 beside one of grade 1."""
    scores, relevance = tensor([[0.3, -0.2, 0.5]]), tensor([[3, 1, 0]])
    each = softmax_loss(scores[0, :2], scores, tensor([0, 0]), tau=1.0)
    assert_close(listwise_softmax_loss(scores, relevance), (7 / 8 * each[0] + 1 / 8 * each[1]).reshape(1))
