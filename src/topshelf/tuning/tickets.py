"""The budget as a queue of tickets in the study's storage, shared by every process that works on it.

A study of 30 trials has 30 tickets. A process takes the next waiting one, which the storage grants to one process
alone, so the budget is kept whoever works on it. A trial whose process died is marked failed, and its ticket is queued
again with the same point. Two processes that queue at the same moment may queue a ticket twice: the later of the two is
a surplus, and is dropped when its turn comes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from topshelf import files
from topshelf.errors import ConfigError
from topshelf.tuning import search
from topshelf.tuning.folder import Definition
from topshelf.tuning.ranges import Space
from topshelf.tuning.seals import SEAL, sealed

TRIALS = 30  # the budget, unless somebody says otherwise
BUDGET, WORKERS = "trials", "worker "  # attributes of a study; the latter is followed by a process
TICKET = search.TICKET
ATTEMPT, FAILURES, WORKER, NOTE = "attempt", "failures", "worker", "note"
HEARTBEAT = 30  # seconds between two signs of life of a running trial
GRACE = 120  # seconds without one until another machine's trial counts as dead
MOST_FAILURES = 3  # a point that takes its process down three times is not tried again


def queue(study: Study, definition: Definition, wanted: int | None) -> int:
    """Queue what is missing from the budget; how many trials it has. ``wanted`` may raise it."""
    queued = {trial.user_attrs.get(TICKET) for trial in study.get_trials(deepcopy=False)} - {None}
    known = max(len(queued), budget(study))
    trials = wanted if wanted is not None else known or TRIALS
    total = int(min(trials, definition.space.size))
    if total < known:
        raise ConfigError(f"the study has {known} trials already; trials must be >= {known}, got {trials}")
    if total != budget(study):  # kept before the trials are queued: a process may be killed in between
        study.set_user_attr(BUDGET, sealed({BUDGET: total}))
    is_grid, seed = is_exhaustive(definition, trials), definition.config.seed
    top_up(study, definition.space, total, is_grid=is_grid, seed=seed)
    for trial in _forgotten(study):
        queue_again(study, trial)
    return total


def budget(study: Study) -> int:
    """How many trials a study is to have; 0 if nobody has said so."""
    found = study.user_attrs.get(BUDGET, 0)
    return int(found[BUDGET] if isinstance(found, dict) else found)  # a plain number: of an earlier version


def is_exhaustive(definition: Definition, trials: int) -> bool:
    """A grid; also where the budget is enough for every point."""
    return definition.sampler == "grid" or definition.space.size <= trials


def top_up(study: Study, space: Space, trials: int, *, is_grid: bool, seed: int) -> None:
    """Queue the tickets that are missing from a budget of ``trials``; the first is the defaults'."""
    known = [trial for trial in study.get_trials(deepcopy=False) if TICKET in trial.user_attrs]
    missing = sorted(set(range(trials)) - {trial.user_attrs[TICKET] for trial in known})
    if not missing:
        return
    tried = [asked for trial in known if (asked := trial.user_attrs.get(search.ASKED) or trial.params)]
    points = (search.parameters(space, point) for point in space.grid(seed)) if is_grid else iter(())
    untried = (point for point in points if point not in tried)
    for ticket in missing:
        if ticket == 0:
            point = search.parameters(space, space.default)
            tried.append(point)
        elif not is_grid:
            point = {}
        elif (following := next(untried, None)) is None:
            return
        else:
            point = following
        _enqueue(study, {TICKET: ticket, ATTEMPT: 1, search.ASKED: point})


def queue_again(study: Study, trial: FrozenTrial, *, failed: bool = True) -> None:
    """Another ticket for the point of a trial that was interrupted, unless too many processes failed at it.

    ``failed`` is False where somebody stopped the process, which says nothing of the point.
    """
    known = trial.user_attrs
    failures = known.get(FAILURES, 0) + failed
    if TICKET in known and NOTE not in known and failures < MOST_FAILURES:
        point = trial.params or known[search.ASKED]
        again = {TICKET: known[TICKET], ATTEMPT: known[ATTEMPT] + 1, FAILURES: failures, search.ASKED: point}
        _enqueue(study, again)


