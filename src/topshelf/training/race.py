"""Settings that a run leaves to a short race on validation: ``loss.tau_weight = "auto"``.

Every value that the loss names (``Loss.raced``) is trained for a few epochs from the seed's start, and the one with the
best validation metric is what the run is trained with, again from the start. So a run with "auto" is the run with the
chosen value given, to the last bit, and its config has that value: a resumed or refitted run does not race again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from topshelf.config import BaseConfig, Component
from topshelf.errors import TrainingError
from topshelf.training.build import AUTO, automatic, loss_class, model_class, resolve
from topshelf.training.phases import StoppedEarly
from topshelf.training.tasks import Task
from topshelf.training.trainer import Interrupted, Trainer
from topshelf.training.watchers import RunWatcher, stop_on_signals

C = TypeVar("C", bound=BaseConfig)


@dataclass(frozen=True)
class Race:
    """What was tried, and what was chosen: the validation metric of every value after so many epochs.

    A value whose training failed has the metric None.
    """

    setting: str
    chosen: float
    metric: str
    scores: Mapping[float, float | None]
    epochs: int
    seconds: float

    def __str__(self) -> str:
        tried = ", ".join(
            f"{value:g}: {'failed' if score is None else f'{score:.4f}'}" for value, score in self._sorted()
        )
        return (
            f"{self.setting} = {self.chosen:g}, by {self.metric} on validation after {self.epochs} epochs ({tried}; "
            f"{self.seconds:.1f} s)"
        )

    def _sorted(self) -> list[tuple[float, float | None]]:
        return sorted(self.scores.items())

    def to_json(self) -> dict[str, Any]:
        tried = [{"value": value, "score": score} for value, score in self._sorted()]
        return {**vars(self), "scores": tried}


def settle(config: C, task: Task, *, quiet: bool) -> tuple[C, Race | None]:
    """The config with a number for a setting that is "auto", and the race that chose it; None if none is."""
    if (name := automatic(config)) is None:
        return config, None
    if model_class(config).is_closed_form:
        return resolve(config), None
    started, epochs = time.perf_counter(), min(config.train.race_epochs, config.train.epochs)
    scores: dict[float, float | None] = {}
    with stop_on_signals() as stop:
        for value in loss_class(config).raced[name]:
            short = _with_value(_short(config, epochs), name, value)
            scores[value] = _score(short, task, f"{name} {value:g}", quiet, stop)
    chosen = max(scores, key=lambda value: -math.inf if (score := scores[value]) is None else score)
    if scores[chosen] is None:
        raise TrainingError(
            f"the race for loss.{name} = {AUTO!r} failed: the loss was not finite with any of "
            f"{', '.join(f'{value:g}' for value in scores)}. Try a lower train.learning_rate"
        )
    seconds = round(time.perf_counter() - started, 3)
    race = Race(f"loss.{name}", chosen, task.metric(config), scores, epochs, seconds)
    return resolve(_with_value(config, name, chosen)), race


def _score(config: BaseConfig, task: Task, label: str, quiet: bool, stop: Callable[[], bool]) -> float | None:
    model = task.model(config)
    trainer = Trainer(task.objective(config, model, "train"), config, lambda model: task.validate(model, config.k))
    with RunWatcher(None, phase=label, metric=task.metric(config), quiet=quiet, stop=stop) as watcher:
        watcher.begin(trainer)
        try:
            trainer.run(watcher)
        except Interrupted:
            raise StoppedEarly("stopped in the race that chooses settings; nothing was kept") from None
        except TrainingError:
            return None
    return trainer.progress.best_score


def _short(config: C, epochs: int) -> C:
    update = {"epochs": epochs, "validate_every": epochs, "patience": 0, "refit": False}
    return config.model_copy(update={"train": config.train.model_copy(update=update)})


def _with_value(config: C, name: str, value: float) -> C:
    loss = Component.model_validate({"name": config.loss.name, **config.loss.settings, name: value})
    return config.model_copy(update={"loss": loss})
