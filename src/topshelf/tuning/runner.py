"""One trial: a config trained on train and measured on validation. The search and the test part are not seen here."""

from __future__ import annotations

import math
import time
import zlib
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from topshelf.config import BaseConfig
from topshelf.data import Dataset, IdMap, Split
from topshelf.data.memory import available
from topshelf.errors import CheckpointError, ConfigError, DataError, TrainingError, at_most
from topshelf.models import Model
from topshelf.training import checkpoint, load_dataset
from topshelf.training.folder import part_of, part_state
from topshelf.training.tasks import InteractionsTask, Task, check_device
from topshelf.training.trainer import Interrupted, Trainer, Watcher

_PARTS = ("train", "valid")
_MAX_SIZE = 2**31  # more users or items than any table of vectors holds


@dataclass(frozen=True, eq=False)
class Parts:
    """The train and validation parts, over the same users and items; there is no test part."""

    name: str
    split: Split

    @property
    def n_items(self) -> int:
        return self.split.n_items

    @classmethod
    def of(cls, dataset: Dataset) -> Parts:
        """The parts of a split; its test part is not read."""
        split = dataset.split
        if not len(split.valid):
            raise DataError(
                f"the valid part of the {split.kind} split is empty, and tuning is measured on it. Use more data, a "
                "larger data.valid_fraction, or another data.split"
            )
        return cls(dataset.name, Split(split.train, split.valid, split.train.none(), split.kind))

    @classmethod
    def load(cls, path: Path) -> Parts:
        """Read what :meth:`save` wrote, and check it: every index may reach compiled code."""
        state = checkpoint.load(path)
        try:
            sizes = [_size(name, state[name]) for name in ("n_users", "n_items")]
            if 8 * sum(sizes) > available():  # before ids are made for them
                raise DataError(f"{sizes[0]} users and {sizes[1]} items do not fit into memory")
            ids = [IdMap.range(size) for size in sizes]
            train, valid = (part_of(state[name], name, *ids) for name in _PARTS)
            if not len(valid):
                raise DataError("valid is empty, and tuning is measured on it")
            return cls(str(state["name"]), Split(train, valid, train.none(), "tuned"))
        except (KeyError, TypeError, ValueError, AttributeError, DataError) as error:
            raise CheckpointError(f"{path} is damaged: {error}; restore it from a copy") from None

    def save(self, path: Path) -> None:
        sizes: dict[str, Any] = {"name": self.name, "n_users": self.split.n_users, "n_items": self.n_items}
        checkpoint.save(path, {**sizes, **{name: part_state(getattr(self.split, name)) for name in _PARTS}})

    @property
    def fingerprint(self) -> str:
        """Equal for equal lists, so that processes that share a study can compare their data."""
        total = zlib.crc32(f"{self.split.n_users} {self.n_items}".encode())
        for name in _PARTS:
            for tensor in vars(self.split.lists(name)).values():
                total = zlib.crc32(tensor.to(torch.int64).contiguous().cpu().numpy().data, total)
        return f"{total:08x}"


def _size(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < _MAX_SIZE:
        raise ValueError(f"{name} must be a whole number from 1 to {_MAX_SIZE - 1}, got {value!r}")
    return value


def load_parts(config: BaseConfig) -> Parts:
    """The parts of the config's data source; the file of a test part is not opened."""
    return Parts.of(load_dataset(config, test=False))


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
        self.parts = parts
        self.task: Task = InteractionsTask(parts.split, device)

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
            sizes = f"{self.parts.split.n_users} users and {self.parts.n_items} items"
            raise ConfigError(f"{config.model.name} for {sizes} does not fit into memory ({reason})") from None

    def check_sizes(self, config: BaseConfig) -> None:
        n_items, why = self.parts.n_items, f"{self.parts.name} has {self.parts.n_items} items"
        at_most("k", config.k, n_items, why)
        at_most("loss.k", config.loss.settings.get("k", 1), n_items, why)

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

    def _fit(self, model: Model, k: int) -> Result:
        started, note, score = time.perf_counter(), "", 0.0
        try:
            model.fit(self.task.context("train"))
            score = self.task.validate(model, k)
        except TrainingError as error:
            note = str(error).partition(";")[0]
        return Result(score, seconds=time.perf_counter() - started, note=note)

    def _trainer(self, config: BaseConfig, model: Model) -> Trainer:
        validate = partial(self.task.validate, k=config.k)
        return Trainer(self.task.objective(config, model, "train"), config, validate)


def _result(trainer: Trainer, *, note: str = "", is_finished: bool = True) -> Result:
    progress = trainer.progress
    score = progress.best_score if math.isfinite(progress.best_score) and not note else 0.0
    history = {record["epoch"]: record["valid"] for record in progress.history if "valid" in record}
    return Result(score, progress.best_epoch, progress.epoch, progress.seconds, note, history, is_finished)
