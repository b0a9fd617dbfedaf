"""The phases of a run: training with validation, then optionally a refit on train + validation or on everything."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from topshelf.callbacks import Callbacks
from topshelf.config import BaseConfig, allow_options
from topshelf.data import through_refit
from topshelf.data.splits import Through
from topshelf.errors import CheckpointError, TrainingError, WorldError
from topshelf.evaluation import check_json
from topshelf.models import Trainable
from topshelf.training.folder import RunFolder
from topshelf.training.shared_trainer import SharedTrainer, check_shared, hold_slice
from topshelf.training.tasks import Task
from topshelf.training.trainer import Interrupted, Trainer, load_weights
from topshelf.training.watchers import RunWatcher, SharedWatcher, stop_on_signals
from topshelf.world import ALONE, World


class StoppedEarly(TrainingError):  # noqa: N818  nothing went wrong
    """The user stopped the run; its state is saved."""


@dataclass(frozen=True)
class Outcome:
    """A fitted model, the epoch that validation chose, the seconds it took, and the validation NDCG@K of the choice.

    ``valid_score`` is None for a closed-form model fitted on train alone; it can be computed at any time.
    ``measured`` is the test evaluation from before a refit on the test part; None for a model without such a refit.
    """

    model: Any
    best_epoch: int
    seconds: float
    valid_score: float | None = None
    measured: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        state = {name: getattr(self, name) for name in ("best_epoch", "seconds", "valid_score", "measured")}
        return {"model": self.model.state_dict(), **state}

    @classmethod
    def of(cls, model: Trainable, state: dict[str, Any]) -> Outcome:
        """A model with the weights and numbers of a state that comes from a file, so each is checked."""
        load_weights(model, state["model"])
        score, measured = state["valid_score"], state["measured"]
        if type(state["best_epoch"]) is not int or state["best_epoch"] < 0 or not _is_finite(state["seconds"]):
            raise ValueError(
                f"best_epoch and seconds must be numbers, got {state['best_epoch']!r}, {state['seconds']!r}"
            )
        if not (score is None or _is_finite(score)):
            raise ValueError(f"valid_score must be a number, got {score!r}")
        if measured is not None:
            check_json(measured)
        return cls(model, state["best_epoch"], float(state["seconds"]), score, measured)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class Phases:
    """Fits a config's model, from the start or from a checkpoint.

    Settings that do not fit the data fail in the constructor, before a folder is made. ``measure`` evaluates an
    outcome on the test part; it is called before a refit that learns from that part.
    """

    def __init__(
        self,
        config: BaseConfig,
        task: Task,
        *,
        quiet: bool,
        measure: Callable[[Outcome], dict[str, Any]],
        callbacks: Callbacks | None = None,
        world: World = ALONE,
    ) -> None:
        self.config, self.task, self.quiet, self._measure = config, task, quiet, measure
        self.world = task.world = world
        self.callbacks = callbacks or Callbacks()
        self.folder: RunFolder | None = None
        self.keeps = False  # whether the run has a folder; with several processes, only the main one writes to it
        self._first_model = self._new_model()
        if not self._first_model.is_closed_form:
            self._first_trainer = self._trainer(config, self._first_model, "train", self._validate)

    def run(self, folder: RunFolder | None, checkpoint: dict[str, Any] | None) -> Outcome:
        self.folder, model = folder, self._first_model
        self.keeps = self.world.broadcast(folder is not None)
        if model.is_closed_form:
            return self._fit(model)
        if checkpoint is None or _phase(checkpoint, self.config) == "train":
            self._drive(self._first_trainer, "train", {}, checkpoint)
            progress = self._first_trainer.progress
            chosen = Outcome(model, progress.best_epoch, progress.seconds, progress.best_score)
            del self._first_trainer  # its moments and best weights are larger than the model
            if not self.config.train.refit:
                return chosen
            extra, checkpoint = self._first_phase(chosen), None
            if folder is not None:
                folder.save_model(chosen.state_dict())  # a usable model in case the refit is stopped
        else:
            extra = checkpoint["extra"]
        return self._refit(extra, checkpoint)

    def run_refit(self, chosen: Outcome, measured: dict[str, Any] | None) -> Outcome:
        """The refit of the config alone, after a first phase that chose the epoch in another run."""
        if self._first_model.is_closed_form:
            started, model = time.perf_counter(), self._first_model
            model.fit(self.task.context(through_refit(self.config.train.refit)))
            return Outcome(model, 0, time.perf_counter() - started, chosen.valid_score, measured)
        names = ("best_epoch", "seconds", "valid_score")
        return self._refit({**{name: getattr(chosen, name) for name in names}, "measured": measured, "log": ""}, None)

    def _validate(self, model: Trainable) -> float:
        return self.task.validate(model, self.config.k)

    def _fit(self, model: Trainable) -> Outcome:
        """Fit a closed-form model."""
        started = time.perf_counter()
        valid_score = measured = None
        if self.config.train.refit:  # validated and measured before it has seen those parts
            model.fit(self.task.context("train"))
            valid_score = self._validate(model)
            measured = self._measured(Outcome(model, 0, 0.0))
        model.fit(self.task.context(through_refit(self.config.train.refit)))
        return Outcome(model, 0, time.perf_counter() - started, valid_score, measured)

    def _refit(self, extra: dict[str, Any], checkpoint: dict[str, Any] | None) -> Outcome:
        model = self._new_model()
        settings = self.config.train.model_copy(update={"epochs": extra["best_epoch"]})
        config = self.config.model_copy(update={"train": settings})
        trainer = self._trainer(config, model, through_refit(config.train.refit), None)
        self._drive(trainer, "refit", extra, checkpoint)
        seconds = extra["seconds"] + trainer.progress.seconds
        return Outcome(model, extra["best_epoch"], seconds, extra["valid_score"], extra["measured"])

    def _measured(self, chosen: Outcome) -> dict[str, Any] | None:
        return self._measure(chosen) if self.config.train.refit == "all" and self.task.has("test") else None

    def _first_phase(self, chosen: Outcome) -> dict[str, Any]:
        """The results of the first phase that the refit's checkpoints keep."""
        log = self.folder.log.read_text(encoding="utf-8") if self.folder is not None else ""
        return {
            "best_epoch": chosen.best_epoch,
            "seconds": chosen.seconds,
            "valid_score": chosen.valid_score,
            "measured": self._measured(chosen),
            "log": log,
        }

    def _drive(self, trainer: Trainer, phase: str, extra: dict[str, Any], checkpoint: dict[str, Any] | None) -> None:
        if checkpoint is not None:
            trainer.load_state_dict(checkpoint["trainer"])
        options: dict[str, Any] = {
            "phase": phase,
            "metric": self.task.metric(self.config),
            "quiet": self.quiet,
            "extra": extra,
        }
        with stop_on_signals() as stop, self._watcher(**options, stop=stop, callbacks=self.callbacks) as watcher:
            watcher.begin(trainer)
            try:
                trainer.run(watcher)
            except Interrupted:
                watcher.save(trainer)
                self._leave_best(trainer)
                raise StoppedEarly(self._stopped(trainer)) from None
            except WorldError:  # nothing can be gathered any more
                raise
            except TrainingError:
                self._leave_best(trainer)
                raise

    def _watcher(self, **options: Any) -> RunWatcher:
        if self.world.size == 1:
            return RunWatcher(self.folder, **options)
        return SharedWatcher(self.folder, self.world, keeps=self.keeps, **options)

    def _leave_best(self, trainer: Trainer) -> None:
        """Save the best weights so far as a model that can be evaluated."""
        best, progress = trainer.whole_best() if self.keeps else None, trainer.progress
        if self.folder is not None and best is not None:
            left = Outcome(trainer.model, progress.best_epoch, progress.seconds, progress.best_score)
            self.folder.save_model({**left.state_dict(), "model": best})

    def _stopped(self, trainer: Trainer) -> str:
        where = f"stopped in epoch {trainer.progress.epoch + 1}"
        if self.folder is None:
            return where
        return f"{where}; continue with: topshelf train --resume {self.folder.path}{allow_options(self.config)}"

    def _trainer(
        self, config: BaseConfig, model: Trainable, through: Through, validate: Callable[[Any], float] | None
    ) -> Trainer:
        objective = self.task.objective(config, model, through)
        if self.world.size == 1:
            return Trainer(objective, config, validate)
        return SharedTrainer(objective, config, validate, context=self.task.context(through), world=self.world)

    def _new_model(self) -> Any:
        model = self.task.model(self.config)
        if self.world.size > 1:
            check_shared(model, self.config)
            hold_slice(model, self.config, self.world)
        return model


