"""Processes of a run that are killed or stand still: the run ends the same, or with an error in time."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from runs import assert_same, state_of
from topshelf.data import generate
from topshelf.errors import ConfigError
from topshelf.training.launch import first_refusal, refuse, without
from topshelf.world import joined

KILLS, LIMIT = 20, 120.0  # starting takes half a minute on a busy machine


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    path = tmp_path_factory.mktemp("clicks") / "clicks.csv"
    made = generate(150, 61, interactions_per_user=8, seed=3)
    rows = pl.DataFrame({"user": made.ragged().owner().numpy(), "item": made.indices})
    rows.write_csv(path)
    return path


def command(clicks, out, *more, epochs=150):
    settings = [f"train.epochs={epochs}", "train.batch_size=40", "train.patience=0", "train.checkpoint_seconds=0.05"]
    given = [*(part for one in settings for part in ("--set", one)), "--data", str(clicks), "--out", str(out)]
    return [sys.executable, "-m", "topshelf", "train", *given, "--k", "5", "--processes", "2", "--quiet", *more]


def workers(launcher):
    """The processes that the launcher has started."""
    found = []
    for path in Path("/proc").iterdir():
        try:
            fields = (path / "stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        if int(fields[1]) == launcher and fields[0] != "Z":
            found.append(int(path.name))
    return sorted(found)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
@pytest.mark.parametrize("sharding", ["false", "true"])
def test_killed_processes_change_nothing(clicks, tmp_path, sharding):
    more = ("--set", f"train.shard_items={sharding}", "--timeout", "60", "--restarts", "100")
    subprocess.run(command(clicks, tmp_path / "whole", *more), check=True, capture_output=True, timeout=900)
    chance, out, killed = random.Random(7), tmp_path / "killed", 0
    run = subprocess.Popen(command(clicks, out, *more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    checkpoint, last = out / "checkpoint.safetensors", time.monotonic()
    while run.poll() is None and killed < KILLS // 2:
        if chance.random() < 0.7:  # after training has begun, else at any time, while it starts too
            wait_for_change(run, checkpoint)
        time.sleep(chance.uniform(0, 0.2) if checkpoint.exists() else chance.uniform(0, 8))
        if found := workers(run.pid):
            os.kill(chance.choice(found), signal.SIGKILL)
            killed, last = killed + 1, time.monotonic()
            wait_until_gone(run, found)
    said = run.communicate(timeout=900)[0]
    assert run.returncode == 0, said
    assert killed >= KILLS // 4, "the run ended too early: give it more epochs"
    assert time.monotonic() - last < 900
    assert_same(result_of(tmp_path / "whole"), result_of(out))


def result_of(out):
    """Log, metrics, model and artifact; the last checkpoint was made whenever it was due."""
    found = state_of(out)
    del found["state"]["checkpoint"]
    return found


def wait_for_change(run, path):
    before, ends = path.stat().st_mtime_ns if path.exists() else 0, time.monotonic() + LIMIT
    while run.poll() is None and time.monotonic() < ends:
        if path.exists() and path.stat().st_mtime_ns != before:
            return
        time.sleep(0.01)
    assert run.poll() is not None, f"no checkpoint for {LIMIT} s"


def wait_until_gone(run, processes):
    """All processes of an attempt end soon after one of them."""
    ends = time.monotonic() + LIMIT
    while run.poll() is None and set(workers(run.pid)) & set(processes):
        assert time.monotonic() < ends, f"processes still run {LIMIT} s after one of them was killed"
        time.sleep(0.02)


@pytest.mark.slow
def test_a_process_that_stands_still_ends_the_run_in_time(clicks, tmp_path):
    out = tmp_path / "still"
    more = ("--timeout", "4", "--restarts", "0")
    run = subprocess.Popen(command(clicks, out, *more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for_change(run, out / "checkpoint.safetensors")
    stopped = workers(run.pid)[-1]
    os.kill(stopped, signal.SIGSTOP)
    began = time.monotonic()
    said = run.communicate(timeout=150)[0]
    assert time.monotonic() - began < 110  # the time-out, and 60 s that torch waits for a process to end
    assert run.returncode == 3
    assert "lost the others" in said
    assert "--resume" in said
    assert not workers(run.pid)


@pytest.mark.slow
def test_ctrl_c_stops_all_processes_and_the_run_goes_on(clicks, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "stopped"
    subprocess.run(command(clicks, whole), check=True, capture_output=True, timeout=900)
    run = subprocess.Popen(command(clicks, out), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for_change(run, out / "checkpoint.safetensors")
    run.send_signal(signal.SIGINT)
    said = run.communicate(timeout=120)[0]
    assert run.returncode == 130, said
    assert "continue with: topshelf train --resume" in said
    more = [sys.executable, "-m", "topshelf", "train", "--resume", str(out), "--processes", "2", "--quiet"]
    subprocess.run(more, check=True, capture_output=True, timeout=900)
    assert_same(result_of(whole), result_of(out))


def test_options_of_the_launcher_are_not_passed_on():
    given = ["train", "--processes", "2", "--data", "a", "--restarts=5", "--set", "x=1"]
    assert without(given, "--processes", "--restarts") == ["train", "--data", "a", "--set", "x=1"]


def test_a_refusal_reaches_the_launcher_and_the_first_process_decides(tmp_path, monkeypatch):
    assert not refuse("no one has started this process", 2)
    monkeypatch.setenv("TOPSHELF_REFUSALS", str(tmp_path))
    for rank in ("10", "2"):
        monkeypatch.setenv("RANK", rank)
        assert refuse(f"error of {rank}", int(rank))
    assert first_refusal(str(tmp_path)) == ("error of 2", 2)


def test_a_time_out_must_be_above_0(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ConfigError, match="timeout must be > 0, got 0"), joined(0):
        pass
