"""benchmarks/studies/tuning.py: where its study begins, whom it kills, and that it would notice a lost trial."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace

import optuna
import pytest
from optuna.trial import TrialState

from benchmarks.studies import tuning as benchmark
from topshelf.config import assemble, overrides
from topshelf.tuning import space

SECONDS = 100  # a finished trial of these tests took so long


def a_trial(state, slot, attempt=1, pid=7, began=SECONDS):
    start = datetime.now() - timedelta(seconds=began)
    return optuna.trial.FrozenTrial(
        number=slot, trial_id=slot, state=state, value=0.5 if state == TrialState.COMPLETE else None, params={},
        distributions={}, intermediate_values={}, system_attrs={}, datetime_start=start,
        user_attrs={"ticket": slot, "attempt": attempt, "worker": {"pid": pid}},
        datetime_complete=datetime.now() if state.is_finished() else None,
    )  # fmt: skip


@pytest.mark.parametrize("general", [True, False])
def test_the_study_begins_with_the_general_settings_or_the_shipped_ones(tmp_path, general):
    arguments = benchmark.command(benchmark.Plan(), tmp_path / "study", general=general)
    given = dict(pairwise(arguments))
    fixed = overrides(arguments[place + 1] for place, word in enumerate(arguments) if word == "--set")
    file = arguments[1] if general else None
    config = assemble(file=file, data=given["--data"], loss=given["--loss"], k=20, more=fixed)
    found = (config.loss.settings["tau"], config.negatives.effective_n, config.train.batch_size)
    assert found == ((0.2, 1000, 2048) if general else (0.225, 1500, 512))
    assert (config.model.settings["dim"], config.train.epochs, given["--trials"]) == (64, 200, "30")
    assert {"train.learning_rate", "loss.tau", "loss.tau_weight", "threshold.every"} <= set(space(config).ranges)


def test_every_slot_is_accounted_for():
    complete, pruned, fail = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL
    trials = [a_trial(complete, 0), a_trial(fail, 1, pid=8), a_trial(pruned, 1, attempt=2), a_trial(fail, 2)]
    found = benchmark.account(trials, 4, {7: "one", 8: "two"})
    assert found["states"] == {"complete": 1, "interrupted": 2, "pruned": 1}
    assert found["lost"] == [2, 3]  # one that nobody took up again, and one that was never begun
    assert found["by_process"] == {"one": 3, "two": 1}
    twice = [a_trial(complete, 0), a_trial(complete, 0, attempt=2)]
    assert benchmark.account(twice, 1, {})["lost"] == [0]


def test_a_process_is_killed_in_the_middle_of_a_trial_of_its_own():
    running = TrialState.RUNNING
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    too_few = [a_trial(running, 0, pid=process.pid)]
    at_its_beginning = [a_trial(TrialState.COMPLETE, 0), a_trial(running, 1, pid=process.pid, began=0)]
    of_another = [a_trial(TrialState.COMPLETE, 0), a_trial(running, 1, pid=process.pid + 1)]
    ended_meanwhile = [a_trial(TrialState.PRUNED, 0), a_trial(running, 1, pid=process.pid)]
    in_the_middle = [a_trial(TrialState.COMPLETE, 0), a_trial(running, 2, pid=process.pid, began=SECONDS // 2)]
    looks = [too_few, at_its_beginning, of_another, ended_meanwhile, of_another, in_the_middle, in_the_middle]
    states = iter(looks)
    study = SimpleNamespace(get_trials=lambda deepcopy: next(states))
    try:
        assert benchmark.kill_in_a_trial(process, study, after=1) == 2
        assert process.returncode == -9
        assert next(states, None) is None  # every look was needed
        with pytest.raises(RuntimeError, match=r"ended \(code -9\) before it could be killed in a trial"):
            benchmark.kill_in_a_trial(process, study, after=1)
    finally:
        process.kill()
        process.wait()


def test_the_best_is_held_against_the_better_of_the_papers():
    scores = {benchmark.FIRST: 0.1, benchmark.BEST: 0.3, benchmark.PUBLISHED: 0.25, benchmark.BY_USERS: 0.2}
    rows = [
        {"label": label, "seed": seed, "score": score + seed / 100, "epoch": 5, "seconds": 1.5}
        for seed in (0, 1, 3)
        for label, score in scores.items()
    ]
    study = {"budget": 3, "states": {"complete": 3}, "lost": [], "by_process": {"one": 3}, "seconds": 9.0}
    said = benchmark.verdict(study, rows)
    assert "lost: none" in said
    assert "best 0.3000: +0.2000 against the first trial, +0.0500 against the better of the paper's" in said
    assert "lost: [2]" in benchmark.verdict({**study, "lost": [2]}, rows)
    assert "| the best trial | 0.3000 | 0.3200 | 5 | 1.5 |" in benchmark.table(rows)
