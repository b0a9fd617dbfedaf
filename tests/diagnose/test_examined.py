"""Runs of documents, next items and links are diagnosed from end to end, and what is planted in their data is found."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import polars as pl
import pytest

from command_line import run_topshelf
from documents import NAMES, svmlight, table
from topshelf.config import assemble
from topshelf.diagnose import diagnose
from topshelf.diagnose.examine import read_log
from topshelf.diagnose.files import check_folder
from topshelf.errors import CheckpointError, ConfigError, TopshelfWarning
from topshelf.testing.links import planted_links
from topshelf.training import fit
from topshelf.training.folder import RunFolder

TASKS = ("ranking", "sequences", "links")
SMALL = {
    "ranking": {"model": {"name": "mlp"}, "train": {"epochs": 2}},
    "sequences": {"model": {"name": "sasrec", "dim": 8, "max_length": 6}, "train": {"epochs": 2}},
    "links": {"model": {"name": "gcn", "dim": 8}, "train": {"epochs": 2}, "evaluate": {"n_negatives": 20}},
}
TRAITS = {
    "ranking": {"documents of the query", "relevant documents"},
    "sequences": {"events before", "training events of the next item", "next item", "popularity"},
    "links": {"neighbours of the end with fewer", "common neighbours"},
}
REFERENCES = {
    "ranking": {"a random order", "feature 1 alone, highest first"},
    "sequences": {"popularity", "markov"},
    "links": {"common_neighbours", "adamic_adar", "resource_allocation"},
}


def circles(n_users: int = 60, n_items: int = 30) -> pl.DataFrame:
    """Users who go round a circle of items."""
    rows = [
        (user, (user * 7 + t * (1 + user % 2)) % n_items, t) for user in range(n_users) for t in range(5 + user % 6)
    ]
    return pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")


def config_of(task: str, source, **more):
    return assemble(task=task, data=str(source), k=3, more={**SMALL[task], **more})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The data of each task, and a run of it."""
    folder = tmp_path_factory.mktemp("examined")
    (folder / "ranking.txt").write_text(svmlight(table()))
    circles().write_csv(folder / "sequences.csv")
    edges = np.concatenate([*planted_links().edges.values()])
    pl.DataFrame(edges, schema=["source", "target"]).write_csv(folder / "links.csv")
    for task in TASKS:
        fit(config_of(task, source(folder, task)), out=folder / task)
    return folder


def source(folder, task):
    return folder / ("ranking.txt" if task == "ranking" else f"{task}.csv")


@pytest.mark.parametrize("task", TASKS)
def test_a_run_of_every_task_becomes_a_page_plots_and_numbers(folder, task, monkeypatch):
    out = folder / f"{task}-seen"
    if task != "sequences":
        monkeypatch.setattr("topshelf.charts.can_plot", lambda: False)  # drawing takes seconds
    shown, _ = run_topshelf("diagnose", folder / task, "--out", out, columns=200)
    html, found = (out / "diagnose.html").read_text(), json.loads((out / "diagnose.json").read_text())
    plots = {"references", "groups", "training", "weights"} if task == "sequences" else set()
    assert {path.name for path in out.glob("*.svg")} == {f"{name}.svg" for name in plots}
    assert html.count("<svg") == len(plots)
    if plots:  # four panels in rows of two: side by side they would be too small to read
        width = re.search(r'<svg [^>]*?width="([\d.]+)pt"[^>]*', (out / "groups.svg").read_text())
        assert float(width[1]) < 650
    for heading in (
        "Beside simple references",
        "Training",
        "Scores",
        "Weights",
        "Data",
        *(f"By {x}" for x in TRAITS[task]),
    ):
        assert f"<h2>{heading}</h2>" in html
        assert heading in shown
    assert found["groups"].keys() == TRAITS[task]
    assert found["references"].keys() == REFERENCES[task]
    assert [one["epoch"] for one in found["epochs"]] == [1, 2]
    n = {sum(group["n"] for group in groups) for groups in found["groups"].values()}
    assert len(n) == 1
    for groups in found["groups"].values():
        assert sum(group["share"] for group in groups) == pytest.approx(1.0)
        assert sum(group["n"] * group["mean"] for group in groups) / n.copy().pop() == pytest.approx(found["value"])
    for one in found["advice"]:
        assert one["topic"] in shown
    check_folder(out)  # it may be replaced by the next one


