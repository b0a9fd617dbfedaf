"""The budget as a queue of tickets in the study's storage, shared by every process that works on it.

A study of 30 trials has 30 tickets. A process takes the next waiting one, which the storage grants to one process
alone, so the budget is kept whoever works on it. A trial whose process died is marked failed, and its ticket is queued
again with the same point. Two processes that queue at the same moment may queue a ticket twice: the later of the two is
a surplus, and is dropped when its turn comes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from topshelf.tuning import search
from topshelf.tuning.ranges import Space

TICKET, ATTEMPT, FAILURES, WORKER = "ticket", "attempt", "failures", "worker"
HEARTBEAT = 30  # seconds between two signs of life of a running trial
GRACE = 120  # seconds without one until another machine's trial counts as dead
MOST_FAILURES = 3  # a point that takes its process down three times is not tried again


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
        study.enqueue_trial(point, user_attrs={TICKET: ticket, ATTEMPT: 1, search.ASKED: point})


def queue_again(study: Study, trial: FrozenTrial, *, failed: bool = True) -> None:
    """Another ticket for the point of a trial that was interrupted, unless too many processes failed at it.

    ``failed`` is False where somebody stopped the process, which says nothing of the point.
    """
    known = trial.user_attrs
    failures = known.get(FAILURES, 0) + failed
    if TICKET in known and failures < MOST_FAILURES:
        point = trial.params or known[search.ASKED]
        again = {TICKET: known[TICKET], ATTEMPT: known[ATTEMPT] + 1, FAILURES: failures, search.ASKED: point}
        study.enqueue_trial(point, user_attrs=again)


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


def bury_the_dead(study: Study) -> list[int]:
    """Fail the trials of processes that are gone from this machine and queue them again; their numbers.

    Those of other machines are found by their heartbeats, which Optuna looks at before each trial.
    """
    found = []
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if _is_dead(trial):
            now = study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
            if now.state == TrialState.FAIL:  # or it ended, and its process too, since it was looked at
                queue_again(study, trial)
                found.append(trial.number)
    return found


def this_worker() -> dict[str, Any]:
    """Who runs a trial: enough to see, on the same machine, whether it still runs."""
    return {"machine": _machine(), "pid": os.getpid(), "started": _started(os.getpid())}


def _is_dead(trial: FrozenTrial) -> bool:
    worker = trial.user_attrs.get(WORKER)
    if worker is None:  # its process died, or lives, between taking the ticket and signing it
        begun = trial.datetime_start
        return begun is not None and datetime.now() - begun > timedelta(seconds=GRACE)
    if os.name != "posix" or worker["machine"] != _machine():
        return False  # heartbeats will tell
    try:
        os.kill(worker["pid"], 0)  # asks whether it is there; sends nothing
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # somebody else's, alive
    return bool(worker["started"] != _started(worker["pid"]))


def _machine() -> str:
    """The machine's name; on Linux with the namespace that its process numbers are of, for containers."""
    namespace = Path("/proc/self/ns/pid")
    return f"{socket.gethostname()}/{namespace.stat().st_ino if namespace.exists() else ''}"


def _started(pid: int) -> str | None:
    """When a process began, as the system counts; None where it does not say."""
    try:
        # After the name, which stands in parentheses and may hold anything, the start is the 20th number.
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _key(attributes: dict[str, Any]) -> tuple[int, int] | None:
    return (attributes[TICKET], attributes[ATTEMPT]) if TICKET in attributes else None
