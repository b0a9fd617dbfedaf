"""Callbacks follow a run and cannot harm it; TensorBoard and MLflow are told the same numbers."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

from runs import assert_same, state_of
from topshelf import Recommender, resume
from topshelf.callbacks import Callback, Callbacks, MLflow, TensorBoard
from topshelf.config import make_config
from topshelf.data import generate, make_split
from topshelf.data.datasets import Dataset
from topshelf.errors import ConfigError, TopshelfWarning, TrainingError
from topshelf.training import fit
from topshelf.training.folder import RunFolder


class Recorder(Callback):
    def __init__(self):
        self.settings, self.epochs, self.ends = None, [], []

    def on_begin(self, settings):
        self.settings = settings

    def on_epoch_end(self, numbers):
        self.epochs.append(numbers)

    def on_end(self, metrics):
        self.ends.append(metrics)


class Failing:
    """Fails in one method, in one epoch."""

    def __init__(self, method, epoch=2):
        self.epoch = epoch
        setattr(self, method, self.fail)

    def fail(self, value):
        if value is None or "epoch" not in value or value["epoch"] == self.epoch:
            raise KeyError("nobody expects this")
        value.clear()  # a callback may do what it likes with its copy


@pytest.fixture(scope="module")
def dataset():
    return Dataset("generated", make_split(generate(60, 30, interactions_per_user=8, seed=0), seed=0))


def config(**train):
    return make_config(
        {"k": 5, "model": {"dim": 8}, "train": {"epochs": 4, "validate_every": 1, "patience": 0, **train}}
    )


@pytest.mark.parametrize("refit", [False, True])
def test_a_callback_is_told_the_lines_of_the_log_and_the_metrics(dataset, tmp_path, refit):
    told = Recorder()
    fit(config(refit=refit), dataset, out=tmp_path / "run", callbacks=[told])
    folder = RunFolder(tmp_path / "run")
    assert told.epochs == [json.loads(line) for line in folder.log.read_text().splitlines()]
    assert {"phase", "epoch", "loss", "ndcg@5"} <= set(told.epochs[0])
    assert {line["phase"] for line in told.epochs} == ({"train", "refit"} if refit else {"train"})
    assert told.settings["train.epochs"] == 4
    metrics = json.loads(folder.metrics.read_text())
    assert [end["test"] for end in told.ends] == [metrics["test"]]


def test_a_callback_changes_nothing(dataset, tmp_path):
    fit(config(), dataset, out=tmp_path / "plain")
    fit(config(), dataset, out=tmp_path / "followed", callbacks=[Failing("on_epoch_end", epoch=99), Recorder()])
    assert_same(state_of(tmp_path / "plain"), state_of(tmp_path / "followed"))


def test_a_run_in_memory_and_a_closed_form_model_are_followed_too(dataset):
    told = Recorder()
    Recommender(k=5, model="ease").fit(dataset, callbacks=[told])
    assert told.epochs == []
    assert told.ends[0]["test"]["ndcg@5"] > 0
    Recommender(k=5, train={"epochs": 2}).fit(dataset, callbacks=[told])
    assert [numbers["epoch"] for numbers in told.epochs] == [1, 2]


def test_a_callback_that_raises_leaves_a_run_that_resumes_to_the_same_end(dataset, tmp_path):
    every = config(checkpoint_seconds=0.0)  # a checkpoint per epoch, so that those can be compared too
    fit(every, dataset, out=tmp_path / "plain")
    told = Recorder()
    with pytest.raises(TrainingError, match="on_epoch_end of the callback Failing failed: KeyError: 'nobody expects"):
        fit(every, dataset, out=tmp_path / "run", callbacks=[told, Failing("on_epoch_end")])
    assert told.ends == [None]
    assert not RunFolder(tmp_path / "run").is_finished
    again = Recorder()
    assert resume(tmp_path / "run", callbacks=[again]).is_finished
    assert [numbers["epoch"] for numbers in again.epochs] == [3, 4]
    assert_same(state_of(tmp_path / "plain"), state_of(tmp_path / "run"))


def test_a_callback_that_raises_between_checkpoints_loses_no_epoch(dataset, tmp_path):
    plain = fit(config(), dataset)
    with pytest.raises(TrainingError):
        fit(config(), dataset, out=tmp_path / "run", callbacks=[Failing("on_epoch_end", epoch=3)])
    again = Recorder()
    resumed = resume(tmp_path / "run", callbacks=[again])
    assert [numbers["epoch"] for numbers in again.epochs] == [4]
    assert resumed.valid_score == plain.valid_score
    assert_same(resumed.model.state_dict(), dict(plain.model.state_dict()))


def test_a_callback_that_raises_at_the_beginning_leaves_a_run_that_can_be_resumed(dataset, tmp_path):
    with pytest.raises(TrainingError, match="on_begin of the callback Failing"):
        fit(config(), dataset, out=tmp_path / "run", callbacks=[Failing("on_begin")])
    assert resume(tmp_path / "run").is_finished


def test_a_callback_that_raises_at_the_end_is_a_note_and_the_others_are_told(dataset, tmp_path):
    told = Recorder()
    with pytest.warns(TopshelfWarning, match="on_end of the callback Failing failed: KeyError.* is not changed by it"):
        fitted = fit(config(), dataset, out=tmp_path / "run", callbacks=[Failing("on_end"), told])
    assert fitted.is_finished
    assert len(told.ends) == 1
    assert RunFolder(tmp_path / "run").is_finished


@pytest.mark.parametrize("wrong", [Recorder, "log.txt", print, [Recorder(), 3]])
def test_what_is_no_callback_is_refused_before_anything_is_written(dataset, tmp_path, wrong):
    with pytest.raises(ConfigError, match="callbacks must be objects with at least one of on_begin"):
        fit(config(), dataset, out=tmp_path / "run", callbacks=wrong)
    assert not (tmp_path / "run").exists()
    assert len(Callbacks(Recorder())) == 1


@pytest.mark.parametrize(("make", "package"), [(lambda: TensorBoard("logs"), "tensorboard"), (MLflow, "mlflow")])
def test_a_missing_package_is_named_with_its_extra(monkeypatch, make, package):
    monkeypatch.setattr("topshelf.callbacks.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=rf"needs the package {package}: pip install 'topshelf\[{package}\]'"):
        make()


class Writer:
    """Stands for torch's SummaryWriter."""

    made: list[Writer]

    def __init__(self, folder):
        self.folder, self.scalars, self.is_closed = folder, [], False
        self.made.append(self)

    def add_scalar(self, name, value, step):
        assert not self.is_closed
        self.scalars.append((name, value, step))

    def close(self):
        self.is_closed = True


