"""What a study's database says, checked before anything is made of it. A database is a file, and may be damaged.

Every number that decides what is tried next, or which trial is the best, is there twice or has a checksum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from topshelf.errors import CheckpointError, ConfigError
from topshelf.tuning import search, tickets
from topshelf.tuning.folder import FORMAT, StudyFolder
from topshelf.tuning.parts import Parts
from topshelf.tuning.ranges import Space
from topshelf.tuning.runner import Result
from topshelf.tuning.seals import SEAL, is_whole, sealed
from topshelf.tuning.tickets import ATTEMPT, BUDGET, FAILURES, NOTE, TICKET, WORKER, WORKERS

RESULT, SETTINGS, DATA, VERSION, STUDY = "result", "settings", "data", "format", "study"
_OF_TICKET = (TICKET, ATTEMPT, FAILURES, search.ASKED, SEAL)
_OF_TRIAL = {*_OF_TICKET, WORKER, SETTINGS, RESULT, NOTE}
_EXTRA = (TICKET, ATTEMPT, SETTINGS, SEAL)  # what a result has besides: whose it is
# What Optuna and SQLAlchemy raise over values that they did not write.
_BROKEN = (AssertionError, LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
_DONE = (TrialState.COMPLETE, TrialState.PRUNED)


def begin(study: Study, parts: Parts, identity: str | None) -> None:
    """Name the data and the version; ``identity`` is the id of a folder whose own database this is."""
    if not study.get_trials(deepcopy=False) and VERSION not in study.user_attrs:
        study.set_user_attr(VERSION, FORMAT)
    if identity is not None:
        study.set_user_attr(STUDY, identity)
    check_data(study, parts)


def check_data(study: Study, parts: Parts) -> None:
    """The study's data must be these; a new one's are from now on."""
    mine, known = parts.fingerprint, study.user_attrs.get(DATA)
    if known is None:
        study.set_user_attr(DATA, mine)
    elif known != mine:
        raise ConfigError(
            "the study was begun on other data: the train and validation parts are not the same now. Begin another "
            "study with another --out"
        )


def check_study(study: Study, space: Space, folder: StudyFolder | None, place: str) -> None:
    """Refuse a study that is not the folder's, or whose trials are damaged; ``place`` is its storage, for people."""
    try:
        wrong = _wrong_study(study, folder) or _wrong_trials(study, space)
    except SQLAlchemyError:
        raise
    except _BROKEN as error:
        wrong = f"{type(error).__name__}: {error}"
    if wrong:
        raise CheckpointError(
            f"{place} is damaged, or of another study: {wrong}. Restore it from a copy, or begin another study with "
            "another --out"
        )


def result_of(trial: FrozenTrial) -> Result | None:
    """What a trial came to, if it came to anything."""
    found = {name: value for name, value in trial.user_attrs.get(RESULT, {}).items() if name not in _EXTRA}
    if not found:
        return None
    return Result(**{**found, "history": {int(epoch): score for epoch, score in found["history"].items()}})


