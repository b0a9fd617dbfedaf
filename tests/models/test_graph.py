"""Sparse products and the graph's propagation, against dense sums made one by one."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.testing import assert_close

from topshelf.config import make_config
from topshelf.models import graph as graph_module
from topshelf.models.graph import Graph, SparseMatrix, transpose
from topshelf.queries import Context
from topshelf.ragged import Ragged, ragged_from_pairs
from topshelf.training.batches import Batches, stream
from topshelf.training.build import build_model, build_objective, resolve
from vectors import attach, vectors_of

N_QUERIES, N_ITEMS, DIM = 6, 5, 3
PAIRS = [(0, 1), (0, 2), (0, 4), (1, 2), (3, 0), (3, 2), (4, 1), (5, 0), (5, 1), (5, 2)]  # nobody has 3, 2 has nothing


def positives() -> Ragged:
    rows, items = torch.tensor(PAIRS).T
    return ragged_from_pairs(rows, items, N_QUERIES)


def tables(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, DIM, generator=generator, dtype=torch.float64) for n in (N_QUERIES, N_ITEMS)]


def degrees():
    return [[sum(pair[side] == node for pair in PAIRS) for node in range(n)] for side, n in enumerate((6, 5))]


def slow_spread(queries, items, target, source):
    """Sums over neighbours, one edge at a time."""
    to_queries, to_items = torch.zeros_like(queries), torch.zeros_like(items)
    of_query, of_item = degrees()
    for u, i in PAIRS:
        to_queries[u] += of_query[u] ** -target * of_item[i] ** -source * items[i]
        to_items[i] += of_item[i] ** -target * of_query[u] ** -source * queries[u]
    return to_queries, to_items


@pytest.mark.parametrize(("target", "source"), [(0.5, 0.5), (0.6, -0.1), (1.0, 0.0)])
def test_a_layer_sums_over_neighbours(target, source):
    queries, items = tables()
    graph = Graph(positives(), N_ITEMS, like=queries, to_target=target, to_source=source)
    found = graph.spread(queries, items)
    for one, expected in zip(found, slow_spread(queries, items, target, source), strict=True):
        assert_close(one, expected)
    assert (found[0][2] == 0).all()
    assert (found[1][3] == 0).all()


@pytest.mark.parametrize(("target", "source"), [(0.5, 0.5), (0.6, -0.1)])
def test_the_gradient_is_that_of_the_sums(target, source):
    queries, items = (table.requires_grad_() for table in tables())
    graph = Graph(positives(), N_ITEMS, like=queries, to_target=target, to_source=source)
    assert torch.autograd.gradcheck(graph.spread, (queries, items))
    assert torch.autograd.gradgradcheck(graph.spread, (queries, items))
    weights = tables(seed=1)
    expected = torch.autograd.grad(
        [(a * w).sum() for a, w in zip(slow_spread(queries, items, target, source), weights, strict=True)],
        (queries, items),
    )
    found = torch.autograd.grad(
        [(a * w).sum() for a, w in zip(graph.spread(queries, items), weights, strict=True)], (queries, items)
    )
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)


def test_two_layers_carry_vectors_to_those_who_share_an_item():
    queries = torch.zeros(N_QUERIES, 1).double()
    queries[4] = 1.0  # whose one item is 1, which 0 and 5 have too
    graph = Graph(positives(), N_ITEMS, like=queries)
    once = graph.spread(queries, torch.zeros(N_ITEMS, 1).double())
    assert (once[1] != 0).squeeze(1).tolist() == [False, True, False, False, False]
    twice = graph.spread(*once)
    assert (twice[0] != 0).squeeze(1).tolist() == [True, False, False, False, True, True]


def test_a_sparse_matrix_scales_rows_and_columns():
    left, right = torch.rand(N_QUERIES).double(), torch.rand(N_ITEMS).double()
    table = tables()[1]
    expected = torch.zeros(N_QUERIES, DIM).double()
    for u, i in PAIRS:
        expected[u] += left[u] * right[i] * table[i]
    assert_close(SparseMatrix(positives(), left, right) @ table, expected)


def test_the_transpose_lists_who_has_an_item():
    owners = transpose(positives(), N_ITEMS)
    expected = [[u for u, i in PAIRS if i == item] for item in range(N_ITEMS)]
    assert [
        owners.indices[a:b].tolist() for a, b in torch.stack([owners.indptr[:-1], owners.indptr[1:]], 1)
    ] == expected


def test_a_graph_without_edges_spreads_nothing():
    empty = Ragged(torch.zeros(4, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    queries, items = torch.ones(3, 2, requires_grad=True), torch.ones(4, 2)
    to_queries, to_items = Graph(empty, 4, like=items).spread(queries, items)
    assert (to_queries == 0).all()
    assert (to_items == 0).all()
    (gradient,) = torch.autograd.grad(to_items.sum(), queries)
    assert (gradient == 0).all()


def test_the_indices_of_the_positives_are_not_copied():
    lists = positives()
    matrix = Graph(lists, N_ITEMS, like=torch.ones(1)).to_queries
    assert matrix.there.col_indices().data_ptr() == lists.indices.data_ptr()


@pytest.mark.slow
def test_building_a_graph_says_nothing_on_the_way():
    program = (
        "import torch; from topshelf.models import LightGCN; from topshelf.ragged import Ragged;"
        "from topshelf.queries import Context, QuerySet;"
        "model = LightGCN(1, 2); model.attach(Context(Ragged(torch.tensor([0, 2]), torch.tensor([0, 1])), 2));"
        "model.encode_queries(QuerySet.known(1)); model.encode_items()"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("name", "settings", "products"), [("lightgcn", {}, 4), ("lightgcn_pp", {"n_layers": 1}, 2), ("xsimgcl", {}, 6)]
)
@pytest.mark.parametrize("loss", [{"name": "slatk"}, {"name": "bpr"}, {"name": "directau"}])
def test_a_step_propagates_once_forwards_and_once_backwards(name, settings, products, loss, monkeypatch):
    made, plain = [], graph_module._Product.forward
    # The backward pass is a product as well, with the transpose.
    monkeypatch.setattr(graph_module._Product, "forward", lambda *given: made.append(1) or plain(*given))
    config = resolve(make_config({"k": 2, "model": {"name": name, **settings}, "loss": loss}))
    model = build_model(config, N_QUERIES, N_ITEMS)
    objective = build_objective(config, model, Context(positives(), N_ITEMS))
    batch = next(Batches(positives(), N_ITEMS, order="query", size=4).epoch(stream(0)))
    objective.backward(batch, stream(1))
    assert len(made) == 2 * products
    made.clear()
    with torch.no_grad():
        vectors_of(model)
    assert len(made) == products


@pytest.mark.parametrize("name", ["lightgcn", "lightgcn_pp", "simgcl", "xsimgcl"])
def test_a_graph_takes_24_bytes_a_positive_and_nothing_of_it_is_kept(name):
    rows = torch.arange(40).repeat_interleave(25)
    lists = ragged_from_pairs(rows, torch.arange(1000) * 7 % 60, 40)
    model = build_model(resolve(make_config({"model": {"name": name}})), 40, 60)
    attach(model, lists)
    matrices = [one for side in (model._graph.to_queries, model._graph.to_items) for one in (side.there, side.back)]
    held = [part for one in matrices for part in (one.values(), one.col_indices(), one.crow_indices())]
    shared = {lists.indices.data_ptr(), lists.indptr.data_ptr()}
    sizes = {part.data_ptr(): part.numel() * part.element_size() for part in held if part.data_ptr() not in shared}
    assert sum(sizes.values()) == 24 * 1000 + 8 * 61
    assert {value.data_ptr() for value in model.state_dict().values()}.isdisjoint(sizes)
    assert model.state_dict().keys() == dict(model.named_parameters()).keys()
