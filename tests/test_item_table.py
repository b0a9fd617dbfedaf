"""Tables of item vectors that are mostly zeros rank, blend and export as the dense ones do."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from topshelf import Recommender
from topshelf.blending import blend
from topshelf.candidates import ranked_candidates
from topshelf.config import assemble
from topshelf.data import Dataset, generate, make_split
from topshelf.export.contents import read_run
from topshelf.item_table import ItemTable, SparseRows, products, rows_of
from topshelf.models import item_item
from topshelf.queries import QuerySet
from topshelf.ragged import Ragged, ragged_from_pairs
from topshelf.ranking import count_above, top_k
from topshelf.training import fit, save


def sparse_of(matrix):
    """A dense matrix (I, w) as SparseRows."""
    items, columns = matrix.nonzero(as_tuple=True)
    return SparseRows(ragged_from_pairs(items, columns, matrix.size(0)), matrix[items, columns], matrix.size(1))


def random_table(seed, n_items, width, density=0.3):
    draw = torch.Generator().manual_seed(seed)
    values = torch.randn(n_items, width, generator=draw)
    return values * (torch.rand(n_items, width, generator=draw) < density)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), n_items=st.integers(1, 30), width=st.integers(1, 12), tile=st.integers(1, 30))
def test_products_and_lists_are_those_of_the_dense_table(seed, n_items, width, tile):
    sparse, dense = random_table(seed, n_items, width), torch.randn(n_items, 3)
    whole = torch.cat([2.0 * sparse, 0.5 * dense], 1)
    items = ItemTable([(2.0, sparse_of(sparse)), (0.5, dense)])
    vectors = torch.cat([random_table(seed + 1, 5, width), torch.randn(5, 3)], 1)
    assert (items.size(0), items.size(1), len(items)) == (n_items, width + 3, n_items)
    assert_close(products(vectors, items), vectors @ whole.T)
    assert_close(items[:], whole)
    some = torch.randperm(n_items)[: max(1, n_items // 2)]
    assert_close(items[some], whole[some])
    assert_close(items[some.repeat(2)], whole[some.repeat(2)])
    assert_close(products(vectors, rows_of(items, some)), vectors @ whole[some].T)
    assert_close(items.unit()[:], F.normalize(whole, dim=1))
    values, places = top_k(vectors, items, min(4, n_items), tile=tile)
    expected = top_k(vectors, whole, min(4, n_items))
    assert_close(values, expected[0])
    assert_close(products(vectors, items).gather(1, places), values)


def test_histories_are_multiplied_as_lists():
    sparse = random_table(0, 20, 20)
    items = ItemTable([(1.0, sparse_of(sparse))])
    histories = Ragged(torch.tensor([0, 2, 2, 5]), torch.tensor([1, 7, 0, 3, 19]))
    vectors = histories.matrix(torch.ones(5), 20)
    assert_close(products(vectors, items), vectors.to_dense() @ sparse.T)
    joined = ItemTable.joined([(2.0, items), (1.0, torch.ones(20, 1))])
    both = torch.cat([vectors.to_dense(), torch.ones(3, 1)], 1)
    assert_close(products(both, joined), 2 * vectors.to_dense() @ sparse.T + 1)


def test_counts_and_candidates_are_those_of_the_dense_table():
    sparse = random_table(1, 15, 6)
    items, vectors = ItemTable([(1.0, sparse_of(sparse))]), torch.randn(4, 6)
    targets = Ragged(torch.tensor([0, 1, 2, 3, 4]), torch.tensor([3, 5, 9, 14]))
    for ours, expected in zip(count_above(vectors, items, targets), count_above(vectors, sparse, targets), strict=True):
        assert torch.equal(ours, expected)
    lists = Ragged(torch.tensor([0, 3, 6, 9, 12]), torch.tensor([1, 2, 3] * 4))
    (_, ours, places), (_, expected, same) = (next(ranked_candidates(vectors, t, 2, lists)) for t in (items, sparse))
    assert_close(ours, expected)
    assert torch.equal(places, same)


@pytest.fixture
def dataset():
    return Dataset("generated", make_split(generate(60, 40, interactions_per_user=9, seed=3), seed=0))


def run_of(model, dataset, **settings):
    return fit(assemble(data="generated", model=model, loss="softmax", k=5, more={"model": settings}), dataset)


@pytest.mark.parametrize("model", ["itemknn", "rp3beta", "slim", "sparse_ease"])
def test_a_large_catalogue_is_ranked_and_evaluated_as_a_small_one(model, dataset, monkeypatch):
    small = run_of(model, dataset)
    dense = small.model.encode_items()
    monkeypatch.setattr(item_item, "_DENSE", 0)
    large = run_of(model, dataset)
    table = large.model.encode_items()
    assert isinstance(table, ItemTable)
    assert_close(table[:], dense)
    assert large.evaluate().mean() == pytest.approx(small.evaluate().mean(), abs=1e-6)


def test_a_graph_filter_of_a_large_catalogue_scores_and_blends_as_that_of_a_small_one(dataset, monkeypatch, tmp_path):
    """Its vectors have two parts there, so their products are compared, not they."""
    everybody, found = QuerySet.known(60), {}
    for name, size in (("small", 1 << 28), ("large", 0)):
        monkeypatch.setattr(item_item, "_DENSE", size)
        one = run_of("graph_filter", dataset, dim=6)
        queries, items = one.model.encode(everybody)
        scores = products(queries[torch.arange(60)].to_dense(), items)
        mixed = blend([run_of("itemknn", dataset), one], weights=[1.0, 0.5])
        save(mixed, tmp_path / name)
        recommender = Recommender.load(tmp_path / name)
        lists = recommender.recommend(recommender.artifact.users.values.to_list()[:9], k=4, why=2)
        measured = {**one.evaluate().mean(), "valid": mixed.valid_score}
        found[name] = (items, scores, measured, lists.select(pl.exclude("score")))
    small, large = found.values()
    assert (type(small[0]), type(large[0])) == (torch.Tensor, ItemTable)
    assert_close(large[1], small[1], rtol=1e-4, atol=1e-5)
    assert large[2] == pytest.approx(small[2], abs=1e-3)  # AUC counts pairs that differ by rounding
    assert large[3].equals(small[3])


def test_blends_lists_similar_items_and_exports_are_the_same(dataset, monkeypatch, tmp_path):
    found = {}
    for name, size in (("small", 1 << 28), ("large", 0)):
        monkeypatch.setattr(item_item, "_DENSE", size)
        runs = [run_of(model, dataset) for model in ("itemknn", "ials", "rp3beta")]
        mixed = blend(runs, weights=[1.0, 0.5, 0.25])
        save(mixed, tmp_path / name)
        save(runs[0], tmp_path / f"{name}-one")
        recommender = Recommender.load(tmp_path / name)
        users, items = recommender.artifact.users.values.to_list(), recommender.artifact.items.values.to_list()
        allowed = recommender.artifact.rank(QuerySet(rows=torch.arange(9)), 4, allow=torch.arange(0, 40, 3))
        tables = (
            recommender.recommend(users[:9], k=4, why=2),
            recommender.similar_items(items[:5], k=3),
            pl.DataFrame(allowed.items.numpy()),
        )
        found[name] = (mixed.valid_score, tables, read_run(tmp_path / f"{name}-one"), read_run(tmp_path / name))
    assert found["small"][0] == pytest.approx(found["large"][0])
    for a, b in zip(found["small"][1], found["large"][1], strict=True):
        assert a.select(pl.exclude("score")).equals(b.select(pl.exclude("score")))
    np.testing.assert_allclose(*(found[name][2].weights.toarray() for name in found), rtol=1e-5)
    np.testing.assert_allclose(*(found[name][3].item_vectors for name in found), rtol=1e-5)
