"""Ranker and topshelf rank: from the user's own file to scores."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest

from command_line import run_topshelf
from documents import NAMES, ranking_data, svmlight, table
from topshelf import Ranker
from topshelf.data.documents import Documents
from topshelf.errors import ConfigError, DataError, TopshelfError
from topshelf.losses import LISTWISE
from topshelf.models.lists import LinearRanker

SETTINGS = {"k": 3, "model": "linear_ranker", "loss": "softmax", "train": {"epochs": 12, "learning_rate": 0.05}}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranker")
    table().write_csv(folder / "lists.csv")
    (folder / "lists.txt").write_text(svmlight(table()))
    for kind in ("csv", "txt"):
        Ranker(**SETTINGS).fit(folder / f"lists.{kind}", out=folder / kind)
    return folder


def test_scores_come_in_the_order_of_the_file_with_ranks(run):
    new = table(5, seed=9)
    ranked = Ranker.load(run / "csv").rank(new)
    assert ranked.columns == ["query", "document", "score", "rank"]
    assert ranked["query"].to_list() == new["query"].to_list()
    for _, part in ranked.group_by("query", maintain_order=True):
        assert part["document"].to_list() == list(range(1, len(part) + 1))
        by_score = part.sort("score", descending=True, maintain_order=True)
        assert by_score["rank"].to_list() == list(range(1, len(part) + 1))
    best = Ranker.load(run / "csv").rank(new, k=2)
    assert best.height == 10
    assert best["rank"].to_list() == [1, 2] * 5


def test_files_frames_and_documents_get_the_same_scores(run, tmp_path):
    new, ranker = table(5, seed=9), Ranker.load(run / "csv")
    new.drop("grade").write_parquet(tmp_path / "new.parquet")
    documents = Documents(
        new.select(NAMES).to_numpy().astype(np.float32),
        new["grade"].to_numpy().astype(np.float32),
        np.concatenate([[0], np.cumsum(np.bincount(new["query"].to_numpy()))]),
        np.arange(5),
    )
    expected = ranker.rank(new)["score"]
    for data in (
        tmp_path / "new.parquet",
        pd.DataFrame(new.to_dict(as_series=False)),
        new.lazy(),
        documents,
        new.select(*reversed(new.columns)),
    ):
        np.testing.assert_allclose(ranker.rank(data)["score"], expected, rtol=1e-5, atol=1e-6)


def test_a_loaded_ranker_needs_no_training_data_to_rank(run, tmp_path):
    table(30).write_csv(tmp_path / "own.csv")
    ranker = Ranker(**SETTINGS).fit(tmp_path / "own.csv", out=tmp_path / "run")
    (tmp_path / "own.csv").unlink()
    assert Ranker.load(tmp_path / "run").rank(table(4, seed=2)).equals(ranker.rank(table(4, seed=2)))


def test_evaluation_is_of_the_test_part_or_of_new_queries_with_grades(run):
    ranker = Ranker.load(run / "csv")
    assert ranker.evaluate().mean()["ndcg@3"] > 0.85
    new = table(40, seed=5)
    assert ranker.evaluate(new, (2, 5)).mean()["ndcg@5"] > 0.85
    with pytest.raises(DataError, match="looks like that of the grade"):
        ranker.evaluate(new.drop("grade"))


def test_frames_and_data_in_parts_are_fitted_and_saved(tmp_path):
    ranker = Ranker(**SETTINGS).fit(table())
    ranker.save(tmp_path / "run")
    again = Ranker.load(tmp_path / "run")
    assert again.rank(table(3, seed=1)).equals(ranker.rank(table(3, seed=1)))
    assert again.config == ranker.config
    assert Ranker(**SETTINGS).fit(ranking_data()).evaluate().mean() == ranker.evaluate().mean()
    other = Ranker(
        k=3, model=LinearRanker(4, transform="standardise"), loss=LISTWISE["listnet"](tau=0.5), train={"epochs": 1}
    )
    other.fit(table())
    assert other.config.model.settings == {"transform": "standardise"}
    assert other.config.loss.settings["tau"] == 0.5


def test_a_ranker_that_is_not_fitted_says_so():
    for call in (lambda one: one.rank(table(2)), lambda one: one.evaluate(), lambda one: one.save("x")):
        with pytest.raises(TopshelfError, match="is not fitted"):
            call(Ranker())
    with pytest.raises(ConfigError, match=r"model.name must be one of"):
        Ranker(model="mf")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pl.DataFrame({"query": [1]}), "must have the 4 features"),
        (table(2).drop("age"), "has no 'age'"),
        (table(2).with_columns(age=pl.lit(float("nan"))), "must be a finite number"),
        (table(2).rename({"query": "who"}), "looks like that of the query"),
        (table(2).clear(), "holds no documents"),
        ([1, 2], "must be a Polars or pandas frame"),
        ("nowhere.txt", "is not a file"),
    ],
)
def test_bad_queries_are_refused(run, data, message):
    with pytest.raises(DataError, match=message):
        Ranker.load(run / "csv").rank(data)


def test_documents_of_other_features_or_types_are_refused(run):
    odd = Documents(np.zeros((1, 4), np.float32), np.zeros(1, np.float32), np.array([0.0, 1.0]), np.array([1]))
    with pytest.raises(DataError, match="indptr must be int64"):
        Ranker.load(run / "csv").rank(odd)
    documents = Documents(np.zeros((1, 2), np.float32), np.zeros(1, np.float32), np.array([0, 1]), np.array([1]))
    with pytest.raises(DataError, match="must have 4 features, got 2"):
        Ranker.load(run / "csv").rank(documents)
    with pytest.raises(ConfigError, match="k must be >= 1"):
        Ranker.load(run / "csv").rank(table(2), k=0)


def test_the_command_line_ranks_a_file(run, tmp_path):
    (tmp_path / "new.txt").write_text(svmlight(table(4, seed=3)))
    output, _ = run_topshelf("rank", run / "txt", tmp_path / "new.txt", "--k", 1)
    assert output.count("│ 1    │") == 4
    output, _ = run_topshelf("rank", run / "txt", tmp_path / "new.txt", "--out", tmp_path / "scores.csv")
    written = pl.read_csv(tmp_path / "scores.csv")
    assert f"{written.height:,} rows written" in output
    expected = Ranker.load(run / "txt").rank(tmp_path / "new.txt")
    np.testing.assert_allclose(written["score"], expected["score"], rtol=1e-5)
    _, errors = run_topshelf("rank", run / "txt", tmp_path / "new.txt", "--out", "scores.xlsx", code=2)
    assert "--out must end in .parquet, .csv or .jsonl" in errors


def test_the_command_line_trains_and_evaluates(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lists.txt").write_text(svmlight(table()))
    words = [
        "--task",
        "ranking",
        "--data",
        "lists.txt",
        "--model",
        "linear_ranker",
        "--set",
        "train.epochs=3",
        "--quiet",
    ]
    for loss in ("softmax", "ranknet"):
        output, _ = run_topshelf("train", *words, "--loss", loss, "--out", loss)
        assert "4 features, grades up to 3" in output
        assert f"topshelf rank {loss} FILE" in output
    output, _ = run_topshelf("evaluate", "softmax", "--against", "ranknet", "--cutoffs", "3,10")
    assert "queries)" in output
    assert "err" in output
    _, errors = run_topshelf("evaluate", "softmax", "--protocol", "paper", code=2)
    assert "protocol must be one of standard" in errors
    _, errors = run_topshelf("recommend", "softmax", "--user", 3, code=2)
    assert "task interactions" in errors
    (tmp_path / "lists.txt").unlink()
    _, errors = run_topshelf("evaluate", "softmax", code=2)
    assert "cannot be read again" in errors
