"""BCE and gBCE against their formulas written as explicit loops in float64."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import tensor
from torch.testing import assert_close

from topshelf.errors import ConfigError
from topshelf.losses import BCE, GBCE, bce_loss, gbce_loss


def problem(seed=0, n_queries=4, n_positives=9, n_negatives=6):
    """The last query's negatives are all masked, and positive 0 is its."""
    generator = torch.Generator().manual_seed(seed)
    positive = torch.randn(n_positives, generator=generator, dtype=torch.float64)
    negative = torch.randn(n_queries, n_negatives, generator=generator, dtype=torch.float64)
    mask = torch.rand(n_queries, n_negatives, generator=generator) < 0.3
    mask[-1] = True
    owner = torch.randint(n_queries - 1, (n_positives,), generator=generator)
    owner[0] = n_queries - 1
    log_q = torch.randn(n_negatives, generator=generator, dtype=torch.float64)
    return positive, negative, owner, {"mask": mask, "log_q": log_q}


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def slow(positive, negative, owner, extras, formula):
    """``formula`` of the score, and of the (cost, 1/q) of the negatives that count."""
    losses = []
    for s, q in zip(positive.tolist(), owner.tolist(), strict=True):
        refused = [
            (-math.log(1 - sigmoid(float(negative[q, j]))), math.exp(-float(extras["log_q"][j])))
            for j in range(negative.size(1))
            if not extras["mask"][q, j]
        ]
        losses.append(formula(s, refused) if refused else 0.0)
    return tensor(losses, dtype=torch.float64)


def test_bce_follows_its_formula():
    def balanced(s, refused):
        return -math.log(sigmoid(s)) + sum(cost * w for cost, w in refused) / sum(w for _, w in refused)

    def summed(s, refused):
        return -math.log(sigmoid(s)) + sum(cost * w for cost, w in refused)

    *scores, extras = problem()
    assert_close(bce_loss(*scores, **extras), slow(*scores, extras, balanced))
    assert_close(bce_loss(*scores, balanced=False, **extras), slow(*scores, extras, summed))


@pytest.mark.parametrize("t", [0.0, 0.75, 1.0])
@pytest.mark.parametrize("average", [True, False])
def test_gbce_follows_its_formula(t, average):
    def formula(s, refused):
        alpha = len(refused) / (50 - 1)
        beta = alpha * (t * (1 - 1 / alpha) + 1 / alpha)
        total = -math.log(sigmoid(s) ** beta) + sum(cost * w for cost, w in refused)
        return total / (len(refused) + 1) if average else total

    *scores, extras = problem()
    found = gbce_loss(*scores, n_items=50, t=t, average=average, **extras)
    assert_close(found, slow(*scores, extras, formula))


def test_the_sum_form_of_bce_is_torchs_over_all_scores():
    positive, negative, owner, _ = problem()
    logits = torch.cat([positive.unsqueeze(1), negative[owner]], 1)
    labels = torch.zeros_like(logits)
    labels[:, 0] = 1
    wanted = F.binary_cross_entropy_with_logits(logits, labels, reduction="none").sum(1)
    assert_close(bce_loss(positive, negative, owner, balanced=False), wanted)


def test_gbce_with_t_of_zero_is_bce():
    *scores, extras = problem()
    found = gbce_loss(*scores, n_items=1000, t=0.0, average=False, **extras)
    assert_close(found, bce_loss(*scores, balanced=False, **extras))


@pytest.mark.parametrize("n_items", [7, 3])  # six negatives: all the others, and more than there are
def test_gbce_with_every_other_item_as_a_negative_is_bce(n_items):
    positive, negative, owner, _ = problem()
    found = gbce_loss(positive, negative, owner, n_items=n_items, t=1.0)
    assert_close(found, bce_loss(positive, negative, owner, balanced=False) / 7)


def test_a_fully_calibrated_gbce_has_its_optimum_where_the_unsampled_cross_entropy_has():
    """One of 100 items is right and all look alike: the best logit is that of 1/100, however few are drawn."""
    score = tensor(math.log(0.01 / 0.99), dtype=torch.float64, requires_grad=True)
    gbce_loss(score.view(1), score.expand(1, 4), n_items=100, t=1.0).sum().backward()
    assert_close(score.grad, torch.zeros((), dtype=torch.float64))


@pytest.mark.parametrize(
    "run",
    [
        lambda *scores, **extras: bce_loss(*scores, **extras),
        lambda *scores, **extras: bce_loss(*scores, balanced=False, **extras),
        lambda *scores, **extras: gbce_loss(*scores, n_items=50, **extras),
    ],
)
def test_gradcheck(run):
    positive, negative, owner, extras = problem()
    inputs = (positive.requires_grad_(), negative.requires_grad_())
    assert torch.autograd.gradcheck(lambda p, n: run(p, n, owner, **extras), inputs)


@pytest.mark.parametrize("score", [-1e4, 1e4])
def test_gbce_is_exact_at_large_scores(score):
    positive = torch.tensor([score], requires_grad=True)
    loss = gbce_loss(positive, torch.full((1, 2), -score), n_items=5, t=1.0, average=False)
    loss.sum().backward()
    assert_close(loss.detach(), torch.tensor([0.0 if score > 0 else 2.5e4]))  # beta is a half
    assert_close(positive.grad, torch.tensor([0.0 if score > 0 else -0.5]))


def test_the_modules_pass_their_settings_on():
    *scores, extras = problem()
    found = BCE(balanced=False, reduction="none")(*scores, **extras)
    assert_close(found, bce_loss(*scores, balanced=False, **extras))
    found = GBCE(50, t=0.5, average=False, reduction="none")(*scores, **extras)
    assert_close(found, gbce_loss(*scores, n_items=50, t=0.5, average=False, **extras))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_items": 1}, "n_items must be >= 2, got 1"),
        ({"n_items": 5, "t": -0.1}, "t must be >= 0.0, got -0.1"),
        ({"n_items": 5, "t": 1.5}, "t must be <= 1.0, got 1.5"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        GBCE(**settings)
