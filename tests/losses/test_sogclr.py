"""SogCLR and SogSL@K: values by explicit loops, and the gradient with its moving average written out."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from topshelf.errors import ConfigError
from topshelf.losses.softmax import softmax_loss
from topshelf.losses.sogclr import SogCLR, SogSLatK, sogclr_loss, sogslatk_loss


def problem(seed, n_queries=4, n_positives=9, n_negatives=6):
    generator = torch.Generator().manual_seed(seed)
    p = {
        "positive": torch.randn(n_positives, generator=generator, dtype=torch.float64),
        "negative": torch.randn(n_queries, n_negatives, generator=generator, dtype=torch.float64),
        "owner": torch.randint(n_queries, (n_positives,), generator=generator),
        "mask": torch.rand(n_queries, n_negatives, generator=generator) < 0.3,
        "log_q": torch.randn(n_negatives, generator=generator, dtype=torch.float64),
    }
    p["mask"][3] = True  # a query without negatives
    p["positive"].requires_grad_()
    p["negative"].requires_grad_()
    return p


def slow(p, averages, gamma, tau, threshold=None, tau_weight=None):
    """Values, gradients and averages g (None: not seen) after the step, from the formulas alone."""
    p = {name: tensor.detach() for name, tensor in p.items()}
    averages, estimates = list(averages), {}
    for q in range(4):
        rivals = [j for j in range(6) if not p["mask"][q, j]]
        share = {j: math.exp(-float(p["log_q"][j])) for j in rivals}
        terms = {j: share[j] / sum(share.values()) * math.exp(float(p["negative"][q, j]) / tau) for j in rivals}
        if terms:
            estimate = sum(terms.values())
            averages[q] = estimate if averages[q] is None else (1 - gamma) * averages[q] + gamma * estimate
            estimates[q] = terms
    owner = p["owner"].tolist()
    counted = [i for i, q in enumerate(owner) if q in estimates]
    weights = dict.fromkeys(counted, 1.0)
    if threshold is not None:
        near = {i: 1 / (1 + math.exp(-(float(p["positive"][i]) - threshold[owner[i]]) / tau_weight)) for i in counted}
        weights = {i: near[i] / (sum(near.values()) / len(near)) for i in counted}
    values, to_positive, to_negative = [], torch.zeros_like(p["positive"]), torch.zeros_like(p["negative"])
    for i, q in enumerate(owner):
        if i not in weights:
            values.append(0.0)
            continue
        values.append(math.log(averages[q]) - weights[i] * float(p["positive"][i]) / tau)
        to_positive[i] = -weights[i] / tau
        for j, term in estimates[q].items():
            to_negative[q, j] += term / tau / averages[q]
    return torch.tensor(values, dtype=torch.float64), (to_positive, to_negative), averages


def gradients(losses, p):
    return torch.autograd.grad(losses.sum(), (p["positive"], p["negative"]))


def logs(averages):
    return torch.tensor([-math.inf if g is None else math.log(g) for g in averages], dtype=torch.float64)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), gamma=st.sampled_from([0.1, 0.5, 1.0]), tau=st.sampled_from([0.2, 1.0]))
def test_sogclr_follows_its_formula_and_its_gradient(seed, gamma, tau):
    p, averages = problem(seed), [3.0, None, 0.01, 2.0]
    found = sogclr_loss(**p, tau=tau, gamma=gamma, log_average=logs(averages))
    value, expected, _ = slow(p, averages, gamma, tau)
    assert_close(found, value)
    assert_close(gradients(found, p), expected)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), gamma=st.sampled_from([0.1, 0.5, 1.0]), tau_weight=st.sampled_from([0.3, 2.0]))
def test_sogslatk_follows_its_formula_and_its_gradient(seed, gamma, tau_weight):
    p, averages, threshold = problem(seed), [3.0, None, 0.01, 2.0], [0.3, -0.5, 1.0, 0.0]
    found = sogslatk_loss(
        **p,
        threshold=torch.tensor(threshold, dtype=torch.float64),
        tau=0.5,
        tau_weight=tau_weight,
        gamma=gamma,
        log_average=logs(averages),
    )
    value, expected, _ = slow(p, averages, gamma, 0.5, threshold, tau_weight)
    assert_close(found, value)
    assert_close(gradients(found, p), expected)


def test_with_gamma_one_it_is_the_softmax_loss_less_the_logarithm_of_n():
    p = problem(0)
    p["mask"], p["log_q"] = None, None
    found, plain = sogclr_loss(**p, tau=0.3), softmax_loss(**p, tau=0.3)
    assert_close(found, plain - math.log(6))
    assert_close(gradients(found, p), gradients(plain, p))


def test_sogslatk_with_equal_weights_is_sogclr():
    p = problem(1)
    far_below = torch.full((4,), -1e4, dtype=torch.float64)
    found = sogslatk_loss(**p, threshold=far_below, tau=0.3, tau_weight=1.0)
    assert_close(found, sogclr_loss(**p, tau=0.3))


def test_a_log_partition_stands_for_the_negatives():
    p = problem(2)
    p["mask"], p["log_q"] = None, None
    partition = (p["negative"] / 0.3).exp().mean(1).log()
    average = torch.tensor([1.0, -math.inf, 0.5, 2.0], dtype=torch.float64)
    by_negatives = sogclr_loss(**p, tau=0.3, gamma=0.4, log_average=average)
    by_partition = sogclr_loss(
        p["positive"], owner=p["owner"], tau=0.3, gamma=0.4, log_average=average, log_partition=partition
    )
    assert_close(by_partition, by_negatives)
    assert_close(gradients(by_partition, p), gradients(by_negatives, p))


@pytest.mark.parametrize("threshold", [None, [0.0] * 4])
def test_the_module_moves_the_averages_of_its_queries_step_by_step(threshold):
    if threshold is None:
        loss = SogCLR(n_queries=7, tau=0.5, gamma=0.3, reduction="none").double()
    else:
        loss = SogSLatK(n_queries=7, tau=0.5, tau_weight=0.7, gamma=0.3, reduction="none").double()
    query, averages = torch.tensor([5, 1, 3, 0]), [None] * 4
    for seed in range(3):
        p = problem(seed)
        found = loss(**p, query=query)
        value, expected, averages = slow(p, averages, 0.3, 0.5, threshold, 0.7)
        assert_close(found, value)
        assert_close(gradients(found, p), expected)
    assert_close(loss.log_g[query[:3]], logs(averages)[:3])
    assert (loss.log_g[[0, 2, 4, 6]] == torch.finfo(torch.float32).min).all()


def test_of_a_query_that_comes_twice_the_first_row_is_kept():
    loss = SogCLR(n_queries=1, tau=1.0)
    loss(torch.zeros(2), torch.tensor([[1.0], [2.0]]), query=torch.tensor([0, 0]))
    assert_close(loss.log_g, torch.tensor([1.0]))


def test_a_jump_of_scores_cannot_overflow():
    """The average was tiny; the ratio of the new estimate to it stays at 1/γ."""
    loss = SogCLR(n_queries=1, tau=0.005, gamma=0.1)
    loss.log_g.fill_(-2e6)
    negative = torch.tensor([[1e4, -1e4]], requires_grad=True)
    value = loss(torch.zeros(1), negative, query=torch.tensor([0]))
    value.backward()
    assert value.isfinite()
    assert_close(negative.grad, torch.tensor([[10 / 0.005, 0.0]]), rtol=1e-3, atol=0)


def test_weights_far_below_the_threshold_keep_their_ratios():
    positive = torch.tensor([-1e4, -1e4 - 1.0], requires_grad=True)
    found = sogslatk_loss(positive, torch.zeros(2, 3), threshold=torch.zeros(2), tau=1.0, tau_weight=1.0)
    found.sum().backward()
    assert_close(positive.grad, -2 * torch.softmax(torch.tensor([0.0, -1.0]), 0), rtol=1e-3, atol=0)


def test_it_says_that_a_batch_cannot_be_cut_when_weights_are_normalised_over_it():
    assert SogCLR(n_queries=1).scope == "positive"
    assert SogSLatK(n_queries=1).scope == "batch"


@pytest.mark.parametrize(
    ("settings_given", "message"),
    [
        ({"tau": 0.0}, "tau must be > 0, got 0.0"),
        ({"tau_weight": -1.0}, "tau_weight must be > 0, got -1.0"),
        ({"gamma": 0.0}, "gamma must be > 0, got 0.0"),
        ({"gamma": 1.1}, "gamma must be <= 1.0, got 1.1"),
        ({"k": 0}, "k must be >= 1, got 0"),
        ({"n_queries": -1}, "n_queries must be >= 0, got -1"),
    ],
)
def test_bad_settings_are_refused(settings_given, message):
    with pytest.raises(ConfigError, match=message):
        SogSLatK(**{"n_queries": 2, **settings_given})
