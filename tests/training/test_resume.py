"""A run stopped at any point and resumed equals the uninterrupted one, bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext

import pytest
import torch
from torch.testing import assert_close

from runs import StopAfter, assert_same, state_of
from topshelf.config import make_config, merged
from topshelf.data import generate, make_split
from topshelf.data.datasets import Dataset
from topshelf.errors import CheckpointError, TopshelfWarning
from topshelf.training import StoppedEarly, fit, load, resume
from topshelf.training import phases as phases_module
from topshelf.training.folder import RunFolder
from vectors import dense, vectors_of

COMMAND = [sys.executable, "-c", "from topshelf.cli import main; main()", "train"]
SMALL = {"k": 5, "train": {"epochs": 6, "batch_size": 32, "validate_every": 2, "checkpoint_seconds": 0.0}}


@pytest.fixture(scope="module")
def dataset():
    return Dataset("generated", make_split(generate(150, 60, interactions_per_user=8, seed=3), seed=0))


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": {"name": "slatk"}},
        {"train": {"decay_every": 2, "decay_factor": 0.5, "clip_norm": 0.01}},
        {"loss": {"name": "slatk"}, "threshold": {"estimator": "sampled", "every": 2, "n": 30}},
        pytest.param(
            {"loss": {"name": "slatk"}, "threshold": {"estimator": "iid", "every": 2, "n": 30}}, marks=pytest.mark.slow
        ),
        pytest.param(
            {"loss": {"name": "slatk"}, "threshold": {"estimator": "weighted", "every": 2, "n": 30}},
            marks=pytest.mark.slow,
        ),
        {"loss": {"name": "slatk"}, "threshold": {"estimator": "regression", "n": 30}},
        pytest.param(
            {"loss": {"name": "slatk"}, "threshold": {"estimator": "incremental", "n": 30}, "train": {"order": "pair"}},
            marks=pytest.mark.slow,
        ),
        {"loss": {"name": "slatk"}, "threshold": {"estimator": "incremental"}},
        {"loss": {"name": "bpr"}, "negatives": {"kind": "catalogue"}},
        pytest.param(
            {"loss": {"name": "softmax"}, "negatives": {"kind": "shared", "n": 20}, "train": {"order": "pair"}},
            marks=pytest.mark.slow,
        ),
        {"loss": {"name": "softmax"}, "negatives": {"kind": "in_batch"}},
        {"loss": {"name": "bpr"}, "train": {"order": "pair"}},
        pytest.param(
            {"loss": {"name": "bpr"}, "negatives": {"kind": "shared", "n": 50}, "train": {"order": "pair"}},
            marks=pytest.mark.slow,
        ),
        {"loss": {"name": "slatk", "distance": "sigmoid"}, "negatives": {"kind": "shared", "n": 50}},
        pytest.param(
            {"loss": {"name": "slatk"}, "negatives": {"kind": "per_query", "n": 15}, "train": {"order": "pair"}},
            marks=pytest.mark.slow,
        ),
        # State and parameters of the loss's own: moving averages, thresholds, an adversary's turns, duals, a network.
        pytest.param({"loss": {"name": "song_at_k"}, "train": {"order": "pair"}}, marks=pytest.mark.slow),
        {"loss": {"name": "song_at_k"}, "negatives": {"kind": "catalogue"}},
        {"loss": {"name": "sogclr"}},
        {"loss": {"name": "sogslatk"}, "negatives": {"kind": "per_query", "n": 15}, "train": {"order": "pair"}},
        {"loss": {"name": "advinfonce", "every": 2}},
        pytest.param({"loss": {"name": "llpauc"}, "train": {"optimizer": "row_adam"}}, marks=pytest.mark.slow),
        {"loss": {"name": "guidedrec"}, "train": {"refit": True}},
        {"loss": {"name": "lambdaloss_at_k"}},
        {"loss": {"name": "directau"}},
        {"loss": {"name": "slatk"}, "train": {"refit": True}},
        {"loss": {"name": "slatk"}, "train": {"refit": "all"}},
        {"loss": {"name": "slatk"}, "train": {"optimizer": "row_adam"}},
        {"loss": {"name": "softmax"}, "model": {"score": "dot"}, "train": {"optimizer": "row_adam"}},
        {"model": {"tables": "bfloat16"}, "train": {"optimizer": "row_adam", "refit": True}},
        {
            "loss": {"name": "slatk"},
            "model": {"tables": "bfloat16"},
            "negatives": {"kind": "in_batch", "n_uniform": 10},
            "threshold": {"estimator": "incremental", "n": 10},
            "train": {"optimizer": "row_adam"},
        },
        # Noise of the model's own, graphs and histories.
        {"model": {"name": "xsimgcl", "n_contrast": 20}, "train": {"refit": True}},
        pytest.param(
            {"model": {"name": "xsimgcl", "variant": "slatk"}, "loss": {"name": "bpr"}, "train": {"order": "pair"}},
            marks=pytest.mark.slow,
        ),
        pytest.param({"model": {"name": "simgcl"}, "loss": {"name": "directau"}}, marks=pytest.mark.slow),
        {"model": {"name": "lightgcn"}, "train": {"refit": "all"}},
        {"model": {"name": "lightgcn_pp"}},
        {"model": {"name": "ncf"}, "train": {"optimizer": "row_adam"}},
        {"model": {"name": "simplex"}, "loss": {"name": "ccl"}, "train": {"refit": True}},
        pytest.param(
            {"loss": {"name": "slatk"}, "train": {"precision": "bfloat16"}},
            marks=pytest.mark.skipif(
                not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="the processor has no bfloat16 products"
            ),
        ),
    ],
    ids=lambda settings: "-".join(str(v) for part in settings.values() for v in part.values()),
)
def test_stopped_in_the_middle_of_an_epoch_and_resumed(tmp_path, dataset, settings, monkeypatch):
    config = make_config(merged(SMALL, settings))
    fit(config, dataset, out=tmp_path / "whole")

    def stop_after(steps):
        monkeypatch.setattr(phases_module, "stop_on_signals", lambda: nullcontext(StopAfter(steps)))

    stop_after(7)
    with pytest.raises(StoppedEarly, match="continue with: topshelf train --resume"):
        fit(config, dataset, out=tmp_path / "parts")
    for steps in (9, 4, 1):
        stop_after(steps)
        with pytest.raises(StoppedEarly):
            resume(tmp_path / "parts")
    monkeypatch.undo()
    resume(tmp_path / "parts")
    assert_same(state_of(tmp_path / "whole"), state_of(tmp_path / "parts"))


@pytest.mark.parametrize("name", ["lightgcn", "simplex"])
def test_a_run_stopped_in_its_refit_is_loaded_as_it_was_before(tmp_path, dataset, name, monkeypatch):
    config = make_config(merged(SMALL, {"model": {"name": name}, "train": {"patience": 0}}))
    refitted = make_config(merged(config.model_dump(), {"train": {"refit": "all"}}))
    in_turn = iter([StopAfter(1000), StopAfter(3)])  # training ends, the refit does not
    monkeypatch.setattr(phases_module, "stop_on_signals", lambda: nullcontext(next(in_turn)))
    with pytest.raises(StoppedEarly):
        fit(refitted, dataset, out=tmp_path / "run")
    monkeypatch.undo()
    assert RunFolder(tmp_path / "run").load_checkpoint()["phase"] == "refit"
    with pytest.warns(TopshelfWarning, match="is not finished: its model is the best so far"):
        kept = vectors_of(load(tmp_path / "run").model)
    first_phase = vectors_of(fit(config, dataset).model)
    assert_close(kept, first_phase, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*was edited after the run began")
def test_another_learning_rate_is_refused_when_a_run_is_resumed(tmp_path, dataset):
    fit(make_config(SMALL), dataset, out=tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    folder.metrics.unlink()
    folder.config.write_text(folder.config.read_text().replace("learning_rate = 0.1", "learning_rate = 0.05"))
    with pytest.raises(
        CheckpointError, match=r"when a run is resumed \(lr is 0.05, was 0.1\): put train.learning_rate"
    ):
        resume(tmp_path / "run")


@pytest.mark.parametrize("name", ["lightgcn", "ease"])
def test_a_run_killed_before_its_numbers_were_written_is_loaded_with_all_that_its_model_saw(tmp_path, dataset, name):
    config = make_config(merged(SMALL, {"model": {"name": name}, "train": {"refit": True}}))
    done = fit(config, dataset, out=tmp_path / "run")
    RunFolder(tmp_path / "run").metrics.unlink()
    rows = torch.arange(dataset.split.n_users)
    with pytest.warns(TopshelfWarning, match="is not finished"):
        loaded = load(tmp_path / "run").model
    for kept, expected in zip(vectors_of(loaded, rows), vectors_of(done.model, rows), strict=True):
        assert_close(dense(kept), dense(expected), rtol=0, atol=0)


ARGUMENTS = [
    "--data", "synthetic", "--k", "10", "--quiet", "--set", "train.epochs=20", "--set", "train.batch_size=64",
    "--set", "train.checkpoint_seconds=0.0", "--set", "train.refit=true", "--set", "train.validate_every=5",
    "--set", "train.patience=0", "--set", "evaluate.auc=false",
]  # fmt: skip


def start(*arguments):
    return subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, output + errors


def wait_for_lines(out, process, n):
    deadline = time.monotonic() + 60
    log = out / "log.jsonl"
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        if log.exists() and len(log.read_text().splitlines()) >= n:
            return
        time.sleep(0.005)
    raise AssertionError(f"no {n} epochs in a minute")


@pytest.mark.slow
def test_a_killed_process_resumes_to_the_uninterrupted_result(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    finish(start(*ARGUMENTS, "--out", str(whole)))
    n_epochs = len((whole / "log.jsonl").read_text().splitlines())

    assert n_epochs > 23
    process = start(*ARGUMENTS, "--out", str(parts))
    for lines in (3, 12, 22):  # the last one in the refit
        wait_for_lines(parts, process, lines)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        assert not (parts / "metrics.json").exists()
        process = start("--resume", str(parts), "--quiet")
    finish(process)
    assert_same(state_of(whole), state_of(parts))


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_ctrl_c_leaves_a_checkpoint_and_a_model_that_can_be_used(tmp_path, number):
    out = tmp_path / "run"
    arguments = [text.replace("epochs=20", "epochs=100000") for text in ARGUMENTS]
    process = start(*arguments, "--out", str(out))
    wait_for_lines(out, process, 12)
    os.kill(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"topshelf train --resume {out}" in errors
    assert "Traceback" not in errors
    assert RunFolder(out).load_checkpoint()["trainer"]["progress"]["epoch"] >= 10
    assert RunFolder(out).load_model()["best_epoch"] >= 5
