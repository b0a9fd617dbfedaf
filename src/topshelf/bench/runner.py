"""Runs the cells of a plan: a few at a time, each in a process of its own, until none is left.

Which cells are left is read from the ledger, so a bench that was stopped or killed goes on where it was, and several
processes and machines can work on one bench by the same command.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import fmean
from typing import Any

from topshelf.bench.cells import Cell, cells, fetch_missing
from topshelf.bench.folder import BenchFolder, Ledger
from topshelf.bench.plan import Plan
from topshelf.bench.worker import ENDS, GRACE, Job, failure, late, main, open_ledger
from topshelf.data.memory import available
from topshelf.errors import at_least
from topshelf.terminal import TextColumn, printable
from topshelf.training import StoppedEarly
from topshelf.training.watchers import progress_bar, stop_on_signals

_ASSUMED = 1500 << 20  # bytes that a cell is taken to need before one of its data was run
_POLL = 0.2  # seconds
_PATIENCE = 10.0  # seconds to wait at the end for cells that another process has


@dataclass
class Summary:
    """How many cells ended in which way in one call."""

    done: int = 0
    failed: int = 0
    known: int = 0  # finished before the call
    absent: int = 0  # without data
    elsewhere: int = 0  # run by another process when this one had nothing left
    reasons: list[str] = field(default_factory=list)


@dataclass
class _Running:
    cell: Cell
    process: BaseProcess
    deadline: float
    is_stopped: bool = False


def run(
    plan: Plan,
    out: str | Path,
    *,
    jobs: int | None = None,
    threads: int = 1,
    storage: str | None = None,
    retry: bool = False,
    quiet: bool = True,
) -> Summary:
    """Run the cells of a plan that have no result yet; those that failed are run again with ``retry``.

    ``jobs`` cells run at the same time, by default one per core while memory allows; ``threads`` are those of a cell.
    """
    at_least("threads", threads, 1)
    most = max(1, (os.cpu_count() or 1) // threads) if jobs is None else at_least("jobs", jobs, 1)
    wanted = unique(cells(plan))
    folder = BenchFolder(out)
    ledger = open_ledger(folder, storage)  # a wrong url leaves no folder
    folder.make()
    if any(cell.absent for cell in wanted):
        fetch_missing(wanted)
        wanted = unique(cells(plan))
    todo, summary = _todo(wanted, ledger, retry)
    how = {"path": folder.path.resolve(), "storage": storage, "threads": threads}
    _Runner(ledger, summary, most, how, quiet).run(todo, len(wanted))
    return summary


def unique(some: Sequence[Cell]) -> list[Cell]:
    """The cells without those that are the same run as an earlier one."""
    first: dict[str, Cell] = {}
    for cell in some:
        first.setdefault(cell.key or cell.name, cell)
    return list(first.values())


def _todo(wanted: list[Cell], ledger: Ledger, retry: bool) -> tuple[list[Cell], Summary]:
    done, failed = ledger.results(), {} if retry else ledger.failures()
    left = [cell for cell in wanted if cell.key not in done]
    todo = [cell for cell in left if cell.absent is None and cell.key not in failed]
    summary = Summary(known=len(wanted) - len(left))
    summary.absent = sum(cell.absent is not None for cell in left)
    summary.reasons = sorted({cell.absent for cell in left if cell.absent})
    for cell in left:
        if cell.absent is None and cell.key in failed:
            summary.failed += 1
            summary.reasons.append(f"{cell.name}: {failed[cell.key].get('reason')}")
    return todo, summary


class _Runner:
    """The processes of one call."""

    def __init__(self, ledger: Ledger, summary: Summary, jobs: int, how: dict[str, Any], quiet: bool) -> None:
        self.ledger, self.summary, self.jobs, self.how, self.quiet = ledger, summary, jobs, how, quiet
        self._running: list[_Running] = []
        self._taken: list[Cell] = []  # cells that another process has
        self._until = math.inf  # when to stop waiting for it
        self._needs: dict[str, int] = {}  # bytes by the label of the data
        self._seconds: dict[tuple[str, str], list[float]] = {}
        self._bar = progress_bar(quiet, TextColumn("{task.completed}/{task.total}"))

    def run(self, todo: list[Cell], total: int) -> None:
        left = list(todo)
        with stop_on_signals() as stop, self._bar:
            task = self._bar.add_task("cells", total=total, completed=total - len(todo), shown="")
            while (left or self._running or self._has_hope(left)) and not stop():
                while left and len(self._running) < self.jobs and self._fits(left[0]):
                    self._start(left.pop(0))
                self._collect(left)
                finished = total - len(left) - len(self._running)
                self._bar.update(task, completed=finished, shown="; ".join(one.cell.name for one in self._running))
                time.sleep(_POLL)
            if stop():
                self._stop_all()
                raise StoppedEarly(
                    f"stopped; {self.summary.known + self.summary.done} of {total} cells are finished and kept, the "
                    "others go on from their checkpoints: give the same command again"
                )

    def _has_hope(self, left: list[Cell]) -> bool:
        """Whether a cell that another process has may become free: one whose runner was killed ends in a moment."""
        if not self._taken:
            return False
        done, running = self.ledger.results(), self.ledger.running()
        self.summary.known += sum(cell.key in done for cell in self._taken)
        self._taken = [cell for cell in self._taken if cell.key not in done]
        left += [cell for cell in self._taken if cell.key not in running]
        self._taken = [cell for cell in self._taken if cell.key in running]
        self._until = min(self._until, time.monotonic() + _PATIENCE)
        if left or time.monotonic() < self._until:
            return bool(left or self._taken)
        self.summary.elsewhere = len(self._taken)
        return False

    def _fits(self, cell: Cell) -> bool:
        """Whether there is memory for one more; the first always runs."""
        return not self._running or available() > self._needs.get(cell.case.data.label, _ASSUMED)

    def _start(self, cell: Cell) -> None:
        process = get_context("spawn").Process(target=main, args=(Job(cell, **self.how),), name=cell.name)
        before = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")}
        os.environ |= {"OMP_NUM_THREADS": str(self.how["threads"]), "OMP_WAIT_POLICY": "PASSIVE"}
        try:
            with _without_ctrl_c():
                process.start()
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        self._running.append(_Running(cell, process, time.monotonic() + cell.minutes * 60 + GRACE))

    def _collect(self, left: list[Cell]) -> None:
        for one in list(self._running):
            if one.process.is_alive() and time.monotonic() > one.deadline:
                one.process.kill()
                one.is_stopped = True
                one.process.join()
            if one.process.is_alive():
                continue
            self._running.remove(one)
            self._ended(one, left)

    def _ended(self, one: _Running, left: list[Cell]) -> None:
        code = one.process.exitcode
        end = next((name for name, number in ENDS.items() if number == code), "killed")
        if end == "killed":
            by = f"its process was ended by signal {-(code or 0)}" if (code or 0) < 0 else f"exit code {code}"
            reason = late(one.cell) if one.is_stopped else f"{by}; out of memory?"
            self.ledger.fail(one.cell.key, failure(reason))
            end = "failed"
        if end == "taken":
            self._taken.append(one.cell)
            return
        if end == "done":
            result = self.ledger.results()[one.cell.key]
            self._learn(one.cell, result)
            self.summary.done += 1
            self._say(f"{one.cell.name}: {_headline(result)}, {result['seconds']:.0f} s{self._time_left(left)}")
        elif end == "failed":
            why = self.ledger.failures()[one.cell.key].get("reason")
            self.summary.failed += 1
            self.summary.reasons.append(f"{one.cell.name}: {why}")
            self._say(f"{one.cell.name}: failed: {why}")

    def _learn(self, cell: Cell, result: dict[str, Any]) -> None:
        """Remember what a cell of these data took."""
        label = cell.case.data.label
        self._needs[label] = max(self._needs.get(label, 0), int(result.get("peak_mib") or 0) << 20)
        self._seconds.setdefault(_kind(cell), []).append(result["seconds"])

    def _time_left(self, left: list[Cell]) -> str:
        """By what cells of the same data and group took."""
        seconds = [value for values in self._seconds.values() for value in values]
        total = sum(fmean(self._seconds.get(_kind(cell), seconds)) for cell in left)
        return f"; {len(left)} cells wait, about {total / self.jobs / 60:.0f} minutes" if left else ""

    def _say(self, text: str) -> None:
        if not self.quiet:
            self._bar.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def _stop_all(self) -> None:
        """Ask every cell to save a checkpoint and end, and wait for it."""
        for one in self._running:
            if one.process.pid is not None and one.process.is_alive():
                os.kill(one.process.pid, signal.SIGTERM)
        until = time.monotonic() + GRACE
        for one in self._running:
            one.process.join(max(0.0, until - time.monotonic()))
            if one.process.is_alive():
                one.process.kill()
                one.process.join()


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """What is started within it never sees Ctrl-C, which a terminal sends to all: the runner asks cells to stop.

    A cell that is asked twice stops at once, without a checkpoint.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _kind(cell: Cell) -> tuple[str, str]:
    return cell.case.data.label, cell.case.group.label if cell.case.group else ""


def _headline(result: dict[str, Any]) -> str:
    """The metric that chose the epoch, on test, under the first protocol."""
    protocol, metrics = next(iter(result["metrics"].items()))
    k = result["config"]["k"]
    names = [f"ndcg@{k}", "mrr"]
    name = next((one for one in names if one in metrics), next(iter(metrics)))
    return f"{name} {metrics[name]:.4f} ({protocol})"


def status(plan: Plan, out: str | Path, storage: str | None = None) -> list[tuple[Cell, str]]:
    """Every cell of the plan with its state: done, failed, running, waiting, or no data."""
    ledger = open_ledger(BenchFolder.open(out), storage)
    done, failed, running = ledger.results(), ledger.failures(), ledger.running()

    def state(cell: Cell) -> str:
        for name, keys in (("done", done), ("running", running), ("failed", failed)):
            if cell.key in keys:
                return name
        return "waiting" if cell.absent is None else "no data"

    return [(cell, state(cell)) for cell in cells(plan)]
