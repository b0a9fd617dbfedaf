"""One trial: a config trained on train and measured on validation. The search and the test part are not seen here."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from topshelf.config import BaseConfig
from topshelf.errors import CheckpointError, ConfigError, DataError, TrainingError
from topshelf.models import Trainable
from topshelf.training import load_dataset
from topshelf.training.tasks import Task, check_device, task_class
from topshelf.training.trainer import Interrupted, Trainer, Watcher


@dataclass(frozen=True, eq=False)
class Parts:
    """The train and validation parts of a task's data; there is no test part."""

    task: type[Task]
    data: Any

    @property
    def name(self) -> str:
        return str(self.data.name)

    @classmethod
    def of(cls, config: BaseConfig, data: Any = None) -> Parts:
        """The parts of the data, by default of the config's source; the file of a test part is not opened."""
        task = task_class(config)
        return cls(task, task.for_tuning(load_dataset(config, test=False) if data is None else data))

    @classmethod
    def load(cls, path: Path, config: BaseConfig) -> Parts:
        """Read what :meth:`save` wrote, and check it: every index may reach compiled code."""
        task = task_class(config)
        try:
            return cls(task, task.load_parts(path, config))
        except (KeyError, TypeError, ValueError, AttributeError, DataError) as error:
            raise CheckpointError(f"{path} is damaged: {error}; restore it from a copy") from None

    def save(self, path: Path) -> None:
        self.task.save_parts(path, self.data)

    @property
    def fingerprint(self) -> str:
        return self.task.fingerprint(self.data)


@dataclass(frozen=True)
class Result:
    """The best validation NDCG@K of a run, its epoch, the cost, and the score of every validation by epoch.

    ``is_finished`` is False if the watcher stopped the run.
    """

    score: float
    best_epoch: int = 0
    epochs: int = 0
    seconds: float = 0.0
    note: str = ""
    history: dict[int, float] = field(default_factory=dict)
    is_finished: bool = True


class Runner:
    """Runs configs on the same data, on one device."""

    def __init__(self, parts: Parts, device: str = "cpu") -> None:
        check_device(device)
        self.parts, self.task = parts, parts.task.of(parts.data, device)

    def check(self, config: BaseConfig) -> None:
        """Refuse settings that do not fit the data, before anything is written."""
        self.check_sizes(config)
        try:
            model = self.task.model(config)
            if not model.is_closed_form:
                self._trainer(config, model)
        except (MemoryError, RuntimeError) as error:
            reason = (str(error) or "out of memory").splitlines()[0]
            if isinstance(error, RuntimeError) and "memory" not in reason:
                raise
            sizes = " x ".join(map(str, self.task.sizes()))
            raise ConfigError(f"{config.model.name} of {sizes} does not fit into memory ({reason})") from None

    def check_sizes(self, config: BaseConfig) -> None:
        self.task.check_sizes(config, self.parts.name)

    def run(self, config: BaseConfig, watcher: Watcher | None = None) -> Result:
        """Train and measure. A training or fit that fails scores 0, because the final training would fail too."""
        model = self.task.model(config)
        if model.is_closed_form:
            return self._fit(model, config.k)
        trainer = self._trainer(config, model)
        try:
            trainer.run(watcher)
        except Interrupted:
            return _result(trainer, is_finished=False)
        except TrainingError as error:
            return _result(trainer, note=str(error).partition(";")[0])
        return _result(trainer)

    def _fit(self, model: Trainable, k: int) -> Result:
        started, note, score = time.perf_counter(), "", 0.0
        try:
            model.fit(self.task.context("train"))
            score = self.task.validate(model, k)
        except TrainingError as error:
            note = str(error).partition(";")[0]
        return Result(score, seconds=time.perf_counter() - started, note=note)

    def _trainer(self, config: BaseConfig, model: Trainable) -> Trainer:
        validate = partial(self.task.validate, k=config.k)
        return Trainer(self.task.objective(config, model, "train"), config, validate)


def _result(trainer: Trainer, *, note: str = "", is_finished: bool = True) -> Result:
    progress = trainer.progress
    score = progress.best_score if math.isfinite(progress.best_score) and not note else 0.0
    history = {record["epoch"]: record["valid"] for record in progress.history if "valid" in record}
    return Result(score, progress.best_epoch, progress.epoch, progress.seconds, note, history, is_finished)
