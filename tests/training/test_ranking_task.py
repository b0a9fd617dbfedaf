"""Runs on documents: folders, resuming, data that changed, refits, and settings that do not fit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace

import polars as pl
import pytest
import torch

from documents import ranking_data, svmlight, table
from runs import assert_same
from topshelf import tuning
from topshelf.config import RankingConfig, assemble, make_config
from topshelf.errors import CheckpointError, ConfigError, DataError
from topshelf.graded_lists import GradedLists
from topshelf.losses import LISTWISE
from topshelf.training import fit, load, resume
from topshelf.training.folder import RunFolder
from topshelf.training.tasks import RankingTask
from topshelf.tuning import tune


def config(source="made up", model="linear_ranker", loss="softmax", **train):
    more = {"train": {"epochs": 4, "checkpoint_seconds": 0.0, **train}}
    return assemble(task="ranking", data=str(source), model=model, loss=loss, k=3, more=more)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "lists.txt"
    path.write_text(svmlight(table()))
    return path


def test_a_run_learns_and_is_loaded_with_the_same_numbers(tmp_path, file):
    done = fit(config(file, epochs=15, learning_rate=0.05), out=tmp_path / "run")
    assert done.test.mean()["ndcg@3"] > 0.85
    assert done.test.units == "queries"
    again = load(tmp_path / "run")
    assert again.test.mean() == done.test.mean()
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["test"]["ndcg@3"] == done.test.mean()["ndcg@3"]
    assert (metrics["protocol"], metrics["empty"]) == ("standard", "skip")
    assert {"err@10", "map@5", "mrr@1", "precision@3", "map"} <= metrics["test"].keys()


@pytest.mark.parametrize("loss", LISTWISE)
def test_every_listwise_loss_is_trained_by_name(loss):
    assert fit(config(loss=loss, epochs=2), ranking_data()).best_epoch >= 1


def test_the_run_keeps_a_fingerprint_and_no_documents(tmp_path, file):
    fit(config(file, epochs=1), out=tmp_path / "run")
    kept = {path.name for path in (tmp_path / "run").iterdir()}
    assert "documents.json" in kept
    assert not any(name.endswith(".parquet") or name.startswith("interactions") for name in kept)


def test_data_that_changed_or_moved_are_refused(tmp_path, file):
    fit(config(file, epochs=1), out=tmp_path / "run")
    text = file.read_text()
    file.write_text(text.replace("qid:59 ", "qid:60 "))
    with pytest.raises(CheckpointError, match="have changed since it began"):
        load(tmp_path / "run")
    file.unlink()
    with pytest.raises(CheckpointError, match=f"cannot be read again .*they were at {file}"):
        load(tmp_path / "run")
    file.write_text(text)
    load(tmp_path / "run")


def test_tables_in_memory_cannot_be_read_again(tmp_path):
    fit(config(epochs=1), ranking_data(), out=tmp_path / "run")
    with pytest.raises(CheckpointError, match="tables in memory"):
        load(tmp_path / "run")


def test_a_damaged_description_is_refused(tmp_path, file):
    fit(config(file, epochs=1), out=tmp_path / "run")
    about = tmp_path / "run" / "documents.json"
    about.write_text(about.read_text().replace('"name"', '"names"'))
    with pytest.raises(CheckpointError, match="damaged"):
        load(tmp_path / "run")


def left(out):
    folder = RunFolder(out)
    log = [json.loads(line) for line in folder.log.read_text().splitlines()]
    for record in log:
        del record["seconds"]
    states = folder.load_model(), folder.load_checkpoint()["trainer"]
    return {"log": log, "states": [_timeless(state) for state in states]}


def _timeless(state):
    if isinstance(state, dict):
        return {key: _timeless(value) for key, value in state.items() if key not in ("seconds", "run")}
    return [_timeless(value) for value in state] if isinstance(state, list) else state


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_last_bit(tmp_path, file):
    """A Transformer with dropout, lists that are cut by chance, a falling learning rate and a refit."""
    settings = ["epochs=14", "checkpoint_seconds=0", "refit=true", "slate=6", "decay_every=5", "patience=0"]
    command = [sys.executable, "-m", "topshelf", "train", "--quiet", "--task", "ranking", "--data", str(file)]
    command += ["--set", "model.dim=16", "--set", "model.hidden=16", "--set", "train.batch_size=8"]
    command += [word for one in settings for word in ("--set", f"train.{one}")]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    subprocess.run([*command, "--out", str(whole)], check=True, capture_output=True, timeout=240)
    process = subprocess.Popen([*command, "--out", str(parts)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for lines in (2, 9):
        _wait(parts / "log.jsonl", process, lines)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        assert not (parts / "metrics.json").exists()
        again = [sys.executable, "-m", "topshelf", "train", "--quiet", "--resume", str(parts)]
        process = subprocess.Popen(again, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, output + errors
    assert_same(left(whole), left(parts))


def _wait(log, process, n):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if log.exists() and len(log.read_text().splitlines()) >= n:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    raise AssertionError(f"no {n} epochs in two minutes")


def test_a_run_that_was_stopped_is_resumed_in_this_process_too(tmp_path, file, monkeypatch):
    settings = config(file, model="transformer", epochs=3)
    whole = fit(settings, out=tmp_path / "whole")
    assert resume(tmp_path / "whole").test.mean() == whole.test.mean()  # a finished run is loaded


def test_a_refit_learns_from_validation_and_its_features_too(tmp_path, file):
    plain, again = (fit(config(file, refit=refit, epochs=2)) for refit in (False, True))
    assert not torch.equal(plain.model.features.center, again.model.features.center)
    everything = fit(config(file, refit="all", epochs=2), out=tmp_path / "run")
    assert everything.measured is not None
    assert load(tmp_path / "run").measured == everything.measured


def test_feature_statistics_are_of_train_alone():
    data = ranking_data()
    done = fit(config(epochs=1), data)
    expected = torch.from_numpy(data.train.features)
    expected = (expected.sign() * expected.abs().log1p()).mean(0)
    torch.testing.assert_close(done.model.features.center, expected)


def test_lambdamart_is_fitted_saved_and_loaded(tmp_path, file):
    pytest.importorskip("lightgbm")
    settings = make_config(
        {
            "task": "ranking",
            "data": {"source": str(file)},
            "model": {"name": "lambdamart", "trees": 40, "least_in_leaf": 5},
            "k": 3,
        }
    )
    done = fit(settings, out=tmp_path / "run")
    assert done.test.mean()["ndcg@3"] > 0.75
    again = load(tmp_path / "run")
    assert again.test.mean() == done.test.mean()
    assert again.model.derived() == done.model.derived()


@pytest.mark.parametrize("empty", ["skip", "zero", "one"])
def test_the_convention_for_queries_with_nothing_to_find_is_a_setting(empty):
    more = {"train": {"epochs": 1}, "evaluate": {"empty": empty}}
    settings = assemble(task="ranking", data="made up", model="linear_ranker", loss="softmax", more=more)
    assert fit(settings, ranking_data()).test.empty == empty


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"order": "pair"}, r"train.order must be 'query' for task ranking"),
        ({"optimizer": "row_adam"}, r"train.optimizer must be 'adam'"),
        ({"precision": "bfloat16"}, r"train.precision must be 'float32'"),
        ({"slate": 1}, r"train.slate"),
    ],
)
def test_settings_that_do_not_fit_are_refused(train, message):
    with pytest.raises(ConfigError, match=message):
        fit(config(**train), ranking_data())


def test_other_settings_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"loss.name must be one of .*listnet"):
        fit(config(loss="bpr"), ranking_data())
    with pytest.raises(ConfigError, match=r"model.name must be one of transformer"):
        fit(config(model="mf"), ranking_data())
    with pytest.raises(ConfigError, match=r"negatives is not a setting"):
        make_config({"task": "ranking", "negatives": {"n": 3}})


def test_a_part_without_relevant_documents_is_refused(tmp_path):
    frame = table()
    frame.write_csv(tmp_path / "train.csv")
    frame.with_columns(grade=pl.lit(0)).write_csv(tmp_path / "test.csv")
    with pytest.raises(DataError, match=r"the test part of .* has no relevant document"):
        fit(config(tmp_path, epochs=1))


def test_the_task_scores_with_the_validation_that_it_reports():
    data = ranking_data()
    task = RankingTask(data)
    done = fit(config(epochs=2), data)
    assert isinstance(done.config, RankingConfig)
    assert task.validate(done.model, 3) == pytest.approx(done.evaluate(part="valid").mean()["ndcg@3"])
    assert isinstance(task.context("train").valid, GradedLists)
    assert task.context("valid").valid is None
    assert len(task.context("all").train) == 60


@pytest.mark.slow
def test_a_study_searches_settings_and_is_continued(tmp_path, file):
    pytest.importorskip("optuna")
    settings = config(file, epochs=2)
    tuned = tune(settings, trials=2, ranges={"train.learning_rate": [0.001, 0.1]}, out=tmp_path / "study")
    assert len(tuned.rows) == 2
    assert tuned.best is not None
    assert tuned.validated == "queries with nothing to find left out"
    again = tuning.resume(tmp_path / "study", trials=3)
    assert len(again.rows) == 3
    file.write_text(file.read_text().replace("qid:", "qid:1"))
    with pytest.raises(CheckpointError, match="have changed since it began"):
        tuning.resume(tmp_path / "study", trials=4)


def test_lambdamart_is_tuned_in_memory():
    pytest.importorskip("optuna")
    pytest.importorskip("lightgbm")
    settings = make_config({"task": "ranking", "model": {"name": "lambdamart", "trees": 5}, "k": 3})
    tuned = tune(settings, ranking_data(), trials=2)
    assert tuned.best is not None
    assert tuned.best.score > 0.5


def test_nothing_to_validate_on_is_refused_before_tuning():
    data = ranking_data()
    flat = replace(data, valid=replace(data.valid, grades=data.valid.grades * 0))
    with pytest.raises(DataError, match="tuning is measured on"):
        RankingTask.for_tuning(flat)
