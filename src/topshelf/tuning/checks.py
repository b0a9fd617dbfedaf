"""Checks of a study's database before anything is made of it. It is a file, and may be damaged.

Every number that decides what is tried next, or which trial is the best, is stored twice or has a checksum.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from topshelf.errors import CheckpointError, ConfigError
from topshelf.tuning import attributes as key
from topshelf.tuning import queue, search
from topshelf.tuning.attributes import is_intact, sealed
from topshelf.tuning.folder import FORMAT, StudyFolder
from topshelf.tuning.ranges import Space
from topshelf.tuning.runner import Parts, Result

_QUEUED = (key.SLOT, key.ATTEMPT, key.FAILURES, key.ASKED, key.CHECKSUM)
_OF_TRIAL = {*_QUEUED, key.WORKER, key.SETTINGS, key.RESULT, key.NOTE}
_OWNER = (key.SLOT, key.ATTEMPT, key.SETTINGS)  # stored with a result: the trial it belongs to
# What Optuna and SQLAlchemy raise when they read values that they did not write.
_UNREADABLE = (AssertionError, LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
_ENDED = (TrialState.COMPLETE, TrialState.PRUNED)


def begin(study: Study, parts: Parts, identity: str | None) -> None:
    """Store the format and the data; ``identity`` is the id of the folder that owns the database, if one does."""
    if not study.get_trials(deepcopy=False) and key.VERSION not in study.user_attrs:
        study.set_user_attr(key.VERSION, FORMAT)
    if identity is not None:
        study.set_user_attr(key.STUDY, identity)
    check_data(study, parts)


def check_data(study: Study, parts: Parts) -> None:
    """The study's data must be ``parts``; a new study stores them."""
    stored = study.user_attrs.get(key.DATA)
    if stored is None:
        study.set_user_attr(key.DATA, parts.fingerprint)
    elif stored != parts.fingerprint:
        raise ConfigError(
            "the study was begun on other data: the train and validation parts are not the same now. Begin another "
            "study with another --out"
        )


def check_study(study: Study, space: Space, folder: StudyFolder | None, place: str) -> None:
    """Refuse a study that is not the folder's, or whose trials are damaged; ``place`` names its storage."""
    try:
        fault = _study_fault(study, folder) or _trials_fault(study, space)
    except SQLAlchemyError:
        raise
    except _UNREADABLE as error:
        fault = f"{type(error).__name__}: {error}"
    if fault:
        raise CheckpointError(
            f"{place} is damaged, or of another study: {fault}. Restore it from a copy, or begin another study with "
            "another --out"
        )


def result_of(trial: FrozenTrial) -> Result | None:
    """The result of a trial that has one."""
    stored = trial.user_attrs.get(key.RESULT)
    if not stored:
        return None
    values = {name: value for name, value in stored.items() if name not in (*_OWNER, key.CHECKSUM)}
    return Result(**{**values, "history": _history(stored)})


def result_attribute(result: dict[str, Any], trial: dict[str, Any]) -> dict[str, Any]:
    """A result as it is stored: with the trial it belongs to, and a checksum."""
    history = {str(epoch): score for epoch, score in result["history"].items()}
    return sealed({**result, "history": history, **{name: trial[name] for name in _OWNER}})


def _history(stored: dict[str, Any]) -> dict[int, float]:
    return {int(epoch): score for epoch, score in stored["history"].items()}


