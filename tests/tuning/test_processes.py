"""Several real processes on one study, one of them killed: the budget is kept, and no trial is lost."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import warnings
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import optuna
import pytest

from topshelf.config import make_config
from topshelf.tuning import queue, resume, tune
from topshelf.tuning.attributes import WORKER
from topshelf.tuning.folder import StudyFolder
from topshelf.tuning.runner import Runner
from topshelf.tuning.storage import folder_url, open_study

SCRIPT = """
import json, sys, time
from pathlib import Path
from topshelf.config import make_config
from topshelf.data import generate, make_split
from topshelf.data.datasets import Dataset
from topshelf import charts
from topshelf.tuning import study, tune
from topshelf.tuning.runner import Runner

charts.can_plot = lambda: False
study.Worker._importances = lambda self: {}  # a second of imports
values, options, folder, hang_at = json.loads(sys.argv[1])
dataset = Dataset("generated", make_split(generate(60, 40, interactions_per_user=8, seed=3), seed=0))
run, calls = Runner.run, []

def hang(self, config, watcher):
    if not calls:
        Path(folder, "at-work-child").touch()
        while not Path(folder, "at-work-parent").exists():
            time.sleep(0.01)
    calls.append(config)
    if len(calls) - 1 == hang_at:
        time.sleep(600)
    return run(self, config, watcher)

Runner.run = hang
Path(folder, "ready").touch()
while not Path(folder, "go").exists():
    time.sleep(0.01)
