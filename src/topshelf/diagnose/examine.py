"""Diagnose a run of documents, next items or links: the kept model, group by group, beside simple references."""

from __future__ import annotations

import json
import math
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from topshelf.config import BaseConfig
from topshelf.data.splits import Through
from topshelf.diagnose import states
from topshelf.diagnose.measures import Weights, weights_of
from topshelf.errors import CheckpointError, ConfigError, TopshelfWarning, TrainingError
from topshelf.reprs import brief
from topshelf.training import Fitted, StoppedEarly, fit, load
from topshelf.training.build import resolve
from topshelf.training.examination import Advice, Examination
from topshelf.training.folder import RunFolder
from topshelf.training.tasks import Part

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from topshelf.diagnose.tables import Section


@dataclass(frozen=True)
class Epoch:
    """A line of the log; ``valid`` is None where it was not validated.

    ``threshold`` is the mean of those that the loss keeps; None for a loss without, and in logs of earlier versions.
    """

    epoch: int
    loss: float
    valid: float | None
    threshold: float | None = None


@dataclass(frozen=True)
class Compared:
    """A loss that was trained for the diagnosis, and its validation metric."""

    label: str
    metric: float
    best_epoch: int
    seconds: float


@dataclass(frozen=True, eq=False)
class RunDiagnosis:
    """The results. ``to_json`` leaves out the raw values."""

    target: str
    task: str
    model: str
    loss: str | None  # None for a model fitted in closed form
    data: str
    k: int
    n_items: int | None
    loss_settings: dict[str, Any]
    best_epoch: int
    epochs: list[Epoch]
    examination: Examination
    compared: list[Compared] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return brief(self)

    @property
    def title(self) -> str:
        return f"{self.label} on {self.data}"

    @property
    def label(self) -> str:
        return self.model if self.loss is None else f"{self.model} with {self.loss}"

    @property
    def tau_weight(self) -> float | None:
        """The temperature of a loss with sigmoid weights around thresholds, else None."""
        value = self.loss_settings.get("tau_weight")
        is_used = self.loss is not None and self.loss_settings.get("weight", "sigmoid") == "sigmoid"
        return float(value) if is_used and value is not None else None

    @property
    def weights(self) -> Weights | None:
        scores, tau_weight = self.examination.scores, self.tau_weight
        if scores is None or tau_weight is None:
            return None
        distance = scores.positive - scores.threshold
        return Weights(tau_weight, distance, weights_of(distance, tau_weight))

    @property
    def weight_shift(self) -> float | None:
        """Mean change of the weights by the thresholds that the run uses in place of the exact ones."""
        scores, weights = self.examination.scores, self.weights
        if scores is None or weights is None or scores.used is None:
            return None
        used = weights_of(scores.positive - scores.used, weights.tau_weight)
        return float(np.abs(used - weights.values).mean())

    @property
    def advice(self) -> list[Advice]:
        from topshelf.diagnose.rules import advise

        return advise(self)

    def caption(self) -> str:
        from topshelf.diagnose import views

        return views.caption(self)

    def sections(self) -> list[Section]:
        from topshelf.diagnose import views

        return views.sections(self)

    def draw(self) -> dict[str, Figure]:
        from topshelf.diagnose import run_plots  # needs matplotlib

        return run_plots.draw(self)

    def to_json(self) -> dict[str, Any]:
        from topshelf.diagnose import views

        return views.to_json(self)


@dataclass(frozen=True)
class RunPlan:
    """A checked plan of such a diagnosis. Without ``folder`` the config is trained first."""

    name: str
    config: BaseConfig
    folder: Path | None
    dataset: Any
    entries: list[tuple[str, BaseConfig]]  # losses to compare, the run's own first
    users: int
    epochs: int

    def run(self, say: Callable[[str], None] = lambda _: None) -> RunDiagnosis:
        """Train what is to be trained, examine, and collect; ``say`` gets progress messages."""
        with tempfile.TemporaryDirectory(prefix="topshelf-diagnose-") as scratch:
            folder = self.folder
            if folder is None:
                say(f"training {self.config.loss.name} for {self.epochs} epochs at most")
                folder = Path(scratch) / "run"
                fit(self.config, self.dataset, out=folder)
            fitted = load(folder)
            log = log_of(RunFolder(folder), fitted)
        say(f"examining the {held_out(fitted)[0]} part")
        found = examined(self.name, fitted, log, self.users)
        compared, failed = self._compare(fitted, say)
        return replace(found, compared=compared, failed=failed)

    def _compare(self, own: Fitted, say: Callable[[str], None]) -> tuple[list[Compared], dict[str, str]]:
        """Every loss trained alike. One that fails is left out with a message."""
        compared, failed = [], {}
        for label, config in self.entries:
            say(f"training {label} for {self.epochs} epochs")
            try:
                fitted = fit(config, own.dataset)
            except StoppedEarly:
                raise  # asked to stop: nothing is wrong with this loss
            except (ConfigError, TrainingError) as error:
                failed[label] = str(error)
                say(f"{label} is left out: {error}")
                continue
            value = fitted.evaluate(part="valid").mean()[own.task.metric(config)]
            compared.append(Compared(label, value, fitted.best_epoch, fitted.seconds))
        return compared, failed


