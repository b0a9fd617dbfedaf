"""Runs that the tests of this folder share."""

from __future__ import annotations

import polars as pl
import pytest

from click_runs import HOSTILE, run_of
from command_line import run_topshelf
from topshelf.data import generate


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A folder with slatk, softmax and ease; some ids are markup."""
    folder = tmp_path_factory.mktemp("runs")
    table = generate(80, 40, interactions_per_user=10, seed=1).to_frame()
    named = [pl.format("{} {}", pl.col(name), pl.lit(HOSTILE)).alias(name) for name in ("user", "item")]
    table.with_columns(named).write_csv(folder / "clicks.csv")
    run_of(folder, "slatk")
    run_of(folder, "softmax", loss="softmax")
    run_of(folder, "ease", model="ease")
    return folder


@pytest.fixture(scope="session")
def page(runs, tmp_path_factory):
    """The page on the three, with plots."""
    out = tmp_path_factory.mktemp("page") / "report.html"
    run_topshelf("report", runs / "slatk", runs / "softmax", runs / "ease", "-o", out)
    return out
