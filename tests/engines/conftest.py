"""Runs that the engines list items of, and what a local path gives for them."""

from __future__ import annotations

import polars as pl
import pytest

from topshelf import Recommender
from topshelf.data import generate


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """MF with whole numbers as ids, and EASE with text as ids and titles; both with users without training items."""
    path = tmp_path_factory.mktemp("runs")
    frame = generate(500, 90, interactions_per_user=8, seed=1).to_frame().select("user", "item")
    texts = frame.select("user: " + pl.col("user").cast(pl.String), pl.format("ä{}", "item").alias("item"))
    settings = {"k": 7, "data": {"split": "ratio", "test_fraction": 0.5}}
    frame.write_csv(path / "mf.csv")
    texts.rename({texts.columns[0]: "user"}).write_csv(path / "ease.csv")
    Recommender(model="mf", train={"epochs": 2}, **settings).fit(str(path / "mf.csv"), out=path / "mf")
    Recommender(model="ease", **settings).fit(str(path / "ease.csv"), out=path / "ease")
    return path


@pytest.fixture(scope="session")
def expected(runs):
    """The lists of the local path."""
    return {name: Recommender.load(runs / name).recommend() for name in ("mf", "ease")}


def assert_same_rows(found, expected):
    """All columns, types and bits; the users in the order of the local path."""
    assert found.schema == expected.schema
    order = expected.select("user").unique(maintain_order=True).with_row_index("place")
    sorted_rows = found.join(order, on="user").sort("place", "rank").drop("place")
    assert sorted_rows.select(expected.columns).equals(expected)
