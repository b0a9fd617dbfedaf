"""Threshold estimators against sorted lists, and theorem 3.1."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from topshelf.errors import ConfigError
from topshelf.thresholds import (
    exact_thresholds,
    iid_thresholds,
    incremental_step,
    regression_step,
    sampled_thresholds,
    weighted_thresholds,
)


def test_exact_is_the_kth_best_score():
    queries, items = torch.eye(2), tensor([[5.0, 1.0], [3.0, 2.0], [4.0, 0.0]])
    assert_close(exact_thresholds(queries, items, 2), tensor([4.0, 1.0]))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), k=st.integers(1, 12))
def test_sampled_is_the_kth_best_of_positives_and_negatives(seed, k):
    generator = torch.Generator().manual_seed(seed)
    positive = torch.randn(9, generator=generator)
    owner = torch.randint(3, (9,), generator=generator)
    negative = torch.randn(3, 5, generator=generator)
    mask = torch.rand(3, 5, generator=generator) < 0.3
    mask[:, 0] = False
    found = sampled_thresholds(positive, negative, owner, k, mask=mask)
    for q in range(3):
        scores = sorted([*positive[owner == q].tolist(), *negative[q][~mask[q]].tolist()], reverse=True)
        assert found[q].item() == pytest.approx(scores[min(k, len(scores)) - 1])


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), k=st.integers(1, 40))
def test_sampled_is_never_above_exact(seed, k):
    """The paper's appendix on the negative-sampling trick: a sample of the items has a lower K-th best score."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(1, 100, generator=generator)
    positive, negative = scores[0, :10], scores[:, 10:]
    drawn = negative[:, torch.randperm(90, generator=generator)[:30]]
    exact = scores.topk(k).values[:, -1]
    assert (sampled_thresholds(positive, drawn, torch.zeros(10, dtype=torch.long), k) <= exact).all()


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), k=st.integers(1, 12), each=st.integers(1, 9))
def test_weighted_is_the_level_at_which_weights_number_k(seed, k, each):
    generator = torch.Generator().manual_seed(seed)
    positive = torch.randn(9, generator=generator)
    owner = torch.randint(3, (9,), generator=generator)
    negative = torch.randn(3, 5, generator=generator)
    mask = torch.rand(3, 5, generator=generator) < 0.3
    mask[:, 0] = False
    drawn = (~mask).sum(1)
    found = weighted_thresholds(positive, negative, owner, k, each + drawn, mask=mask)
    for q in range(3):
        own, others = positive[owner == q].tolist(), negative[q][~mask[q]].tolist()
        reached = [
            s
            for s in [*own, *others]
            if Fraction(sum(x >= s for x in own))
            + sum(x >= s for x in others) * Fraction(each + len(others), len(others))
            >= k
        ]
        assert found[q].item() == pytest.approx(max(reached, default=min([*own, *others])))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), k=st.integers(1, 40), n=st.integers(1, 90))
def test_weighted_is_never_below_sampled_and_exact_with_all_negatives(seed, k, n):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(1, 100, generator=generator)
    positive, negative, owner = scores[0, :10], scores[:, 10:], torch.zeros(10, dtype=torch.long)
    drawn = negative[:, torch.randperm(90, generator=generator)[:n]]
    weighted = weighted_thresholds(positive, drawn, owner, k, tensor([90]))
    assert weighted >= sampled_thresholds(positive, drawn, owner, k)
    unweighted = weighted_thresholds(positive, drawn, owner, k, tensor([n]))
    assert torch.equal(unweighted, sampled_thresholds(positive, drawn, owner, k))
    if n == 90:
        assert torch.equal(weighted, scores.topk(k).values[:, -1])


def test_weighted_of_the_best_negatives_alone_is_weighted_of_all():
    _, positive, negative, owner = table(3)
    n = torch.full((50,), 5000)
    best = negative.topk(20).values
    wanted = weighted_thresholds(positive, negative, owner, 20, n)
    assert torch.equal(weighted_thresholds(positive, best, owner, 20, n, n_drawn=torch.full((50,), 390)), wanted)


def test_iid_is_the_generalised_inverse_of_the_empirical_distribution():
    scores = tensor([[0.1, 0.2, 0.3, 0.4, 0.5]])
    for k, n_items in [(1, 10), (2, 10), (3, 10), (9, 10), (10, 10), (20, 100)]:
        p = 1 - k / n_items
        level = min(s for s in scores[0].tolist() if sum(x <= s for x in scores[0].tolist()) / 5 >= p - 1e-12)
        assert iid_thresholds(scores, k, n_items).item() == pytest.approx(level)


def test_iid_over_the_whole_catalogue_is_within_one_place_of_exact():
    scores = torch.randn(4, 50)
    ranked = scores.sort(descending=True).values
    # theta^{1 - K/I} is the (K + 1)-th best: the largest score with at least I - K scores at or below it.
    assert_close(iid_thresholds(scores, 5, 50), ranked[:, 5])


