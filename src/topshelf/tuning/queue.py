"""The queue of a study's trials, kept in its storage and shared by every process that works on it.

A budget of 30 trials has 30 slots. Each slot waits as a trial; the storage gives a waiting trial to one process only,
so the budget is exact for any number of processes. A trial whose process died is marked as failed, and its slot is
queued again with the same point and the next attempt number. If two processes queue the same attempt at the same time,
the later one is a duplicate, which is dropped when it is taken.

Optuna's callbacks do not hold this. ``MaxTrialsCallback`` counts after a trial has ended: two processes with a budget
of 6 ran 7 trials, and resuming a finished study ran another. ``RetryHeartbeatStaleTrialCallback`` waits for the grace
period even if the process is known to be gone, and loses the trial if the releasing process is killed between its two
transactions. Its heartbeats are used: they tell whether a process of another machine is alive.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import chain, repeat
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from topshelf import files
from topshelf.errors import ConfigError
from topshelf.tuning import search
from topshelf.tuning.attributes import ASKED, ATTEMPT, BUDGET, FAILURES, NOTE, SLOT, WORKER, WORKERS, sealed
from topshelf.tuning.folder import Definition, wrong_types

DEFAULT_BUDGET = 30
HEARTBEAT = 30  # seconds between the heartbeats of a running trial
GRACE = 120  # seconds without a heartbeat until a trial of another machine counts as dead
_WORKER: dict[str, Any] = {"machine": str, "pid": int, "started": (str, type(None))}
MAX_FAILURES = 3  # a point whose process died three times is not tried again


def fill(study: Study, definition: Definition, wanted: int | None) -> int:
    """Queue every slot that is missing, and return the budget. ``wanted`` may raise it."""
    trials = [trial for trial in study.get_trials(deepcopy=False) if SLOT in trial.user_attrs]
    known = max(len({trial.user_attrs[SLOT] for trial in trials}), budget(study))
    wanted = wanted or known or DEFAULT_BUDGET
    total = int(min(wanted, definition.space.size))
    if total < known:
        raise ConfigError(f"the study has {known} trials already; trials must be >= {known}, got {wanted}")
    if total != budget(study):  # stored before the slots: the process may be killed in between
        study.set_user_attr(BUDGET, sealed({BUDGET: total}))
    _add_missing(study, definition, trials, total)
    by_attempt = sorted(without_duplicates(trials), key=lambda trial: trial.user_attrs[ATTEMPT])
    for trial in {trial.user_attrs[SLOT]: trial for trial in by_attempt}.values():  # the last attempt of each slot
        if trial.state == TrialState.FAIL:  # its process was killed before it queued the slot again
            requeue(study, trial)
    return total


def budget(study: Study) -> int:
    """The number of slots; 0 if it is not stored yet."""
    stored = study.user_attrs.get(BUDGET, 0)
    return int(stored[BUDGET] if isinstance(stored, dict) else stored)  # a plain number in format 1


def is_exhaustive(definition: Definition, trials: int) -> bool:
    """Whether the points come from the grid: by choice, or because the budget covers every point."""
    return definition.sampler == "grid" or definition.space.size <= trials


def _add_missing(study: Study, definition: Definition, trials: list[FrozenTrial], total: int) -> None:
    missing = sorted(set(range(total)) - {trial.user_attrs[SLOT] for trial in trials})
    space = definition.space
    default = search.parameters(space, space.default)
    points: Iterator[dict[str, Any]] = repeat({})  # chosen by the sampler when the trial begins
    if is_exhaustive(definition, total):
        tried = [default, *(trial.user_attrs.get(ASKED) or trial.params for trial in trials)]
        grid = (search.parameters(space, point) for point in space.grid(definition.config.seed))
        points = (point for point in grid if point not in tried)
    for slot, point in zip(missing, chain([default] if 0 in missing else [], points), strict=False):
        _enqueue(study, {SLOT: slot, ATTEMPT: 1, ASKED: point})


def requeue(study: Study, trial: FrozenTrial, *, failed: bool = True) -> None:
    """Queue the slot of an interrupted trial again, unless its point failed too often.

    ``failed`` is False if the user stopped the process: that is not the point's fault.
    """
    known = trial.user_attrs
    failures = known.get(FAILURES, 0) + failed
    if SLOT in known and NOTE not in known and failures < MAX_FAILURES:
        point = trial.params or known[ASKED]
        _enqueue(study, {SLOT: known[SLOT], ATTEMPT: known[ATTEMPT] + 1, FAILURES: failures, ASKED: point})


def _enqueue(study: Study, attributes: dict[str, Any]) -> None:
    study.enqueue_trial(attributes[ASKED], user_attrs=sealed(attributes))


def without_duplicates(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """The trials that hold a slot, the first of each attempt only."""
    first: dict[tuple[int, int], FrozenTrial] = {}
    for trial in trials:
        if SLOT in trial.user_attrs:
            first.setdefault((trial.user_attrs[SLOT], trial.user_attrs[ATTEMPT]), trial)
    return list(first.values())


def release_dead(study: Study) -> list[int]:
    """Fail the trials of this machine's dead processes and queue their slots again; returns their numbers.

    Optuna releases those of other machines by their heartbeats, before each trial.
    """
    released = []
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if _is_dead(study, trial):
            ended = study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
            if ended.state == TrialState.FAIL:  # else it was completed just before its process ended
                requeue(study, trial)
                released.append(trial.number)
    return released


def this_worker() -> dict[str, Any]:
    """This process, so that others on the same machine can see whether it still runs."""
    return dict(zip(("machine", "pid", "started"), files.this_process(), strict=True))


def register(study: Study) -> None:
    """List this process as a worker of the study, before it takes a trial.

    A process takes a trial and signs it in two transactions. If it is killed in between, this list shows that no
    process that is alive can own the trial.
    """
    worker = this_worker()
    study.set_user_attr(f"{WORKERS}{worker['machine']}-{worker['pid']}-{worker['started']}", worker)


def is_worker(value: Any) -> bool:
    """Whether a stored value has the form of :func:`this_worker`."""
    return isinstance(value, dict) and not wrong_types(value, _WORKER) and bool(value["pid"] > 0)


def _is_dead(study: Study, trial: FrozenTrial) -> bool:
    worker = trial.user_attrs.get(WORKER)
    if worker is not None:
        return _is_running(worker) is False  # None: another machine's
    others = [value for name, value in study.user_attrs.items() if name.startswith(WORKERS) and value != this_worker()]
    if all(_is_running(other) is False for other in others):
        return True  # taken by a process that was killed before it signed
    begun = trial.datetime_start
    return begun is not None and datetime.now() - begun > timedelta(seconds=GRACE)


def _is_running(worker: dict[str, Any]) -> bool | None:
    machine = worker["machine"]
    if "/" in machine:  # earlier versions stored the name itself
        machine = f"{zlib.crc32(machine.encode()):08x}"
    return files.is_running(machine, worker["pid"], worker["started"] or "")
