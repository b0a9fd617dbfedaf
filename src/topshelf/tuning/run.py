"""Tuning from beginning to end, for Python and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from topshelf.config import RunConfig
from topshelf.data import Dataset
from topshelf.errors import ConfigError, TrainingError, at_least, positive
from topshelf.training import StoppedEarly
from topshelf.tuning import search
from topshelf.tuning.files import write
from topshelf.tuning.folder import Definition, StudyFolder
from topshelf.tuning.outcome import Tuned
from topshelf.tuning.parts import Parts, load_parts
from topshelf.tuning.ranges import space
from topshelf.tuning.runner import Runner
from topshelf.tuning.storage import check_url, folder_url, has_password, open_study, opened, shown
from topshelf.tuning.study import Work


def tune(
    config: RunConfig,
    dataset: Dataset | None = None,
    *,
    trials: int | None = None,
    sampler: str = "tpe",
    ranges: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    out: str | Path | None = None,
    storage: str | None = None,
    quiet: bool = True,
) -> Tuned:
    """Search the settings of a config's model and loss for the best validation NDCG@K; the test part is never read.

    The first trial is the config itself. ``ranges`` go before those that the loss and the model bring (see
    :func:`topshelf.tuning.ranges.space`). The budget is ``trials`` (30, or what the study has), of all processes
    together; no trial begins ``timeout`` seconds after this call. With ``out`` the study is kept in a folder; the same
    call again goes on with it, beside other processes if need be. ``storage`` is a database url, by default SQLite in
    that folder.
    """
    definition = Definition(space(config, ranges), sampler)
    folder = StudyFolder(out) if out is not None else None
    if storage is not None:
        check_url(storage)
    if folder is not None:
        folder.check(definition)
    if dataset is not None:
        parts = Parts.of(dataset)
    elif folder is not None and folder.exists and folder.parts.exists():
        parts = Parts.load(folder.parts)
    else:
        parts = load_parts(config)
    return _work(definition, parts, folder, storage, trials=trials, timeout=timeout, quiet=quiet)


def resume(
    out: str | Path,
    *,
    trials: int | None = None,
    timeout: float | None = None,
    storage: str | None = None,
    quiet: bool = True,
) -> Tuned:
    """Go on with the study in a folder, beside other processes if need be; ``trials`` raises its budget."""
    folder = StudyFolder(out)
    definition, parts = folder.load(), Parts.load(folder.parts)
    return _work(definition, parts, folder, storage, trials=trials, timeout=timeout, quiet=quiet)


def _work(
    definition: Definition,
    parts: Parts,
    folder: StudyFolder | None,
    storage: str | None,
    *,
    trials: int | None,
    timeout: float | None,
    quiet: bool,
) -> Tuned:
    if trials is not None:
        at_least("trials", trials, 1)
    if timeout is not None:
        positive("timeout", timeout)
    config = definition.config
    runner = Runner(parts, config.train.device)
    runner.check(definition.space.config(definition.space.default))
    url = _url(folder, storage)
    new = folder if folder is not None and not (folder.exists and folder.parts.exists()) else None
    if new is not None and storage is None:
        new.create(definition, parts, None)
    sampler = search.NumberedTPE(definition.space, config.seed)
    with opened(url) as kept:
        if new is not None and storage is not None:  # only now: the storage can be reached
            new.create(definition, parts, shown(url or storage))
        sampler.study = study = open_study(kept, definition.name, sampler, search.pruner(config.train))
        work = Work(definition, study, runner, folder, trials=trials, timeout=timeout, quiet=quiet)
        try:
            work.run()
        except StoppedEarly:
            _keep(work.outcome(), folder)
            raise
        outcome = work.outcome()
        _keep(outcome, folder)
    _check_found(outcome)
    return outcome


def _keep(outcome: Tuned, folder: StudyFolder | None) -> None:
    if folder is not None:
        write(outcome, folder)


def _check_found(outcome: Tuned) -> None:
    if outcome.best is None and not outcome.budget.spent["running"] and outcome.rows:
        row = outcome.rows[0]
        raise TrainingError(f"no trial was completed; trial {row.number}: {row.note or row.state}")


def _url(folder: StudyFolder | None, given: str | None) -> str | None:
    """The storage to use: the one given, the one the study began with, its folder's database, or memory."""
    known = folder.storage() if folder is not None and folder.exists else None
    if given is not None:
        url = check_url(given)
        if folder is not None and folder.exists and shown(url) != (known or folder_url(folder.database)):
            raise ConfigError(
                f"--storage must be where the study in {folder.path} is kept, {known or folder.database}, got "
                f"{shown(url)}; leave it out, or begin another study with another --out"
            )
        return url
    if folder is None:
        return None
    if known is None:
        return folder_url(folder.database)
    if has_password(known):
        raise ConfigError(f"the study is kept in {known}, whose password is not; give --storage again")
    return known
