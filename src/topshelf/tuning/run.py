"""Tuning from beginning to end, for Python and the command line."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from topshelf import files
from topshelf.config import BaseConfig
from topshelf.errors import ConfigError, TrainingError
from topshelf.training import StoppedEarly
from topshelf.tuning import checks, queue
from topshelf.tuning.folder import Definition, StudyFolder
from topshelf.tuning.outcome import Tuned
from topshelf.tuning.page import write
from topshelf.tuning.ranges import space
from topshelf.tuning.runner import Parts, Runner
from topshelf.tuning.storage import Limits, check_database, folder_url, open_study, shown
from topshelf.tuning.study import Worker


def tune(
    config: BaseConfig,
    dataset: Any = None,
    *,
    trials: int | None = None,
    sampler: str = "tpe",
    ranges: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    out: str | Path | None = None,
    storage: str | None = None,
    quiet: bool = True,
    page: bool = True,
) -> Tuned:
    """Search the settings of a config's model and loss for the best validation NDCG@K; the test part is never read.

    The first trial is the config itself. ``ranges`` override those of the loss and the model (see
    :func:`topshelf.tuning.ranges.space`). The budget is ``trials`` (default: 30, or the study's own), of all processes
    together; no trial begins more than ``timeout`` seconds after this call. With ``out`` the study is kept in a folder;
    the same call again continues it, also while other processes work on it. ``storage`` is a database url, by default
    SQLite in that folder. ``page``: whether the folder gets its page, which takes about a second.
    """
    limits = Limits(trials, timeout, storage, quiet, page)
    definition = Definition(space(config, ranges), sampler)
    folder = StudyFolder(out) if out is not None else None
    if folder is not None:
        folder.check(definition)
    if dataset is None and folder is not None and folder.exists:
        return _work(definition, folder.load_parts(config), folder, limits)
    return _work(definition, Parts.of(config, dataset), folder, limits)


def resume(
    out: str | Path,
    *,
    trials: int | None = None,
    timeout: float | None = None,
    storage: str | None = None,
    quiet: bool = True,
) -> Tuned:
    """Continue the study in a folder, also while other processes work on it; ``trials`` raises its budget.

    A study that is not kept in its folder needs its ``storage`` again.
    """
    limits, folder = Limits(trials, timeout, storage, quiet), StudyFolder(out)
    definition = folder.load()
    return _work(definition, folder.load_parts(definition.config), folder, limits)


def _work(definition: Definition, parts: Parts, folder: StudyFolder | None, limits: Limits) -> Tuned:
    runner, defaults = Runner(parts, definition.config.train.device), definition.space.config(definition.space.default)
    url = _url(folder, limits.storage)
    if folder is None or not folder.exists:
        runner.check(defaults)
    if folder is not None:
        if not folder.exists:
            _begin(folder, definition, parts, limits)
        check_database(url or "")
        folder.sweep()
    with open_study(url, definition, is_new=folder is None) as study:
        if folder is None:
            checks.begin(study, parts, None)
        checks.check_study(study, definition.space, folder, shown(url) if url else "the study")
        checks.check_data(study, parts)
        runner.check_sizes(defaults)
        outcome = _run(Worker(definition, study, runner, folder, limits), folder if limits.page else None)
    if outcome.best is None and not outcome.budget.spent["running"] and outcome.rows:
        row = outcome.rows[0]
        raise TrainingError(f"no trial was completed; trial {row.number}: {row.note or row.state}")
    return outcome


def _run(worker: Worker, folder: StudyFolder | None) -> Tuned:
    """Run the worker and write the outcome, also if the user asks to stop."""
    stopped: StoppedEarly | None = None
    try:
        worker.run()
    except StoppedEarly as error:
        stopped = error
    outcome = worker.outcome()
    if folder is not None:
        write(outcome, folder)
    if stopped is not None:
        raise stopped
    return outcome


def _begin(folder: StudyFolder, definition: Definition, parts: Parts, limits: Limits) -> None:
    """Make the folder with everything in it, the budget included. If another process was faster, join its study."""
    identity, storage = secrets.token_hex(8), limits.storage
    try:
        with files.new_folder(folder.path) as path:
            fresh = StudyFolder(path)
            with open_study(storage or folder_url(fresh.database), definition, is_new=True) as study:
                checks.begin(study, parts, None if storage else identity)
                total = queue.fill(study, definition, limits.trials)
            fresh.fill(definition, parts, study=identity, trials=total, storage=shown(storage) if storage else None)
    except ConfigError:
        if not folder.exists:
            raise
        folder.check(definition)


def _url(folder: StudyFolder | None, url: str | None) -> str | None:
    """The storage to use: the given one, the folder's own database, or None for memory.

    A folder never decides what is connected to: a study that is kept elsewhere needs its storage again.
    """
    if folder is None:
        return url
    own = folder_url(folder.database)
    elsewhere = folder.content()["storage"] if folder.exists else None
    if url is None:
        if elsewhere is not None:
            raise ConfigError(
                f"the study in {folder.path} is kept in {shown(elsewhere)}; give it again, with its password if it has "
                "one: --storage URL"
            )
        return own
    if folder.exists and shown(url) != (elsewhere or own):
        raise ConfigError(
            f"--storage must be where the study in {folder.path} is kept, {elsewhere or folder.database}, got "
            f"{shown(url)}; " + ("give that one" if elsewhere else "leave it out") + ", or begin another study with "
            "another --out"
        )
    return url
