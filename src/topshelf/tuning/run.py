"""Tuning from beginning to end, for Python and the command line."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optuna.study import Study

from topshelf.config import RunConfig
from topshelf.data import Dataset
from topshelf.errors import ConfigError, TrainingError, at_least, positive
from topshelf.training import StoppedEarly
from topshelf.tuning import checks, search, tickets
from topshelf.tuning.folder import Definition, StudyFolder
from topshelf.tuning.outcome import Tuned
from topshelf.tuning.page import write
from topshelf.tuning.parts import Parts, load_parts
from topshelf.tuning.ranges import space
from topshelf.tuning.runner import Runner
from topshelf.tuning.storage import check_database, check_url, folder_url, open_study, opened, shown
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
    call again continues it, beside other processes if need be. ``storage`` is a database url, by default SQLite in
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
    elif folder is not None and folder.exists:
        parts = folder.load_parts()
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
    """Continue the study in a folder, beside other processes if need be; ``trials`` raises its budget.

    A study that is not kept in its folder needs its ``storage`` again.
    """
    folder = StudyFolder(out)
    definition, parts = folder.load(), folder.load_parts()
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
    runner, defaults = Runner(parts, config.train.device), definition.space.config(definition.space.default)
    url = _url(folder, storage)
    if folder is None or not folder.exists:
        runner.check(defaults)
        if folder is not None:
            _begin(folder, definition, parts, storage and url, trials)
    if folder is not None:
        check_database(url or "")
        folder.sweep()
    with _opened(url, definition, is_new=folder is None) as study:
        _check(study, definition, parts, folder, shown(url) if url else "the study")
        runner.check_sizes(defaults)
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


def _begin(folder: StudyFolder, definition: Definition, parts: Parts, storage: str | None, trials: int | None) -> None:
    """Make the folder with everything in it, its budget included. Another process may be faster: then it is theirs."""
    identity = secrets.token_hex(8)
    try:
        with folder.new() as fresh:
            with _opened(storage or folder_url(fresh.database), definition, is_new=True) as study:
                checks.begin(study, parts, None if storage else identity)
                total = tickets.queue(study, definition, trials)
            kept = shown(storage) if storage else None
            fresh.fill(definition, parts, study=identity, trials=total, storage=kept)
    except ConfigError:
        if not folder.exists:
            raise
        folder.check(definition)


@contextmanager
def _opened(url: str | None, definition: Definition, *, is_new: bool) -> Iterator[Study]:
    config = definition.config
    sampler = search.NumberedTPE(definition.space, config.seed)
    with opened(url) as kept:
        study = open_study(kept, definition.name, sampler, search.pruner(config.train), is_new=is_new)
        sampler.study = study
        yield study


def _check(study: Study, definition: Definition, parts: Parts, folder: StudyFolder | None, place: str) -> None:
    if folder is None:
        checks.begin(study, parts, None)
    checks.check_study(study, definition.space, folder, place)
    checks.check_data(study, parts)


def _keep(outcome: Tuned, folder: StudyFolder | None) -> None:
    if folder is not None:
        write(outcome, folder)


def _check_found(outcome: Tuned) -> None:
    if outcome.best is None and not outcome.budget.spent["running"] and outcome.rows:
        row = outcome.rows[0]
        raise TrainingError(f"no trial was completed; trial {row.number}: {row.note or row.state}")


def _url(folder: StudyFolder | None, given: str | None) -> str | None:
    """The storage to use: the one given, the folder's own database, or memory.

    A folder's file never decides what is connected to: a study that is kept elsewhere needs its storage again.
    """
    if folder is None:
        return None if given is None else check_url(given)
    own = folder_url(folder.database)
    known = folder.content()["storage"] if folder.exists else None
    if given is None:
        if known is not None:
            raise ConfigError(
                f"the study in {folder.path} is kept in {shown(known)}; give it again, with its password if it has "
                "one: --storage URL"
            )
        return own
    url = check_url(given)
    if folder.exists and shown(url) != (known or own):
        raise ConfigError(
            f"--storage must be where the study in {folder.path} is kept, {known or folder.database}, got "
            f"{shown(url)}; " + ("give that one" if known else "leave it out") + ", or begin another study with "
            "another --out"
        )
    return url