def _phase(checkpoint: dict[str, Any], config: BaseConfig) -> str:
    """The phase of a checkpoint; its structure is checked, because files are untrusted."""
    phase = checkpoint.get("phase")
    try:
        if not isinstance(checkpoint["trainer"], dict) or phase not in ("train", "refit"):
            raise ValueError(f"it must have the state of a phase, train or refit, got {phase!r}")
        if phase == "refit":
            _check_extra(checkpoint["extra"], config)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"the checkpoint is damaged: it has no state that can be resumed: {error}") from None
    return str(phase)


def _check_extra(extra: Any, config: BaseConfig) -> None:
    """Check the results of the first phase (``_first_phase``) in a refit's checkpoint."""
    best, refit = extra["best_epoch"], config.train.refit
    if type(best) is not int or not 1 <= best <= config.train.epochs:
        raise ValueError(f"best_epoch must be one of {config.train.epochs} epochs, got {best!r}")
    if not refit or not _is_finite(extra["seconds"]) or not _is_finite(extra["valid_score"]):
        raise ValueError("a refit must be asked for, and have the seconds and the score of the first phase")
    if not isinstance(extra["log"], str):
        raise ValueError(f"log must be text, got {type(extra['log']).__name__}")
    if extra["measured"] is not None:
        if refit != "all":
            raise ValueError("only a refit on all has a test evaluation from before it")
        check_json(extra["measured"])
