"""One cell in a process of its own: claim it, train or resume it, measure it, write the result."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import polars as pl
from filelock import FileLock

from topshelf.bench.cells import Cell, cell_key, data_digest, version
from topshelf.bench.folder import BenchFolder, Ledger
from topshelf.config import BaseConfig, class_names
from topshelf.diagnose import Diagnosis, diagnose
from topshelf.diagnose.stored import stored
from topshelf.errors import TopshelfWarning
from topshelf.evaluation import Evaluation
from topshelf.training import StoppedEarly, fit
from topshelf.training import resume as resume_run
from topshelf.training.folder import RunFolder, environment
from topshelf.training.run import Fitted
from topshelf.training.tasks import InteractionsTask

ACTIVITY = "train items"  # the column of the values per user that has how active each is
GRACE = 120.0  # seconds that a cell over its time has to save a checkpoint


@dataclass(frozen=True)
class Job:
    """What a process needs to run a cell; it is given to another process."""

    cell: Cell
    path: Path
    storage: str | None = None
    threads: int = 1


# How a cell's process ends, and with which exit code.
ENDS = {"done": 0, "failed": 3, "stopped": 4, "taken": 5}


def main(job: Job) -> None:
    """The whole life of a cell's process."""
    import torch

    torch.set_num_threads(job.threads)
    try:
        end = work(job)
    except KeyboardInterrupt:
        end = "stopped"
    sys.exit(ENDS[end])


def work(job: Job) -> str:
    """Run a cell: "done", "failed", "stopped", or "taken" if another process has it or has finished it."""
    folder = BenchFolder(job.path)
    ledger = open_ledger(folder, job.storage)
    with ledger.claim(job.cell.key) as is_ours:
        return _attempt(job.cell, folder, ledger) if is_ours else "taken"


def open_ledger(folder: BenchFolder, storage: str | None) -> Ledger:
    """The ledger in the folder, or in a database."""
    if storage is None:
        return folder
    from topshelf.bench.database import DatabaseLedger  # SQLAlchemy comes with the extra "tune"

    return DatabaseLedger(storage)


def _attempt(cell: Cell, folder: BenchFolder, ledger: Ledger) -> str:
    limit = cell.minutes * 60
    try:
        with _stopping(), _time_limit(limit) as is_over, warnings.catch_warnings():
            warnings.simplefilter("ignore", TopshelfWarning)  # each would be said once per cell
            config, tuned = _config(cell, folder)
            fitted = _fitted(cell, folder, config)
            result, per_user = _measured(cell, fitted, _epochs(folder.cell(cell.key)))
            result |= tuned | _diagnosed(cell, fitted)
    except StoppedEarly:
        if not is_over():
            return "stopped"
        ledger.fail(cell.key, failure(late(cell)))
        return "failed"
    except Exception as error:  # noqa: BLE001  a class of the user's own may raise anything
        ledger.fail(cell.key, failure(f"{type(error).__name__}: {error}"))
        return "failed"
    ledger.finish(cell.key, result, per_user)
    RunFolder(folder.cell(cell.key)).checkpoint.unlink(missing_ok=True)  # half of the folder, and of no more use
    return "done"


def late(cell: Cell) -> str:
    """Why a cell that needed too much time has no result."""
    return f"not finished in {cell.minutes:g} minutes; give it more: --minutes N --retry"


def _fitted(cell: Cell, folder: BenchFolder, config: BaseConfig) -> Fitted:
    out = folder.cell(cell.key)
    if RunFolder(out).config.exists():
        packages = {name.partition(":")[0].partition(".")[0] for name in class_names(config).values() if ":" in name}
        return resume_run(out, allow=packages - {"topshelf"})
    return fit(config, out=out)


def _config(cell: Cell, folder: BenchFolder) -> tuple[BaseConfig, dict[str, Any]]:
    """The config of the run, and what a search chose: the cell's own, or the winner, which its seeds share."""
    if not cell.trials:
        return cell.config, {}
    from topshelf.tuning import tune  # Optuna comes with the extra "tune"
    from topshelf.tuning.ranges import default_ranges

    base = cell.config.model_copy(update={"seed": cell.tune_seed})
    key = cell_key(base, data_digest(base), (cell.trials, cell.ranges))
    ranges: dict[str, Any] = dict(default_ranges(base))
    if cell.ranges:
        ranges = {**dict.fromkeys(ranges), **{name: list(values) for name, values in cell.ranges}}
    if not ranges:  # a model without settings
        return cell.config, {}
    with FileLock(folder.path / "studies" / f"{key}.lock"):  # a winner is one when the last trial has ended
        study = tune(base, trials=cell.trials, ranges=ranges, out=folder.study(key))
    assert study.config is not None
    assert study.best is not None
    tuned = {"chosen": study.best.settings, "chosen_score": study.best.score}
    return study.config.model_copy(update={"seed": cell.seed}), tuned


