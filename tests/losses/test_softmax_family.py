"""BSL and sampled softmax against their formulas written as explicit loops in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from topshelf.errors import ConfigError
from topshelf.losses import BSL, SampledSoftmax, bsl_loss, sampled_softmax_loss, softmax_loss


def problem(seed=0, n_queries=4, n_positives=9, n_negatives=6):
    """Cosines; the last query's negatives are all masked, and positive 0 is its."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64) * 2 - 1

    mask = torch.rand(n_queries, n_negatives, generator=generator) < 0.3
    mask[-1] = True
    owner = torch.randint(n_queries - 1, (n_positives,), generator=generator)
    owner[0] = n_queries - 1
    return uniform(n_positives), uniform(n_queries, n_negatives), owner, {"mask": mask, "log_q": uniform(n_negatives)}


def rivals(negative, extras, q):
    """(score, log_q) of the negatives that count for query q."""
    return [
        (float(negative[q, j]), float(extras["log_q"][j])) for j in range(negative.size(1)) if not extras["mask"][q, j]
    ]


def slow_bsl(positive, negative, owner, extras, tau1, tau2, over):
    """``over``: which positives stand in for the positive i, as scores."""
    losses = []
    for i, q in enumerate(owner.tolist()):
        total = sum(math.exp(s / tau2 - log_q) for s, log_q in rivals(negative, extras, q))
        if not total:
            losses.append(0.0)
            continue
        mean = sum(math.exp(s / tau1) for s in over(i)) / len(over(i))
        losses.append(-math.log(mean) + tau2 / tau1 * math.log(total))
    return tensor(losses, dtype=torch.float64)


@pytest.mark.parametrize(("tau1", "tau2"), [(0.2, 0.2), (0.1, 0.5), (0.5, 0.1)])
def test_bsl_follows_its_formula(tau1, tau2):
    positive, negative, owner, extras = problem()
    found = bsl_loss(positive, negative, owner, tau1=tau1, tau2=tau2, **extras)
    assert_close(found, slow_bsl(positive, negative, owner, extras, tau1, tau2, lambda i: [float(positive[i])]))


@pytest.mark.parametrize(("tau1", "tau2"), [(0.2, 0.2), (0.1, 0.5), (0.5, 0.1)])
def test_bsl_by_query_takes_the_log_of_the_mean_over_the_querys_positives(tau1, tau2):
    positive, negative, owner, extras = problem()
    found = bsl_loss(positive, negative, owner, tau1=tau1, tau2=tau2, positives="query", **extras)
    wanted = slow_bsl(positive, negative, owner, extras, tau1, tau2, lambda i: positive[owner == owner[i]].tolist())
    assert_close(found, wanted)


@pytest.mark.parametrize("tau", [0.01, 0.2])
def test_bsl_with_equal_temperatures_is_the_softmax_loss(tau):
    positive, negative, owner, extras = problem()
    found = bsl_loss(positive, negative, owner, tau1=tau, tau2=tau, **extras)
    assert_close(found, softmax_loss(positive, negative, owner, tau=tau, **extras))


def test_bsl_of_each_positive_is_the_softmax_loss_rescaled():
    positive, negative, owner, extras = problem()
    found = bsl_loss(positive, negative, owner, tau1=0.05, tau2=0.2, **extras)
    assert_close(found, 4 * softmax_loss(positive, negative, owner, tau=0.2, **extras))


def test_bsl_by_query_is_that_of_each_where_every_query_has_one_positive():
    positive, negative, _, extras = problem(n_positives=4)
    owner = torch.tensor([3, 1, 0, 2])
    by_query = bsl_loss(positive, negative, owner, tau1=0.1, tau2=0.2, positives="query", **extras)
    assert_close(by_query, bsl_loss(positive, negative, owner, tau1=0.1, tau2=0.2, **extras))


def test_bsl_by_query_moves_a_doubtful_positive_less_than_a_good_one():
    positive = tensor([0.8, -0.6], dtype=torch.float64, requires_grad=True)
    negative, owner = tensor([[0.1, 0.2]], dtype=torch.float64), torch.tensor([0, 0])
    bsl_loss(positive, negative, owner, tau1=0.5, tau2=0.2, positives="query").mean().backward()
    wanted = -torch.softmax(positive.detach() / 0.5, 0) / 0.5
    assert_close(positive.grad, wanted)


def test_sampled_softmax_follows_its_formula():
    positive, negative, owner, extras = problem()
    wanted = []
    for s, q in zip(positive.tolist(), owner.tolist(), strict=True):
        own = math.exp(s / 0.2)
        total = sum(math.exp(r / 0.2 - log_q) for r, log_q in rivals(negative, extras, q))
        wanted.append(-math.log(own / (own + total)))
    found = sampled_softmax_loss(positive, negative, owner, tau=0.2, **extras)
    assert wanted[0] == 0
    assert_close(found, tensor(wanted, dtype=torch.float64))


