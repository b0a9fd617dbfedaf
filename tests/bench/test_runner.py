"""What a bench runs, skips, reports and refuses; cells run in this process."""

from __future__ import annotations

import os
import signal
import time
from types import SimpleNamespace

import pytest

from benches import PLAN, TRAINED, plan_of, work_here
from topshelf.bench import of_plan, run, status
from topshelf.bench.cells import cells
from topshelf.bench.folder import BenchFolder
from topshelf.bench.runner import _Runner
from topshelf.bench.worker import ENDS, Job, late, work
from topshelf.errors import ConfigError

OWN = """
from topshelf.losses import SoftmaxLoss

class Raises(SoftmaxLoss):
    def forward(self, *args, **kwargs):
        raise KeyError("no such thing")

class NotANumber(SoftmaxLoss):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs) * float("nan")

class Sleeps(SoftmaxLoss):
    def forward(self, *args, **kwargs):
        import time
        time.sleep(0.05)
        return super().forward(*args, **kwargs)
"""
OWN_PLAN = TRAINED.replace("seeds = [0, 1]", "seeds = [0]")


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module with losses of one's own that go wrong."""
    (tmp_path / "failing_losses.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "failing_losses"


def stamps(out):
    """When each result was written, and as which file."""
    return {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in (out / "results").iterdir()}


def test_every_cell_is_run_once_and_known_afterwards(clicks, tmp_path, here):
    plan = plan_of(PLAN, clicks)
    first = run(plan, tmp_path / "b")
    assert (first.done, first.known, first.failed) == (4, 0, 0)
    before = stamps(tmp_path / "b")
    second = run(plan, tmp_path / "b")
    assert (second.done, second.known) == (0, 4)
    assert stamps(tmp_path / "b") == before
    assert {state for _, state in status(plan, tmp_path / "b")} == {"done"}
    results = of_plan("mine", plan, BenchFolder.open(tmp_path / "b"))
    assert len(results.runs) == results.n_wanted == 4
    assert not results.missing


def test_another_plan_runs_only_what_is_new(clicks, tmp_path, here):
    run(plan_of(PLAN, clicks), tmp_path / "b")
    more = run(plan_of(PLAN.replace("[0, 1]", "[0, 1, 2]"), clicks), tmp_path / "b")
    assert (more.done, more.known) == (2, 4)


def test_a_cell_is_a_run_folder_without_its_checkpoint(clicks, tmp_path):
    plan = plan_of(OWN_PLAN, clicks)
    assert set(work_here(plan, tmp_path / "b")) == {"done"}
    for cell in cells(plan):
        names = {path.name for path in (tmp_path / "b" / "cells" / cell.key).iterdir()}
        assert {"config.toml", "metrics.json"} <= names
        assert not any("checkpoint" in name for name in names)


@pytest.mark.parametrize(
    ("name", "reason"), [("Raises", "KeyError: 'no such thing'"), ("NotANumber", "TrainingError: ")]
)
def test_a_failing_cell_is_reported_and_the_rest_is_run(clicks, tmp_path, here, own, name, reason):
    bad = f'method = [{{ label = "bad", settings = {{ loss = {{ name = "{own}:{name}" }} }} }},'
    plan = plan_of(OWN_PLAN.replace("method = [", bad), clicks)
    out = tmp_path / "b"
    summary = run(plan, out)
    assert (summary.done, summary.failed) == (2, 1)
    assert summary.reasons[0].startswith(f"clicks, bad, seed 0: {reason}")
    assert [state for _, state in status(plan, out)] == ["failed", "done", "done"]
    (missing,) = of_plan("mine", plan, BenchFolder.open(out)).missing.values()
    assert missing.startswith(f"failed: {reason}")
    again = run(plan, out)
    assert (again.done, again.known, again.failed) == (0, 2, 1)
    assert again.reasons == summary.reasons
    assert run(plan, out, retry=True).failed == 1


def test_a_cell_over_its_time_is_reported_and_goes_on_with_more(clicks, tmp_path, own):
    slow = OWN_PLAN.replace('name = "softmax"', f'name = "{own}:Sleeps"')
    plan = plan_of(slow, clicks, epochs=20).model_copy(update={"minutes": 0.01})
    cell, folder = cells(plan)[0], BenchFolder(tmp_path / "b").make()
    begin = time.monotonic()
    assert work(Job(cell, folder.path)) == "failed"
    assert time.monotonic() - begin < 30
    assert folder.failures()[cell.key]["reason"] == late(cell)
    assert "0.01 minutes" in late(cell)
    assert "--retry" in late(cell)
    more = cells(plan.model_copy(update={"minutes": 5.0}))[0]
    assert more.key == cell.key
    log = next((folder.cell(cell.key)).glob("*log*"))
    epochs = len(log.read_text().splitlines())
    assert work(Job(more, folder.path)) == "done"
    assert 0 < epochs < len(log.read_text().splitlines())  # it went on
    assert folder.failures() == {}
    assert cell.key in folder.results()


def test_a_cell_is_stopped_also_where_it_is_not_training(clicks, tmp_path, monkeypatch):
    def fit(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
        raise AssertionError("it was not stopped")

    monkeypatch.setattr("topshelf.bench.worker.fit", fit)
    before = signal.getsignal(signal.SIGTERM)
    assert work_here(plan_of(PLAN.replace("[0, 1]", "[0]"), clicks), tmp_path / "b") == ["stopped", "stopped"]
    assert signal.getsignal(signal.SIGTERM) == before
    assert BenchFolder(tmp_path / "b").failures() == {}


def test_a_cell_of_another_process_is_left_to_it(clicks, tmp_path, here, monkeypatch):
    monkeypatch.setattr("topshelf.bench.runner._PATIENCE", 0.2)
    plan, folder = plan_of(PLAN, clicks), BenchFolder(tmp_path / "b").make()
    with folder.claim(cells(plan)[0].key) as is_ours:
        assert is_ours
        summary = run(plan, folder.path)
        assert (summary.done, summary.elsewhere) == (3, 1)
        assert sorted(state for _, state in status(plan, folder.path)) == ["done", "done", "done", "running"]
    assert run(plan, folder.path).done == 1


def test_a_cell_that_becomes_free_at_the_end_is_run(clicks, tmp_path, here, monkeypatch):
    plan, folder = plan_of(PLAN, clicks), BenchFolder(tmp_path / "b").make()
    claim = folder.claim(cells(plan)[0].key)
    claim.__enter__()
    looks = []

    def running():
        looks.append(0)
        if len(looks) == 3:
            claim.__exit__(None, None, None)
        return BenchFolder(folder.path).running()

    monkeypatch.setattr("topshelf.bench.runner.open_ledger", lambda *_: folder)
    monkeypatch.setattr(folder, "running", running)
    assert run(plan, folder.path).done == 4


def test_a_finished_cell_is_not_run_by_one_that_did_not_know(clicks, tmp_path):
    plan, folder = plan_of(PLAN, clicks), BenchFolder(tmp_path / "b").make()
    job = Job(cells(plan)[0], folder.path)
    assert work(job) == "done"
    assert work(job) == "taken"


def test_cells_without_data_are_named_and_the_others_run(clicks, tmp_path, here):
    plan = plan_of(PLAN.replace("data = [", 'data = [{ label = "lost", source = "nowhere.csv" },'), clicks)
    summary = run(plan, tmp_path / "b")
    assert (summary.done, summary.absent) == (4, 4)
    assert summary.reasons == ["'nowhere.csv' is neither a file nor a named dataset"]
    assert sum(state == "no data" for _, state in status(plan, tmp_path / "b")) == 4
    missing = of_plan("mine", plan, BenchFolder.open(tmp_path / "b")).missing
    assert {place.data for place in missing} == {"lost"}


def test_a_killed_process_is_a_failure_that_says_so(clicks, tmp_path):
    plan, folder = plan_of(PLAN, clicks), BenchFolder(tmp_path / "b").make()
    runner = quiet_runner(folder)
    ended = SimpleNamespace(cell=cells(plan)[0], process=SimpleNamespace(exitcode=-9), is_stopped=False)
    runner._ended(ended, [])
    assert runner.summary.failed == 1
    assert runner.summary.reasons[0].endswith("its process was ended by signal 9; out of memory?")
    ended.is_stopped = True
    runner._ended(ended, [])
    assert folder.failures()[ended.cell.key]["reason"] == late(ended.cell)


def quiet_runner(folder, jobs=2):
    from topshelf.bench.runner import Summary

    return _Runner(folder, Summary(), jobs, {"path": folder.path, "storage": None, "threads": 1}, True)


def test_one_more_cell_runs_while_there_is_memory_for_it(clicks, tmp_path, monkeypatch):
    cell = cells(plan_of(PLAN, clicks))[0]
    runner = quiet_runner(BenchFolder(tmp_path / "b").make())
    monkeypatch.setattr("topshelf.bench.runner.available", lambda: 2 << 30)
    assert runner._fits(cell)
    runner._running.append(SimpleNamespace())
    assert runner._fits(cell)  # taken to need 1.5 GB
    monkeypatch.setattr("topshelf.bench.runner.available", lambda: 1 << 30)
    assert not runner._fits(cell)
    runner._learn(cell, {"peak_mib": 500, "seconds": 3.0})
    assert runner._fits(cell)
    runner._learn(cell, {"peak_mib": 1100, "seconds": 5.0})
    runner._learn(cell, {"peak_mib": 100, "seconds": 5.0})
    assert not runner._fits(cell)
    runner._running.clear()
    assert runner._fits(cell)  # the first always runs
    assert runner._time_left([cell] * 60) == "; 60 cells wait, about 2 minutes"


@pytest.mark.parametrize(("how", "message"), [({"jobs": 0}, "jobs must be >= 1"), ({"threads": 0}, "threads must be")])
def test_wrong_limits_are_refused_and_leave_nothing(clicks, tmp_path, how, message):
    with pytest.raises(ConfigError, match=message):
        run(plan_of(PLAN, clicks), tmp_path / "b", **how)
    assert not (tmp_path / "b").exists()


def test_a_folder_of_something_else_is_refused(clicks, tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "to-mother.txt").touch()
    with pytest.raises(ConfigError, match="must be a bench or a new folder"):
        run(plan_of(PLAN, clicks), tmp_path / "letters")
    with pytest.raises(ConfigError, match="must be a bench or a new folder"):
        run(plan_of(PLAN, clicks), clicks)
    assert [path.name for path in (tmp_path / "letters").iterdir()] == ["to-mother.txt"]


def test_every_end_of_a_process_has_its_own_code():
    assert len(set(ENDS.values())) == len(ENDS)
    assert not {1, 2} & set(ENDS.values())  # Python's own
