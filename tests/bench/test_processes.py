"""Real processes on one bench: stopped, killed, orphaned, and side by side."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest

from benches import COSTS, TRAINED, plan_of, topshelf_process
from topshelf.bench import Report, of_plan, status
from topshelf.bench.folder import BenchFolder

SLOW_LOSS = """
import time
from topshelf.losses import SoftmaxLoss


class Slow(SoftmaxLoss):
    def forward(self, *args, **kwargs):
        time.sleep(0.01)
        return super().forward(*args, **kwargs)
"""
SLOW = TRAINED.replace('{ name = "softmax" }', '{ name = "slow_losses:Slow" }')


@pytest.fixture
def desk(clicks, tmp_path, monkeypatch):
    """A folder with a plan whose cells take a few seconds, and a way to begin with it."""
    (tmp_path / "slow_losses.py").write_text(SLOW_LOSS)
    (tmp_path / "plan.toml").write_text(SLOW.replace("DATA", str(clicks)).replace("EPOCHS", "40"))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def begin(desk):
    """Starts a bench in a process group of its own; no group outlives its test."""
    started = []

    def one(out="out", jobs=2):
        arguments = ("bench", "run", "plan.toml", "--out", out, "--jobs", jobs, "--quiet")
        started.append(topshelf_process(*arguments, cwd=desk))
        return started[-1]

    yield one
    for process in started:
        kill_group(process)
        process.communicate()


def kill_group(process):
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def until(process, happened, seconds=120):
    deadline = time.monotonic() + seconds
    while not happened():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.02)


def logs(out):
    return list((out / "cells").glob("*/log.jsonl"))


def is_training(out):
    return any(path.stat().st_size for path in logs(out))


def ends_well(process):
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 0, output
    return output


def stamps(out):
    return {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in (out / "results").glob("*.*")}


def the_plan(desk):
    return plan_of((desk / "plan.toml").read_text(), "")


def cells_csv(desk, out):
    """The table of all runs, without what a run cost."""
    made = Report.of(of_plan("plan", the_plan(desk), BenchFolder.open(desk / out))).write(desk / out / "report")
    return pl.read_csv(made / "cells.csv").drop(COSTS), (made / "table.tex").read_text()


def states(desk, out="out"):
    return sorted(state for _, state in status(the_plan(desk), desk / out))


def until_dead(desk):
    """A killed process holds its cell until the system has ended it."""
    deadline = time.monotonic() + 20
    while "running" in states(desk):
        assert time.monotonic() < deadline, "a cell outlived its group"
        time.sleep(0.05)


@pytest.mark.slow
def test_killed_mid_cell_it_goes_on_to_the_same_tables(desk, begin):
    ends_well(begin("whole"))
    process = begin()
    until(process, lambda: is_training(desk / "out"))
    kill_group(process)
    process.wait()
    assert "done" not in states(desk)
    process = begin()
    until(process, lambda: any((desk / "out" / "results").glob("*.json")))
    kill_group(process)
    process.wait()
    before = stamps(desk / "out")
    assert "cells run" in ends_well(begin())
    after = stamps(desk / "out")
    assert before
    assert {name: after[name] for name in before if name.endswith(".json")} == {
        name: stamp for name, stamp in before.items() if name.endswith(".json")
    }
    whole, killed = cells_csv(desk, "whole"), cells_csv(desk, "out")
    assert killed[0].equals(whole[0])
    assert killed[1] == whole[1]


@pytest.mark.slow
def test_killed_ten_times_mid_cell_it_ends_with_the_same_tables(desk, begin):
    plan = desk / "plan.toml"
    plan.write_text(plan.read_text().replace("epochs = 40", "epochs = 150"))
    ends_well(begin("whole"))
    moments, known = random.Random(3), {}
    for _ in range(10):
        written = {path: path.stat().st_mtime_ns for path in logs(desk / "out")}
        process = begin()
        until(process, lambda written=written: is_further(desk / "out", written))
        time.sleep(moments.uniform(0.0, 0.5))
        kill_group(process)
        process.wait()
        now = {name: stamp for name, stamp in stamps(desk / "out").items() if name.endswith(".json")}
        assert {name: now[name] for name in known} == known  # none was run twice
        known = now
    ends_well(begin())
    assert states(desk) == ["done"] * 4
    whole, killed = cells_csv(desk, "whole"), cells_csv(desk, "out")
    assert killed[0].equals(whole[0])
    assert killed[1] == whole[1]


def is_further(out, written):
    """Whether a cell has trained an epoch since its log was looked at."""
    found = {path: path.stat().st_mtime_ns for path in logs(out) if path.stat().st_size}
    return any(written.get(path) != stamp for path, stamp in found.items())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_says_how_to_go_on_and_keeps_checkpoints(desk, begin, number):
    process = begin()
    until(process, lambda: is_training(desk / "out"))
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 130, output
    assert "0 of 4 cells are finished and kept, the others go on from their checkpoints" in output
    assert "Traceback" not in output
    assert states(desk) == ["waiting"] * 4
    assert list((desk / "out" / "cells").glob("*/checkpoint*"))
    lines = {path: path.read_text().splitlines() for path in logs(desk / "out") if path.stat().st_size}
    ends_well(begin())
    for path, before in lines.items():
        assert path.read_text().splitlines()[: len(before)] == before  # it went on, and did not begin again


@pytest.mark.slow
def test_the_cell_of_a_killed_runner_ends_and_is_run_by_the_next(desk, begin):
    process = begin()
    until(process, lambda: is_training(desk / "out"))
    process.kill()  # its cells live on
    process.wait()
    assert "running" in states(desk)
    output = ends_well(begin())  # at once: it waits for them
    assert "4 cells run, 0 known before, 0 failed" in " ".join(output.split())
    assert "0 running elsewhere" in " ".join(output.split())


@pytest.mark.slow
def test_two_runners_run_every_cell_once(desk, begin):
    both = [begin(jobs=1), begin(jobs=1)]
    words = [" ".join(ends_well(process).split()) for process in both]
    assert sum(int(text.partition(" cells run")[0].split()[-1]) for text in words) == 4
    assert states(desk) == ["done"] * 4


@pytest.mark.slow
def test_one_cell_of_a_real_process_is_stopped_and_goes_on(desk, begin):
    """The short form of the others, for every day."""
    text = (
        (desk / "plan.toml").read_text().replace("seeds = [0, 1]", "seeds = [0]").replace("epochs = 40", "epochs = 9")
    )
    text = "".join(line for line in text.splitlines(keepends=True) if "SL@5" not in line)  # one cell
    (desk / "plan.toml").write_text(text)
    process = begin(jobs=1)
    until(process, lambda: is_training(desk / "out"))
    kill_group(process)
    process.wait()
    until_dead(desk)
    assert states(desk) == ["waiting"]
    (log,) = logs(desk / "out")
    before = log.read_text().splitlines()
    assert "1 cells run, 0 known before, 0 failed" in " ".join(ends_well(begin()).split())
    assert len(log.read_text().splitlines()) > len(before)
    assert states(desk) == ["done"]


@pytest.mark.slow
def test_the_example_ends_in_a_table_and_a_page(tmp_path):
    example = Path(__file__).parents[2] / "examples" / "bench.py"
    done = subprocess.run([sys.executable, example, tmp_path], capture_output=True, text=True, check=True)
    assert "8 of 8 cells" in done.stdout
    assert "| SL@10 | 2 |" in done.stdout
    assert (tmp_path / "report" / "report.html").is_file()
