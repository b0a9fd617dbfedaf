"""Thresholds while training: the right value, at the right time, for the right queries."""

from __future__ import annotations

import time

import pytest
import torch
from torch.testing import assert_close

from topshelf.config import make_config
from topshelf.losses import SLatK
from topshelf.models import MF
from topshelf.negatives import Catalogue
from topshelf.queries import Context, QuerySet
from topshelf.ragged import ragged_from_pairs
from topshelf.training.batches import Batches, stream
from topshelf.training.build import build_estimator
from topshelf.training.objective import CatalogueObjective
from topshelf.training.thresholding import ESTIMATORS, ThresholdHook
from vectors import vectors_of

N_QUERIES, N_ITEMS, K = 25, 60, 5
EVERY_FEW_EPOCHS = [name for name, cls in ESTIMATORS.items() if cls.updates == "epochs"]
EVERY_STEP = [name for name, cls in ESTIMATORS.items() if cls.updates == "steps"]


def hook_of(loss, positives, **settings):
    config = make_config({"threshold": settings})
    queries = QuerySet.known(len(positives))
    return ThresholdHook(loss, build_estimator(config), queries, positives, every=config.threshold.every)


class Problem:
    """A small factorisation with its lists; the last query has no positives."""

    def __init__(self, estimator="exact", **settings):
        torch.manual_seed(3)
        self.model = MF(N_QUERIES, N_ITEMS, dim=6)
        taken = torch.rand(N_QUERIES, N_ITEMS) < 0.15
        taken[:, 0] = True
        taken[-1] = False
        rows, items = taken.nonzero().T
        self.positives = ragged_from_pairs(rows, items, N_QUERIES)
        self.loss = SLatK(N_QUERIES, k=K)
        self.hook = hook_of(self.loss, self.positives, estimator=estimator, **settings)

    def scores(self):
        queries, items = vectors_of(self.model)
        return (queries @ items.T).detach()

    def exact(self):
        return torch.tensor([sorted(row, reverse=True)[K - 1] for row in self.scores().tolist()])

    def batches(self, size, order="query", epoch=0):
        return Batches(self.positives, N_ITEMS, order=order, size=size).epoch(stream(epoch))

    def step(self, batch, seed=0):
        objective = CatalogueObjective(self.model, self.loss, Catalogue(), Context(self.positives, N_ITEMS))
        self.hook.after_step(batch, objective(batch, stream(seed))[1], stream(seed, 1))


def test_exact_thresholds_are_the_kth_best_of_the_sorted_scores():
    problem = Problem(every=1)
    problem.hook.begin_epoch(1, problem.model, stream(0))
    assert_close(problem.loss.threshold, problem.exact())


@pytest.mark.parametrize("n", [1, 20, 2000])
def test_sampled_thresholds_are_never_above_the_exact_ones(n):
    problem = Problem("sampled", every=1, n=n)
    problem.hook.begin_epoch(1, problem.model, stream(0))
    ranked = Batches(problem.positives, N_ITEMS, order="query", size=1).queries
    assert (problem.loss.threshold[ranked] <= problem.exact()[ranked] + 1e-6).all()
    if n == 2000:  # every item is drawn, many of them twice
        assert_close(problem.loss.threshold[ranked], problem.exact()[ranked])
    assert problem.loss.threshold[-1] == 0  # no positives, never in a batch


def test_an_iid_threshold_of_a_large_sample_is_near_the_exact_one():
    problem = Problem("iid", every=1, n=20_000)
    problem.hook.begin_epoch(1, problem.model, stream(0))
    # In ranks: the K-th best, give or take one.
    rank = (problem.scores()[:-1] > problem.loss.threshold[:-1].unsqueeze(1)).sum(1)
    assert ((rank >= K - 1) & (rank <= K + 1)).all()


