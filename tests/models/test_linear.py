"""EASE against slow references in float64."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from topshelf.errors import ConfigError, TopshelfError, TrainingError
from topshelf.models import EASE, item_item
from topshelf.models.item_item import gram_matrix, history_matrix
from topshelf.ragged import ragged_from_pairs
from vectors import dense, fit_to, vectors_of


def problem(seed=0, n_queries=30, n_items=12):
    histories = np.random.default_rng(seed).random((n_queries, n_items)) < 0.3
    rows, items = histories.nonzero()
    return histories.astype(np.float64), ragged_from_pairs(torch.tensor(rows), torch.tensor(items), n_queries)


def fitted(positives, n_items=12, **settings):
    model = EASE(len(positives), n_items, **settings)
    fit_to(model, positives)
    return model


@pytest.mark.parametrize("l2", [0.5, 10.0, 300.0])
def test_weights_are_the_closed_form_by_an_explicit_inverse(l2):
    histories, positives = problem()
    inverse = np.linalg.inv(histories.T @ histories + l2 * np.eye(12))
    expected = -inverse / np.diag(inverse)  # column j by P_jj
    np.fill_diagonal(expected, 0)
    model = fitted(positives, l2=l2)
    assert_close(model.weights, torch.from_numpy(expected).float())
    queries, items = vectors_of(model)
    scores = queries[torch.arange(30)] @ items.T
    assert_close(scores, torch.from_numpy(histories @ expected).float())


def test_no_item_speaks_for_itself_and_each_column_solves_its_ridge_problem():
    """Column j predicts item j from the other items, with a penalty on squared weights."""
    histories, positives = problem(1)
    weights = fitted(positives, l2=4.0).weights
    assert (weights.diagonal() == 0).all()
    for j in range(12):
        others = [i for i in range(12) if i != j]
        x, y = histories[:, others], histories[:, j]
        expected = np.linalg.solve(x.T @ x + 4.0 * np.eye(11), x.T @ y)
        assert_close(weights[others, j], torch.from_numpy(expected).float())


def test_items_without_interactions_get_no_weight():
    positives = ragged_from_pairs(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), 3)
    weights = fitted(positives, n_items=4).weights
    assert weights.isfinite().all()
    assert (weights[2:] == 0).all()
    assert (weights[:, 2:] == 0).all()


def test_some_rows_are_encoded_as_among_all():
    histories, positives = problem(2)
    model, rows = fitted(positives), torch.tensor([7, 0, 7])
    assert_close(dense(vectors_of(model, rows)[0]), vectors_of(model)[0][rows].to_dense())
    assert_close(dense(vectors_of(model, rows)[0]), torch.from_numpy(histories[rows]).float())
    assert len(vectors_of(model)[0]) == 30


def test_a_catalogue_beyond_the_memory_is_refused_before_anything_is_made():
    with pytest.raises(ConfigError, match=r"EASE over 1000000 items needs 20000 GB, and memory allows 8 GB; .*mf"):
        EASE(10, 1_000_000)
    with pytest.raises(ConfigError, match=r"raise model\.memory"):
        EASE(10, 100, memory=1e5)
    EASE(10, 100, memory=2e5)


def test_a_penalty_of_zero_is_refused():
    with pytest.raises(ConfigError, match="l2 must be > 0, got 0"):
        EASE(2, 3, l2=0)


def test_counts_of_common_users_are_made_in_their_own_size(monkeypatch):
    histories, positives = problem(3, n_queries=500, n_items=400)
    monkeypatch.setattr(item_item, "BLOCK", 8 * 400 * 20)
    matrix = history_matrix(positives, 400)
    tracemalloc.start()
    gram = gram_matrix(matrix)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(gram, histories.T @ histories)
    assert peak < 2 * gram.nbytes  # the other one: the transposed histories and a block


def test_weights_that_are_not_determined_say_what_to_raise():
    positives = ragged_from_pairs(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1]), 2)  # two items alike
    with pytest.raises(TrainingError, match=r"so small a penalty; raise model\.l2, which is 1e-30"):
        fitted(positives, n_items=2, l2=1e-30)


def test_a_model_without_histories_says_what_to_do():
    with pytest.raises(TopshelfError, match=r"EASE has no histories yet: call attach"):
        vectors_of(EASE(2, 3))
