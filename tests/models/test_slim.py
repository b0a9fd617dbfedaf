"""SLIM against explicit loops, its optimality conditions and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import ElasticNet
from torch.testing import assert_close

from topshelf.errors import ConfigError, TrainingError
from topshelf.models import SLIM, elastic_net, slim
from topshelf.ragged import ragged_from_pairs
from vectors import fit_to, vectors_of

N_QUERIES, N_ITEMS = 60, 15
CASES = pytest.mark.parametrize(("l1", "l2"), [(0.01, 1.0), (0.5, 1.0), (0.5, 20.0), (2.0, 5.0)])


def histories(seed=0, n_queries=N_QUERIES, n_items=N_ITEMS):
    """Users of two kinds, so that items have something to say about each other."""
    random = np.random.default_rng(seed)
    kind = random.random((n_queries, 1)) < 0.5
    return random.random((n_queries, n_items)) < np.where(kind == (np.arange(n_items) % 2), 0.5, 0.1)


def fitted(matrix, **settings):
    rows, items = matrix.nonzero()
    model = SLIM(*matrix.shape, **settings)
    fit_to(model, ragged_from_pairs(torch.tensor(rows), torch.tensor(items), len(matrix)))
    return model


def weights(model):
    """Row i, column j: what having item i says about item j."""
    return vectors_of(model)[1].T.double()


def by_loops(matrix, j, l1, l2, n_sweeps=2000):
    """Cyclic coordinate descent on the users' rows themselves."""
    x, weights = matrix.astype(float), np.zeros(matrix.shape[1])
    for _ in range(n_sweeps):
        for i in range(len(weights)):
            if i != j:
                weights[i] = 0.0
                left = x[:, j] - x @ weights
                weights[i] = max(0.0, x[:, i] @ left - l1) / (x[:, i] @ x[:, i] + l2)
    return weights


@CASES
def test_weights_are_those_of_slow_descent_by_loops(l1, l2):
    matrix = histories(n_queries=40, n_items=8)
    expected = np.stack([by_loops(matrix, j, l1, l2, 200) for j in range(8)], 1)
    model = fitted(matrix, l1=l1, l2=l2)
    assert_close(weights(model), torch.from_numpy(expected), rtol=0, atol=2e-5)
    queries, items = vectors_of(model)
    scores = (queries[torch.arange(40)] @ items.T).double()
    assert_close(scores, torch.from_numpy(matrix @ expected), rtol=0, atol=2e-4)


@CASES
def test_weights_are_those_of_scikit_learn(l1, l2):
    matrix = histories(1).astype(float)
    found = weights(fitted(histories(1), l1=l1, l2=l2))
    for j in range(N_ITEMS):
        others = [i for i in range(N_ITEMS) if i != j]
        net = ElasticNet(
            alpha=(l1 + l2) / N_QUERIES,
            l1_ratio=l1 / (l1 + l2),
            positive=True,
            fit_intercept=False,
            tol=1e-10,
            max_iter=100_000,
        )
        expected = net.fit(matrix[:, others], matrix[:, j]).coef_
        assert_close(found[others, j], torch.from_numpy(expected), rtol=0, atol=2e-5)


@CASES
def test_no_item_speaks_for_itself_and_no_other_weights_are_better(l1, l2):
    """The conditions of an optimum: weights above 0 have no slope, those at 0 would only rise."""
    matrix = histories(2).astype(float)
    found = weights(fitted(histories(2), l1=l1, l2=l2)).numpy()
    assert (np.diag(found) == 0).all()
    assert (found >= 0).all()
    assert (found > 0).any()
    slope = matrix.T @ (matrix @ found - matrix) + l2 * found + l1
    np.fill_diagonal(slope, 0.0)
    assert np.abs(slope[found > 0]).max() < 1e-2
    assert slope[found == 0].min() > -1e-2


def test_a_larger_l1_leaves_fewer_weights_and_a_huge_one_none():
    counts = [fitted(histories(3), l1=l1, l2=1.0).values.numel() for l1 in (0.01, 1.0, 5.0, 100.0)]
    assert counts[0] > counts[1] > counts[2] > counts[3] == 0


