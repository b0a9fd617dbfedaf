"""One process's work on a study: take a slot, run its trial, keep the best, until the budget is spent."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from topshelf.config import allow_options
from topshelf.errors import ConfigError, DataError
from topshelf.terminal import TaskID, TextColumn, printable
from topshelf.training import StoppedEarly
from topshelf.training.trainer import Trainer, Watcher
from topshelf.training.watchers import progress_bar, stop_on_signals
from topshelf.tuning import queue, search
from topshelf.tuning.attributes import NOTE, RESULT, SETTINGS, SLOT, WORKER
from topshelf.tuning.checks import result_attribute, result_of
from topshelf.tuning.folder import Definition, StudyFolder
from topshelf.tuning.outcome import Budget, TrialRow, Tuned, best_of, described
from topshelf.tuning.ranges import is_closed_form
from topshelf.tuning.runner import Runner
from topshelf.tuning.storage import Limits

_MIN_COMPLETE = 4  # complete trials that importances need
_STATES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.RUNNING: "running"}
_FINISHED = ("complete", "pruned", "failed")


class _Abandoned(Exception):  # noqa: N818  not an error
    """The trial ends without a result: it is a duplicate, or the user asked to stop."""


class Worker:
    """This process's work on a study, beside that of any others."""

    def __init__(
        self, definition: Definition, study: Study, runner: Runner, folder: StudyFolder | None, limits: Limits
    ) -> None:
        self.definition, self.study, self.runner, self.folder = definition, study, runner, folder
        self.metric, self.timeout = runner.task.metric(definition.config), limits.timeout
        self.trials = queue.fill(study, definition, limits.trials)
        queue.register(study)
        self._current: int | None = None  # the number of the trial that this process runs
        self._is_released = False  # whether another process took that trial away
        self._saved: int | None = None  # the number of the trial in best.toml
        self._stop: Callable[[], bool] = lambda: False
        self._progress = StudyProgress(self.metric, self.trials, quiet=limits.quiet)

    def run(self) -> None:
        """Work until no slot waits or the time is up; raises :class:`StoppedEarly` if the user asks to stop."""
        deadline = time.monotonic() + self.timeout if self.timeout is not None else None
        with stop_on_signals() as self._stop, self._progress:
            while not self._stop() and (deadline is None or time.monotonic() < deadline):
                for number in queue.release_dead(self.study):
                    self._progress.say(f"the process of trial {number} has ended; the trial is queued again")
                if not self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
                    return
                self._run_trial()
            if self._stop():
                raise StoppedEarly(self._stopped())

    def _run_trial(self) -> None:
        self._current, self._is_released = None, False
        try:
            self.study.optimize(self._objective, n_trials=1, catch=(_Abandoned, ConfigError, DataError))
        except BaseException as error:
            if self._is_released and isinstance(error, ValueError):  # Optuna's: a trial cannot end twice
                self._progress.say(f"trial {self._current} was given to another process: this one seemed to be dead")
                return
            self._give_back(failed=True)
            raise
        if self._current is None:
            return
        if self._stop():
            self._give_back(failed=False)
        rows = self.rows()
        best = best_of(rows)
        row = next(row for row in rows if row.number == self._current)
        self._progress.finished(row, best, sum(other.state in _FINISHED for other in rows))
        if best is not None and best.number != self._saved and self.folder is not None:
            self.folder.save_best(self.definition.space.config(best.settings))
            self._saved = best.number

    def _objective(self, trial: Trial) -> float:
        try:
            return self._score(trial)
        except UpdateFinishedTrialError:  # this process was silent for too long, as when a laptop sleeps
            self._is_released = True
            raise

    def _score(self, trial: Trial) -> float:
        if all(counted.number != trial.number for counted in self._counted()):
            raise _Abandoned
        self._current = trial.number
        trial.set_user_attr(WORKER, queue.this_worker())
        settings = search.suggest(self.definition.space, trial)
        trial.set_user_attr(SETTINGS, settings)
        watcher = TrialWatcher(trial, search.rungs(self.definition.config.train), self._stop, self._progress)
        try:
            config = self.definition.space.config(settings)
            self.runner.check_sizes(config)
            result = self.runner.run(config, watcher)
        except (ConfigError, DataError) as error:
            trial.set_user_attr(NOTE, str(error))
            raise
        if not result.is_finished and not watcher.is_pruned:
            raise _Abandoned
        trial.set_user_attr(RESULT, result_attribute(asdict(result), trial.user_attrs))
        if watcher.is_pruned:
            raise optuna.TrialPruned
        return result.score

    def _give_back(self, *, failed: bool) -> None:
        """Queue the current trial again, after an error or because the user asked to stop."""
        if self._current is None:
            return
        trial = self.study.tell(self._current, state=TrialState.FAIL, skip_if_finished=True)
        if trial.state == TrialState.FAIL:
            queue.requeue(self.study, trial, failed=failed)

    def _counted(self) -> list[FrozenTrial]:
        return queue.without_duplicates(self.study.get_trials(deepcopy=False))

    def rows(self) -> list[TrialRow]:
        """The trials that have begun."""
        return [_row(trial) for trial in self._counted() if trial.state != TrialState.WAITING]

    def outcome(self) -> Tuned:
        """The study in its current state."""
        rows, definition = self.rows(), self.definition
        best = best_of(rows)
        epochs = 0 if is_closed_form(definition.config) else definition.config.train.epochs
        return Tuned(
            method=definition.method,
            data=self.runner.parts.name,
            metric=self.metric,
            sampler="grid" if queue.is_exhaustive(definition, self.trials) else definition.sampler,
            ranges=definition.space.ranges,
            rows=rows,
            config=definition.space.config(best.settings) if best else None,
            budget=Budget.of(rows, self.trials, epochs, self.timeout),
            importances=self._importances(),
            folder=self.folder.path if self.folder else None,
            validated=self.runner.parts.task.validated,
        )

    def _importances(self) -> dict[str, float]:
        complete = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        is_single = len(self.definition.space.ranges) == 1
        if is_single or len(complete) < _MIN_COMPLETE or len({trial.value for trial in complete}) == 1:
            return {}
        from optuna.importance import get_param_importances  # imports scikit-learn if installed, which takes seconds

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a parameter that never changed has no importance
            importances = get_param_importances(self.study)
        names = {search.parameter(name, range_): name for name, range_ in self.definition.space.ranges.items()}
        return {names[parameter]: round(float(value), 4) for parameter, value in importances.items()}

    def _stopped(self) -> str:
        finished = sum(row.state in _FINISHED for row in self.rows())
        text = f"stopped; {finished} of {self.trials} trials are finished and kept"
        if self.folder is None:
            return text
        return f"{text}; continue: topshelf tune --resume {self.folder.path}{allow_options(self.definition.config)}"


