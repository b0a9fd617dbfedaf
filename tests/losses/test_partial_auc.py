"""LLPAUC against loops, against a brute-force saddle, and against the pairs it is about."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from topshelf.config import make_config
from topshelf.data import generate, make_split
from topshelf.errors import ConfigError
from topshelf.losses.partial_auc import LLPAUC, Saddle, llpauc_loss
from topshelf.queries import Context
from topshelf.training.build import build_model, build_trainer, resolve

MAXIMISED = ("gamma", "s_plus")


def soft_hinge(x, sharpness):
    return max(x, 0.0) + math.log1p(math.exp(-abs(sharpness * x))) / sharpness


def linked(score, link):
    return {"half": (1 + score) / 2, "sigmoid": 1 / (1 + math.exp(-score)), "none": score}[link]


def problem(seed, n_queries=3, n_positives=7, n_negatives=6):
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64) * 2 - 1

    mask = torch.rand(n_queries, n_negatives, generator=generator) < 0.3
    mask[0] = True
    return {
        "positive": uniform(n_positives),
        "negative": uniform(n_queries, n_negatives),
        "owner": torch.randint(n_queries, (n_positives,), generator=generator),
        "mask": mask,
        "log_q": uniform(n_negatives),
        "saddle": Saddle(*uniform(7)),
    }


def slow_llpauc(p, i, alpha, beta, link, sharpness):
    q = int(p["owner"][i])
    a, b, gamma, s_plus, s_minus, theta_a, theta_b = (float(x) for x in p["saddle"])
    total = weight = 0.0
    for j in range(p["negative"].size(1)):
        if not p["mask"][q, j]:
            n, w = linked(float(p["negative"][q, j]), link), math.exp(-float(p["log_q"][j]))
            total += w * soft_hinge((n - b) ** 2 + 2 * (1 + gamma) * n - s_minus, sharpness)
            weight += w
    if not weight:
        return 0.0
    x = linked(float(p["positive"][i]), link)
    value = -s_plus - soft_hinge(-((x - a) ** 2) + 2 * (1 + gamma) * x - s_plus, sharpness) / alpha
    value += s_minus + total / weight / beta - gamma**2
    return value + theta_a * (a + gamma) + theta_b * (gamma + 1 - b)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    alpha=st.sampled_from([0.1, 0.9]),
    beta=st.sampled_from([0.01, 0.1]),
    link=st.sampled_from(["half", "sigmoid", "none"]),
    sharpness=st.sampled_from([5.0, 40.0]),
)
def test_llpauc_follows_its_formula(seed, alpha, beta, link, sharpness):
    p = problem(seed)
    found = llpauc_loss(**p, alpha=alpha, beta=beta, link=link, sharpness=sharpness)
    slow = [slow_llpauc(p, i, alpha, beta, link, sharpness) for i in range(7)]
    assert_close(found, tensor(slow, dtype=torch.float64))


@pytest.mark.parametrize("link", ["half", "sigmoid", "none"])
def test_gradients_of_scores_and_of_the_seven_numbers_are_the_derivative(link):
    p = problem(3)
    saddle = [x.clone().requires_grad_() for x in p.pop("saddle")]
    scores = [p.pop("positive").requires_grad_(), p.pop("negative").requires_grad_()]

    def call(positive, negative, *numbers):
        return llpauc_loss(positive, negative, saddle=Saddle(*numbers), alpha=0.3, beta=0.1, link=link, **p)

    assert torch.autograd.gradcheck(call, (*scores, *saddle))


def test_gamma_and_s_plus_have_their_gradients_turned_round_and_the_rest_have_not():
    p = problem(5)
    loss = LLPAUC(alpha=0.3, beta=0.1, reduction="sum").double()
    with torch.no_grad():
        for name, value in zip(Saddle._fields, (0.4, 0.6, -0.2, 0.9, 1.3, 0.2, 0.3), strict=True):
            getattr(loss, name).fill_(value)
    numbers = [getattr(loss, name).detach().clone().requires_grad_() for name in Saddle._fields]
    p["saddle"] = Saddle(*numbers)
    true = torch.autograd.grad(llpauc_loss(**p, alpha=0.3, beta=0.1).sum(), numbers)
    loss(p["positive"], p["negative"], p["owner"], mask=p["mask"], log_q=p["log_q"]).backward()
    for name, gradient in zip(Saddle._fields, true, strict=True):
        assert gradient != 0
        assert_close(getattr(loss, name).grad, -gradient if name in MAXIMISED else gradient)


def level(losses, share, sharpness, *, of_greatest):
    """Smoothed mean of the greatest (or least) ``share`` of losses (..., M): bisection for the stationary level."""
    sign = 1.0 if of_greatest else -1.0
    x = sign * losses  # the mean of the least is minus the mean of the greatest of minus them
    low, high = x.min(-1) - 30 / sharpness, x.max(-1) + 30 / sharpness
    for _ in range(60):
        middle = (low + high) / 2
        above = (np.tanh(sharpness / 2 * (x - middle[..., None])) / 2 + 0.5).mean(-1) > share
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    hinge = np.logaddexp(0, sharpness * (x - low[..., None])) / sharpness
    return sign * (low + hinge.mean(-1) / share)


def brute_force_saddle(p, n, alpha, beta, sharpness, cells=100):
    """min over a, b of max over gamma >= max(-a, b - 1), on a grid; the levels are solved for at every point."""
    centre, gamma = np.linspace(0, 1, cells + 1), np.linspace(-1, 1, 2 * cells + 1)
    of_p = (p - centre[:, None, None]) ** 2 - 2 * (1 + gamma[:, None]) * p  # (a, gamma, P)
    of_n = (n - centre[:, None, None]) ** 2 + 2 * (1 + gamma[:, None]) * n  # (b, gamma, N)
    of_p, of_n = level(of_p, alpha, sharpness, of_greatest=False), level(of_n, beta, sharpness, of_greatest=True)
    value = of_p[:, None] + of_n - gamma**2  # (a, b, gamma)
    allowed = (centre[:, None, None] + gamma >= -1e-9) & (gamma + 1 - centre[:, None] >= -1e-9)
    return np.where(allowed, value, -np.inf).max(-1).min()


def fixed_scores(seed=0):
    generator = np.random.default_rng(seed)
    return generator.uniform(0.2, 0.9, 10), generator.uniform(0.1, 0.6, 20)


def test_the_saddle_is_the_squared_auc_loss_of_the_top_pairs():
    p, n = fixed_scores()
    top_p, top_n = np.sort(p)[-5:], np.sort(n)[-2:]
    pairs = [(1 - x + y) ** 2 for x in top_p for y in top_n]
    found = brute_force_saddle(p, n, alpha=0.5, beta=0.1, sharpness=2000.0, cells=50)
    assert found + 1 == pytest.approx(np.mean(pairs), abs=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.1), (0.9, 0.1)])
def test_plain_gradient_descent_reaches_the_brute_force_saddle(alpha, beta):
    p, n = fixed_scores()
    loss = LLPAUC(alpha=alpha, beta=beta, link="none", saddle_rate=0.1).double()
    positive, negative = tensor(p), tensor(n).repeat(10, 1)
    optimizer = torch.optim.SGD(loss.parameter_groups(0.05))
    for _ in range(800):
        optimizer.zero_grad()
        value = loss(positive, negative)
        value.backward()
        optimizer.step()
    assert value.item() == pytest.approx(brute_force_saddle(p, n, alpha, beta, 5.0), abs=1e-3)
    weight = torch.sigmoid(5 * (2 * (1 + loss.gamma) * positive - (positive - loss.a) ** 2 - loss.s_plus)).detach()
    assert weight.mean().item() == pytest.approx(alpha, abs=1e-3)  # s_plus counts the share alpha of the positives
    assert loss.a.item() == pytest.approx(((weight * positive).sum() / weight.sum()).item(), abs=1e-3)
    assert loss.gamma.item() == pytest.approx((loss.b - loss.a).item(), abs=1e-3)


def trained_saddle(order, beta, epochs):
    """Per step of a run by Adam at the paper's rate 0.1: the share of negatives that count, gamma and b - a."""
    chosen = {
        "loss": {"name": "llpauc", "beta": beta},
        "train": {"order": order, "batch_size": 16, "learning_rate": 0.1, "epochs": epochs},
        "negatives": {"kind": "per_query", "n": 50},
    }
    config = resolve(make_config({"k": 3, **chosen}))
    positives = make_split(generate(60, 40, interactions_per_user=8, seed=0), seed=0).train.ragged()
    trainer = build_trainer(config, build_model(config, 60, 40), Context(positives, 40))
    loss, steps = trainer.loss, []
    each = loss.each

    def recorded(positive, negative, owner, extras):
        n = (1 + negative.detach()) / 2
        costs = (n - loss.b) ** 2 + 2 * (1 + loss.gamma) * n - loss.s_minus
        steps.append([torch.sigmoid(5 * costs).mean().item(), loss.gamma.item(), (loss.b - loss.a).item()])
        return each(positive, negative, owner, extras)

    loss.each = recorded
    trainer.run()
    return tensor(steps).T