def _epochs(run: Path) -> list[dict[str, Any]]:
    """The log of a run, an entry per epoch, those of a refit included; empty for a closed form."""
    log = RunFolder(run).log
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []


def _measured(cell: Cell, fitted: Fitted, log: list[dict[str, Any]]) -> tuple[dict[str, Any], pl.DataFrame]:
    """What is reported: means under every protocol, and the values per user that tests need."""
    evaluations = {one.protocol: one for one in (fitted.evaluate(name) for name in cell.protocols or (None,))}
    machine, summary = environment(), fitted.summary()
    del machine["command"]  # it may hold paths
    result = {
        "metrics": {protocol: one.to_json(n_resamples=1)["mean"] for protocol, one in evaluations.items()},
        "fingerprints": {protocol: one.fingerprint for protocol, one in evaluations.items()},
        "units": next(iter(evaluations.values())).units,
        "valid": summary["valid"],
        "valid_score": fitted.valid_score,
        "best_epoch": fitted.best_epoch,
        "epochs": len(log),
        "curve": _curve(log, fitted.task.metric(fitted.config)),
        "seconds": round(fitted.seconds, 3),
        "peak_mib": summary["peak_mib"],
        "config": fitted.config.model_dump(mode="json"),
        "version": version(),
        "environment": machine,
        "date": datetime.now(UTC).date().isoformat(),
    }
    return result, with_activity(measured_users(evaluations), fitted)


def _diagnosed(cell: Cell, fitted: Fitted) -> dict[str, Any]:
    """The diagnosis of the run, where the plan asks for one."""
    if cell.diagnose is None:
        return {}
    found = diagnose(fitted, **cell.diagnose.model_dump())
    assert isinstance(found, Diagnosis)  # of interactions
    return {"diagnosis": stored(replace(found, target=cell.case.name))}


def _curve(log: list[dict[str, Any]], metric: str) -> list[list[float]]:
    """Epoch, seconds so far and validation score of every validation before a refit."""
    return [[one["epoch"], one["seconds"], one[metric]] for one in log if metric in one and one["phase"] == "train"]


def with_activity(users: pl.DataFrame, fitted: Fitted) -> pl.DataFrame:
    """The values per user with how many items each has in train, where users have any."""
    if not isinstance(fitted.task, InteractionsTask):
        return users
    counts = fitted.task.split.lists("train").counts.numpy().astype(np.float32)
    return users.with_columns(pl.Series(ACTIVITY, counts[: len(users)]))


def measured_users(evaluations: dict[str, Evaluation]) -> pl.DataFrame:
    """The values per user, a column per protocol and metric; NaN where a user was not measured."""
    size = max(int(one.users.max()) + 1 if one.users.numel() else 0 for one in evaluations.values())
    columns = {}
    for protocol, one in evaluations.items():
        for name, values in one.per_user.items():
            column = np.full(size, np.nan, dtype=np.float32)
            column[one.users.numpy()] = values.numpy()
            columns[f"{protocol}/{name}"] = column
    return pl.DataFrame(columns)


def failure(reason: str) -> dict[str, Any]:
    return {"reason": reason, "date": datetime.now(UTC).date().isoformat(), "version": version()}


@contextmanager
def _stopping() -> Iterator[None]:
    """Stop at once when asked to where no training is: while data are read, a model is fitted whole, or measured."""

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise StoppedEarly("asked to stop")

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _time_limit(seconds: float) -> Iterator[Any]:
    """Ask this process to stop when the time is over, or when the process that started it is gone."""
    parent, over, ended = os.getppid(), threading.Event(), threading.Event()
    deadline = time.monotonic() + seconds

    def watch() -> None:
        while not ended.wait(1.0):
            if time.monotonic() > deadline:
                over.set()
            if over.is_set() or os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield over.is_set
    finally:
        ended.set()
