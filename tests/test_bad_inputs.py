"""What the issue calls bad input: each a clear error or the documented behaviour, and nothing lost.

Files (missing column, empty, not UTF-8, NaN ids) are in tests/data; flags and configs in tests/cli; the full disk in
tests/training/test_checkpoint.py. Here: data and runs that are well-formed but hopeless.
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from topshelf.config import make_config, merged
from topshelf.data import IdMap, Interactions, Split, generate, make_split
from topshelf.data.datasets import Dataset
from topshelf.errors import CheckpointError, ConfigError, DataError, TopshelfWarning, TrainingError
from topshelf.training import fit, load, resume
from topshelf.training.folder import RunFolder

BASE = {"k": 2, "train": {"epochs": 4, "validate_every": 2, "checkpoint_seconds": 0.0}, "evaluate": {"cutoffs": [2]}}


def config(**more):
    return make_config(merged(BASE, more))


def split_of(train, valid, test):
    """A split from three 0/1 tables."""
    users, items = IdMap.range(len(train)), IdMap.range(len(train[0]))
    parts = [Interactions.from_indices(*np.nonzero(table), users, items) for table in (train, valid, test)]
    return Dataset("table", Split(*parts, kind="given"))


@pytest.fixture
def dataset():
    return Dataset("generated", make_split(generate(60, 30, interactions_per_user=6, seed=0), seed=0))


def test_a_user_without_positives_gets_a_list_and_is_left_out_of_the_numbers():
    data = split_of(
        [[1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 1, 1, 0, 0]],
        [[0, 0, 1, 0, 0], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]],
        [[0, 0, 0, 1, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]],
    )
    fitted = fit(config(), data)
    found = fitted.evaluate()
    assert found.users.tolist() == [0, 2]
    assert found.n_skipped == 1
    assert fitted.evaluate("paper").users.numel() == 3  # where the empty user counts as zero
    assert all(tensor.isfinite().all() for tensor in fitted.model.state_dict().values())


def test_a_user_with_all_items_positive_teaches_nothing_and_breaks_nothing():
    data = split_of(
        [[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1]],
        [[0, 0, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0]],
        [[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]],
    )
    for negatives in ("catalogue", "shared", "per_query", "in_batch"):
        for estimator in ("exact", "sampled", "incremental"):
            chosen = config(negatives={"kind": negatives}, threshold={"estimator": estimator, "every": 1})
            fitted = fit(chosen, data)
            assert all(tensor.isfinite().all() for tensor in fitted.model.state_dict().values())
            assert fitted.evaluate().users.tolist() == [1, 2]


def test_nothing_but_full_users_is_an_error():
    data = split_of([[1, 1]], [[0, 0]], [[0, 0]])
    with pytest.raises(DataError, match="the valid part of the given split is empty"):
        fit(config(), data)
    full = split_of([[1, 1], [0, 0]], [[0, 0], [1, 0]], [[0, 0], [0, 1]])
    with pytest.raises(TrainingError, match="no user has both a positive and a negative item"):
        fit(config(), full)


def test_a_catalogue_of_one_item_has_nothing_to_rank():
    data = split_of([[1], [0], [0]], [[0], [1], [0]], [[0], [0], [1]])
    with pytest.raises(ConfigError, match=r"k must be <= 1 \(table has 1 items\), got 2"):
        fit(config(), data)
    with pytest.raises(TrainingError, match="nothing to rank"):
        fit(config(k=1), data)


def test_k_larger_than_the_catalogue_is_refused_before_a_folder_is_made(tmp_path, dataset):
    with pytest.raises(ConfigError, match=r"k must be <= 30 \(generated has 30 items\), got 31"):
        fit(config(k=31), dataset, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_default_cutoffs_longer_than_the_catalogue_are_left_out(dataset):
    fitted = fit(config(evaluate={"cutoffs": [5, 50]}), dataset)
    assert fitted.evaluate().cutoffs == (2, 5)


def test_a_damaged_checkpoint_is_an_error_and_stays_as_it_is(tmp_path, dataset):
    fit(config(), dataset, out=tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    folder.metrics.unlink()
    damaged = folder.checkpoint.read_bytes()[:-50]
    folder.checkpoint.write_bytes(damaged)
    with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors is damaged"):
        resume(tmp_path / "run")
    assert folder.checkpoint.read_bytes() == damaged


@pytest.mark.parametrize("name", ["model.safetensors", "interactions.safetensors", "users.parquet", "config.toml"])
def test_every_damaged_file_of_a_run_is_named(tmp_path, dataset, name):
    fit(config(), dataset, out=tmp_path / "run")
    file = tmp_path / "run" / name
    file.write_bytes(file.read_bytes()[:-30] + b"\xff\xfe{[")
    with pytest.raises((CheckpointError, ConfigError), match=name.replace(".", r"\.")):
        load(tmp_path / "run")


def test_a_checkpoint_of_another_model_is_refused(tmp_path, dataset):
    fit(config(model={"dim": 8}), dataset, out=tmp_path / "narrow")
    fit(config(model={"dim": 16}), dataset, out=tmp_path / "wide")
    for name in ("checkpoint.safetensors", "model.safetensors"):
        (tmp_path / "wide" / name).write_bytes((tmp_path / "narrow" / name).read_bytes())
    with pytest.raises(CheckpointError, match="belongs to run"):
        load(tmp_path / "wide")
    (tmp_path / "wide" / "metrics.json").unlink()
    with pytest.raises(CheckpointError, match="belongs to run"):
        resume(tmp_path / "wide")


def test_a_nan_stops_the_run_with_a_reason_and_keeps_the_last_good_checkpoint(tmp_path, dataset, monkeypatch):
    from topshelf.losses import SLatK

    forward = SLatK.forward
    calls = 0

    def poisoned(self, positive, *arguments, **named):
        nonlocal calls
        calls += 1
        return forward(self, positive * float("nan") if calls == 4 else positive, *arguments, **named)

    monkeypatch.setattr(SLatK, "forward", poisoned)
    with pytest.raises(TrainingError, match=r"the loss became nan in epoch 4, step 1 \(learning_rate 0\.1\)"):
        fit(config(), dataset, out=tmp_path / "run")
    state = RunFolder(tmp_path / "run").load_checkpoint()
    assert state["trainer"]["progress"]["epoch"] == 3
    assert all(tensor.isfinite().all() for tensor in state["trainer"]["model"].values())
    assert not (tmp_path / "run" / "metrics.json").exists()
    with pytest.warns(TopshelfWarning, match="is not finished"):
        assert load(tmp_path / "run").best_epoch == 2  # the best so far can be used
    monkeypatch.undo()
    assert resume(tmp_path / "run").best_epoch in (2, 4)


def test_weights_that_are_no_longer_finite_are_never_saved(tmp_path, dataset):
    from topshelf.training.phases import Phases
    from topshelf.training.tasks import InteractionsTask

    task = InteractionsTask(dataset.split)
    phases = Phases(fit(config(), dataset).config, task, quiet=True, measure=lambda outcome: {})
    trainer = phases._first_trainer
    with torch.no_grad():
        trainer.model.item_vectors[0, 0] = float("inf")
    with pytest.raises(TrainingError, match="item_vectors is no longer finite"):
        trainer.state_dict()


def _limit_files() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))


def test_a_disk_that_fills_up_while_training_ends_in_one_message(tmp_path):
    arguments = [
        "train",
        "--data",
        "synthetic",
        "--k",
        "5",
        "--quiet",
        "--set",
        "train.epochs=2",
        "--out",
        tmp_path / "r",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "from topshelf.cli import main; main()", *map(str, arguments)],
        capture_output=True,
        text=True,
        preexec_fn=_limit_files,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: cannot write")
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())  # a run folder appears whole, or not at all


def test_metrics_are_valid_json_even_where_a_metric_is_undefined(tmp_path):
    data = split_of(
        [[1, 1, 0], [0, 1, 1]],
        [[0, 0, 1], [1, 0, 0]],
        [[0, 0, 0], [0, 0, 0]],
    )
    both = Dataset("t", Split(data.split.train, data.split.valid, data.split.valid, "given"))
    with pytest.raises(DataError, match="the test part"):
        fit(config(), data)
    with pytest.raises(DataError, match=r"valid and test must not share an interaction, got item 2 of user 0 in both"):
        fit(config(), both, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    one = split_of([[1, 1, 0, 0], [0, 1, 1, 0]], [[0, 0, 1, 0], [1, 0, 0, 0]], [[0, 0, 0, 1], [0, 0, 0, 1]])
    fit(config(), one, out=tmp_path / "one")
    text = (tmp_path / "one" / "metrics.json").read_text()
    assert "NaN" not in text
    assert json.loads(text)["test"]["auc"] is None  # no irrelevant item is left for either user


@pytest.mark.parametrize("index", [60, -1, 2**40])
@pytest.mark.parametrize("name", ["mf", "ease", "sparse_ease", "slim", "itemknn", "rp3beta", "ials", "lightgcn"])
def test_an_index_outside_the_catalogue_never_reaches_compiled_code(name, index):
    good = generate(40, 60, interactions_per_user=6, seed=1)
    indices = good.indices.copy()
    indices[7] = index
    split = make_split(good)
    bad = Interactions(good.indptr, indices, good.users, good.items)
    with pytest.raises(DataError, match=f"the train part names item {index} in list"):
        fit(config(model={"name": name}), Dataset("bad", Split(bad, split.valid, split.test, "given")))