def test_theorem_3_1_bounds_the_monte_carlo_error():
    """P(|estimate - quantile| > e) <= 4 exp(-2 N d^2), for normal scores, several N and e."""
    generator = np.random.default_rng(0)
    k, n_items, trials = 20, 200, 4000
    p = 1 - k / n_items
    normal = torch.distributions.Normal(0.0, 1.0)
    quantile = float(normal.icdf(tensor(p)))
    for n in (50, 200, 1000):
        sample = tensor(generator.standard_normal((trials, n)), dtype=torch.float32)
        error = (iid_thresholds(sample, k, n_items) - quantile).abs()
        shares = []
        for e in (0.05, 0.1, 0.2, 0.4):
            up, down = (
                float(normal.cdf(tensor(quantile + e))) - p,
                p - float(normal.cdf(tensor(quantile - e))),
            )
            bound = 4 * math.exp(-2 * n * min(up, down) ** 2)
            shares.append((error > e).float().mean().item())
            assert shares[-1] <= bound
        assert shares[0] > 0.05  # the smallest error does happen, so the check is not empty
    assert bound < 0.05  # nor is the bound itself empty at the largest N and error


def test_regression_settles_on_the_quantile():
    generator = torch.Generator().manual_seed(0)
    threshold = torch.zeros(8)
    for step in range(4000):
        scores = torch.randn(8, 64, generator=generator)
        threshold = regression_step(threshold, scores, 20, 200, rate=1.0 / (1 + step / 100))
    assert_close(threshold, torch.full((8,), 1.2816), atol=0.05, rtol=0)


def table(seed, n_queries=50, n_items=400, n_positives=10):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(n_queries, n_items, generator=generator) * 0.2
    scores[:, :n_positives] += 0.5
    owner = torch.arange(n_queries).repeat_interleave(n_positives)
    return scores, scores[:, :n_positives].flatten(), scores[:, n_positives:], owner


@pytest.mark.parametrize("k", [1, 5, 20, 100])
@pytest.mark.parametrize("start", [-5.0, 0.0, 5.0])
def test_incremental_finds_the_exact_threshold_from_any_start(k, start):
    scores, positive, negative, owner = table(0)
    threshold = torch.full((50,), start)
    for _ in range(80):
        threshold = incremental_step(threshold, positive, negative, owner, k, torch.full((50,), 390))
    # The scores have a standard deviation of 0.2, and a gap between positives and negatives.
    above = (scores > threshold.unsqueeze(1)).sum(1)
    assert (above - k).abs().max() <= max(2, k // 10)
    if k > 1:  # anything between the best and the second best score has one score above it
        assert (threshold - scores.topk(k).values[:, -1]).abs().mean() < 0.06


def test_incremental_follows_moving_scores_from_samples():
    generator = torch.Generator().manual_seed(1)
    scores, *_ = table(1)
    threshold = torch.zeros(50)
    errors = []
    for step in range(200):
        scores = scores + 0.002 * torch.randn(scores.shape, generator=generator) + 0.001
        positive, negative, owner = scores[:, :10].flatten(), scores[:, 10:], table(1)[3]
        drawn = negative[:, torch.randperm(390, generator=generator)[:100]]
        threshold = incremental_step(threshold, positive, drawn, owner, 20, torch.full((50,), 390), rate=0.2)
        if step > 50:
            errors.append((threshold - scores.topk(20).values[:, -1]).abs().mean().item())
    assert sum(errors) / len(errors) < 0.06  # what the paper reports for its Monte Carlo estimate


def test_masked_negatives_do_not_move_the_incremental_threshold():
    _, positive, negative, owner = table(2)
    wide = torch.cat([negative, torch.full((50, 7), 9.0)], 1)
    mask = torch.zeros_like(wide, dtype=torch.bool)
    mask[:, -7:] = True
    n = torch.full((50,), 390)
    a = incremental_step(torch.zeros(50), positive, negative, owner, 20, n)
    assert_close(incremental_step(torch.zeros(50), positive, wide, owner, 20, n, mask=mask), a)


def test_bad_arguments_are_refused():
    with pytest.raises(ConfigError, match="k must be >= 1, got 0"):
        sampled_thresholds(torch.ones(1), torch.ones(1, 1), torch.zeros(1, dtype=torch.long), 0)
    with pytest.raises(ConfigError, match="k must be >= 1, got 0"):
        weighted_thresholds(torch.ones(1), torch.ones(1, 1), torch.zeros(1, dtype=torch.long), 0, torch.ones(1))
    with pytest.raises(ConfigError, match=r"k must be <= 3 \(the number of items\), got 4"):
        iid_thresholds(torch.ones(1, 2), 4, 3)
    with pytest.raises(ConfigError, match="rate must be > 0"):
        regression_step(torch.ones(1), torch.ones(1, 2), 1, 3, rate=0)


@pytest.mark.parametrize("n_items", [10**5, 10**7])
def test_small_samples_of_a_large_catalogue_bring_the_threshold_near_the_top_in_time(n_items):
    """What docs/scaling.md says: after t steps about 2 I / (n t) items are above it, down to about 2 K."""
    n, k, queries, generator = 1000, 20, 200, torch.Generator().manual_seed(0)
    level, none = torch.zeros(queries), torch.zeros(0, dtype=torch.int64)
    n_negatives = torch.full((queries,), n_items)
    for step in range(1, 101):
        scores = torch.empty(queries, n).exponential_(generator=generator)  # c(level) = I exp(-level)
        level = incremental_step(level, torch.zeros(0), scores, none, k, n_negatives)
        if step in (30, 100):
            above = float(n_items * torch.exp(-level).mean())
            expected = max(2 * n_items / (n * step), 2 * k)
            assert expected / 2.5 < above < 2.5 * expected
