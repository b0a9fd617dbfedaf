"""PSL against its formula written as explicit loops in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from topshelf.errors import ConfigError
from topshelf.losses import PSL, psl_loss, softmax_loss

ACTIVATIONS = {
    "tanh": lambda d: math.tanh(d) + 1,
    "relu": lambda d: max(0.0, d + 1),
    "atan": lambda d: math.atan(d) + 1,
    "exponential": math.exp,
}
EVERY = pytest.mark.parametrize("activation", ACTIVATIONS)


def problem(seed=0, n_queries=4, n_positives=9, n_negatives=6):
    """Cosines; the last query's negatives are all masked, and positive 0 is its."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64) * 2 - 1

    mask = torch.rand(n_queries, n_negatives, generator=generator) < 0.3
    mask[-1] = True
    owner = torch.randint(n_queries - 1, (n_positives,), generator=generator)
    owner[0] = n_queries - 1
    return uniform(n_positives), uniform(n_queries, n_negatives), owner, mask, uniform(n_queries, n_negatives)


def slow_sums(positive, negative, owner, mask, log_q, tau, activation):
    """The sum inside the logarithm, of each positive."""
    sums = []
    for s, q in zip(positive.tolist(), owner.tolist(), strict=True):
        total = 0.0
        for j in range(negative.size(1)):
            if not mask[q, j]:
                d = (float(negative[q, j]) - s) / 2
                total += ACTIVATIONS[activation](d) ** (1 / tau) / math.exp(float(log_q[q, j]))
        sums.append(total)
    return sums


@EVERY
@pytest.mark.parametrize("tau", [0.025, 0.1, 0.25])
def test_it_follows_its_formula(activation, tau):
    positive, negative, owner, mask, log_q = problem()
    sums = slow_sums(positive, negative, owner, mask, log_q, tau, activation)
    found = psl_loss(positive, negative, owner, tau=tau, activation=activation, mask=mask, log_q=log_q)
    assert sums[0] == 0
    assert_close(found, tensor([math.log(x) if x else 0.0 for x in sums], dtype=torch.float64))


@EVERY
def test_by_batch_every_positive_carries_the_log_of_the_mean_of_the_sums(activation):
    positive, negative, owner, mask, log_q = problem()
    sums = slow_sums(positive, negative, owner, mask, log_q, 0.1, activation)
    counted = [x for x in sums if x]
    value = math.log(sum(counted) / len(counted))
    found = psl_loss(positive, negative, owner, tau=0.1, activation=activation, method="batch", mask=mask, log_q=log_q)
    assert_close(found, tensor([value if x else 0.0 for x in sums], dtype=torch.float64))


@EVERY
@pytest.mark.parametrize("method", ["sum", "batch"])
def test_gradcheck(activation, method):
    positive, negative, owner, mask, log_q = problem()

    def run(p, n):
        return psl_loss(p, n, owner, tau=0.1, activation=activation, method=method, mask=mask, log_q=log_q)

    assert torch.autograd.gradcheck(run, (positive.requires_grad_(), negative.requires_grad_()))


@pytest.mark.parametrize("tau", [0.025, 0.1])
def test_with_the_exponential_it_is_the_softmax_loss_at_twice_the_temperature(tau):
    positive, negative, owner, mask, log_q = problem()
    found = psl_loss(positive, negative, owner, tau=tau, activation="exponential", mask=mask, log_q=log_q)
    assert_close(found, softmax_loss(positive, negative, owner, tau=2 * tau, mask=mask, log_q=log_q))


@EVERY
def test_at_equal_scores_all_activations_agree_in_value_and_gradient(activation):
    positive = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    loss = psl_loss(positive, torch.zeros(1, 3, dtype=torch.float64), tau=0.1, activation=activation)
    loss.sum().backward()
    assert_close(loss.detach(), tensor([math.log(3)], dtype=torch.float64))
    assert_close(positive.grad, tensor([-5.0], dtype=torch.float64))  # -1 / (2 tau)


@EVERY
@pytest.mark.parametrize("method", ["sum", "batch"])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_values_and_gradients_stay_finite_at_extreme_scores(activation, method, scale):
    positive, negative, owner, mask, _ = (x.float() if x.is_floating_point() else x for x in problem())
    positive, negative = (positive * scale).requires_grad_(), (negative * scale).requires_grad_()
    loss = psl_loss(positive, negative, owner, tau=0.005, activation=activation, method=method, mask=mask)
    loss.sum().backward()
    assert loss.isfinite().all()
    assert positive.grad.isfinite().all()
    assert negative.grad.isfinite().all()


def test_a_pair_below_the_floor_costs_the_floor_and_has_no_gradient():
    positive = tensor([1.0], dtype=torch.float64, requires_grad=True)
    loss = psl_loss(positive, tensor([[-1.5]], dtype=torch.float64), tau=0.5, activation="relu")  # d + 1 < 0
    loss.sum().backward()
    assert_close(loss.detach(), tensor([2 * math.log(1e-6)], dtype=torch.float64))
    assert positive.grad == 0


def test_only_the_sum_is_the_mean_of_its_parts():
    assert PSL(method="sum").scope == "positive"
    assert PSL(method="batch").scope == "batch"


def test_by_batch_an_empty_batch_costs_nothing():
    loss = PSL(method="batch")(torch.zeros(0), torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))
    assert loss == 0


def test_the_module_passes_its_settings_on():
    positive, negative, owner, mask, log_q = problem()
    module = PSL(tau=0.05, activation="atan", method="batch", reduction="none")
    found = module(positive, negative, owner, mask=mask, log_q=log_q)
    wanted = psl_loss(positive, negative, owner, tau=0.05, activation="atan", method="batch", mask=mask, log_q=log_q)
    assert_close(found, wanted)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tau": 0.0}, "tau must be > 0, got 0.0"),
        ({"activation": "sigmoid"}, "activation must be one of tanh, relu, atan, exponential, got 'sigmoid'"),
        ({"method": "mean"}, "method must be one of sum, batch, got 'mean'"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        PSL(**settings)
