"""TensorBoard and MLflow themselves, where they are installed: what they keep is what the run logged.

`make trackers` runs them in a venv of their own.
"""

from __future__ import annotations

import pytest

from topshelf.callbacks import MLflow, TensorBoard
from topshelf.config import assemble
from topshelf.data import Dataset, generate, make_split
from topshelf.training import fit

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # their warnings are not ours
EPOCHS = 3


class Recorder:
    def __init__(self):
        self.epochs, self.end = [], None

    def on_epoch_end(self, numbers):
        self.epochs.append(numbers)

    def on_end(self, metrics):
        self.end = metrics


class Failing:
    def on_epoch_end(self, numbers):
        raise ValueError("no more")


@pytest.fixture(scope="module")
def dataset():
    return Dataset("generated", make_split(generate(60, 40, interactions_per_user=8, seed=1), seed=0))


def trained(dataset, *callbacks):
    more = {"model": {"dim": 4}, "train": {"epochs": EPOCHS, "patience": 0, "validate_every": 1}}
    told = Recorder()
    fit(assemble(data="generated", k=5, more=more), dataset, callbacks=[*callbacks, told])
    return told


def test_tensorboard_reads_every_epoch_and_the_test(dataset, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    told = trained(dataset, TensorBoard(tmp_path / "logs"))
    kept = EventAccumulator(str(tmp_path / "logs")).Reload()
    losses = [(one.step, one.value) for one in kept.Scalars("train/loss")]
    expected = [(numbers["epoch"], numbers["loss"]) for numbers in told.epochs]
    assert len(losses) == EPOCHS
    assert losses == [(step, pytest.approx(value, rel=1e-6)) for step, value in expected]
    assert kept.Scalars("test/ndcg@5")[0].value == pytest.approx(told.end["test"]["ndcg@5"], rel=1e-6)


@pytest.fixture
def client(tmp_path):
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")


def runs_of(client):
    owner = client.get_experiment_by_name("topshelf").experiment_id
    return client.search_runs([owner], order_by=["attributes.start_time ASC"])


def test_mlflow_keeps_settings_epochs_and_the_test_in_sqlite(dataset, tmp_path, client):
    store = f"sqlite:///{tmp_path}/mlflow.db"
    told = trained(dataset, MLflow(store, name="first"))
    trained(dataset, MLflow(store, name="second"))
    first, second = runs_of(client)
    assert [first.info.run_name, second.info.run_name] == ["first", "second"]
    assert first.info.status == "FINISHED"
    assert first.data.params["train.epochs"] == str(EPOCHS)
    assert first.data.metrics["test/ndcg_at_5"] == pytest.approx(told.end["test"]["ndcg@5"])
    history = client.get_metric_history(first.info.run_id, "train/loss")
    assert [(one.step, one.value) for one in sorted(history, key=lambda one: one.step)] == [
        (numbers["epoch"], pytest.approx(numbers["loss"])) for numbers in told.epochs
    ]


def test_a_run_that_failed_has_failed_in_mlflow(dataset, tmp_path, client):
    with pytest.raises(Exception, match="no more"):
        trained(dataset, MLflow(f"sqlite:///{tmp_path}/mlflow.db"), Failing())
    assert [run.info.status for run in runs_of(client)] == ["FAILED"]