@pytest.mark.parametrize("task", TASKS)
def test_the_same_run_gives_the_same_diagnosis(folder, task):
    first, again = (diagnose(folder / task, users=20).to_json() for _ in range(2))
    assert first == again
    metrics = json.loads((folder / task / "metrics.json").read_text())
    assert first["value"] == pytest.approx(metrics["valid"][first["metric"]])


@pytest.mark.parametrize("task", TASKS)
def test_a_config_is_trained_and_losses_are_compared(folder, task):
    found = diagnose(config_of(task, source(folder, task)), losses=["softmax"], epochs=1)
    assert [one.epoch for one in found.epochs] == [1]
    assert {one.label for one in found.compared} == {"slatk", "softmax"}
    assert "Losses" in [section.title for section in found.sections()]
    own = next(one for one in found.compared if one.label == "slatk")
    assert own.metric == pytest.approx(found.examination.mean)  # both are the config after one epoch
    with pytest.raises(ConfigError, match="--losses must be one of"):
        diagnose(folder / task, losses=["hinge"])


@pytest.mark.parametrize("task", TASKS)
def test_a_refitted_model_is_measured_on_what_it_has_not_seen(folder, tmp_path, task):
    train = {**SMALL[task]["train"], "refit": True}
    fit(config_of(task, source(folder, task), train=train), out=tmp_path / "valid")
    found = diagnose(tmp_path / "valid", users=20).examination
    assert found.part == "test"
    metrics = json.loads((tmp_path / "valid" / "metrics.json").read_text())
    assert found.mean == pytest.approx(metrics["test"][found.metric])
    fit(config_of(task, source(folder, task), train={**train, "refit": "all"}), out=tmp_path / "all")
    with pytest.raises(ConfigError, match="no part of the data is held out"):
        diagnose(tmp_path / "all")


@pytest.mark.parametrize(("task", "model"), [("sequences", "markov"), ("sequences", "mf"), ("links", "pagerank")])
def test_models_without_a_loss_or_positions_have_the_rest(folder, tmp_path, task, model):
    more = {**SMALL[task], "model": {"name": model}, "train": {"epochs": 1}}
    fit(assemble(task=task, data=str(source(folder, task)), k=3, more=more), out=tmp_path / "run")
    found = diagnose(tmp_path / "run", users=20)
    assert found.examination.scores is None
    assert found.loss == ("slatk" if model == "mf" else None)
    assert len(found.sections()) >= 4
    assert found.to_json()["weights"] is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1"),
        ("\0\0", "line 1"),
        ('{"phase": "train", "epoch": 1, "loss": 0.5}', "each epoch once"),
        ('{"phase": "train", "epoch": 2, "loss": 0.5}', "each epoch once"),
        ("[]", "line 1"),
        ('{"phase": "train", "epoch": 1}', "loss"),
        ('{"phase": "train", "epoch": 1, "loss": NaN}', "finite"),
        ('{"phase": "train", "epoch": 1, "loss": 0.5, "ndcg@3": "x"}', "finite"),
    ],
)
def test_a_damaged_log_is_one_message(folder, tmp_path, line, message):
    shutil.copytree(folder / "ranking", tmp_path / "run")
    (tmp_path / "run" / "log.jsonl").write_text(f"{line}\n")
    with pytest.raises(CheckpointError, match=message):
        diagnose(tmp_path / "run", users=5)
    (tmp_path / "run" / "log.jsonl").unlink()
    with pytest.warns(TopshelfWarning, match=r"has no log\.jsonl"):
        assert diagnose(tmp_path / "run", users=5).epochs == []


def test_half_a_line_at_the_end_of_a_log_is_that_of_a_killed_run(folder, tmp_path):
    shutil.copytree(folder / "ranking", tmp_path / "run")
    with (tmp_path / "run" / "log.jsonl").open("a") as log:
        log.write('{"phase": "tr')
    with pytest.raises(CheckpointError, match="last line is not whole"):
        read_log(RunFolder(tmp_path / "run"), "ndcg@3")
    RunFolder(tmp_path / "run").metrics.unlink()
    assert len(read_log(RunFolder(tmp_path / "run"), "ndcg@3")) == 2


def topics(found) -> set[str]:
    return {one.topic for one in found.advice}