def test_tensorboard_has_the_numbers_of_every_epoch_and_the_test(dataset, tmp_path, monkeypatch):
    Writer.made = []
    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr("topshelf.callbacks.find_spec", lambda name: object())
    told = Recorder()
    fit(config(), dataset, callbacks=[TensorBoard(tmp_path / "logs"), told])
    (writer,) = Writer.made
    assert writer.is_closed
    assert writer.folder == str(tmp_path / "logs")
    losses = [(value, step) for name, value, step in writer.scalars if name == "train/loss"]
    assert losses == [(numbers["loss"], numbers["epoch"]) for numbers in told.epochs]
    assert ("test/ndcg@5", told.ends[0]["test"]["ndcg@5"], 4) in writer.scalars


class Client:
    """Stands for MLflow's client: refuses what MLflow refuses."""

    made: list[Client]

    def __init__(self, tracking_uri):
        self.uri, self.params, self.metrics, self.status = tracking_uri, {}, [], None
        self.made.append(self)

    def get_experiment_by_name(self, name):
        return SimpleNamespace(experiment_id="7") if name == "known" else None

    def create_experiment(self, name):
        return "8"

    def create_run(self, owner, run_name):
        self.owner = owner
        return SimpleNamespace(info=SimpleNamespace(run_id="r"))

    def log_param(self, run, name, value):
        self.params[name] = value

    def log_metric(self, run, name, value, step):
        assert all(letter.isalnum() or letter in "_-. /" for letter in name), name
        self.metrics.append((name, value, step))

    def set_terminated(self, run, status):
        self.status = status


@pytest.fixture
def mlflow(monkeypatch):
    Client.made = []
    module = ModuleType("mlflow.tracking")
    module.MlflowClient = Client
    monkeypatch.setitem(sys.modules, "mlflow", ModuleType("mlflow"))
    monkeypatch.setitem(sys.modules, "mlflow.tracking", module)
    monkeypatch.setattr("topshelf.callbacks.find_spec", lambda name: object())
    return Client.made


def test_mlflow_has_settings_epochs_and_the_test(dataset, mlflow):
    told = Recorder()
    fit(config(), dataset, callbacks=[MLflow(experiment="known"), told])
    (client,) = mlflow
    assert (client.uri, client.owner, client.status) == ("sqlite:///mlflow.db", "7", "FINISHED")
    assert client.params["train.epochs"] == 4
    last = told.epochs[-1]
    assert ("train/ndcg_at_5", last["ndcg@5"], 4) in client.metrics
    assert ("test/ndcg_at_5", told.ends[0]["test"]["ndcg@5"], 0) in client.metrics


def test_a_stopped_run_has_failed_in_mlflow(dataset, mlflow):
    with pytest.raises(TrainingError):
        fit(config(), dataset, callbacks=[MLflow(), Failing("on_epoch_end")])
    assert mlflow[0].status == "FAILED"
    assert mlflow[0].owner == "8"
