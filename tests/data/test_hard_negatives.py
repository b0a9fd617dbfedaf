"""HeaRT's negatives, against the recipe written out slowly."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import rankdata

from topshelf.data.graphs import LinkData, simple_edges, split_edges
from topshelf.data.hard_negatives import cosine, hard_negatives, score_ranks, uniform_negatives
from topshelf.data.ids import IdMap
from topshelf.errors import ConfigError, DataError


def make(n_nodes=40, n_edges=140, *, seed=0, features=True, is_directed=False):
    random = np.random.default_rng(seed)
    edges, _ = simple_edges(random.integers(n_nodes, size=(n_edges, 2)), n_nodes, is_directed=is_directed)
    table = (random.random((n_nodes, 6)) * (random.random((n_nodes, 6)) < 0.4)).astype(np.float32)
    parts = split_edges(edges, valid=0.1, test=0.2, seed=seed)
    return LinkData("made", IdMap.range(n_nodes), parts, table if features else None, is_directed).check()


def reference_ranks(row, excluded):
    """The published recipe: the best has rank 1, zeros come after all others, what is excluded after them."""
    row = row.copy()
    row[excluded] = -1
    above = row > 0
    ranks = np.zeros(len(row))
    last = 0
    if above.any():
        ascending = rankdata(row[above], method="min")
        ranks[above] = ascending.max() - ascending + 1
        last = ranks[above].max()
    ranks[row == 0] = last + 1
    ranks[row < 0] = last + 2
    return ranks


def reference_scores(data, node):
    n = data.n_nodes
    dense = np.zeros((n, n))
    for a, b in data.edges["train"]:
        dense[a, b] = dense[b, a] = 1
    degree = dense.sum(0)
    shared = [sum(dense[node, u] * dense[u, other] / degree[u] for u in range(n) if degree[u]) for other in range(n)]
    walk = dense / np.maximum(degree, 1)[:, None]
    rank = 0.15 * np.linalg.inv(np.eye(n) - 0.85 * walk)[node]
    scores = [np.array(shared), rank]
    if data.features is not None:
        table = data.features.astype(np.float64)
        length = np.linalg.norm(table, axis=1)
        product = table @ table[node]
        scores.append(np.where(length * length[node] > 0, product / np.maximum(length * length[node], 1e-30), 0))
    return scores


def known_ends(data, part, node, side):
    parts = ("train",) if part == "valid" else ("train", "valid")
    pairs = [tuple(edge) for name in parts for edge in data.edges[name].tolist()]
    pairs += [] if data.is_directed else [(b, a) for a, b in pairs]
    return {pair[1 - side] for pair in pairs if pair[side] == node}


@pytest.mark.parametrize("features", [True, False])
@pytest.mark.parametrize("is_directed", [False, True])
@pytest.mark.parametrize("part", ["valid", "test"])
def test_negatives_have_the_best_ranks_of_the_recipe(features, is_directed, part):
    data = make(features=features, is_directed=is_directed)
    found = hard_negatives(data, part, n=12)
    assert found.shape == (len(data.edges[part]), 12, 2)
    for edge, pairs in zip(data.edges[part], found, strict=True):
        for side in (0, 1):
            own = pairs[:6] if side == 0 else pairs[6:]
            assert (own[:, side] == edge[side]).all()
            excluded = np.zeros(data.n_nodes, dtype=bool)
            excluded[[*known_ends(data, part, edge[side], side), *edge]] = True
            others = own[:, 1 - side]
            assert not excluded[others].any()
            assert len(set(others.tolist())) == 6
            scores = reference_scores(data, edge[side])
            ranks = np.min([reference_ranks(row.astype(np.float32), excluded) for row in scores], axis=0)
            is_reached = np.any([row > 1e-12 for row in scores], axis=0) & ~excluded
            if is_reached.sum() >= 6:
                assert sorted(ranks[others]) == sorted(ranks[~excluded])[:6]
            else:
                assert set(np.flatnonzero(is_reached)) <= set(others.tolist())


def test_ranks_are_the_published_ones_with_ties():
    row = np.array([0.5, 0.2, 0.5, 0.0, 0.2, 0.9, 0.1, 0.0])
    excluded = np.array([False] * 5 + [True, False, False])
    assert score_ranks(row, excluded).tolist() == reference_ranks(row, excluded).tolist()
    assert score_ranks(np.zeros(3), np.array([False, True, False])).tolist() == [1, 2, 1]


def test_the_table_of_features_is_not_changed():
    data = make()
    before = data.features.copy()
    first = hard_negatives(data, "valid", n=12)
    assert (data.features == before).all()
    assert (first == hard_negatives(data, "valid", n=12)).all()


def test_cosines_are_the_same_of_sparse_and_dense_features():
    data = make()
    rows = np.array([0, 7])
    np.testing.assert_allclose(cosine(data.features, rows), cosine(sparse.csr_array(data.features), rows))


@pytest.mark.parametrize("is_directed", [False, True])
def test_uniform_negatives_are_no_known_edges_and_depend_on_the_seed(is_directed):
    data = make(is_directed=is_directed)
    found = uniform_negatives(data, "test", n=10, seed=1)
    for edge, pairs in zip(data.edges["test"], found, strict=True):
        for side, own in ((0, pairs[:5]), (1, pairs[5:])):
            assert (own[:, side] == edge[side]).all()
            others = set(own[:, 1 - side].tolist())
            assert len(others) == 5
            assert not others & {*known_ends(data, "test", edge[side], side), *edge.tolist()}
    assert (found == uniform_negatives(data, "test", n=10, seed=1)).all()
    assert (found != uniform_negatives(data, "test", n=10, seed=2)).any()


def test_more_negatives_than_nodes_are_refused():
    data = make()
    for make_negatives in (hard_negatives, uniform_negatives):
        with pytest.raises(
            DataError, match=r"evaluate.n_negatives = 100 needs 50 nodes .* one end has only \d+"
        ) as error:
            make_negatives(data, "valid", n=100)
        most = int(re.search(r"Set evaluate.n_negatives=(\d+) or less", str(error.value))[1])
        assert [make_negatives(data, part, n=most).shape[1] for part in ("valid", "test")] == [most, most]
        with pytest.raises(DataError, match="needs"):
            [make_negatives(data, part, n=most + 2) for part in ("valid", "test")]
    with pytest.raises(ConfigError, match="n_negatives must be even"):
        hard_negatives(make(), "valid", n=7)


def test_uniform_negatives_of_a_large_graph_are_drawn_without_a_list_of_all_nodes():
    data = make(n_nodes=4000, n_edges=300)
    found = uniform_negatives(data, "test", n=200)
    for edge, pairs in zip(data.edges["test"], found, strict=True):
        for side, own in ((0, pairs[:100]), (1, pairs[100:])):
            others = set(own[:, 1 - side].tolist())
            assert len(others) == 100
            assert not others & {*known_ends(data, "test", edge[side], side), *edge.tolist()}
    drawn = found[:, :100, 1]
    assert abs(drawn.mean() / 4000 - 0.5) < 0.03  # evenly over all nodes
