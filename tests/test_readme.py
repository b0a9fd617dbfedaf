"""The README alone, and the tutorial, from a new user's file to lists, a report and an update."""

from __future__ import annotations

import shlex
import warnings
import zipfile
from pathlib import Path

import polars as pl
import pytest

import pages
from command_line import run_topshelf
from pages import ROOT
from test_code_blocks import COMING, COMMAND_LINE
from topshelf.data.movielens import read_ratings
from topshelf.errors import TopshelfWarning

THERE = set(COMMAND_LINE.commands)


def commands_of(page: str) -> list[list[str]]:
    blocks = pages.blocks(ROOT / page, "bash")
    lines = [line for block in blocks for line in pages.commands(block)]
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words[0] == "topshelf"]


def run(words: list[str], budget: str) -> None:
    """A command as it is written, with less time; one that comes with another branch is left out until it is there."""
    _, name, *options = words
    if name in COMING - THERE:
        return
    if "--budget" in options:
        options[options.index("--budget") + 1] = budget
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TopshelfWarning)
        run_topshelf(name, *options)


@pytest.fixture
def shop(wheel, tmp_path, monkeypatch):
    """MovieLens-100K as a shop's purchases, with column names that topshelf must be told or must find."""
    monkeypatch.chdir(tmp_path)
    table = read_ratings(wheel).sort("timestamp", maintain_order=True)
    times = pl.from_epoch(pl.col("timestamp").cast(pl.Int64)).dt.strftime("%Y-%m-%d %H:%M:%S").alias("bought_at")
    table = table.select(pl.col("user").alias("buyer"), pl.col("item").alias("article"), times)
    table.head(95_000).write_csv("purchases.csv")
    table.tail(5_000).write_csv("week.csv")
    return tmp_path


@pytest.mark.slow
def test_the_readme_leads_from_purchases_to_lists_a_report_and_an_update(shop):
    commands = [words for words in commands_of("README.md") if "purchases.csv" in words or "runs/best" in words]
    assert [words[1] for words in commands] == ["auto", "recommend", "recommend", "report", "update"]
    for words in commands:
        run(words, budget="20s")
    bought = pl.read_csv("purchases.csv")
    lists = pl.read_parquet("lists.parquet")
    assert lists["user"].n_unique() == bought["buyer"].n_unique()
    assert lists.group_by("user").len()["len"].unique().to_list() == [10]
    owned = bought.select(user="buyer", item="article")
    assert lists.join(owned.cast(lists.select("user", "item").schema), on=["user", "item"]).height == 0
    page = Path("report.html").read_text()
    assert "<svg" in page
    if "update" in THERE:
        run_topshelf("recommend", "runs/best", "--out", "after.parquet")
        new = set(pl.read_csv("week.csv")["buyer"]) - set(bought["buyer"])
        assert {str(user) for user in new} <= set(pl.read_parquet("after.parquet")["user"].cast(pl.String))


@pytest.mark.slow
def test_the_tutorial_runs_as_it_is_written(wheel, tmp_path, monkeypatch):
    """Its blocks in their order; the wheel of the package registry is the one that other tests have fetched."""
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall("download")
    page = ROOT / "docs" / "tutorial.md"
    names: dict[str, object] = {}
    for block in pages.blocks(page, "python", "bash"):
        if block.language == "python":
            exec(compile(block.text, "tutorial.md", "exec"), names)
            continue
        for line in pages.commands(block):
            words = shlex.split(line, comments=True)
            if words[0] == "topshelf":
                run(words, budget="20s")
    assert pl.read_parquet("lists.parquet").height >= 9_130
    assert pl.read_csv("next.csv")["user"].n_unique() == 113
    assert Path("report.html").exists()