def result_attribute(result: dict[str, Any], trial: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """A result as it is kept: with the trial it is of, and a checksum."""
    history = {str(epoch): score for epoch, score in result["history"].items()}
    whose = {TICKET: trial[TICKET], ATTEMPT: trial[ATTEMPT], SETTINGS: settings}
    return sealed({**result, "history": history, **whose})


def _wrong_study(study: Study, folder: StudyFolder | None) -> str | None:
    attributes = study.user_attrs
    if study.direction != StudyDirection.MAXIMIZE:
        return "its direction is not to maximize"
    for name, value in attributes.items():
        if name.startswith(WORKERS) and not tickets.is_worker(value):
            return f"{name!r} is {value!r}"
    content = None if folder is None else folder.content()
    if content is not None and content["format"] == FORMAT:
        if content["storage"] is None and attributes.get(STUDY) != content["study"]:
            return f"its id is {attributes.get(STUDY)!r}, and that of the folder {content['study']!r}"
        if DATA not in attributes or tickets.budget(study) < content["trials"]:
            return f"its budget is {tickets.budget(study)} trials, and that of the folder {content['trials']}"
    if attributes.get(VERSION) != FORMAT:
        return None if content is None or content["format"] == 1 or content["storage"] else "its format is missing"
    unknown = [name for name in attributes if name not in (DATA, BUDGET, VERSION, STUDY, *_workers(attributes))]
    if unknown or (BUDGET in attributes and not is_whole(attributes[BUDGET])):
        return f"its attribute {unknown[0] if unknown else BUDGET!r} does not match its checksum"
    return None


def _workers(attributes: dict[str, Any]) -> list[str]:
    return [name for name in attributes if name.startswith(WORKERS)]


def _wrong_trials(study: Study, space: Space) -> str | None:
    trials, budget = study.get_trials(deepcopy=False), tickets.budget(study)
    if [trial.number for trial in trials] != list(range(len(trials))):
        return "its trials are not numbered one by one"
    has_seals = study.user_attrs.get(VERSION) == FORMAT
    for trial in trials:
        checks = [_wrong_ticket(trial, budget, has_seals), _wrong_values(trial, space, has_seals)]
        if wrong := next((found for found in checks if found), None):
            return f"trial {trial.number} {wrong}"
    return None


def _wrong_ticket(trial: FrozenTrial, budget: int, has_seals: bool) -> str | None:
    known = trial.user_attrs
    if TICKET not in known:  # Optuna makes one when two processes take the last ticket, and it is failed at once
        return "has no ticket" if trial.state in (*_DONE, TrialState.WAITING) else None
    numbers = known[TICKET], known[ATTEMPT], known.get(FAILURES, 0)
    if not all(isinstance(number, int) and number >= 0 for number in numbers) or not (
        isinstance(known[search.ASKED], dict) and known[TICKET] < max(budget, 1)
    ):
        return f"has ticket {known[TICKET]!r}, attempt {known[ATTEMPT]!r}, with a budget of {budget}"
    if WORKER in known and not tickets.is_worker(known[WORKER]):
        return f"has a worker {known[WORKER]!r}"
    if not has_seals:
        return None
    if not set(known) <= _OF_TRIAL or not is_whole({name: known[name] for name in _OF_TICKET if name in known}):
        return "does not match its checksum"
    return "was given another point" if trial.system_attrs.get("fixed_params") != known[search.ASKED] else None


def _wrong_values(trial: FrozenTrial, space: Space, has_seals: bool) -> str | None:
    settings, result = trial.user_attrs.get(SETTINGS), result_of(trial)
    if settings is not None and (
        set(settings) != set(space.ranges) or not all(settings[name] in space.ranges[name] for name in settings)
    ):
        return f"has settings outside the ranges: {settings!r}"
    if result is None:
        return "has no result" if trial.state in _DONE else None
    if settings is None or not _are_numbers((result.score, result.seconds, *result.history.values())):
        return "has no numbers as its result"
    if has_seals and not _is_its_own(trial):
        return "does not match the checksum of its result"
    if trial.state == TrialState.COMPLETE and trial.value != result.score:
        return f"has a score of {trial.value!r} and of {result.score!r}"
    return "has parameters that are not its settings" if trial.params != search.parameters(space, settings) else None


def _is_its_own(trial: FrozenTrial) -> bool:
    """Whether a result is whole, of this trial and its settings, and agrees with what was told while it trained."""
    kept, known = trial.user_attrs[RESULT], trial.user_attrs
    history = {int(epoch): score for epoch, score in kept["history"].items()}
    told = {step: max(score for epoch, score in history.items() if epoch <= step) for step in trial.intermediate_values}
    whose = [kept[name] == known[name] for name in (TICKET, ATTEMPT, SETTINGS)]
    return is_whole(kept) and all(whose) and told == trial.intermediate_values


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