def test_sampled_softmax_is_cross_entropy_with_the_positive_in_the_first_column():
    positive, negative, owner, _ = problem()
    logits = torch.cat([positive.unsqueeze(1), negative[owner]], 1) / 0.1
    wanted = torch.nn.functional.cross_entropy(logits, torch.zeros(9, dtype=torch.long), reduction="none")
    assert_close(sampled_softmax_loss(positive, negative, owner, tau=0.1), wanted)


def test_sampled_softmax_is_the_softmax_loss_with_the_positive_among_the_negatives():
    positive, negative, owner, _ = problem()
    wide = torch.cat([positive.unsqueeze(1), negative[owner]], 1)
    found = sampled_softmax_loss(positive, negative, owner, tau=0.1)
    assert_close(found, softmax_loss(positive, wide, tau=0.1))


def test_corrected_for_its_draw_the_sampled_sum_is_the_whole_sum_on_average():
    """Drawn in proportion to q, each negative over q: the mean over all draws of one is the catalogue's mean."""
    scores = torch.linspace(-1, 1, 5, dtype=torch.float64)
    chance = tensor([0.1, 0.1, 0.2, 0.2, 0.4], dtype=torch.float64)
    log_q = (chance / 0.2).log()
    positive = tensor([0.3], dtype=torch.float64)
    sums = [
        sampled_softmax_loss(positive, scores[j].view(1, 1), tau=0.5, log_q=log_q[j].view(1)).expm1() for j in range(5)
    ]
    whole = sampled_softmax_loss(positive, scores.view(1, 5), tau=0.5).expm1() / 5
    assert_close(sum(p * x for p, x in zip(chance, sums, strict=True)), whole)


LOSSES = {
    "bsl": lambda p, n, owner, **extras: bsl_loss(p, n, owner, tau1=0.1, tau2=0.3, **extras),
    "bsl by query": lambda p, n, owner, **extras: bsl_loss(
        p, n, owner, tau1=0.1, tau2=0.3, positives="query", **extras
    ),
    "sampled softmax": lambda p, n, owner, **extras: sampled_softmax_loss(p, n, owner, tau=0.3, **extras),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradcheck(name):
    positive, negative, owner, extras = problem()
    inputs = (positive.requires_grad_(), negative.requires_grad_())
    assert torch.autograd.gradcheck(lambda p, n: LOSSES[name](p, n, owner, **extras), inputs)


@pytest.mark.parametrize("name", LOSSES)
def test_a_log_partition_stands_for_the_negatives(name):
    positive, negative, owner, _ = problem()
    found = LOSSES[name](positive, None, owner, log_partition=(negative / 0.3).logsumexp(1))
    assert_close(found, LOSSES[name](positive, negative, owner))


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_bsl_by_query_stays_finite_at_extreme_scores(scale):
    positive, negative, owner, extras = problem()
    positive, negative = ((x.float() * scale).requires_grad_() for x in (positive, negative))
    loss = bsl_loss(positive, negative, owner, tau1=0.005, tau2=0.005, positives="query", mask=extras["mask"])
    loss.sum().backward()
    assert loss.isfinite().all()
    assert positive.grad.isfinite().all()
    assert negative.grad.isfinite().all()


def test_the_modules_pass_their_settings_on():
    positive, negative, owner, extras = problem()
    bilateral = BSL(tau1=0.1, tau2=0.3, positives="query", reduction="none")
    assert ("whole_queries" in bilateral.needs, bilateral.scope) == (True, "query")
    assert bilateral.tau == 0.3
    assert_close(
        bilateral(positive, negative, owner, **extras), LOSSES["bsl by query"](positive, negative, owner, **extras)
    )
    sampled = SampledSoftmax(tau=0.3, reduction="none")
    assert_close(
        sampled(positive, negative, owner, **extras), LOSSES["sampled softmax"](positive, negative, owner, **extras)
    )


def test_bsl_by_query_wants_to_know_whose_each_positive_is():
    with pytest.raises(ConfigError, match="pass owner"):
        bsl_loss(torch.zeros(2), torch.zeros(2, 3), tau1=0.1, tau2=0.1, positives="query")


@pytest.mark.parametrize(
    ("loss", "settings", "message"),
    [
        (BSL, {"tau1": 0.0}, "tau1 must be > 0, got 0.0"),
        (BSL, {"tau2": -1.0}, "tau2 must be > 0, got -1.0"),
        (BSL, {"positives": "all"}, "positives must be one of each, query, got 'all'"),
        (SampledSoftmax, {"tau": float("nan")}, "tau must be > 0, got nan"),
    ],
)
def test_bad_settings_are_refused(loss, settings, message):
    with pytest.raises(ConfigError, match=message):
        loss(**settings)
