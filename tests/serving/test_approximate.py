"""Approximate indexes: measured, exact where they must be, and never short."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from topshelf.errors import ConfigError
from topshelf.ranking import top_k
from topshelf.serving import Engine, approximate
from topshelf.serving.approximate import Index
from topshelf.serving.settings import IndexSettings

pytest.importorskip("faiss")
NONE = np.zeros(0, np.int64)


@pytest.fixture(scope="module")
def vectors():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3000, 16, generator=generator), torch.randn(50, 16, generator=generator)


@pytest.mark.parametrize("kind", ["hnsw", "sq8"])
def test_its_recall_is_measured_and_as_asked_for(vectors, kind):
    items, queries = vectors
    index = Index(items, IndexSettings(kind=kind), queries, 10)
    exact = top_k(queries, items, 10)[1].numpy()
    found = index.search(queries, 10, [NONE] * 50, None)
    recall = np.mean([np.isin(want, got).mean() for want, got in zip(exact, found, strict=True)])
    assert index.recall == pytest.approx(recall)
    assert recall >= 0.95


def test_a_recall_that_it_cannot_reach_is_refused(vectors, monkeypatch):
    monkeypatch.setattr(approximate, "_EFFORTS", (1,))
    items, queries = vectors
    with pytest.raises(ConfigError, match=r"reaches recall@10 0\.\d+, and index.recall asks for 1.0; give index.links"):
        Index(items, IndexSettings(kind="hnsw", links=4, recall=1.0), queries, 10)


@pytest.mark.parametrize("kind", ["hnsw", "sq8"])
def test_what_is_left_out_is_not_found(vectors, kind):
    items, queries = vectors
    index = Index(items, IndexSettings(kind=kind), queries, 10)
    exact = top_k(queries, items, 20)[1].numpy()
    mask = np.arange(3000) % 2 == 0
    for found, best in zip(index.search(queries, 10, [row[:5] for row in exact], mask), exact, strict=True):
        assert len(found) >= 10
        assert not set(found) & set(best[:5].tolist())
        assert not (found % 2).any()
    assert index.search(queries[:1], 10, [np.arange(2995)], None) == [None]  # too many to leave out


def test_it_is_kept_for_the_next_start_and_a_damaged_file_is_not_used(vectors, tmp_path):
    items, queries = vectors
    settings = IndexSettings(kind="sq8", folder=str(tmp_path / "indexes"))
    first = Index(items, settings, queries, 10)
    (file,) = (tmp_path / "indexes").glob("*.faiss")
    again = Index(items, settings, queries, 10)
    assert again._kept(items) is not None
    np.testing.assert_array_equal(*[one.search(queries[:1], 5, [NONE], None)[0] for one in (first, again)])
    assert again._kept(items * 2) is None
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert again._kept(items) is None
    assert Index(items, settings, queries, 10).recall == first.recall


@pytest.mark.parametrize("kind", ["hnsw", "sq8"])
def test_lists_are_those_of_exact_search_on_a_small_catalogue(runs, attributes, kind):
    settings = {"attributes": str(attributes), "index": {"kind": kind, "exact_below": 0.05}}
    with Engine(runs / "mf", **settings) as near, Engine(runs / "mf", attributes=str(attributes)) as exact:
        assert near.states()[0].recall >= 0.95
        for n in range(60):
            for options in ({}, {"filter": "price > 20"}, {"allow": ["i1", "i2", "i5"]}, {"exclude": ["i1"]}):
                one, other = (engine.recommend(user=f"u{n}", k=4, **options) for engine in (near, exact))
                assert [some.item for some in one.items] == [some.item for some in other.items]


def test_a_model_without_vectors_of_a_fixed_length_is_refused(runs):
    with pytest.raises(ConfigError, match="is for models with vectors of a fixed length, and ease has none"):
        Engine(runs / "ease", index={"kind": "hnsw"})