def _study_fault(study: Study, folder: StudyFolder | None) -> str | None:
    attributes = study.user_attrs
    if study.direction != StudyDirection.MAXIMIZE:
        return "its direction is not to maximize"
    workers = {name: value for name, value in attributes.items() if name.startswith(key.WORKERS)}
    if wrong := [name for name, value in workers.items() if not queue.is_worker(value)]:
        return f"{wrong[0]!r} is {workers[wrong[0]]!r}"
    content = None if folder is None else folder.content()
    if content is not None and content["format"] == FORMAT:
        if content["storage"] is None and attributes.get(key.STUDY) != content["study"]:
            return f"its id is {attributes.get(key.STUDY)!r}, and that of the folder {content['study']!r}"
        if key.DATA not in attributes or queue.budget(study) < content["trials"]:
            return f"its budget is {queue.budget(study)} trials, and that of the folder {content['trials']}"
    if attributes.get(key.VERSION) != FORMAT:
        return None if content is None or content["format"] == 1 or content["storage"] else "its format is missing"
    unknown = attributes.keys() - {key.DATA, key.BUDGET, key.VERSION, key.STUDY, *workers}
    if unknown or (key.BUDGET in attributes and not is_intact(attributes[key.BUDGET])):
        return f"its attribute {min(unknown) if unknown else key.BUDGET!r} does not match its checksum"
    return None


def _trials_fault(study: Study, space: Space) -> str | None:
    trials, budget = study.get_trials(deepcopy=False), queue.budget(study)
    if [trial.number for trial in trials] != list(range(len(trials))):
        return "its trials are not numbered one by one"
    has_checksums = study.user_attrs.get(key.VERSION) == FORMAT
    for trial in trials:
        if fault := _slot_fault(trial, budget, has_checksums) or _values_fault(trial, space, has_checksums):
            return f"trial {trial.number} {fault}"
    return None


def _slot_fault(trial: FrozenTrial, budget: int, has_checksums: bool) -> str | None:
    known = trial.user_attrs
    if key.SLOT not in known:  # Optuna makes one when two processes take the last slot; it is failed at once
        return "has no slot" if trial.state in (*_ENDED, TrialState.WAITING) else None
    numbers = known[key.SLOT], known[key.ATTEMPT], known.get(key.FAILURES, 0)
    if not all(isinstance(number, int) and number >= 0 for number in numbers) or not (
        isinstance(known[key.ASKED], dict) and known[key.SLOT] < max(budget, 1)
    ):
        return f"has slot {known[key.SLOT]!r}, attempt {known[key.ATTEMPT]!r}, with a budget of {budget}"
    if key.WORKER in known and not queue.is_worker(known[key.WORKER]):
        return f"has a worker {known[key.WORKER]!r}"
    if not has_checksums:
        return None
    if not set(known) <= _OF_TRIAL or not is_intact({name: known[name] for name in _QUEUED if name in known}):
        return "does not match its checksum"
    return "was given another point" if trial.system_attrs.get("fixed_params") != known[key.ASKED] else None


def _values_fault(trial: FrozenTrial, space: Space, has_checksums: bool) -> str | None:
    settings, result = trial.user_attrs.get(key.SETTINGS), result_of(trial)
    if settings is not None and (
        set(settings) != set(space.ranges) or not all(settings[name] in space.ranges[name] for name in settings)
    ):
        return f"has settings outside the ranges: {settings!r}"
    if result is None:
        return "has no result" if trial.state in _ENDED else None
    if settings is None or not _are_numbers((result.score, result.seconds, *result.history.values())):
        return "has no numbers as its result"
    if has_checksums and not _owns_result(trial):
        return "does not match the checksum of its result"
    if trial.state == TrialState.COMPLETE and trial.value != result.score:
        return f"has a score of {trial.value!r} and of {result.score!r}"
    return "has parameters that are not its settings" if trial.params != search.parameters(space, settings) else None


def _owns_result(trial: FrozenTrial) -> bool:
    """Whether a result is intact, belongs to this trial and its settings, and agrees with the reports at the rungs."""
    stored, known, reports = trial.user_attrs[key.RESULT], trial.user_attrs, trial.intermediate_values
    history = _history(stored)
    best = {rung: max(score for epoch, score in history.items() if epoch <= rung) for rung in reports}
    return is_intact(stored) and all(stored[name] == known[name] for name in _OWNER) and best == reports


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