def test_documents_with_planted_faults(tmp_path):
    """A third of the validation queries has nothing to find, two features are constant, one is out of range."""
    valid = table(30, seed=1, first=100).with_columns(
        grade=pl.when(pl.col("query") % 3 == 0).then(0.0).otherwise(pl.col("grade")), match=pl.col("match") + 9
    )
    train = table(40).with_columns(age=pl.lit(1.0), noise=pl.lit(0.0))
    for name, frame in (("train", train), ("valid", valid), ("test", table(20, seed=2, first=200))):
        (tmp_path / f"{name}.txt").write_text(svmlight(frame))
    parts = {"valid": str(tmp_path / "valid.txt"), "test": str(tmp_path / "test.txt")}
    found = diagnose(config_of("ranking", tmp_path / "train.txt", data=parts), losses=[], epochs=1)
    assert {"queries with nothing to find", "constant features", "features outside the range of train"} <= topics(found)
    facts = dict(found.examination.facts)
    assert facts["queries with nothing to find, %"] == "33.3"
    assert facts["features with one value in train"] == f"2 of {len(NAMES)}"
    assert found.examination.evaluation.n_skipped == 10
    deep = diagnose(config_of("ranking", tmp_path / "train.txt", data=parts, k=12), losses=[], epochs=1)
    assert "K reaches the end of the lists" in topics(deep)
    assert "K reaches the end of the lists" not in topics(found)


@pytest.mark.filterwarnings("ignore::topshelf.errors.TopshelfWarning")  # of the items that train does not know
def test_sequences_with_planted_faults(tmp_path):
    """A quarter of the users goes to an item that nobody knows, a quarter back to their first; lists are cut at 2."""
    frame = circles(80, 30).sort("user", "timestamp")
    place = pl.col("timestamp") - pl.col("timestamp").max().over("user")  # -1: the validation event
    first = pl.col("item").first().over("user")
    item = pl.when(place == -1, pl.col("user") % 4 == 0).then(1000 + pl.col("user"))
    item = item.when(place == -1, pl.col("user") % 4 == 1).then(first).otherwise(pl.col("item"))
    frame.with_columns(item=item).write_csv(tmp_path / "events.csv")
    model = {"name": "sasrec", "dim": 8, "max_length": 2}
    found = diagnose(config_of("sequences", tmp_path / "events.csv", model=model), losses=[], epochs=1)
    expected = {"next items that train does not know", "repeats counted as misses", "histories cut"}
    assert expected <= topics(found)
    facts = dict(found.examination.facts)
    assert facts["next items without a training event, %"] == "25.0"
    assert float(facts["next items that the user had before, %"]) >= 25.0
    repeats = {"exclude_seen": False}
    longer = {"name": "sasrec", "dim": 8, "max_length": 20}
    config = config_of("sequences", tmp_path / "events.csv", data=repeats, model=longer)
    kept = diagnose(config, losses=[], epochs=1)
    assert not {"repeats counted as misses", "histories cut"} & topics(kept)


@pytest.mark.parametrize(
    ("settings", "is_exact"),
    [({"estimator": "exact"}, True), ({"estimator": "exact", "of": "user"}, False),
     ({"estimator": "sampled", "n": 4}, False)],
)  # fmt: skip
def test_the_thresholds_of_a_run_are_compared_with_the_exact_ones(folder, settings, is_exact):
    found = diagnose(config_of("sequences", folder / "sequences.csv", threshold=settings), losses=[], epochs=1)
    assert (found.weight_shift is None) == is_exact
    assert is_exact or 0 < found.weight_shift < 0.5


def test_links_with_planted_faults(tmp_path):
    """Pairs of nodes with one edge each, beside triangles: held-out edges of pairs have ends without any edge."""
    pairs = [(2 * i, 2 * i + 1) for i in range(150)]
    dense = [(300 + a, 300 + b) for a in range(20) for b in range(a)]
    pl.DataFrame(pairs + dense, schema=["source", "target"], orient="row").write_csv(tmp_path / "edges.csv")
    data = {"valid_fraction": 0.2}
    found = diagnose(config_of("links", tmp_path / "edges.csv", data=data), losses=[], epochs=1)
    assert "edges of unknown nodes" in topics(found)
    alone, *_ = found.examination.groups(found.examination.traits[0])
    assert alone.label == "0"
    shares = {group.label: group.n for group in found.examination.groups(found.examination.traits[1])}
    assert shares["0"] == alone.n
    assert "common neighbours not used" in topics(found)  # after one epoch
    ncn = {"name": "ncn", "dim": 8}
    trained = diagnose(config_of("links", tmp_path / "edges.csv", data=data, model=ncn), losses=[], epochs=1)
    assert "common neighbours not used" not in topics(trained)
