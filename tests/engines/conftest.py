"""Runs that the engines list items of, and what a local path gives for them."""

from __future__ import annotations

import warnings

import polars as pl
import pytest

from topshelf import Recommender
from topshelf.data import generate
from topshelf.errors import TopshelfWarning


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """MF with whole numbers as ids, and EASE with text as ids; both with users who have no scores."""
    path = tmp_path_factory.mktemp("runs")
    frame = generate(500, 90, interactions_per_user=8, seed=1).to_frame().select("user", "item")
    frame = frame.with_columns(timestamp=pl.int_range(pl.len()))  # the last users come after training
    texts = frame.with_columns(pl.format("user {}", "user").alias("user"), pl.format("ä{}", "item").alias("item"))
    frame.write_csv(path / "mf.csv")
    texts.write_csv(path / "ease.csv")
    for model, train in (("mf", {"epochs": 2}), ("ease", {})):
        recommender = Recommender(k=7, model=model, data={"split": "time"}, train=train)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TopshelfWarning)  # what the split leaves out
            recommender.fit(str(path / f"{model}.csv"), out=path / model)
    return path


@pytest.fixture(scope="session")
def expected(runs):
    """The lists of the local path."""
    lists = {name: Recommender.load(runs / name).recommend() for name in ("mf", "ease")}
    assert all(0 < table["score"].null_count() < table.height for table in lists.values())
    return lists


def assert_same_rows(found, expected):
    """All columns, types and bits; the users in the order of the local path."""
    assert found.schema == expected.schema
    order = expected.select("user").unique(maintain_order=True).with_row_index("place")
    sorted_rows = found.join(order, on="user").sort("place", "rank").drop("place")
    assert sorted_rows.select(expected.columns).equals(expected)