def test_weights_do_not_change_when_users_and_penalties_come_twice():
    once = fitted(histories(4), l1=0.5, l2=3.0)
    twice = fitted(np.concatenate([histories(4)] * 2), l1=1.0, l2=6.0)
    assert_close(weights(once), weights(twice), rtol=0, atol=2e-5)


def test_an_item_gets_the_same_weights_alone_and_among_all():
    matrix = histories(5).astype(float)
    gram = matrix.T @ matrix
    indptr, indices = np.arange(0, N_ITEMS**2 + 1, N_ITEMS), np.tile(np.arange(N_ITEMS, dtype=np.int32), N_ITEMS)
    parts = (indptr, indices, gram.ravel(), np.diag(gram).copy())
    settings = {"l1": 0.5, "l2": 1.0, "tolerance": 1e-5, "most_rounds": 100}
    together, alone = np.zeros((2, N_ITEMS, N_ITEMS))
    rounds = elastic_net.elastic_net(np.arange(N_ITEMS), together, parts, **settings)
    assert (rounds > 0).all()
    for j in range(N_ITEMS):
        elastic_net.elastic_net(np.array([j]), alone[j : j + 1], parts, **settings)
    assert np.array_equal(together, alone)
    assert np.array_equal(together.astype(np.float32), vectors_of(fitted(histories(5), l1=0.5, l2=1.0))[1].numpy())


@pytest.mark.slow
def test_where_too_many_are_active_for_a_matrix_of_their_own_descent_goes_on_over_all(monkeypatch):
    found = []
    for most in (4096, 0):
        monkeypatch.setattr(elastic_net, "_MOST_ACTIVE", most)
        matrix = histories(5, n_queries=40, n_items=8).astype(float)
        gram = matrix.T @ matrix
        indptr, indices = np.arange(0, 65, 8), np.tile(np.arange(8, dtype=np.int32), 8)
        weights, rounds = np.zeros((8, 8)), np.zeros(8, np.int64)
        parts = (np.arange(8), weights, rounds, indptr, indices, gram.ravel(), np.diag(gram).copy())
        elastic_net.solve.py_func(*parts, 0.5, 1.0, 1e-9, 1000)  # as Python, which looks constants up
        found.append((weights, rounds))
    assert (found[1][1] > found[0][1]).any()
    np.testing.assert_allclose(found[0][0], found[1][0], atol=1e-7)


def test_blocks_of_items_do_not_change_the_weights(monkeypatch):
    whole = fitted(histories(6)).state_dict()
    monkeypatch.setattr(slim, "_BLOCK", 8 * N_ITEMS * 4)
    parts = fitted(histories(6)).state_dict()
    assert all(torch.equal(whole[key], parts[key]) for key in whole)


def test_items_and_queries_without_interactions_get_nothing():
    matrix = histories(7)
    matrix[:, 4] = matrix[7] = False
    found = weights(fitted(matrix, l1=0.1))
    assert found.isfinite().all()
    assert (found[4] == 0).all()
    assert (found[:, 4] == 0).all()


def test_descent_that_does_not_end_says_what_to_raise(monkeypatch):
    monkeypatch.setattr(slim, "_MOST_ROUNDS", 1)
    with pytest.raises(TrainingError, match=r"item 0 still change after 1 sweeps; raise model\.l2, which is 1\.0"):
        fitted(histories(8), l1=0.1, l2=1.0)


def test_a_table_or_counts_beyond_the_memory_are_refused():
    SLIM(10, 1_000_000)  # lists, no table
    counts = 12 * N_ITEMS**2
    with pytest.raises(ConfigError, match=r"raise model\.memory"):
        SLIM(N_QUERIES, 100, memory=4 * 100**2 - 1)
    with pytest.raises(ConfigError, match=r"raise model\.memory"):
        fitted(histories(), memory=counts - 1)
    fitted(histories(), memory=counts)


@pytest.mark.parametrize("name", ["l1", "l2"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_penalties_that_are_not_positive_are_refused(name, value):
    with pytest.raises(ConfigError, match=f"{name} must be > 0, got {value}"):
        SLIM(2, 3, **{name: value})
