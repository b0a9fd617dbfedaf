"""The graph filter against a slow dense reference, the error that it states, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from topshelf.errors import ConfigError
from topshelf.models import GraphFilter, graph_filter
from topshelf.models.graph_filter import dim_of, low_frequencies
from topshelf.models.item_item import SparseItemItem
from topshelf.ragged import ragged_from_pairs
from vectors import fit_to, vectors_of

N_QUERIES, N_ITEMS = 40, 14


def problem(seed=0, n_queries=N_QUERIES, n_items=N_ITEMS, density=0.3):
    histories = np.random.default_rng(seed).random((n_queries, n_items)) < density
    rows, items = histories.nonzero()
    return histories.astype(np.float64), ragged_from_pairs(torch.tensor(rows), torch.tensor(items), n_queries)


def fitted(positives, n_items=N_ITEMS, **more):
    model = GraphFilter(len(positives), n_items, **more)
    fit_to(model, positives)
    return model


def table(model):
    """Row i has the votes of item i."""
    return vectors_of(model)[1].T.double().numpy()


def reference(x, dim, low_pass, p, q):
    """The formula, cell by cell, with all eigenvectors of the dense graph."""
    users, items = x.sum(1), x.sum(0)
    m, n = users[users > 0].mean(), items[items > 0].mean()
    n_items = x.shape[1]
    common, graph = np.zeros((n_items, n_items)), np.zeros((n_items, n_items))
    for i in range(n_items):
        for j in range(n_items):
            common[i, j] = sum(m ** (p - 1) / users[v] ** p for v in range(len(x)) if x[v, i] and x[v, j])
            if common[i, j]:
                graph[i, j] = common[i, j] / np.sqrt(items[i] * items[j])
    values, vectors = np.linalg.eigh(graph)
    first = vectors[:, np.argsort(-values)[:dim]]
    weights = np.zeros((n_items, n_items))
    for i in range(n_items):
        for j in range(n_items):
            if i != j and items[i] and items[j]:
                linear = n ** (q - 0.5) * items[j] ** -q * common[i, j]
                smooth = low_pass * np.sqrt(items[j]) * (first[i] @ first[j])
                weights[i, j] = (linear + smooth) / np.sqrt(items[i])
    return weights


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 1000),
    dim=st.sampled_from([1, 4, 13]),
    low_pass=st.sampled_from([0.0, 0.3, 2.0]),
    p=st.sampled_from([0.0, 0.7, 1.0]),
    q=st.sampled_from([0.0, 0.4, 1.0]),
)
def test_it_is_its_formula(seed, dim, low_pass, p, q):
    x, positives = problem(seed)
    model = fitted(positives, dim=dim, low_pass=low_pass, user_power=p, item_power=q)
    np.testing.assert_allclose(table(model), reference(x, dim, low_pass, p, q), rtol=1e-3, atol=1e-4)
    assert model.derived() == {"weight_error": pytest.approx(0.0, abs=1e-3)}


def test_the_powers_of_the_paper_are_its_filter():
    """Shen et al.: R'R of the normalised matrix, and the ideal low-pass filter between roots of the counts."""
    x, positives = problem(1)
    users, items = np.maximum(x.sum(1), 1), x.sum(0)
    normal = x / np.sqrt(users)[:, None] / np.sqrt(items)
    first = np.linalg.svd(normal)[2][:3].T
    roots = np.sqrt(items)
    expected = normal.T @ normal + 0.3 * (first @ first.T) / roots[:, None] * roots
    ours = table(fitted(positives, dim=3, low_pass=0.3, user_power=1.0, item_power=0.5))
    off = ~np.eye(N_ITEMS, dtype=bool)
    np.testing.assert_allclose(ours[off], expected[off], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("neighbours", [1, 4])
def test_the_strongest_weights_of_the_linear_filter_are_kept_and_the_error_is_stated(neighbours):
    x, positives = problem(2)
    model = fitted(positives, low_pass=0.0, item_power=0.4, neighbours=neighbours)
    whole = reference(x, 1, 0.0, 0.7, 0.4)
    kept = np.zeros_like(whole)
    for j in range(N_ITEMS):
        nearest = np.argsort(-whole[:, j], kind="stable")[:neighbours]
        kept[nearest, j] = whole[nearest, j]
    np.testing.assert_allclose(table(model), kept, rtol=1e-4, atol=1e-6)
    away = np.linalg.norm(whole - kept) / np.linalg.norm(whole)
    assert model.derived()["weight_error"] == pytest.approx(away, rel=1e-4)
    other = GraphFilter(N_QUERIES, N_ITEMS, low_pass=0.0, item_power=0.4, neighbours=neighbours)
    other.load_state_dict(model.state_dict())
    assert other.derived() == model.derived()


def test_the_low_frequencies_of_a_larger_graph_span_those_of_a_dense_decomposition():
    draw = np.random.default_rng(3)
    groups = draw.integers(0, 5, 150)
    matrix = (draw.random((400, 150)) < np.where(draw.integers(0, 5, 400)[:, None] == groups, 0.5, 0.02)) * 1.0
    ours = low_frequencies(scipy.sparse.csr_array(matrix), 5).double().numpy()
    exact = np.linalg.svd(matrix)[2][:5].T
    np.testing.assert_allclose(ours.T @ ours, np.eye(5), atol=1e-5)
    np.testing.assert_allclose(ours @ ours.T, exact @ exact.T, atol=1e-4)


def test_items_without_interactions_have_no_weight():
    positives = ragged_from_pairs(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), 3)
    votes = table(fitted(positives, n_items=5))
    assert np.isfinite(votes).all()
    np.testing.assert_allclose(votes[2:], 0, atol=1e-6)
    np.testing.assert_allclose(votes[:, 2:], 0, atol=1e-6)
    nothing = ragged_from_pairs(torch.tensor([], dtype=torch.int64), torch.tensor([], dtype=torch.int64), 3)
    assert (table(fitted(nothing, n_items=5)) == 0).all()


