"""Sparse EASE against EASE, against slow references, and the error that it states."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from topshelf.errors import ConfigError, TrainingError
from topshelf.models import EASE, SparseEASE
from topshelf.models.item_item import history_matrix
from topshelf.models.neighbour_systems import factorise, substitute
from topshelf.models.sparse_ease import exact_columns
from topshelf.ragged import ragged_from_pairs
from vectors import fit_to, vectors_of

N_QUERIES, N_ITEMS = 40, 14


def problem(seed=0, n_queries=N_QUERIES, n_items=N_ITEMS, density=0.3):
    histories = np.random.default_rng(seed).random((n_queries, n_items)) < density
    rows, items = histories.nonzero()
    return histories.astype(np.float64), ragged_from_pairs(torch.tensor(rows), torch.tensor(items), n_queries)


def fitted(cls, positives, n_items=N_ITEMS, **more):
    model = cls(len(positives), n_items, **more)
    fit_to(model, positives)
    return model


def table(model):
    return vectors_of(model)[1].T


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 1000),
    l2=st.sampled_from([0.5, 10.0, 300.0]),
    density=st.sampled_from([0.02, 0.2, 0.7]),
    n_items=st.integers(1, 16),
)
def test_with_all_neighbours_it_is_ease(seed, l2, density, n_items):
    _, positives = problem(seed, n_items=n_items, density=density)
    exact = fitted(EASE, positives, n_items, l2=l2)
    for neighbours in (max(1, n_items - 1), 1000):
        ours = fitted(SparseEASE, positives, n_items, l2=l2, neighbours=neighbours)
        assert_close(table(ours), exact.weights, rtol=0, atol=1e-6)
        assert all(error < 1e-3 for error in ours.derived().values())


@pytest.mark.parametrize("neighbours", [1, 3, 8])
def test_each_item_is_regressed_on_the_items_that_explain_most_of_it(neighbours):
    histories, positives = problem(1)
    l2 = 4.0
    weights = table(fitted(SparseEASE, positives, l2=l2, neighbours=neighbours)).numpy()
    gram = histories.T @ histories
    for j in range(N_ITEMS):
        gains = gram[j] ** 2 / (gram.diagonal() + l2)
        gains[j] = -1
        nearest = np.sort(np.argsort(-gains, kind="stable")[:neighbours])
        x, y = histories[:, nearest], histories[:, j]
        expected = np.zeros(N_ITEMS)
        expected[nearest] = np.linalg.solve(x.T @ x + l2 * np.eye(neighbours), x.T @ y)
        np.testing.assert_allclose(weights[:, j], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("searched", [0, 16])
def test_long_lists_of_counts_are_searched_and_short_ones_read(searched, monkeypatch):
    """Both ways of gathering give EASE's weights: with many items, few neighbours' lists are short."""
    from topshelf.models import neighbour_systems

    monkeypatch.setattr(neighbour_systems, "_SEARCHED", searched)
    histories, _ = problem(2)
    gram = history_matrix(problem(2)[1], N_ITEMS)
    counts = gram.T @ gram
    counts.sort_indices()
    mine, place = np.array([1, 4, 9]), np.full(N_ITEMS, -1)
    place[mine] = np.arange(3)
    row = np.zeros(3)
    neighbour_systems.fill_row.py_func(2, mine, 3, place, row, counts.indptr, counts.indices, counts.data)
    assert (row == (histories.T @ histories)[2, mine]).all()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), n=st.integers(1, 12))
def test_the_factor_solves_its_system(seed, n):
    draw = np.random.default_rng(seed)
    half, right = draw.normal(size=(n, n)), draw.normal(size=n)
    system = half @ half.T + np.eye(n)
    whole, solution = np.full((n + 2, n + 2), np.nan), np.full(n + 2, np.nan)
    whole[:n, :n], solution[:n] = np.tril(system), right
    factorise(whole, n)
    substitute(whole, solution, n)
    np.testing.assert_allclose(solution[:n], np.linalg.solve(system, right), rtol=1e-8, atol=1e-10)


def test_the_stated_error_is_the_distance_to_ease_on_the_checked_items():
    histories, positives = problem(3)
    ours = fitted(SparseEASE, positives, l2=5.0, neighbours=3, checked=N_ITEMS)
    exact = fitted(EASE, positives, l2=5.0).weights.double().numpy()
    away = table(ours).double().numpy() - exact
    stated = ours.derived()
    scores = np.linalg.norm(histories @ away) / np.linalg.norm(histories @ exact)
    assert stated["score_error"] == pytest.approx(scores, rel=1e-2)
    assert stated["weight_error"] == pytest.approx(np.linalg.norm(away) / np.linalg.norm(exact), rel=1e-2)
    more = fitted(SparseEASE, positives, l2=5.0, neighbours=8, checked=N_ITEMS).derived()
    assert more["score_error"] < stated["score_error"]
    assert fitted(SparseEASE, positives, checked=0).derived() == {}


def test_exact_columns_are_those_of_ease():
    _, positives = problem(4)
    exact = fitted(EASE, positives, l2=2.0).weights
    items = np.array([0, 5, 13])
    found = exact_columns(history_matrix(positives, N_ITEMS), items, 2.0)
    assert_close(torch.from_numpy(found).float(), exact[:, items], rtol=0, atol=1e-3)


def test_the_error_is_kept_with_the_model():
    _, positives = problem(5)
    ours = fitted(SparseEASE, positives, neighbours=3)
    other = SparseEASE(N_QUERIES, N_ITEMS, neighbours=3)
    other.load_state_dict(ours.state_dict())
    assert other.derived() == ours.derived()
    assert set(ours.derived()) == {"score_error", "weight_error"}


def test_items_without_interactions_have_no_weight_and_no_check():
    positives = ragged_from_pairs(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), 3)
    model = fitted(SparseEASE, positives, n_items=5, neighbours=2)
    assert table(model).isfinite().all()
    assert (table(model)[2:] == 0).all()
    nothing = ragged_from_pairs(torch.tensor([], dtype=torch.int64), torch.tensor([], dtype=torch.int64), 3)
    assert (table(fitted(SparseEASE, nothing, n_items=5)) == 0).all()


def test_what_needs_more_than_the_memory_is_refused():
    with pytest.raises(ConfigError, match=r"SparseEASE over 1000000 items needs 20 GB, and memory allows 4 GB"):
        SparseEASE(10, 1_000_000, neighbours=1000)
    SparseEASE(10, 1_000_000, neighbours=100)
    _, positives = problem()
    with pytest.raises(ConfigError, match=r"raise model\.memory"):
        fitted(SparseEASE, positives, memory=8 * N_ITEMS**2 - 1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"l2": 0.0}, "l2 must be"),
        ({"neighbours": 0}, "neighbours must be"),
        ({"checked": -1}, "checked must be"),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        SparseEASE(5, 5, **wrong)


def test_a_penalty_too_small_to_decide_is_refused():
    _, positives = problem()
    with pytest.raises(TrainingError, match=r"raise model\.l2, which is 1e-13"):
        fitted(SparseEASE, positives, l2=1e-13)