def _row(trial: FrozenTrial) -> TrialRow:
    known, result = trial.user_attrs, result_of(trial)
    values = {} if result is None else {name: value for name, value in vars(result).items() if name != "is_finished"}
    values["note"] = known.get(NOTE) or values.get("note", "")
    state = _STATES.get(trial.state) or ("failed" if NOTE in known else "interrupted")
    slot = known[SLOT]
    return TrialRow(trial.number, state, known.get(SETTINGS, {}), is_default=slot == 0, slot=slot, **values)


class TrialWatcher(Watcher):
    """Reports the best validation score to Optuna at every rung, and stops the training if Hyperband prunes it.

    Only rungs are reported, because Hyperband uses nothing else and the storage may be on another machine. The trial of
    the defaults is never pruned: the others are compared with it.
    """

    def __init__(self, trial: Trial, rungs: list[int], stop: Callable[[], bool], progress: StudyProgress) -> None:
        self.trial, self._rungs, self._stop, self._progress = trial, rungs, stop, progress
        self.is_pruned = False

    def on_epoch(self, trainer: Trainer, record: dict[str, Any]) -> None:
        self._progress.epoch(self.trial.number, trainer)
        is_rung = bool(self._rungs) and "valid" in record and record["epoch"] >= self._rungs[0]
        if not is_rung or trainer.is_finished:
            return
        self._rungs = [rung for rung in self._rungs if rung > record["epoch"]]
        self.trial.report(trainer.progress.best_score, record["epoch"])
        # Called for the defaults too: the call enters their score at the rung.
        self.is_pruned = self.trial.should_prune() and self.trial.user_attrs[SLOT] != 0

    def wants_to_stop(self) -> bool:
        return self.is_pruned or self._stop()


class StudyProgress:
    """A line for every finished trial, and on a terminal a progress bar with the best score."""

    def __init__(self, metric: str, total: int, *, quiet: bool) -> None:
        self._metric, self._total, self._quiet = metric, total, quiet
        self._best = "no trial finished yet"
        self._bar = progress_bar(quiet, TextColumn("{task.completed}/{task.total}"))
        self._task: TaskID | None = None

    def __enter__(self) -> StudyProgress:
        self._bar.start()
        self._task = self._bar.add_task("trials", total=self._total, shown=self._best)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        if not self._quiet:
            self._bar.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def epoch(self, number: int, trainer: Trainer) -> None:
        progress = trainer.progress
        now = f"trial {number}: epoch {progress.epoch}/{trainer.settings.epochs}"
        if progress.best_epoch:
            now += f", {self._metric} {progress.best_score:.4f}"
        self._show(f"{now}; {self._best}")

    def finished(self, row: TrialRow, best: TrialRow | None, n_finished: int) -> None:
        if best is not None:
            self._best = f"best {best.score:.4f} (trial {best.number})"
        self._show(self._best, n_finished)
        self.say(f"{described(row, self._metric)}; {self._best}")

    def _show(self, text: str, completed: int | None = None) -> None:
        if self._task is not None:
            self._bar.update(self._task, shown=text, completed=completed)
