"""The phases of a run: training with validation, then, when asked for, a refit on train + validation."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from topshelf.config import RunConfig
from topshelf.data import Split
from topshelf.errors import ConfigError, DataError, TrainingError
from topshelf.evaluation import ndcg
from topshelf.models import Model
from topshelf.ragged import Ragged, merge
from topshelf.training.build import build_model, build_objective
from topshelf.training.folder import RunFolder
from topshelf.training.trainer import Interrupted, Trainer
from topshelf.training.watchers import RunWatcher, stop_on_signals


class StoppedEarly(TrainingError):  # noqa: N818  nothing went wrong
    """Somebody stopped the run; its state is saved."""


@dataclass(frozen=True)
class Lists:
    """The three parts of a split as ragged lists on the training device."""

    train: Ragged
    valid: Ragged
    test: Ragged

    @classmethod
    def of(cls, split: Split, device: str) -> Lists:
        return cls(*(part.ragged().to(device) for part in (split.train, split.valid, split.test)))

    def histories(self, config: RunConfig) -> Ragged:
        """What the final model has seen of each user."""
        if config.train.refit == "all":
            return merge(merge(self.train, self.valid), self.test)
        return merge(self.train, self.valid) if config.train.refit else self.train


@dataclass(frozen=True)
class Outcome:
    """A fitted model, the epoch that validation chose, the seconds it took, and the validation NDCG@K of the choice.

    ``valid_score`` is None for a closed-form model fitted on train alone, whose validation can be computed at any time.
    ``measured`` holds the test evaluation that was made before the model learned from the test part too; None for a
    model that did not.
    """

    model: Model
    best_epoch: int
    seconds: float
    valid_score: float | None = None
    measured: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        state = {name: getattr(self, name) for name in ("best_epoch", "seconds", "valid_score", "measured")}
        return {"model": self.model.state_dict(), **state}


class Phases:
    """Fits a config's model, from the start or from a checkpoint.

    Settings that do not fit the data fail when it is made, before a folder is. ``measure`` evaluates an outcome on the
    test part; it is called when the refit is about to use that part up.
    """

    def __init__(
        self, config: RunConfig, split: Split, *, quiet: bool, measure: Callable[[Outcome], dict[str, Any]]
    ) -> None:
        self.config, self.split, self.quiet, self._measure = config, split, quiet, measure
        _check_device(config.train.device)
        self.folder: RunFolder | None = None
        self.lists = Lists.of(split, config.train.device)
        _check_parts(self.lists, split.kind)
        self._first_model = self._new_model()
        if not self._first_model.is_closed_form:
            self._first_trainer = self._trainer(config, self._first_model, self.lists.train, self._validate)

    def run(self, folder: RunFolder | None, checkpoint: dict[str, Any] | None) -> Outcome:
        self.folder, model = folder, self._first_model
        if model.is_closed_form:
            started = time.perf_counter()
            valid_score = measured = None
            if self.config.train.refit:  # validated and measured before it has seen those parts
                model.fit(self.lists.train)
                valid_score = self._validate(model)
                measured = self._measured(Outcome(model, 0, 0.0))
            model.fit(self.lists.histories(self.config))
            return Outcome(model, 0, time.perf_counter() - started, valid_score, measured)
        if checkpoint is None or checkpoint["phase"] == "train":
            self._drive(self._first_trainer, "train", {}, checkpoint)
            progress = self._first_trainer.progress
            chosen = Outcome(model, progress.best_epoch, progress.seconds, progress.best_score)
            if not self.config.train.refit:
                return chosen
            extra, checkpoint = self._handed_on(chosen), None
            if folder is not None:
                folder.save_model(chosen.state_dict())  # something to use if the refit is stopped
        else:
            extra = checkpoint["extra"]
        return self._refit(extra, checkpoint)

    def _validate(self, model: Model) -> float:
        with torch.no_grad():
            queries, items = model.encode()
            return ndcg(queries, items, self.lists.valid, self.lists.train, self.config.k)

    def _refit(self, extra: dict[str, Any], checkpoint: dict[str, Any] | None) -> Outcome:
        model = self._new_model()
        settings = self.config.train.model_copy(update={"epochs": extra["best_epoch"]})
        config = self.config.model_copy(update={"train": settings})
        trainer = self._trainer(config, model, self.lists.histories(config), None)
        self._drive(trainer, "refit", extra, checkpoint)
        seconds = extra["seconds"] + trainer.progress.seconds
        return Outcome(model, extra["best_epoch"], seconds, extra["valid_score"], extra["measured"])

    def _measured(self, chosen: Outcome) -> dict[str, Any] | None:
        return self._measure(chosen) if self.config.train.refit == "all" else None

    def _handed_on(self, chosen: Outcome) -> dict[str, Any]:
        """What the refit's checkpoints must remember of the first phase."""
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
        metric = f"ndcg@{self.config.k}"
        with (
            stop_on_signals() as stop,
            RunWatcher(self.folder, phase=phase, metric=metric, quiet=self.quiet, extra=extra, stop=stop) as watcher,
        ):
            watcher.begin(trainer)
            try:
                trainer.run(watcher)
            except Interrupted:
                watcher.save(trainer)
                self._leave_best(trainer)
                raise StoppedEarly(self._stopped(trainer)) from None
            except TrainingError:
                self._leave_best(trainer)
                raise

    def _leave_best(self, trainer: Trainer) -> None:
        """Leave the best weights so far as a model that can be evaluated."""
        if self.folder is not None and trainer.best_weights is not None:
            trainer.model.load_state_dict(trainer.best_weights)
            progress = trainer.progress
            left = Outcome(trainer.model, progress.best_epoch, progress.seconds, progress.best_score)
            self.folder.save_model(left.state_dict())

    def _stopped(self, trainer: Trainer) -> str:
        where = f"stopped in epoch {trainer.progress.epoch + 1}"
        return where if self.folder is None else f"{where}; go on with: topshelf train --resume {self.folder.path}"

    def _trainer(
        self, config: RunConfig, model: Model, positives: Ragged, validate: Callable[[Model], float] | None
    ) -> Trainer:
        objective = build_objective(config, model, positives)
        return Trainer(
            objective,
            positives,
            config.train,
            threshold=config.threshold,
            seed=config.seed,
            validate=validate,
        )

    def _new_model(self) -> Model:
        return build_model(self.config, self.split.n_users, self.split.n_items).to(self.config.train.device)


def _check_parts(lists: Lists, kind: str) -> None:
    """Better now than after hours of training."""
    for name, setting in (("valid", "data.valid_fraction"), ("test", "data.test_fraction")):
        if getattr(lists, name).indices.numel() == 0:
            raise DataError(
                f"the {name} part of the {kind} split is empty: no user has anything left to find there. Use more "
                f"data, a larger {setting}, or another data.split"
            )


def _check_device(name: str) -> None:
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"train.device must be a device of this machine, such as cpu, got {name!r}: {reason}"
        ) from None