@pytest.mark.parametrize(
    ("n_users", "n_items", "of_each", "dim", "power"),
    [
        (100, 40, 8, 16, 0.5),  # little data, and dense
        (2000, 3000, 20, 16, 0.3),  # 40,000 interactions in 0.67% of the cells: 15.6 directions
        (3000, 2000, 40, 64, 0.5),  # 120,000, 46.9 directions, in 2% of the cells
    ],
)
def test_what_is_not_given_follows_from_the_data(n_users, n_items, of_each, dim, power):
    draw = np.random.default_rng(0)
    items = np.concatenate([draw.choice(n_items, of_each, replace=False) for _ in range(n_users)])
    rows = np.repeat(np.arange(n_users), of_each)
    positives = ragged_from_pairs(torch.from_numpy(rows), torch.from_numpy(items), n_users)
    model = fitted(positives, n_items, neighbours=5)
    derived = model.derived()
    assert (derived["dim"], derived["item_power"]) == (dim, power)
    given = fitted(positives, n_items, neighbours=5, dim=dim, item_power=power)
    assert set(given.derived()) == {"weight_error"}
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in given.state_dict().items())
    again = GraphFilter(n_users, n_items, neighbours=5)
    again.load_state_dict(model.state_dict())
    assert again.derived() == derived


def test_the_number_of_directions_is_a_power_of_two_within_its_limits():
    assert [dim_of(n) for n in (0, 1, 57_947, 167_156, 601_311, 1e9)] == [16, 16, 32, 64, 256, 512]


def test_a_basis_of_another_catalogue_is_refused():
    positives = problem()[1]
    state = fitted(positives).state_dict()
    for wrong in (torch.zeros(N_ITEMS + 1, 3), torch.zeros(3)):
        with pytest.raises(RuntimeError, match="basis"):
            GraphFilter(N_QUERIES, N_ITEMS).load_state_dict({**state, "basis": wrong})


def test_memory_is_checked_again_when_the_data_have_decided_the_size(monkeypatch):
    monkeypatch.setattr(graph_filter, "_PER_DIRECTION", 0.1)
    monkeypatch.setattr(SparseItemItem, "_is_dense", lambda self: False)
    positives = problem()[1]
    enough = 20 * N_ITEMS * N_ITEMS
    few = 20 * N_ITEMS * (1 + 1 + 3 * 16 // 5)
    assert few < enough
    fitted(positives, neighbours=1, memory=enough)
    with pytest.raises(ConfigError, match="GraphFilter over 14 items needs"):
        fitted(positives, neighbours=1, memory=few)


def test_what_needs_more_than_the_memory_is_refused():
    with pytest.raises(ConfigError, match=r"GraphFilter over 1000000 items needs .* GB, and memory allows 4 GB"):
        GraphFilter(10, 1_000_000, neighbours=1000)


@pytest.mark.parametrize(
    ("name", "value"), [("dim", 0), ("low_pass", -0.1), ("user_power", -1.0), ("item_power", -1.0), ("neighbours", 0)]
)
def test_wrong_settings_are_refused(name, value):
    with pytest.raises(ConfigError, match=f"{name} must be"):
        GraphFilter(5, 5, **{name: value})