def examined(name: str, fitted: Fitted, log: list[Epoch], users: int) -> RunDiagnosis:
    """A kept model group by group on a part that it has not seen; nothing is trained."""
    config, part, through = fitted.config, *held_out(fitted)
    return RunDiagnosis(
        target=name,
        task=config.task,
        model=config.model.name,
        loss=None if fitted.model.is_closed_form else config.loss.name,
        data=fitted.dataset.name,
        k=int(config.loss.settings.get("k", config.k)),
        n_items=fitted.task.n_items,
        loss_settings=dict(config.loss.settings),
        best_epoch=fitted.best_epoch,
        epochs=log,
        examination=fitted.task.examine(fitted.model, config, part, through, n=users),
    )


def plan_run(
    name: str, config: BaseConfig, folder: Path | None, losses: Sequence[str] | None, options: dict[str, Any]
) -> RunPlan:
    """The plan for a config of any task but interactions. Losses are compared where they are named."""
    config = resolve(config)
    entries = states.entries(config, losses) if losses else []
    epochs = options["epochs"]
    shortened = [(label, states.short(one, epochs)) for label, one in entries]
    if folder is None:
        train = config.train.model_copy(update={"epochs": epochs, "refit": False})
        config = config.model_copy(update={"train": train})
    elif options["seed"] is not None:
        shortened = [(label, one.model_copy(update={"seed": options["seed"]})) for label, one in shortened]
    return RunPlan(name, config, folder, options["dataset"], shortened, options["users"], epochs)


def held_out(fitted: Fitted) -> tuple[Part, Through]:
    """A part that the model has not seen, and what it has seen."""
    through = fitted.through
    if through == "train":
        return "valid", through
    if through == "valid" and fitted.task.has("test"):
        return "test", through
    raise ConfigError(
        f"this model was refitted (train.refit = {fitted.config.train.refit!r}) and no part of the data is held out: "
        "there is nothing to examine it on. Diagnose a run with train.refit = false"
    )


def read_log(folder: RunFolder, metric: str, best_epoch: int = 0) -> list[Epoch]:
    """The epochs of the first phase. The log is a file like any other: what it holds is checked."""
    try:
        *lines, rest = folder.log.read_bytes().split(b"\n")
    except OSError as error:
        raise _damaged(folder, str(error)) from None
    if rest and folder.is_finished:  # only a killed run may have half a line at the end
        raise _damaged(folder, "its last line is not whole")
    found: list[Epoch] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if record["phase"] == "train":
                valid, threshold = (
                    None if record.get(name) is None else _finite(record[name]) for name in (metric, "threshold")
                )
                found.append(Epoch(int(record["epoch"]), _finite(record["loss"]), valid, threshold))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise _damaged(folder, f"line {number}: {error!r}") from None
    if [one.epoch for one in found] != list(range(1, len(found) + 1)) or len(found) < best_epoch:
        raise _damaged(folder, f"it must have each epoch once, up to the best one ({best_epoch}) at least")
    return found


def _damaged(folder: RunFolder, why: str) -> CheckpointError:
    return CheckpointError(f"{folder.log} is damaged: {why}. Delete it to diagnose without the training curve")


def log_of(folder: RunFolder, fitted: Fitted) -> list[Epoch]:
    """The log of a trained model; a model that was saved from Python has none."""
    if fitted.model.is_closed_form:
        return []
    if not folder.log.exists():
        text = f"{folder.path} has no {folder.log.name}: the training curve is left out"
        warnings.warn(text, TopshelfWarning, stacklevel=3)
        return []
    found, train = read_log(folder, fitted.task.metric(fitted.config), fitted.best_epoch), fitted.config.train
    has_stopped = 0 < train.patience <= (len(found) - fitted.best_epoch) // train.validate_every
    if folder.is_finished and not (has_stopped or len(found) == train.epochs):
        raise _damaged(folder, f"it ends with epoch {len(found)}, before the run did")
    return found


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"must be a finite number, got {value!r}")
    return float(value)
