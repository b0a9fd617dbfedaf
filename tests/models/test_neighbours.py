"""Item-kNN and RP3beta against explicit loops in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from topshelf.errors import ConfigError, TopshelfError
from topshelf.models import ItemKNN, RP3beta
from topshelf.models import item_item as item_item_file
from topshelf.ragged import ragged_from_pairs
from vectors import attach, fit_to, vectors_of

N_QUERIES, N_ITEMS = 30, 12
BOTH = pytest.mark.parametrize("cls", [ItemKNN, RP3beta])


def histories(seed=0):
    return np.random.default_rng(seed).random((N_QUERIES, N_ITEMS)) < 0.3


def fitted(cls, matrix, **settings):
    rows, items = matrix.nonzero()
    positives = ragged_from_pairs(torch.tensor(rows), torch.tensor(items), len(matrix))
    model = cls(*matrix.shape, **settings)
    fit_to(model, positives)
    return model


def weights(model):
    """Row i, column j: what having item i says about item j."""
    return vectors_of(model)[1].T.double()


def cosine(matrix, shrink=0.0, asymmetry=0.5, weighting="none"):
    n_queries, n_items = matrix.shape
    found = np.zeros((n_items, n_items))
    for i in range(n_items):
        for j in range(n_items):
            common = own = other = 0.0
            for u in range(n_queries):
                weight = math.log(n_items / matrix[u].sum()) if weighting == "tfidf" and matrix[u].any() else 1.0
                common += (weight * matrix[u, i]) * (weight * matrix[u, j])
                own += (weight * matrix[u, i]) ** 2
                other += (weight * matrix[u, j]) ** 2
            if i != j and common > 0:
                found[i, j] = common / (
                    math.sqrt(own) ** (2 * asymmetry) * math.sqrt(other) ** (2 - 2 * asymmetry) + shrink
                )
    return found


def walk(matrix, alpha=1.0, beta=0.0):
    n_queries, n_items = matrix.shape
    found = np.zeros((n_items, n_items))
    for i in range(n_items):
        for j in range(n_items):
            for u in range(n_queries):
                if i != j and matrix[u, i] and matrix[u, j]:
                    out, on = 1 / matrix[:, i].sum(), 1 / matrix[u].sum()
                    found[i, j] += out**alpha * on**alpha / matrix[:, j].sum() ** beta
    return found


def pruned(columns, k):
    """The k largest of each column; of equal ones the first."""
    kept = np.zeros_like(columns)
    for j in range(columns.shape[1]):
        order = sorted(range(columns.shape[0]), key=lambda i: (-np.float32(columns[i, j]), i))[:k]
        kept[order, j] = columns[order, j]
    return kept


@pytest.mark.parametrize("weighting", ["none", "tfidf"])
@pytest.mark.parametrize(("shrink", "asymmetry", "k"), [(0.0, 0.5, 100), (3.0, 0.5, 3), (0.5, 0.7, 4), (0.0, 0.0, 1)])
def test_knn_is_its_formula_by_loops(weighting, shrink, asymmetry, k):
    matrix = histories()
    expected = pruned(cosine(matrix, shrink, asymmetry, weighting), k)
    model = fitted(ItemKNN, matrix, k=k, shrink=shrink, asymmetry=asymmetry, weighting=weighting)
    assert_close(weights(model), torch.from_numpy(expected), rtol=1e-6, atol=1e-7)
    queries, items = vectors_of(model)
    assert_close((queries[torch.arange(N_QUERIES)] @ items.T).double(), torch.from_numpy(matrix @ expected))


@pytest.mark.parametrize(("alpha", "beta", "k"), [(1.0, 0.0, 100), (0.5, 0.4, 3), (1.7, 1.1, 4), (0.0, 0.3, 1)])
def test_rp3beta_is_its_walk_by_loops(alpha, beta, k):
    matrix = histories(1)
    expected = pruned(walk(matrix, alpha, beta).T, k).T  # the k ways on from each item
    model = fitted(RP3beta, matrix, alpha=alpha, beta=beta, k=k)
    assert_close(weights(model), torch.from_numpy(expected), rtol=1e-6, atol=1e-7)
    queries, items = vectors_of(model)
    assert_close((queries[torch.arange(N_QUERIES)] @ items.T).double(), torch.from_numpy(matrix @ expected))


@BOTH
def test_no_item_speaks_for_itself_and_no_weight_is_below_zero(cls):
    found = weights(fitted(cls, histories(2)))
    assert (found.diagonal() == 0).all()
    assert (found >= 0).all()
    assert (found > 0).any()


def test_the_cosine_is_symmetric_until_neighbours_are_cut_off():
    matrix = histories(3)
    found = weights(fitted(ItemKNN, matrix, asymmetry=0.5, shrink=2.0, k=N_ITEMS))
    assert_close(found, found.T)
    assert (found < 1).all()
    cut = weights(fitted(ItemKNN, matrix, asymmetry=0.5, shrink=2.0, k=2))
    assert ((cut > 0).sum(0) <= 2).all(), "of each scored item"
    assert not torch.equal(cut, cut.T)


def test_the_cosine_does_not_change_when_every_user_comes_twice_unless_it_is_shrunk():
    matrix = histories(4)
    twice = np.concatenate([matrix, matrix])
    for weighting in ("none", "tfidf"):
        once, again = (weights(fitted(ItemKNN, m, shrink=0.0, weighting=weighting)) for m in (matrix, twice))
        assert_close(once, again)
    shrunk, less = (weights(fitted(ItemKNN, m, shrink=5.0)) for m in (matrix, twice))
    assert (less[shrunk > 0] > shrunk[shrunk > 0]).all()


def test_the_walk_without_powers_is_a_probability_and_does_not_change_when_every_user_comes_twice():
    matrix = histories(5)
    found = weights(fitted(RP3beta, matrix, alpha=1.0, beta=0.0))
    returns = torch.tensor([(1 / matrix[matrix[:, i]].sum(1)).mean() for i in range(N_ITEMS)])  # back where it began
    assert_close(found.sum(1) + returns, torch.ones(N_ITEMS, dtype=torch.float64), rtol=1e-6, atol=1e-6)
    assert_close(found, weights(fitted(RP3beta, np.concatenate([matrix, matrix]), alpha=1.0, beta=0.0)))


def test_beta_takes_from_the_popular():
    matrix = np.zeros((6, 3), bool)
    matrix[:, 1] = matrix[:2, 2] = matrix[0, 0] = True  # item 1 is everybody's, item 2 rare, both beside item 0
    plain, fair = (weights(fitted(RP3beta, matrix, beta=beta)) for beta in (0.0, 1.0))
    assert_close(plain[0, 1], plain[0, 2])
    assert_close(fair[0, 2] / fair[0, 1], torch.tensor(3.0, dtype=torch.float64))


@BOTH
def test_items_and_queries_without_interactions_get_nothing(cls):
    matrix = histories(6)
    matrix[:, 4] = matrix[7] = False
    found = weights(fitted(cls, matrix))
    assert found.isfinite().all()
    assert (found[4] == 0).all()
    assert (found[:, 4] == 0).all()


@BOTH
def test_equal_weights_are_kept_in_the_order_of_items(cls):
    matrix = np.ones((3, 6), bool)
    matrix[1] = False
    found = weights(fitted(cls, matrix, k=2, **({"weighting": "none"} if cls is ItemKNN else {})))
    for item in range(6):
        kept = (found[:, item] if cls is ItemKNN else found[item]).nonzero().squeeze(1).tolist()
        assert kept == [i for i in range(6) if i != item][:2]


@BOTH
def test_blocks_of_items_do_not_change_the_weights(cls, monkeypatch):
    whole = fitted(cls, histories(7), k=3).state_dict()
    monkeypatch.setattr(item_item_file, "BLOCK", 8 * N_ITEMS * 5)
    parts = fitted(cls, histories(7), k=3).state_dict()
    assert all(torch.equal(whole[key], parts[key]) for key in whole)


@BOTH
def test_weights_are_saved_as_short_lists_and_loaded_into_a_fresh_model(cls):
    model = fitted(cls, histories(8), k=2)
    assert model.values.numel() <= 2 * N_ITEMS
    again = cls(N_QUERIES, N_ITEMS, k=2)
    again.load_state_dict(model.state_dict())
    attach(again, model._histories)
    assert torch.equal(vectors_of(again)[1], vectors_of(model)[1])


@BOTH
def test_a_model_without_histories_says_what_to_do(cls):
    with pytest.raises(TopshelfError, match=rf"{cls.__name__} has no histories yet: call attach"):
        vectors_of(cls(2, 3))


@BOTH
def test_a_catalogue_of_one_item_has_no_neighbours(cls):
    assert (weights(fitted(cls, np.ones((3, 1), bool))) == 0).all()


@BOTH
def test_a_table_beyond_the_memory_is_refused_before_anything_is_made(cls):
    with pytest.raises(ConfigError, match=rf"{cls.__name__} over 1000000 items needs 20 GB, .* 8 GB; .*mf"):
        cls(10, 1_000_000, k=1000)
    cls(10, 1_000_000, k=200)  # lists, no table
    with pytest.raises(ConfigError, match=r"raise model\.memory"):
        cls(10, 100, memory=3e4)
    cls(10, 100, memory=4e4)


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (ItemKNN, {"k": 0}, "k must be >= 1, got 0"),
        (ItemKNN, {"shrink": -1.0}, r"shrink must be >= 0\.0, got -1\.0"),
        (ItemKNN, {"asymmetry": 1.5}, r"asymmetry must be <= 1\.0, got 1\.5"),
        (ItemKNN, {"asymmetry": math.nan}, r"asymmetry must be >= 0\.0, got nan"),
        (ItemKNN, {"weighting": "bm25"}, "weighting must be one of none, tfidf, got 'bm25'"),
        (RP3beta, {"k": 0}, "k must be >= 1, got 0"),
        (RP3beta, {"alpha": -0.1}, r"alpha must be >= 0\.0, got -0\.1"),
        (RP3beta, {"beta": math.nan}, r"beta must be >= 0\.0, got nan"),
    ],
)
def test_settings_out_of_range_are_refused(cls, settings, message):
    with pytest.raises(ConfigError, match=message):
        cls(2, 3, **settings)


def test_items_that_nobody_has_leave_general_item_knn_as_it_is():
    """Issue 13: beside weights that grow with the catalogue, a fixed shrink says less and less; Food had 0.013."""
    matrix = np.random.default_rng(3).random((40, 12)) < 0.4
    wider = np.concatenate([matrix, np.zeros((40, 5000), dtype=bool)], axis=1)

    found, same = (weights(fitted(ItemKNN, some))[:12, :12] for some in (wider, matrix))
    assert_close(found, same)