tune(make_config(values), dataset, **options)
"""
VALUES = {
    "k": 5,
    "model": {"dim": 8},
    "train": {"epochs": 10, "batch_size": 32, "validate_every": 5, "patience": 0},
}


@pytest.fixture
def start():
    """Starts a process that works on a study; none is left behind by a test that fails."""
    started = []

    def one(folder, values, options, hang_at=-1):
        arguments = json.dumps([values, options, str(folder), hang_at])
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield one
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()


def until(process, happened):
    deadline = time.monotonic() + 120
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "nothing happened in two minutes"
        time.sleep(0.01)


def study_of(folder, storage=None):
    """The study of a folder, opened beside the processes that work on it."""
    return open_study(storage or folder_url(folder / "study.db"), StudyFolder(folder).load())


@pytest.mark.parametrize("server", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_two_processes_share_one_study_and_its_budget(tmp_path, start, only_tau, server, dataset, monkeypatch, request):
    storage = request.getfixturevalue("postgres") if server == "postgresql" else None
    values = {**VALUES, "data": {"source": uuid4().hex}}  # in a server's database, a name of its own
    options = {"trials": 6, "storage": storage, "ranges": {**only_tau, "loss.tau": "0.05:0.5"}}
    child = start(tmp_path, values, {**options, "out": str(tmp_path / "one")})
    until(child, (tmp_path / "ready").exists)
    run, calls = Runner.run, []

    def beside_the_child(self, config, watcher):
        if not calls:  # both have a trial at work at one time
            (tmp_path / "at-work-parent").touch()
            until(child, (tmp_path / "at-work-child").exists)
        calls.append(config)
        return run(self, config, watcher)

    monkeypatch.setattr(Runner, "run", beside_the_child)
    (tmp_path / "go").touch()
    tune(make_config(values), dataset, **options, out=tmp_path / ("two" if storage else "one"))
    output, errors = child.communicate(timeout=120)
    assert child.returncode == 0, output + errors
    with study_of(tmp_path / "one", storage) as study:
        trials = queue.without_duplicates(study.get_trials())
    assert sorted(trial.user_attrs["ticket"] for trial in trials) == list(range(6))
    assert all(trial.state.name in ("COMPLETE", "PRUNED") for trial in trials)
    assert {trial.user_attrs["worker"]["pid"] for trial in trials} == {os.getpid(), child.pid}
    assert len({json.dumps(trial.params, sort_keys=True) for trial in trials}) == 6
    monkeypatch.undo()
    found = resume(tmp_path / "one", storage=storage)
    assert len(found.rows) == 6
    assert (tmp_path / "one" / "best.toml").exists()


@pytest.mark.slow
def test_a_killed_study_resumes_with_no_trial_lost(tmp_path, start):
    out = tmp_path / "study"
    for name in ("go", "at-work-parent"):
        (tmp_path / name).touch()
    process = start(tmp_path, VALUES, {"trials": 4, "out": str(out)}, hang_at=2)

    def is_hanging():
        if not (out / "best.toml").exists():
            return False
        with study_of(out) as study:
            trials = study.get_trials()
            return len(trials) > 2 and "settings" in trials[2].user_attrs

    until(process, is_hanging)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    with study_of(out) as study:
        before = study.get_trials()
    assert [trial.state.name for trial in before][2:] == ["RUNNING", "WAITING"]
    found = resume(out)
    assert [row.state for row in found.rows].count("interrupted") == 1
    assert found.rows[2].state == "interrupted"
    assert [(row.score, row.settings) for row in found.rows[:2]] == [
        (trial.user_attrs["result"]["score"], trial.user_attrs["settings"]) for trial in before[:2]
    ]
    assert found.rows[4].settings == before[2].user_attrs["settings"]
    assert sum(row.state in ("complete", "pruned") for row in found.rows) == 4
    assert found.budget.trials == 4


def half_done(config, dataset, out, worker):
    """A study of two trials with the first at work in the hands of ``worker``."""
    tune(config, dataset, trials=1, out=out)
    with study_of(out) as study:
        queue.fill(study, StudyFolder(out).load(), 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # Optuna would have this process show signs of life
            trial = study.ask()
        if worker is not None:
            trial.set_user_attr(WORKER, worker)
        study._storage.record_heartbeat(trial._trial_id)


ELSEWHERE = {"machine": "0badcafe", "pid": 1, "started": "1"}


def test_a_trial_of_another_machine_is_left_alone_while_its_heart_beats(config, dataset, tmp_path):
    half_done(config, dataset, tmp_path, ELSEWHERE)
    found = resume(tmp_path)
    assert [row.state for row in found.rows] == ["complete", "running"]


def test_a_trial_of_another_machine_is_queued_again_when_its_heart_stopped(config, dataset, tmp_path):
    half_done(config, dataset, tmp_path, ELSEWHERE)
    with closing(sqlite3.connect(tmp_path / "study.db")) as database:
        database.execute("UPDATE trial_heartbeats SET heartbeat = datetime('now', '-1 hour')")
        database.commit()
    found = resume(tmp_path, trials=3)  # Optuna looks when a trial begins
    assert [row.state for row in found.rows].count("interrupted") == 1
    assert sum(row.state in ("complete", "pruned") for row in found.rows) == 3


def test_a_trial_that_ended_with_its_process_while_another_looked_is_not_queued_again(monkeypatch):
    study = optuna.create_study()
    attributes = {"ticket": 0, "attempt": 1, "asked": {}, WORKER: ELSEWHERE}
    study.add_trial(optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING, user_attrs=attributes))
    monkeypatch.setattr(queue, "_is_dead", lambda _, trial: study.tell(trial.number, 0.5) is not None)
    assert queue.release_dead(study) == []
    assert [trial.state.name for trial in study.get_trials()] == ["COMPLETE"]


def of_an_earlier_version(started):
    """This process as a worker, by the name of the machine itself."""
    inode = Path("/proc/self/ns/pid").stat().st_ino if Path("/proc/self/ns/pid").exists() else ""
    return {"machine": f"{socket.gethostname()}/{inode}", "pid": os.getpid(), "started": started}


@pytest.mark.parametrize(
    ("worker", "is_dead"),
    [
        (queue.this_worker(), False),
        ({**queue.this_worker(), "started": "1"}, True),  # the number was given to another process
        ({**queue.this_worker(), "pid": 2**22 + 1}, True),  # more than Linux gives
        (ELSEWHERE, False),
        (of_an_earlier_version(queue.this_worker()["started"]), False),
        (of_an_earlier_version("1"), True),
        ({"machine": "elsewhere/1", "pid": 1, "started": "1"}, False),
    ],
)
def test_a_process_of_this_machine_is_known_to_be_gone(worker, is_dead):
    study = optuna.create_study()
    attributes = {"ticket": 0, "attempt": 1, "asked": {}, WORKER: worker}
    study.add_trial(optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING, user_attrs=attributes))
    assert queue.release_dead(study) == ([0] if is_dead else [])
    states = [trial.state.name for trial in study.get_trials()]
    assert states == (["FAIL", "WAITING"] if is_dead else ["RUNNING"])