def is_surplus(study: Study, number: int, attributes: dict[str, Any]) -> bool:
    """Whether a trial holds no ticket, or one that an earlier trial holds."""
    mine = _key(attributes)
    earlier = (trial for trial in study.get_trials(deepcopy=False) if trial.number < number)
    return mine is None or any(_key(trial.user_attrs) == mine for trial in earlier)


def counted(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """The trials without surplus ones."""
    first: dict[tuple[int, int], FrozenTrial] = {}
    for trial in trials:
        if (key := _key(trial.user_attrs)) is not None:
            first.setdefault(key, trial)
    return list(first.values())


def release_dead(study: Study) -> list[int]:
    """Fail the trials of processes that are gone from this machine and queue them again; their numbers.

    Those of other machines are found by their heartbeats, which Optuna looks at before each trial.
    """
    found = []
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if _is_dead(study, trial):
            now = study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
            if now.state == TrialState.FAIL:  # or it ended, and its process too, since it was looked at
                queue_again(study, trial)
                found.append(trial.number)
    return found


def this_worker() -> dict[str, Any]:
    """Who runs a trial: enough to see, on the same machine, whether it still runs."""
    return dict(zip(("machine", "pid", "started"), files.this_process(), strict=True))


def register(study: Study) -> None:
    """Name this process as one that works on the study, before it takes its first trial.

    A trial belongs to nobody for a moment, after a process has taken it and before it has signed it. If that process
    is killed just then, this list tells that nobody who is alive can have it.
    """
    worker = this_worker()
    study.set_user_attr(f"{WORKERS}{worker['machine']}-{worker['pid']}-{worker['started']}", worker)


def is_worker(value: Any) -> bool:
    """Whether a value of a database names a process."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("machine"), str)
        and isinstance(value.get("pid"), int)
        and value["pid"] > 0
        and isinstance(value.get("started"), str | None)
    )


def _forgotten(study: Study) -> Iterator[FrozenTrial]:
    """Interrupted trials whose process was killed after it failed them and before it queued them again."""
    last: dict[int, FrozenTrial] = {}
    for trial in counted(study.get_trials(deepcopy=False)):
        ticket, attempt = trial.user_attrs[TICKET], trial.user_attrs[ATTEMPT]
        if ticket not in last or attempt > last[ticket].user_attrs[ATTEMPT]:
            last[ticket] = trial
    return (trial for trial in last.values() if trial.state == TrialState.FAIL)


def _enqueue(study: Study, attributes: dict[str, Any]) -> None:
    study.enqueue_trial(attributes[search.ASKED], user_attrs={**attributes, SEAL: sealed(attributes)[SEAL]})


def _is_dead(study: Study, trial: FrozenTrial) -> bool:
    worker = trial.user_attrs.get(WORKER)
    if worker is not None:
        return _is_running(worker) is False  # None: of another machine, whose heartbeats will tell
    others = [value for name, value in study.user_attrs.items() if name.startswith(WORKERS)]
    others = [value for value in others if value != this_worker()]
    if all(_is_running(value) is False for value in others):
        return True  # taken by a process that was killed before it signed
    begun = trial.datetime_start
    return begun is not None and datetime.now() - begun > timedelta(seconds=GRACE)


def _is_running(worker: dict[str, Any]) -> bool | None:
    machine = worker["machine"]
    if "/" in machine:  # an earlier version wrote the name itself
        machine = f"{zlib.crc32(machine.encode()):08x}"
    return files.is_running(machine, worker["pid"], worker["started"] or "")


def _key(attributes: dict[str, Any]) -> tuple[int, int] | None:
    return (attributes[TICKET], attributes[ATTEMPT]) if TICKET in attributes else None
