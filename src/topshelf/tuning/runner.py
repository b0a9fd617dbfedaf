"""One trial: a config trained on train and measured on validation, with no search in sight."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import torch

from topshelf.config import RunConfig
from topshelf.errors import ConfigError, TrainingError, at_most
from topshelf.evaluation import ndcg
from topshelf.models import Model
from topshelf.queries import Context, QuerySet
from topshelf.training.build import build_model, build_trainer
from topshelf.training.trainer import Interrupted, Trainer, Watcher
from topshelf.tuning.parts import Parts


@dataclass(frozen=True)
class Result:
    """The best validation NDCG@K of a run, where it was, what it cost, and the score of every validation by epoch.

    ``is_finished`` is False for a run that its watcher stopped.
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
        self.parts = parts.to(device)
        self.device = device

    def check(self, config: RunConfig) -> None:
        """Settings that do not fit the data fail here, before anything is written."""
        self.check_sizes(config)
        try:
            model = self._model(config)
            if not model.is_closed_form:
                self._trainer(config, model)
        except (MemoryError, RuntimeError) as error:
            said = (str(error) or "out of memory").splitlines()[0]
            if isinstance(error, RuntimeError) and "memory" not in said:
                raise
            sizes = f"{self.parts.n_users} users and {self.parts.n_items} items"
            raise ConfigError(f"{config.model.name} for {sizes} does not fit into memory ({said})") from None

    def check_sizes(self, config: RunConfig) -> None:
        n_items, why = self.parts.n_items, f"{self.parts.name} has {self.parts.n_items} items"
        at_most("k", config.k, n_items, why)
        at_most("loss.k", config.loss.settings.get("k", 1), n_items, why)

    def run(self, config: RunConfig, watcher: Watcher | None = None) -> Result:
        """Train and measure. A training or fit that fails scores 0, however it began: nobody could train the winner."""
        model = self._model(config)
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
            model.fit(self._context)
            score = self._validate(model, k)
        except TrainingError as error:
            note = str(error).partition(";")[0]
        return Result(score, seconds=time.perf_counter() - started, note=note)

    def _validate(self, model: Model, k: int) -> float:
        with torch.no_grad():
            everybody = QuerySet.known(model.n_queries, self.device)
            queries, items = model.encode_queries(everybody), model.encode_items()
            return ndcg(queries, items, self.parts.valid, self.parts.train, k)

    def _trainer(self, config: RunConfig, model: Model) -> Trainer:
        return build_trainer(config, model, self._context, lambda model: self._validate(model, config.k))

    @property
    def _context(self) -> Context:
        return Context(self.parts.train, self.parts.n_items)

    def _model(self, config: RunConfig) -> Model:
        return build_model(config, self.parts.n_users, self.parts.n_items).to(self.device)


def _result(trainer: Trainer, *, note: str = "", is_finished: bool = True) -> Result:
    progress = trainer.progress
    score = progress.best_score if math.isfinite(progress.best_score) and not note else 0.0
    history = {record["epoch"]: record["valid"] for record in progress.history if "valid" in record}
    return Result(score, progress.best_epoch, progress.epoch, progress.seconds, note, history, is_finished)