@pytest.mark.parametrize(("order", "epochs"), [("query", 60), ("pair", 10)])
def test_under_adam_at_the_papers_rate_the_saddle_is_followed(order, epochs):
    """The smoothed share: at the saddle the mean of r' over the negatives is beta."""
    share, gamma, apart = (x[-40:] for x in trained_saddle(order, 0.1, epochs))
    assert 0.05 < share.min() <= share.max() < 0.2
    assert (gamma - apart).abs().max() < 0.1
    assert apart.mean() < -0.1  # the model has learned something: the top positives stand above the top negatives


def test_all_seven_numbers_learn_at_their_own_rate_without_decay():
    (group,) = LLPAUC(saddle_rate=0.03).parameter_groups(0.1)
    assert len(group["params"]) == 7
    assert (group["lr"], group["weight_decay"]) == (0.03, 0.0)


def test_the_seven_numbers_start_at_the_saddle_of_a_model_that_knows_nothing():
    loss = LLPAUC(alpha=0.3, beta=0.01)
    loss(torch.zeros(4), torch.zeros(4, 9)).backward()
    for name in ("a", "b", "gamma", "s_plus", "s_minus"):
        assert abs(getattr(loss, name).grad.item()) < 1e-4, name


def test_training_brings_the_numbers_back_to_their_sets_and_evaluation_leaves_them():
    loss = LLPAUC()
    outside = {"a": 1.5, "b": -0.5, "gamma": -3.0, "theta_a": -1.0, "theta_b": -2.0}
    inside = {"a": 1.0, "b": 0.0, "gamma": -1.0, "theta_a": 0.0, "theta_b": 0.0}
    with torch.no_grad():
        for name, value in outside.items():
            getattr(loss, name).fill_(value)
    scores = torch.rand(3), torch.rand(3, 5)
    evaluated = loss.eval()(*scores)
    assert {name: getattr(loss, name).item() for name in outside} == outside
    assert_close(loss.train()(*scores), evaluated)
    assert {name: getattr(loss, name).item() for name in outside} == inside


