"""What is seen of a study while it runs, and how a trial learns that it may stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from optuna.trial import Trial

from topshelf.terminal import TaskID, TextColumn, printable
from topshelf.training.trainer import Trainer
from topshelf.training.watchers import progress_bar
from topshelf.tuning.outcome import TrialRow, described


class TrialWatcher:
    """Tells Optuna the best validation so far at every rung, and stops the trainer where Hyperband prunes.

    Rungs only, because that is where Hyperband looks: a storage may be a network away.
    """

    def __init__(
        self, trial: Trial, rungs: list[int], *, may_prune: bool, stop: Callable[[], bool], progress: StudyProgress
    ) -> None:
        self._trial, self._rungs, self._may_prune = trial, list(rungs), may_prune
        self._stop, self._progress = stop, progress
        self.is_pruned = False

    def on_step(self, trainer: Trainer) -> None:
        """Nothing: an epoch is soon enough."""

    def on_epoch(self, trainer: Trainer, record: dict[str, Any]) -> None:
        self._progress.epoch(self._trial.number, trainer)
        is_rung = bool(self._rungs) and "valid" in record and record["epoch"] >= self._rungs[0]
        if not is_rung or trainer.is_finished:
            return
        self._rungs = [rung for rung in self._rungs if rung > record["epoch"]]
        self._trial.report(trainer.progress.best_score, record["epoch"])
        # Asked even of a trial that goes on regardless: the question enters its score in the rung.
        self.is_pruned = self._trial.should_prune() and self._may_prune

    def wants_to_stop(self) -> bool:
        return self.is_pruned or self._stop()


class StudyProgress:
    """A line for every finished trial, and on a terminal a bar with the best so far."""

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
        """Say how a trial ended."""
        if best is not None:
            self._best = f"best {best.score:.4f} (trial {best.number})"
        self._show(self._best, n_finished)
        self.say(f"{described(row, self._metric)}; {self._best}")

    def _show(self, text: str, completed: int | None = None) -> None:
        if self._task is not None:
            self._bar.update(self._task, shown=text, completed=completed)
