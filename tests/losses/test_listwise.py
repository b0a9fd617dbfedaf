"""ListNet, ListMLE and RankNet against their formulas written as explicit loops in float64."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from topshelf.errors import ConfigError
from topshelf.losses import ListMLE, bpr_loss, listmle_loss, listnet_loss, listwise_softmax_loss, ranknet_loss

SEEDS = given(seed=st.integers(0, 10_000), tau=st.sampled_from([0.3, 1.0, 2.0]))
FEW = settings(max_examples=25, deadline=None)


def problem(seed, n_queries=4, length=6, grades=4):
    """Some lists here have equal relevances throughout, or no place at all."""
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


def slow_listnet(s, y, tau):
    label_sum, score_sum = sum(math.exp(v) for v in y), sum(math.exp(v / tau) for v in s)
    return -sum(math.exp(y[i]) / label_sum * math.log(math.exp(s[i] / tau) / score_sum) for i in range(len(s)))


def slow_listmle(s, y, tau, ties):
    """Draw the places one after another; with ties together, each is drawn before its equals leave."""
    order = sorted(range(len(s)), key=lambda i: -y[i])  # stable: equal relevances by place
    cost = 0.0
    for step, i in enumerate(order):
        left = order[step:] if ties == "place" else [j for j in order if y[j] <= y[i]]
        cost -= math.log(math.exp(s[i] / tau) / sum(math.exp(s[j] / tau) for j in left))
    return cost


def slow_ranknet(s, y, tau):
    pairs = [(i, j) for i in range(len(s)) for j in range(len(s)) if y[i] > y[j]]
    return sum(math.log(1 + math.exp(-(s[i] - s[j]) / tau)) for i, j in pairs) / len(pairs)


@FEW
@SEEDS
def test_listnet_follows_its_formula(seed, tau):
    p = problem(seed)
    assert_close(listnet_loss(*p, tau=tau), slowly(lambda s, y: slow_listnet(s, y, tau), *p))


@pytest.mark.parametrize("ties", ["together", "place"])
@FEW
@SEEDS
def test_listmle_follows_its_formula(ties, seed, tau):
    p = problem(seed)
    assert_close(listmle_loss(*p, tau=tau, ties=ties), slowly(lambda s, y: slow_listmle(s, y, tau, ties), *p))


@FEW
@SEEDS
def test_ranknet_follows_its_formula(seed, tau):
    p = problem(seed)
    assert_close(ranknet_loss(*p, tau=tau), slowly(lambda s, y: slow_ranknet(s, y, tau), *p))


@pytest.mark.parametrize(
    "loss",
    [listnet_loss, listmle_loss, lambda *p: listmle_loss(*p, ties="place"), ranknet_loss],
    ids=["listnet", "listmle", "listmle by place", "ranknet"],
)
def test_gradcheck(loss):
    scores, relevance, mask = problem(1)
    assert torch.autograd.gradcheck(lambda s: loss(s, relevance, mask), scores.requires_grad_())


def test_listmle_is_the_probability_of_the_right_order_among_all_orders():
    """Without ties: the probabilities of all orders of four places add up to 1."""
    scores = problem(3)[0][:1, :4]
    total = 0.0
    for order in itertools.permutations(range(4)):
        total += math.exp(-float(listmle_loss(scores, tensor([order]))))
    assert total == pytest.approx(1)


def test_both_rules_for_ties_agree_when_there_are_none():
    scores, _, mask = problem(4)
    relevance = torch.argsort(torch.rand(4, 6, generator=torch.Generator().manual_seed(0)), dim=1)
    assert_close(listmle_loss(scores, relevance, mask), listmle_loss(scores, relevance, mask, ties="place"))


def test_ties_by_place_depend_on_the_order_of_places():
    scores, relevance = tensor([[1.0, 0.0, 2.0]]), tensor([[1, 1, 0]])
    found = listmle_loss(scores, relevance, ties="place")
    assert not torch.allclose(found, listmle_loss(scores[:, [1, 0, 2]], relevance, ties="place"), atol=0.1)


def test_ranknet_of_one_positive_is_bpr():
    scores, _, _ = problem(5)
    relevance = torch.zeros(4, 6)
    relevance[:, 2] = 1
    expected = bpr_loss(scores[:, 2], scores[:, [0, 1, 3, 4, 5]])
    assert_close(ranknet_loss(scores, relevance), expected)


def test_listnet_of_one_place_far_more_relevant_than_the_rest_is_the_softmax_loss():
    scores, _, _ = problem(6)
    relevance = torch.zeros(4, 6)
    relevance[:, 3] = 50
    assert_close(listnet_loss(scores, relevance, tau=0.5), listwise_softmax_loss(scores, relevance, tau=0.5))


def test_an_unknown_rule_for_ties_is_refused():
    with pytest.raises(ConfigError, match="ties must be one of together, place, got 'random'"):
        ListMLE(ties="random")
