"""Thresholds from drawn items: what is drawn, what is counted, and what rank it comes to."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from topshelf.drawing import deal_negatives
from topshelf.errors import TrainingError
from topshelf.ragged import ragged_from_pairs
from topshelf.thresholds import exact_thresholds
from topshelf.training.thresholding import ESTIMATORS, Sampled, drawn_thresholds

DRAWN = [name for name, cls in ESTIMATORS.items() if issubclass(cls, Sampled)]


def problem(n_queries=40, n_items=90, share=0.1, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    taken = torch.rand(n_queries, n_items, generator=generator) < share
    taken[:, 0], taken[:, 1] = True, False
    queries, items = (torch.randn(n, 5, generator=generator, dtype=dtype) for n in (n_queries, n_items))
    return queries, items, ragged_from_pairs(*taken.nonzero().unbind(1), n_queries)


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


def slow(estimator, scores, positives, k, n, block, generator):
    """By sorted lists, from the same draws."""
    found, n_items = [], len(scores[0])
    for start in range(0, len(scores), block):
        lists = positives.slice(start, min(start + block, len(scores)))
        if estimator == "iid":
            drawn = torch.randint(n_items, (n,), generator=generator).tolist()
            for row in scores[start : start + block]:
                sample = sorted(row[item] for item in drawn)
                p = (n_items - k) / n_items
                found.append(next(s for i, s in enumerate(sample, 1) if i / n >= p - 1e-12))
            continue
        order = deal_negatives(lists, n, n_items, generator).items.tolist()
        for q, row in enumerate(scores[start : start + block]):
            mine = set(lists.indices[lists.indptr[q] : lists.indptr[q + 1]].tolist())
            drawn = [item for item in order if item not in mine][:n]
            each = 1.0 if estimator == "sampled" else (n_items - len(mine)) / len(drawn)
            weights = sorted([(row[i], 1.0) for i in mine] + [(row[j], each) for j in drawn], reverse=True)
            total = 0.0
            reached = []
            for score, weight in weights:
                reached += [score] if total < k - 1e-9 else []
                total += weight
            found.append(reached[-1])
    return torch.tensor(found)


@pytest.mark.parametrize("estimator", DRAWN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (7, 5), (30, 5), (60, 20), (500, 20)])
def test_drawn_thresholds_are_those_of_sorted_lists(estimator, dtype, n, k):
    """float32 goes through the compiled loops, float64 through torch."""
    queries, items, positives = problem(dtype=dtype)
    found = drawn_thresholds(estimator, queries, items, positives, k, n, stream(3), block=16)
    assert found.dtype == dtype
    wanted = slow(estimator, (queries @ items.T).tolist(), positives, k, n, 16, stream(3))
    assert_close(found.double(), wanted.double(), rtol=0, atol=2e-6)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), n=st.integers(1, 120), k=st.integers(1, 60))
def test_sampled_is_never_above_exact_nor_above_weighted(seed, n, k):
    queries, items, positives = problem(seed=seed)
    sampled, weighted = (
        drawn_thresholds(name, queries, items, positives, k, n, stream(seed)) for name in ("sampled", "weighted")
    )
    has_k = positives.counts + n >= k  # with fewer scores than K the estimate is the lowest of them
    assert (sampled <= exact_thresholds(queries, items, k) + 1e-5)[has_k].all()
    assert (sampled <= weighted).all()


@pytest.mark.parametrize("estimator", ["sampled", "weighted"])
def test_with_all_negatives_drawn_the_estimate_is_exact(estimator):
    queries, items, positives = problem()
    for n in (90, 2000):
        found = drawn_thresholds(estimator, queries, items, positives, 20, n, stream())
        assert_close(found, exact_thresholds(queries, items, 20), rtol=0, atol=1e-5)


def test_the_trick_estimates_a_lower_place_and_weighting_does_not():
    """One negative in ten is drawn. The trick takes the level where positives and a tenth of the negatives number K."""
    queries, items, positives = problem(n_queries=400, n_items=2000, share=0.004)
    scores = queries @ items.T
    is_positive = torch.zeros_like(scores, dtype=torch.bool)
    is_positive[positives.owner(), positives.indices] = True
    order = scores.argsort(1, descending=True)
    own = is_positive.gather(1, order).cumsum(1)
    share = 200 / (2000 - positives.counts).unsqueeze(1)
    predicted = 1 + (own + share * (torch.arange(1, 2001) - own) < 20).sum(1)
    places = {
        name: torch.stack(
            [
                (scores >= drawn_thresholds(name, queries, items, positives, 20, 200, stream(s)).unsqueeze(1)).sum(1)
                for s in range(20)
            ]
        )
        for name in DRAWN
    }
    assert predicted.double().mean() > 180  # of 20 wanted
    assert places["sampled"].double().mean() == pytest.approx(float(predicted.double().mean()), rel=0.1)
    assert 20 < places["weighted"].double().mean() < 20 + 10  # at most one drawn negative, that is ten, too far
    assert places["weighted"].double().std() < places["iid"].double().std()


def test_every_query_of_a_block_looks_at_a_sample_of_its_own_negatives():
    """Over many refreshes each query's estimate has the same law, whatever the size of the blocks."""
    queries, items, positives = problem(n_queries=8)
    means = [
        torch.stack(
            [drawn_thresholds("sampled", queries, items, positives, 5, 20, stream(s), block=block) for s in range(600)]
        )
        for block in (1, 8)
    ]
    error = (means[0].std(0) ** 2 / 600 + means[1].std(0) ** 2 / 600).sqrt()
    assert ((means[0].mean(0) - means[1].mean(0)).abs() < 4.5 * error).all()


@pytest.mark.parametrize("estimator", DRAWN)
def test_the_same_stream_draws_the_same(estimator):
    queries, items, positives = problem()
    one, two, other = (
        drawn_thresholds(estimator, queries, items, positives, 5, 20, stream(seed), block=16) for seed in (1, 1, 2)
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("estimator", DRAWN)
def test_scores_that_are_not_numbers_are_refused_by_the_name_of_their_query(estimator):
    queries, items, positives = problem()
    queries[17] = torch.nan
    with pytest.raises(TrainingError, match="NaN for query 1017"):
        drawn_thresholds(
            estimator, queries, items, positives, 5, 20, stream(), block=16, names=torch.arange(1000, 1040)
        )
