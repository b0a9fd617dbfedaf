"""Settings that a run leaves to a short race on validation: ``loss.tau_weight = "auto"``.

Every value that the loss names (``Loss.raced``) begins the run from the seed's start. Values that are far behind after
half of ``train.race_epochs`` are dropped; after all of them the best on validation goes on, and is the run; if a later
value is within 2% of it, that one. So a run with "auto" is the run with the chosen value given, to the last bit, and
its config has that value: a resumed or refitted run does not race again. What the race costs are the epochs of the
values that lost.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from topshelf import files
from topshelf.config import BaseConfig, Component
from topshelf.errors import TrainingError
from topshelf.losses.topk_softmax import WEAKEST
from topshelf.training.build import AUTO, automatic, loss_class, model_class, resolve
from topshelf.training.folder import RunFolder
from topshelf.training.phases import StoppedEarly
from topshelf.training.tasks import Task
from topshelf.training.trainer import Interrupted, Trainer
from topshelf.training.watchers import RunWatcher, stop_on_signals

C = TypeVar("C", bound=BaseConfig)
# A smaller tau_weight learns faster at first, so a value that is only a little behind after half of the race stays.
# Health, epoch 10: softmax is 13% behind, and 10% in the end; Electronic: 35%.
_FAR_BEHIND = 0.85
# For the same reason a lead of less than this at the end of the race is none: the last of the near values is taken.
_NEAR = 0.98


class Tried(NamedTuple):
    """A value, its best validation metric (None if training failed), and the epochs that it had."""

    value: float
    score: float | None
    epochs: int

    def __str__(self) -> str:
        return f"{self.value:g}: {'failed' if self.score is None else f'{self.score:.4f}'}"


@dataclass(frozen=True)
class Race:
    """What was chosen, and by what."""

    setting: str
    chosen: float
    metric: str
    tried: tuple[Tried, ...]
    epochs: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.setting} = {self.chosen:g}, by {self.metric} on validation after {self.epochs} epochs "
            f"({'; '.join(map(self._told, self.tried))}); {self.seconds:.1f} s"
        )

    def _told(self, one: Tried) -> str:
        if one.value == self.chosen and any((other.score or 0) > (one.score or 0) for other in self.tried):
            return f"{one}, near the best and safer{self._means(one)}"
        dropped = f", dropped after {one.epochs}" if one.epochs < self.epochs and one.score is not None else ""
        return f"{one}{self._means(one)}{dropped}"

    def _means(self, one: Tried) -> str:
        """What a value stands for that does not say it: so wide a weight is the same for all positives."""
        return ", which is the softmax loss" if self.setting == "loss.tau_weight" and one.value >= WEAKEST else ""

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "tried": [one._asdict() for one in self.tried]}


class Settled(NamedTuple, Generic[C]):
    """A config without "auto", the race that chose for it, and the training that it began, as in a checkpoint."""

    config: C
    race: Race | None = None
    begun: dict[str, Any] | None = None


class _Runner:
    """One value in the race. Between its parts it is a state, so that one trainer at a time has its buffers."""

    def __init__(self, config: BaseConfig, task: Task, value: float) -> None:
        self.config, self.task, self.value = config, task, value
        self.state: dict[str, Any] | None = None
        self.score: float | None = -math.inf
        self.epochs = 0

    def run_to(self, epoch: int, label: str, quiet: bool, stop: Callable[[], bool]) -> None:
        """Train until the end of an epoch; no score if the loss is not finite."""
        model = self.task.model(self.config)
        trainer = Trainer(self.task.objective(self.config, model, "train"), self.config, self._validate)
        if self.state is not None:
            trainer.load_state_dict(self.state)
        told: dict[str, Any] = {"phase": f"{label} {self.value:g}", "metric": self.task.metric(self.config)}
        enough = lambda: stop() or trainer.progress.epoch >= epoch  # noqa: E731
        with RunWatcher(None, **told, quiet=quiet, stop=enough) as watcher:
            watcher.begin(trainer)
            try:
                trainer.run(watcher)
            except Interrupted:
                if stop():
                    raise StoppedEarly("stopped in the race that chooses settings; nothing was kept") from None
            except TrainingError:
                self.score = self.state = None
                return
        progress = trainer.progress
        last = -math.inf if "valid" in progress.history[-1] else self._validate(trainer.model)
        self.score, self.epochs, self.state = max(progress.best_score, last), progress.epoch, trainer.state_dict()

    def _validate(self, model: Any) -> float:
        return self.task.validate(model, self.config.k)

    @property
    def rank(self) -> float:
        return -math.inf if self.score is None else self.score


def settle(config: C, task: Task, *, quiet: bool) -> Settled[C]:
    """The config with a number for a setting that is "auto", chosen on validation."""
    if (name := automatic(config)) is None:
        return Settled(config)
    if model_class(config).is_closed_form:
        return Settled(resolve(config))
    started, epochs = time.perf_counter(), min(config.train.race_epochs, config.train.epochs)
    runners = [_Runner(_with_value(config, name, value), task, value) for value in loss_class(config).raced[name]]
    _race(runners, epochs, name, quiet)
    finished = [runner for runner in runners if runner.state is not None]
    if not finished:
        raise TrainingError(
            f"the race for loss.{name} = {AUTO!r} failed: the loss was not finite with any of "
            f"{', '.join(f'{runner.value:g}' for runner in runners)}. Try a lower train.learning_rate"
        )
    most = max(runner.rank for runner in finished)
    best = next(runner for runner in reversed(finished) if runner.rank >= _NEAR * most)
    tried = tuple(Tried(runner.value, runner.score, runner.epochs) for runner in runners)
    seconds = round(time.perf_counter() - started, 3)
    race = Race(f"loss.{name}", best.value, task.metric(config), tried, epochs, seconds)
    return Settled(_with_value(config, name, best.value), race, {"phase": "train", "extra": {}, "trainer": best.state})


def _race(runners: list[_Runner], epochs: int, label: str, quiet: bool) -> None:
    """Train all to half of the epochs, and those that are not far behind to the end."""
    with stop_on_signals() as stop:
        for goal in (math.ceil(epochs / 2), epochs):
            best = max(runner.rank for runner in runners)
            for runner in runners:
                if goal < epochs or runner.rank >= _FAR_BEHIND * best:
                    runner.run_to(goal, label, quiet, stop)
                else:
                    runner.state = None  # dropped: its tables are let go


def as_asked(folder: str | Path, config: C) -> C:
    """The config of a run with "auto" where a race chose: runs that differ in what was chosen are one method."""
    path = RunFolder(folder).race
    setting = files.read_json(path).get("setting") if path.exists() else None
    name = str(setting).removeprefix("loss.")
    if name not in getattr(loss_class(config), "raced", {}):  # losses of graded lists have none
        return config
    return config.model_copy(update={"loss": _with_setting(config, name, AUTO)})


def _with_value(config: C, name: str, value: float) -> C:
    return resolve(config.model_copy(update={"loss": _with_setting(config, name, value)}))


def _with_setting(config: BaseConfig, name: str, value: float | str) -> Component:
    return Component.model_validate({"name": config.loss.name, **config.loss.settings, name: value})
