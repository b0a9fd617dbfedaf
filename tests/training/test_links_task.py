"""A run of links from beginning to end: resumed bit for bit, kept in a folder, evaluated, refused if damaged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from runs import StopAfter, assert_same
from topshelf.config import LinksConfig, make_config, merged
from topshelf.data.graphs import LinkData
from topshelf.errors import CheckpointError, ConfigError, DataError, TopshelfWarning
from topshelf.evaluation import compare
from topshelf.link_predictor import LinkPredictor
from topshelf.models.links import LINK_MODELS
from topshelf.testing.links import planted_links
from topshelf.training import StoppedEarly, fit, load, resume
from topshelf.training import phases as phases_module
from topshelf.training.build import resolve
from topshelf.training.folder import RunFolder

COMMAND = [sys.executable, "-c", "from topshelf.cli import main; main()"]
SMALL = {
    "task": "links",
    "k": 5,
    "data": {"source": "planted"},
    "model": {"name": "gcn", "dim": 8},
    "train": {"epochs": 6, "batch_size": 64, "validate_every": 2, "checkpoint_seconds": 0.0, "learning_rate": 0.01},
    "evaluate": {"n_negatives": 20, "cutoffs": [3, 10]},
}


def config_of(**more):
    return make_config(merged(SMALL, more))


def state_of(out):
    folder = RunFolder(out)
    lines = folder.log.read_text().splitlines()
    log = [{key: one for key, one in json.loads(line).items() if key != "seconds"} for line in lines]
    metrics = json.loads(folder.metrics.read_text())
    metrics = {key: metrics[key] for key in ("test", "test_intervals", "valid", "best_epoch")}
    states = {"model": folder.load_model(), "checkpoint": folder.load_checkpoint()}
    for state in states.values():
        state.pop("seconds", None)
    states["checkpoint"].pop("extra", None)
    _drop_seconds(states)
    return {"log": log, "metrics": metrics, **states}


def _drop_seconds(value):
    if isinstance(value, dict):
        value.pop("seconds", None)
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _drop_seconds(inner)


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": {"name": "slatk"}},
        {"loss": {"name": "slatk"}, "threshold": {"estimator": "sampled", "scope": "table", "every": 2},
         "negatives": {"kind": "per_node", "n": 10}},
        {"loss": {"name": "bce"}, "model": {"name": "ncn", "dim": 8}, "train": {"refit": True}},
        {"loss": {"name": "softmax"}, "negatives": {"kind": "hard", "n": 3, "pool": 9}, "train": {"anchor": "random"}},
        {"loss": {"name": "song_at_k"}, "model": {"name": "sage", "dim": 8}},
    ],
)  # fmt: skip
@pytest.mark.parametrize("steps", [3, 13])
def test_a_stopped_run_equals_the_uninterrupted_one(tmp_path, monkeypatch, settings, steps):
    data = planted_links(is_directed=steps == 13)
    fit(config_of(**settings), data, out=tmp_path / "whole")
    with monkeypatch.context() as patched:
        patched.setattr(phases_module, "stop_on_signals", lambda: nullcontext(StopAfter(steps)))
        with pytest.raises(StoppedEarly):
            fit(config_of(**settings), data, out=tmp_path / "parts")
    resume(tmp_path / "parts")
    assert_same(state_of(tmp_path / "whole"), state_of(tmp_path / "parts"))


def write_planted(folder):
    data = planted_links()
    edges = np.concatenate([data.edges[part] for part in ("train", "valid", "test")])
    (folder / "edges.csv").write_text("source,target\n" + "\n".join(f"{a},{b}" for a, b in edges) + "\n")
    np.save(folder / "x.npy", data.features)
    return ["--task", "links", "--data", str(folder / "edges.csv"), "--quiet"] + [
        part
        for text in (
            f'data.features="{folder / "x.npy"}"', "evaluate.n_negatives=20", "model.dim=64", "train.epochs=80",
            "train.patience=0", "train.batch_size=16", "train.checkpoint_seconds=0",
        )
        for part in ("--set", text)
    ]  # fmt: skip


@pytest.mark.slow
def test_a_killed_run_resumes_bit_for_bit(tmp_path):
    arguments = write_planted(tmp_path)
    command = [*COMMAND, "train", *arguments, "--out"]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True)
    process = subprocess.Popen([*command, str(tmp_path / "parts")], stdout=subprocess.DEVNULL)
    folder = RunFolder(tmp_path / "parts")
    until = time.monotonic() + 120
    while time.monotonic() < until and not (folder.log.exists() and len(folder.log.read_text().splitlines()) >= 3):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not folder.is_finished
    subprocess.run([*COMMAND, "train", "--resume", str(tmp_path / "parts"), "--quiet"], check=True, capture_output=True)
    assert_same(state_of(tmp_path / "whole"), state_of(tmp_path / "parts"))


@pytest.mark.parametrize("name", LINK_MODELS)
def test_a_loaded_run_is_the_fitted_one(tmp_path, name):
    data = planted_links()
    model = {"name": name} if LINK_MODELS[name].is_closed_form else {"name": name, "dim": 8}
    config = make_config({**SMALL, "model": model, "train": {**SMALL["train"], "epochs": 2}})
    fitted = fit(config, data, out=tmp_path / "run")
    loaded = load(tmp_path / "run")
    assert loaded.test.mean() == fitted.test.mean()
    assert compare(loaded.test, fitted.test, "mrr").difference == 0
    assert loaded.test.units == "edges"
    assert json.loads(RunFolder(tmp_path / "run").metrics.read_text())["test"]["mrr"] == fitted.test.mean()["mrr"]


def test_validation_chooses_the_epoch_and_leaves_training_as_it_was():
    data = planted_links()
    fitted = fit(config_of(), data)
    assert fitted.valid_score == pytest.approx(fitted.evaluate(part="valid").mean()["mrr"])
    again = fit(config_of(train={"validate_every": 6, "patience": 0}), data)
    last = fit(config_of(train={"validate_every": 1, "patience": 0}), data)
    assert again.valid_score <= last.valid_score


def test_a_refit_sees_more_edges_and_all_of_them_at_last(tmp_path):
    data = planted_links()
    fitted = fit(config_of(train={"refit": "all", "epochs": 2}), data, out=tmp_path / "run")
    assert len(fitted.model.graph.edges) == len(data.known("all"))
    assert load(tmp_path / "run").measured["mean"]["mrr"] == fitted.measured["mean"]["mrr"]
    fitted = fit(config_of(train={"refit": True, "epochs": 2}), data)
    assert len(fitted.model.graph.edges) == len(data.known("valid"))


def test_automatic_choices_are_spelled_out():
    chosen = resolve(config_of(loss={"name": "bce"}, model={"score": "mlp"}))
    assert (chosen.negatives.kind, chosen.negatives.n) == ("pairs", 1)
    chosen = resolve(config_of(model={"score": "cosine"}))
    assert (chosen.negatives.kind, chosen.negatives.n, chosen.threshold.estimator) == ("shared", 1000, "weighted")
    chosen = resolve(config_of(model={"score": "mlp"}))
    assert (chosen.negatives.kind, chosen.negatives.n, chosen.threshold.estimator) == ("per_node", 50, "weighted")
    assert isinstance(chosen, LinksConfig)
    assert resolve(chosen) == chosen


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"negatives": {"pool": 5}}, r"negatives.pool is for"),
        ({"loss": {"name": "bce"}, "negatives": {"effective_n": 5}}, "has none"),
        ({"loss": {"name": "lambdaloss_s"}}, "needs all positives of a query"),
        ({"loss": {"name": "slatk", "keep_hits": True}}, "needs all positives of a query"),
        ({"train": {"optimizer": "row_adam"}}, "train.optimizer = 'adam'"),
        ({"train": {"precision": "bfloat16"}}, "float32"),
        ({"model": {"name": "mf"}}, "model.name must be one of"),
        ({"model": {"score": "euclid"}}, r"model.score"),
        ({"data": {"user": "x"}}, r"data.user is not a setting"),
        ({"evaluate": {"protocol": "standard"}}, r"evaluate.protocol"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        resolve(config_of(**settings))


def test_data_that_do_not_fit_are_refused():
    data = planted_links()
    with pytest.raises(ConfigError, match=r"k must be <= 48 \(planted has 49 nodes\)"):
        fit(config_of(k=49), data)
    empty = LinkData("empty", data.nodes, {**data.edges, "valid": data.edges["valid"][:0]}).check()
    with pytest.raises(DataError, match=r"empty has no valid edges"):
        fit(config_of(), empty)
    fitted = fit(config_of(train={"epochs": 1}), data)
    with pytest.raises(ConfigError, match=r"train with --set evaluate.protocol=uniform"):
        fitted.evaluate("uniform")
    with pytest.raises(ConfigError, match="protocol must be one of heart, uniform, got 'paper'"):
        fitted.evaluate("paper")


def test_a_damaged_folder_is_refused(tmp_path):
    fit(config_of(train={"epochs": 2}), planted_links(), out=tmp_path / "run")
    for name in ("links.safetensors", "nodes.parquet"):
        path = tmp_path / "run" / name
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        with pytest.raises(CheckpointError, match="damaged"):
            load(tmp_path / "run")
        path.unlink()
        with pytest.raises(CheckpointError, match="is missing"):
            load(tmp_path / "run")
        path.write_bytes(content)
    load(tmp_path / "run")


def test_new_links_of_a_node_are_its_best_that_are_not_known(tmp_path):
    data = planted_links(is_directed=True)
    fit(config_of(train={"epochs": 3}), data, out=tmp_path / "run")
    predictor = LinkPredictor.load(tmp_path / "run")
    table = predictor.recommend([3, 48], k=4)
    assert table["node"].to_list() == [3] * 4 + [48] * 4
    assert table["rank"].to_list() == [1, 2, 3, 4] * 2
    known = {(a, b) for a, b in data.known("all").tolist()}
    pairs = [(3, other) for other in range(49) if other != 3 and (3, other) not in known]
    scores = predictor.score(pairs)["score"]
    expected = [pairs[place][1] for place in scores.arg_sort(descending=True)[:4]]
    assert table["other"].to_list()[:4] == expected
    kept = predictor.recommend([3], k=48, filter_known=False)
    assert sorted(kept["other"].to_list()) == [node for node in range(49) if node != 3]
    everyone = predictor.recommend(k=1)
    assert everyone["node"].to_list() == list(range(49))


def test_a_predictor_learns_from_a_file_and_refuses_unknown_nodes(tmp_path):
    write_planted(tmp_path)
    more = {"model": {"name": "gcn", "dim": 8}, "train": {"epochs": 2}, "evaluate": {"n_negatives": 20}}
    predictor = LinkPredictor(k=5, data={"features": str(tmp_path / "x.npy")}, **more).fit(tmp_path / "edges.csv")
    assert predictor.evaluate((10,)).mean()["mrr"] > 0
    predictor.save(tmp_path / "run")
    again = LinkPredictor.load(tmp_path / "run")
    assert again.score([(0, 1)]).equals(predictor.score([(0, 1)]))
    with pytest.raises(DataError, match="99"):
        predictor.recommend([99])
    with pytest.raises(DataError, match="99"):
        predictor.score([(0, 99)])
    with pytest.raises(ConfigError, match=r"train.epocs"):
        LinkPredictor(train={"epocs": 3})


def test_notes_on_the_file_are_warnings(tmp_path):
    arguments = tmp_path / "a.csv"
    arguments.write_text("source,target\n" + "\n".join(f"{a},{(a + d) % 60}" for a in range(60) for d in (0, 1, 2)))
    with pytest.warns(TopshelfWarning, match=r"60 self-loop\(s\) left out"):
        fit(config_of(data={"source": str(arguments)}, train={"epochs": 1}))


def test_the_graph_of_a_model_is_not_in_its_file(tmp_path):
    fitted = fit(config_of(train={"epochs": 1}), planted_links(), out=tmp_path / "run")
    assert set(RunFolder(tmp_path / "run").load_model()["model"]) == set(fitted.model.state_dict())
    assert all(isinstance(value, torch.Tensor) for value in fitted.model.state_dict().values())
