"""Shipped settings on real data stay where they were measured (topshelf bench run shipped): tight bands."""

from __future__ import annotations

import os

import pytest

from topshelf.config import assemble
from topshelf.training import fit

needs_data = pytest.mark.skipif("TOPSHELF_DATA" not in os.environ, reason="TOPSHELF_DATA names no folder")


def scores(data, model, loss):
    more = {"evaluate": {"auc": False, "cutoffs": [20]}}
    fitted = fit(assemble(data=data, model=model, loss=loss, k=20, seed=0, more=more))
    return [fitted.evaluate(protocol).mean()["ndcg@20"] for protocol in ("standard", "paper")]


@needs_data
@pytest.mark.parametrize(
    ("data", "model", "loss", "standard", "paper"),
    [
        ("amazon2014-health", "mf", "slatk", 0.1427, 0.1390),
        pytest.param("amazon2014-health", "mf", "softmax", 0.1342, 0.1308, marks=pytest.mark.slow),
        ("movielens-100k", "mf", "slatk", 0.4025, 0.3689),
        ("amazon2014-health", "ease", "slatk", 0.1430, 0.1390),
        ("movielens-100k", "popularity", "slatk", 0.2056, 0.1921),
    ],
)
def test_ndcg_is_where_it_was_measured(data, model, loss, standard, paper):
    # Another machine rounds sums differently, and 150 epochs of training spread that.
    assert scores(data, model, loss) == pytest.approx([standard, paper], rel=0.01)
