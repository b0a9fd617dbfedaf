"""Graphs for models, against dense matrices and loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from topshelf.graphs import LinkGraph, SparseProduct
from topshelf.proximity import adjacency, katz, pagerank, resource_allocation
from topshelf.ragged import ragged_from_pairs


def random_edges(n_nodes, n_edges, seed=0, *, is_directed=False):
    random = np.random.default_rng(seed)
    pairs = {
        (int(a), int(b)) if is_directed else (int(min(a, b)), int(max(a, b)))
        for a, b in random.integers(n_nodes, size=(n_edges, 2))
        if a != b
    }
    return torch.tensor(sorted(pairs), dtype=torch.int64).reshape(-1, 2)[random.permutation(len(pairs))]


def matrix_of(graph):
    dense = torch.zeros(graph.n_nodes, graph.n_nodes, dtype=torch.float64)
    for a, b in graph.edges.tolist():
        dense[a, b] = dense[b, a] = 1
    return dense


@pytest.fixture(params=[False, True])
def graph(request):
    edges = random_edges(20, 45, is_directed=request.param)
    return LinkGraph.of(edges, 22, is_directed=request.param)  # the last two nodes have no edge


def test_neighbours_are_the_other_ends_without_repeats(graph):
    dense = matrix_of(graph)
    for node in range(graph.n_nodes):
        found = graph.sets.slice(node, node + 1).indices.tolist()
        assert found == dense[node].nonzero().squeeze(1).tolist()
    assert graph.degrees.tolist() == dense.sum(1).long().tolist()


def test_smoothing_is_the_normalised_matrix_with_self_loops(graph):
    dense = matrix_of(graph) + torch.eye(graph.n_nodes)
    scale = dense.sum(1).rsqrt()
    table = torch.randn(graph.n_nodes, 3)
    assert_close(graph.smoothing @ table, (scale[:, None] * dense * scale).float() @ table)


def test_averaging_is_the_mean_over_neighbours_and_zero_for_a_node_without_any(graph):
    dense = matrix_of(graph)
    table = torch.randn(graph.n_nodes, 3)
    expected = (dense / dense.sum(1, keepdim=True).clamp(min=1)).float() @ table
    assert_close(graph.averaging @ table, expected)
    assert not (graph.averaging @ table)[-1].any()


def test_a_sparse_product_has_the_gradient_of_the_dense_one():
    rows, columns = torch.tensor([0, 0, 2, 3, 3]), torch.tensor([1, 4, 0, 1, 2])
    lists = ragged_from_pairs(rows, columns, 4)
    values = torch.randn(5)
    dense = torch.zeros(4, 5)
    dense[rows, columns] = values
    table = torch.randn(5, 3, requires_grad=True)
    weight = torch.randn(4, 3)
    (gradient,) = torch.autograd.grad(((SparseProduct(lists, values, 5) @ table) * weight).sum(), table)
    assert_close(gradient, dense.T @ weight)


def test_edges_are_taken_out_in_both_directions(graph):
    chosen = torch.tensor([0, 7, 3])
    left = graph.without(chosen)
    kept = [i for i in range(len(graph.edges)) if i not in chosen.tolist()]
    assert left.edges.tolist() == graph.edges[kept].tolist()
    assert torch.equal(matrix_of(left), matrix_of(LinkGraph.of(graph.edges[kept], 22)))
    again = LinkGraph.of(graph.edges[kept], 22, is_directed=graph.is_directed)
    assert_close(left.smoothing.there.to_dense(), again.smoothing.there.to_dense())
    twice = left.without(torch.tensor([1]))
    assert torch.equal(matrix_of(twice), matrix_of(LinkGraph.of(left.edges[[0, *range(2, len(kept))]], 22)))


def test_common_neighbours_are_found(graph):
    dense = matrix_of(graph)
    pairs = torch.randint(graph.n_nodes, (40, 2), generator=torch.Generator().manual_seed(1))
    common = graph.common(pairs)
    for place, (a, b) in enumerate(pairs.tolist()):
        found = common.slice(place, place + 1).indices.tolist()
        assert found == (dense[a] * dense[b]).nonzero().squeeze(1).tolist()


def test_known_edges_are_known_by_pair_and_by_mask(graph):
    everyone = torch.arange(graph.n_nodes)
    edges = {tuple(edge) for edge in graph.edges.tolist()}
    edges |= set() if graph.is_directed else {(b, a) for a, b in edges}
    for side in (0, 1):
        expected = torch.tensor(
            [[a == b or ((a, b) if side == 0 else (b, a)) in edges for b in range(22)] for a in range(22)]
        )
        sides = torch.full((22,), side)
        assert torch.equal(graph.is_known(everyone[:, None], everyone[None], sides[:, None]), expected)
        assert torch.equal(graph.known_mask(everyone, everyone, sides), expected)
        some = torch.tensor([4, 21, 0])
        assert torch.equal(graph.known_mask(everyone, some, sides), expected[:, some])


def test_pagerank_solves_its_equation_up_to_what_is_left():
    edges = random_edges(30, 60).numpy()
    matrix = adjacency(edges, 32)
    walk = matrix.toarray() / np.maximum(matrix.sum(1), 1)[:, None]
    exact = 0.15 * np.linalg.inv(np.eye(32) - 0.85 * walk)
    found = pagerank(matrix, np.arange(32))
    np.testing.assert_allclose(found, exact, atol=1e-5)
    assert (found <= exact + 1e-12).all()  # what is left is never negative
    assert found[31].tolist() == [0.0] * 31 + [0.15]  # a node without edges stays where it is


def test_resource_allocation_and_katz_follow_their_formulas():
    edges = random_edges(15, 30).numpy()
    matrix = adjacency(edges, 15)
    dense = matrix.toarray()
    rows = np.array([3, 0])
    expected = [[sum(dense[a, u] * dense[u, b] / dense[u].sum() for u in range(15) if dense[u].any())
                 for b in range(15)] for a in rows]  # fmt: skip
    np.testing.assert_allclose(resource_allocation(matrix, rows), expected)
    walks = sum(0.1**length * np.linalg.matrix_power(dense, length) for length in (1, 2, 3))
    np.testing.assert_allclose(katz(matrix, rows, beta=0.1, length=3), walks[rows])