def test_two_batches_may_be_taken_before_one_backward_pass():
    loss = LLPAUC()
    with torch.no_grad():
        loss.theta_a.fill_(0.5)
    (loss(torch.rand(3), torch.rand(3, 5)) + loss(torch.rand(3), torch.rand(3, 5))).backward()
    assert loss.theta_a.grad.isfinite()


def test_all_pairs_count_when_both_shares_are_one():
    p, n = fixed_scores(1)
    pairs = [(1 - x + y) ** 2 for x in p for y in n]
    gamma, far = n.mean() - p.mean(), 50.0
    numbers = (p.mean(), n.mean(), gamma, -far, -far, 0.0, 0.0)
    saddle = Saddle(*(tensor(x, dtype=torch.float64) for x in numbers))
    scores = tensor(p), tensor(n).repeat(10, 1)
    found = llpauc_loss(*scores, saddle=saddle, alpha=1.0, beta=1.0, link="none", sharpness=100.0).mean()
    assert found.item() + 1 == pytest.approx(np.mean(pairs), abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("link", ["half", "sigmoid", "none"])
def test_it_compiles_in_training_mode(link):
    loss = LLPAUC(link=link)
    with torch.no_grad():
        loss.gamma.fill_(-2.0)
    other = LLPAUC(link=link)
    other.load_state_dict(loss.state_dict())
    scores = torch.rand(4), torch.rand(4, 6)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found, expected = compiled(*scores), other(*scores)
    assert_close(found, expected)
    found.backward()
    expected.backward()
    assert loss.gamma.item() == -1.0
    for name in Saddle._fields:
        assert_close(getattr(loss, name).grad, getattr(other, name).grad)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"alpha": 0.0}, r"alpha must be > 0, got 0\.0"),
        ({"alpha": 1.5}, r"alpha must be <= 1\.0, got 1\.5"),
        ({"beta": -0.1}, r"beta must be > 0, got -0\.1"),
        ({"beta": 2.0}, r"beta must be <= 1\.0, got 2\.0"),
        ({"sharpness": 0.0}, r"sharpness must be > 0, got 0\.0"),
        ({"saddle_rate": math.nan}, "saddle_rate must be > 0, got nan"),
        ({"link": "cosine"}, "link must be one of half, sigmoid, none, got 'cosine'"),
    ],
)
def test_bad_settings_are_refused_with_name_rule_and_value(bad, words):
    with pytest.raises(ConfigError, match=words):
        LLPAUC(**bad)
