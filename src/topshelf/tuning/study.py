"""A study at work: tickets taken, trials run, the best kept, until the budget is spent or somebody stops it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import asdict

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from topshelf.errors import ConfigError, DataError
from topshelf.training import StoppedEarly
from topshelf.training.watchers import stop_on_signals
from topshelf.tuning import search, tickets
from topshelf.tuning.checks import RESULT, SETTINGS, result_attribute, result_of
from topshelf.tuning.folder import Definition, StudyFolder
from topshelf.tuning.outcome import Budget, TrialRow, Tuned, best_of
from topshelf.tuning.ranges import is_closed_form
from topshelf.tuning.runner import Runner
from topshelf.tuning.tickets import NOTE
from topshelf.tuning.watching import StudyProgress, TrialWatcher

_FEWEST = 4  # complete trials that importances can be made of
_STATES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.RUNNING: "running"}


class _Surplus(Exception):  # noqa: N818  not an error
    """The trial is beyond the budget."""


class _Stopped(Exception):  # noqa: N818  not an error
    """Somebody asked to stop."""


class _TakenAway(Exception):  # noqa: N818  not an error
    """The process showed no sign of life for too long, and another one gave its trial back."""


class Work:
    """One process's work on a study, beside that of any others."""

    def __init__(
        self,
        definition: Definition,
        study: Study,
        runner: Runner,
        folder: StudyFolder | None,
        *,
        trials: int | None,
        timeout: float | None,
        quiet: bool,
    ) -> None:
        self.definition, self.study, self.runner, self.folder = definition, study, runner, folder
        self.timeout, self._quiet = timeout, quiet
        self.trials = tickets.queue(study, definition, trials)
        tickets.register(study)
        self._current: int | None = None
        self._is_taken_away = False
        self._kept: int | None = None
        self._stop: Callable[[], bool] = lambda: False
        self._progress = StudyProgress(self.metric, self.trials, quiet=quiet)
        self._rungs = search.rungs(definition.config.train)

    @property
    def metric(self) -> str:
        return f"ndcg@{self.definition.config.k}"

    def run(self) -> None:
        """Work until no ticket is left, or the time is up; raises :class:`StoppedEarly` when told to stop."""
        deadline = time.monotonic() + self.timeout if self.timeout is not None else None
        with stop_on_signals() as self._stop, self._progress:
            while not self._stop() and (deadline is None or time.monotonic() < deadline):
                for number in tickets.release_dead(self.study):
                    self._progress.say(f"trial {number} was running in a process that is gone; it is queued again")
                if not self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
                    return
                self._one()
            if self._stop():
                raise StoppedEarly(self._stopped())

    def _one(self) -> None:
        self._current, self._is_taken_away = None, False
        try:
            self.study.optimize(self._objective, n_trials=1, catch=(_Surplus, _Stopped, ConfigError, DataError))
        except BaseException as error:
            if self._is_taken_away and isinstance(error, ValueError):  # Optuna's: no trial ends twice
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
        self._progress.finished(row, best, sum(one.state in ("complete", "pruned", "failed") for one in rows))
        if best is not None and best.number != self._kept:
            self._kept = best.number
            if self.folder is not None:
                self.folder.save_best(self.definition.space.config(best.settings))

    def _objective(self, trial: Trial) -> float:
        try:
            return self._score(trial)
        except UpdateFinishedTrialError:
            self._is_taken_away = True
            raise _TakenAway from None

    def _score(self, trial: Trial) -> float:
        if tickets.is_surplus(self.study, trial.number, trial.user_attrs):
            raise _Surplus
        self._current = trial.number
        trial.set_user_attr(tickets.WORKER, tickets.this_worker())
        settings = search.suggest(self.definition.space, trial)
        trial.set_user_attr(SETTINGS, settings)
        # The defaults are what the others are compared with: never pruned.
        may_prune = trial.user_attrs[tickets.TICKET] != 0
        watcher = TrialWatcher(trial, self._rungs, may_prune=may_prune, stop=self._stop, progress=self._progress)
        try:
            config = self.definition.space.config(settings)
            self.runner.check_sizes(config)
            result = self.runner.run(config, watcher)
        except (ConfigError, DataError) as error:
            trial.set_user_attr(NOTE, str(error))
            raise
        if not result.is_finished and not watcher.is_pruned:
            raise _Stopped
        trial.set_user_attr(RESULT, result_attribute(asdict(result), trial.user_attrs, settings))
        if watcher.is_pruned:
            raise optuna.TrialPruned
        return result.score

    def _give_back(self, *, failed: bool) -> None:
        """Queue the trial again that was at work when this process was told to stop or ran into an error."""
        if self._current is None:
            return
        self.study.tell(self._current, state=TrialState.FAIL, skip_if_finished=True)
        trial = self.study.get_trials(deepcopy=False)[self._current]
        if trial.state == TrialState.FAIL:
            tickets.queue_again(self.study, trial, failed=failed)

    def rows(self) -> list[TrialRow]:
        """The trials so far, without those that wait."""
        counted = tickets.counted(self.study.get_trials(deepcopy=False))
        return [self._row(trial) for trial in counted if trial.state != TrialState.WAITING]

    def _row(self, trial: FrozenTrial) -> TrialRow:
        attributes = trial.user_attrs
        state = _STATES.get(trial.state) or ("failed" if NOTE in attributes else "interrupted")
        result = result_of(trial)
        return TrialRow(
            trial.number,
            state,
            attributes.get(SETTINGS, {}),
            score=result.score if result else None,
            is_default=attributes[tickets.TICKET] == 0,
            best_epoch=result.best_epoch if result else 0,
            epochs=result.epochs if result else 0,
            seconds=result.seconds if result else 0.0,
            note=attributes.get(NOTE) or (result.note if result else ""),
            history=result.history if result else {},
            ticket=attributes[tickets.TICKET],
        )

    def outcome(self) -> Tuned:
        """The study as it stands."""
        rows, definition, train = self.rows(), self.definition, self.definition.config.train
        best = best_of(rows)
        epochs = 0 if is_closed_form(definition.config) else train.epochs
        return Tuned(
            method=definition.method,
            data=self.runner.parts.name,
            metric=self.metric,
            sampler="grid" if tickets.is_exhaustive(definition, self.trials) else definition.sampler,
            ranges=definition.space.ranges,
            rows=rows,
            config=definition.space.config(best.settings) if best else None,
            budget=Budget.of(rows, self.trials, epochs, self.timeout),
            importances=self._importances(),
            folder=self.folder.path if self.folder else None,
        )

    def _importances(self) -> dict[str, float]:
        complete = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        few = len(complete) < _FEWEST or len(self.definition.space.ranges) == 1
        if few or len({trial.value for trial in complete}) == 1:
            return {}
        from optuna.importance import get_param_importances  # imports scikit-learn where that is installed: seconds

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a parameter that never changed has no importance
            found = get_param_importances(self.study)
        names = {search.parameter(name, range_): name for name, range_ in self.definition.space.ranges.items()}
        return {names[parameter]: round(float(value), 4) for parameter, value in found.items()}

    def _stopped(self) -> str:
        finished = sum(row.state in ("complete", "pruned", "failed") for row in self.rows())
        text = f"stopped; {finished} of {self.trials} trials are finished and kept"
        return text if self.folder is None else f"{text}; continue: topshelf tune --resume {self.folder.path}"
