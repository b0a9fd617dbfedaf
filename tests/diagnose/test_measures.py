"""Thresholds, weights, hits, the bound and lambda weights, against loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from topshelf.diagnose import measures
from topshelf.diagnose.measures import Estimate, Weights
from topshelf.diagnose.sample import Sample
from topshelf.losses import lambda_loss
from topshelf.ragged import ragged_from_pairs

N_USERS, N_ITEMS, K = 12, 30, 4


@pytest.fixture(scope="module")
def state():
    generator = torch.Generator().manual_seed(5)
    chosen = torch.rand(N_USERS, N_ITEMS, generator=generator) < 0.2
    chosen[:, 0] = True
    positives = ragged_from_pairs(*chosen.nonzero().unbind(1), N_USERS)
    queries, items = (torch.randn(n, 3, generator=generator, dtype=torch.float64) for n in (N_USERS, N_ITEMS))
    items[7] = items[8]  # a tie
    return queries, items, Sample.draw(positives, N_ITEMS, N_USERS, generator)


def lists(sample):
    return [sample.positives.select(torch.tensor([row])).indices.tolist() for row in range(len(sample.positives))]


def test_exact_thresholds_are_the_kth_best_scores(state):
    queries, items, sample = state
    found = measures.exact(queries, items, sample, K)
    for row, user in enumerate(sample.rows.tolist()):
        scores = sorted((float(items[i] @ queries[user]) for i in range(N_ITEMS)), reverse=True)
        assert float(found[row]) == pytest.approx(scores[K - 1])


def test_estimates_come_with_their_errors(state):
    queries, items, sample = state
    few = measures.estimates(queries, items, sample, K, 5, torch.Generator().manual_seed(0))
    many = measures.estimates(queries, items, sample, K, 2000, torch.Generator().manual_seed(0))
    assert (few[0].error <= 1e-12).all()  # the trick never comes out above
    assert few[0].error.min() < -0.01
    assert np.abs(many[0].error).max() < 1e-12  # every item was drawn
    # iid is an empirical quantile: with many draws it is a score next to the exact one.
    ranks = [
        sorted((float(items[i] @ queries[user]) for i in range(N_ITEMS)), reverse=True) for user in sample.rows.tolist()
    ]
    places = [
        min(range(N_ITEMS), key=lambda j: abs(scores[j] - estimate))
        for scores, estimate in zip(ranks, many[1].estimate, strict=True)
    ]
    assert all(abs(place - (K - 1)) <= 1 for place in places)


def test_the_errors_are_summed_up():
    found = Estimate("mine", 3, np.array([1.0, 2.0, 3.0]), np.array([1.5, 2.0, 2.0])).to_json()
    assert found["error_mean"] == pytest.approx(-1 / 6)
    assert found["error_mean_absolute"] == pytest.approx(0.5)
    assert found["error_std"] == pytest.approx(math.sqrt(((2 / 3) ** 2 + (1 / 6) ** 2 + (5 / 6) ** 2) / 3))


def test_weights_and_what_wrong_thresholds_do_to_them(state):
    queries, items, sample = state
    threshold = measures.exact(queries, items, sample, K).numpy()
    wrong = threshold + np.linspace(-1, 1, N_USERS)
    distance = measures.distances(queries, items, sample, threshold)
    values = measures.weights_of(distance, 0.7)
    expected, shifts = [], []
    for row, (user, mine) in enumerate(zip(sample.rows.tolist(), lists(sample), strict=True)):
        for i in mine:
            score = float(items[i] @ queries[user])
            both = [1 / (1 + math.exp(-(score - beta[row]) / 0.7)) for beta in (threshold, wrong)]
            expected.append(both[0])
            shifts.append(abs(both[0] - both[1]))
    assert values == pytest.approx(expected)
    weights = Weights(0.7, distance, values)
    assert weights.low == pytest.approx(np.mean([w < 0.05 for w in expected]))
    assert weights.high == pytest.approx(np.mean([w > 0.95 for w in expected]))

    def distance_of(beta):
        return measures.distances(queries, items, sample, beta)

    found = measures.weight_shift(Estimate("wrong", None, threshold, wrong), distance_of, 0.7)
    assert found == pytest.approx(np.mean(shifts))


@pytest.mark.parametrize(("tau", "tau_weight"), [(0.2, 3.0), (5.0, 0.1)])
def test_hits_and_the_gap_of_the_bound(state, tau, tau_weight):
    queries, items, sample = state
    hits, gaps, holds = [], [], []
    for user, mine in zip(sample.rows.tolist(), lists(sample), strict=True):
        scores = [float(items[i] @ queries[user]) for i in range(N_ITEMS)]
        rank = {i: sum(other >= scores[i] for other in scores) for i in mine}
        beta = sorted(scores, reverse=True)[K - 1]
        inside = [i for i in mine if rank[i] <= K]
        hits.append(len(inside))
        loss = sum(
            math.log(sum(math.exp((other - scores[i]) / tau) for other in scores))
            / (1 + math.exp(-(scores[i] - beta) / tau_weight))
            for i in mine
        )
        if inside:
            gap = loss + math.log(sum(1 / math.log2(rank[i] + 1) for i in inside))
            holds.append(gap >= 0)
            if len(inside) > 1:
                gaps.append(gap)
    assert {0, 1, 2} <= set(hits)
    found = measures.bound(queries, items, sample, K, tau=tau, tau_weight=tau_weight, epoch=3)
    assert found.epoch == 3
    assert found.no_hit == pytest.approx(np.mean([h == 0 for h in hits]))
    assert found.one_hit == pytest.approx(np.mean([h == 1 for h in hits]))
    assert found.more_hits == pytest.approx(np.mean([h > 1 for h in hits]))
    assert found.holds == pytest.approx(np.mean(holds))
    assert found.broken == 0
    assert found.gap["mean"] == pytest.approx(np.mean(gaps))
    assert found.gap["50%"] == pytest.approx(np.median(gaps))


def test_nobody_with_a_hit_leaves_the_gap_open():
    positives = ragged_from_pairs(torch.tensor([0]), torch.tensor([3]), 1)
    lone = Sample.draw(positives, N_ITEMS, 1, torch.Generator().manual_seed(0))
    items = torch.ones(N_ITEMS, 3, dtype=torch.float64)
    items[3] = -1.0
    found = measures.bound(torch.ones(1, 3, dtype=torch.float64), items, lone, K, tau=0.2, tau_weight=1.0, epoch=0)
    assert (found.no_hit, found.holds, found.gap) == (1.0, None, None)


@pytest.mark.parametrize(("n_items", "k"), [(60, 5), (60, 20), (12, 20), (2, 1), (1, 1)])
def test_the_share_of_small_lambda_weights_counts_every_pair(n_items, k):
    small = total = 0
    for i in range(1, n_items + 1):
        for j in range(1, n_items + 1):
            if i != j:
                apart, last = abs(i - j), max(i, j)
                weight = 1 / math.log2(apart + 1) - 1 / math.log2(apart + 2)
                weight = weight / (1 - 1 / math.log2(last + 1)) if last > k else weight
                total, small = total + 1, small + (weight < 0.005)
    assert measures.small_lambda_share(n_items, k) == pytest.approx(small / total if total else 0.0)


def test_the_table_of_lambda_weights_is_the_losss_own_without_its_diagonal():
    places = np.arange(1, 8)
    table = measures.lambda_table(places[:, None], places[None, :], 3)
    assert np.isnan(np.diag(table)).all()
    r = torch.arange(1, 8, dtype=torch.float64)
    own = lambda_loss.lambda_weights(r.unsqueeze(1), r, k=3).numpy()
    assert np.nan_to_num(table) == pytest.approx(np.where(np.eye(7) > 0, 0.0, own))
