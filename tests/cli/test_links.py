"""topshelf links, and the other commands on runs of links."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from command_line import run_topshelf
from topshelf.testing.links import planted_links

SETTINGS = (
    "evaluate.n_negatives=20",
    "evaluate.cutoffs=[3,10]",
    "train.epochs=3",
    "model.dim=8",
    "train.batch_size=64",
)


def running(*arguments):
    return run_topshelf(*arguments)[0]


def failing(*arguments):
    return run_topshelf(*arguments, code=2)[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("links")
    data = planted_links()
    edges = np.concatenate([data.edges[part] for part in ("train", "valid", "test")])
    (folder / "edges.tsv").write_text("from\tto\n" + "\n".join(f"n{a}\tn{b}" for a, b in edges) + "\n")
    chosen = [part for setting in SETTINGS for part in ("--set", setting)]
    common = ["train", "--task", "links", "--data", str(folder / "edges.tsv"), "--k", "5", "--quiet", *chosen]
    shown = running(*common, "--out", str(folder / "run"))
    assert "mrr" in shown
    assert "edges" in shown
    assert f"topshelf links {folder / 'run'} --node ID" in shown.replace("\n", "")
    running(*common, "--out", str(folder / "other"), "--loss", "bce")
    return folder


def test_new_links_of_nodes_are_listed(folder):
    shown = running("links", str(folder / "run"), "--node", "n3", "--node", "n4", "--k", "2")
    assert shown.count("n3") >= 2
    assert shown.count("n4") >= 2
    running("links", str(folder / "run"), "--out", str(folder / "lists.parquet"), "--k", "2")
    table = pl.read_parquet(folder / "lists.parquet")
    assert table.columns == ["node", "rank", "other", "score"]
    assert table.height == 2 * table["node"].n_unique() == 2 * 48


def test_given_pairs_are_scored(folder):
    (folder / "pairs.csv").write_text("source,target\nn0,n1\nn1,n0\n")
    running("links", str(folder / "run"), "--pairs", str(folder / "pairs.csv"), "--out", str(folder / "scores.csv"))
    table = pl.read_csv(folder / "scores.csv")
    assert table["source"].to_list() == ["n0", "n1"]
    assert table["score"][0] == table["score"][1]


def test_runs_are_evaluated_and_compared_by_edges(folder):
    found = json.loads(running("evaluate", str(folder / "run"), "--against", str(folder / "other"), "--json"))
    assert found["units"] == "edges"
    assert found["against"]["metric"] == "mrr"
    assert {"mrr", "hits@3", "ndcg@10"} <= found["mean"].keys()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --node ID"),
        (("--node", "nobody"), "--node must be a node of the run's data"),
        (("--node", "n0", "--out", "x.txt"), "--out must end in .parquet, .csv or .jsonl"),
        (("--pairs", "nothing.csv"), "is not a file"),
        (("--pairs", "x.csv", "--node", "n0"), "leave out --node"),
        (("--node", "n0", "--k", "0"), "k must be >= 1"),
    ],
)
def test_what_cannot_be_asked_is_refused(folder, arguments, message):
    assert message in failing("links", str(folder / "run"), *arguments)


def test_commands_for_other_tasks_refuse_a_run_of_links(folder):
    assert "got task 'links'; use topshelf links" in failing("recommend", str(folder / "run"), "--user", "n0")