@pytest.mark.parametrize("estimator", ["sampled", "iid"])
def test_an_estimate_from_a_sample_costs_less_than_the_exact_thresholds(estimator):
    """Electronic's catalogue, a sample of one item in eight: the work must follow the sample, not the catalogue.

    It was +178% of an epoch on Health and +56% on Electronic (issue 13). Here it was 5 times the cost of the exact
    thresholds, and is a third of it; the CPU's time is taken, so that a busy machine hits both alike.
    """
    n_queries, n_items = 3000, 8360
    torch.manual_seed(0)
    model = MF(n_queries, n_items, dim=64)
    owner = torch.arange(n_queries).repeat_interleave(12)
    items = torch.stack([torch.randperm(n_items)[:12] for _ in range(n_queries)]).flatten()
    positives, loss = ragged_from_pairs(owner, items, n_queries), SLatK(n_queries, k=20)

    def seconds(name):
        hook = hook_of(loss, positives, estimator=name, every=1)
        found = []
        for _ in range(4):  # the first one compiles
            started = time.process_time()
            hook.begin_epoch(1, model, stream(0))
            found.append(time.process_time() - started)
        return min(found[1:])

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert seconds(estimator) < seconds("exact")
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("estimator", EVERY_FEW_EPOCHS)
def test_thresholds_are_refreshed_only_in_epochs_divisible_by_every(estimator):
    problem = Problem(estimator, every=3, n=30)
    moved = []
    for epoch in range(1, 8):
        problem.loss.threshold.fill_(9.0)
        problem.hook.begin_epoch(epoch, problem.model, stream(epoch))
        moved.append(bool((problem.loss.threshold != 9.0).any()))
        before = problem.loss.threshold.clone()
        problem.step(next(iter(problem.batches(10))))
        assert_close(problem.loss.threshold, before, msg="moved at a step")
    assert moved == [False, False, True, False, False, True, False]


@pytest.mark.parametrize("estimator", EVERY_STEP)
@pytest.mark.parametrize("order", ["query", "pair"])
def test_only_the_queries_of_the_batch_move_at_a_step(estimator, order):
    problem = Problem(estimator, n=30)
    problem.loss.threshold.fill_(0.9)
    problem.hook.begin_epoch(1, problem.model, stream(0))
    assert (problem.loss.threshold == 0.9).all()
    batch = next(iter(problem.batches(7, order)))
    problem.step(batch)
    moved = (problem.loss.threshold != 0.9).nonzero().squeeze(1).tolist()
    assert moved == sorted(set(batch.query.tolist()))


def followed(problem, order):
    """Thresholds after each of 60 epochs on frozen vectors."""
    found = []
    for epoch in range(60):
        for batch in problem.batches(50, order, epoch):
            problem.step(batch, epoch)
        found.append(problem.loss.threshold[:-1].clone())
    return torch.stack(found)


@pytest.mark.parametrize("order", ["query", "pair"])
def test_incremental_thresholds_that_see_everything_end_with_k_items_above(order):
    problem = Problem("incremental", n=N_ITEMS)
    level = followed(problem, order)[-1]
    off = (problem.scores()[:-1] > level.unsqueeze(1)).sum(1) - K
    assert (off.abs() <= 2).all()  # a query may swing between nearly equal scores
    assert float((off == 0).double().mean()) > 0.9


@pytest.mark.parametrize("order", ["query", "pair"])
def test_incremental_thresholds_of_a_small_sample_stay_near_the_exact_ones(order):
    problem = Problem("incremental", n=20)
    level, exact = followed(problem, order)[30:].mean(0), problem.exact()[:-1]
    # The count of a small sample is noisy and its logarithm low on average: the thresholds stay a little below.
    assert float((level - exact).abs().mean() / exact.mean()) < 0.15


def test_regression_thresholds_approach_the_exact_ones_on_frozen_vectors():
    problem = Problem("regression", n=N_ITEMS, rate=0.05)
    for epoch in range(400):
        for batch in problem.batches(50, epoch=epoch):
            problem.step(batch, epoch)
    rank = (problem.scores()[:-1] > problem.loss.threshold[:-1].unsqueeze(1)).sum(1)
    assert ((rank - K).abs() <= 1).all()


@pytest.mark.parametrize("estimator", [*EVERY_FEW_EPOCHS, *EVERY_STEP])
def test_thresholds_carry_no_gradient(estimator):
    problem = Problem(estimator, every=1, n=10)
    problem.hook.begin_epoch(1, problem.model, stream(0))
    problem.step(next(iter(problem.batches(9))))
    assert not problem.loss.threshold.requires_grad
    assert problem.loss.threshold.isfinite().all()
