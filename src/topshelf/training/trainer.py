"""One trainer: epochs of batches, validation, early stopping, and state that resumes bit for bit."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from topshelf.config import BaseConfig
from topshelf.errors import CheckpointError, ConfigError, TrainingError
from topshelf.losses import Loss
from topshelf.models import Trainable
from topshelf.training.batches import bounded, stream
from topshelf.training.objective import Objective, StepBatch
from topshelf.training.optim import RowAdam

# Branches of the seed's random streams.
_ORDER, _STEP, _THRESHOLD, _ROUNDING = 0, 1, 2, 4  # 3 is that of initial values


@dataclass
class Progress:
    """Progress of training: ``epoch`` finished epochs, and ``step`` finished steps of the next one."""

    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    best_epoch: int = 0
    best_score: float = -math.inf
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, state: Any, epochs: int, steps: int) -> Progress:
        """The progress in a state read from a file; everything is checked."""
        if state.keys() != vars(cls()).keys():
            raise ValueError(f"its progress must have {', '.join(vars(cls()))}, got {', '.join(map(str, state))}")
        progress: Progress = TypeAdapter(cls).validate_json(json.dumps(state), strict=True)  # no "3" for 3
        if not (0 <= progress.best_epoch <= progress.epoch <= epochs and 0 <= progress.step <= steps):
            raise ValueError(f"it is at epoch {progress.epoch}, step {progress.step}, outside of {epochs} epochs")
        if [record.get("epoch") for record in progress.history] != list(range(1, progress.epoch + 1)):
            raise ValueError(f"its history must have a record of each of its {progress.epoch} epochs")
        scores = {record["epoch"]: record["valid"] for record in progress.history if "valid" in record}
        if progress.best_score != scores.get(progress.best_epoch, -math.inf) or any(
            score > progress.best_score for score in scores.values()
        ):
            raise ValueError(f"its best epoch must be that of its history, got {progress.best_epoch}")
        if not math.isfinite(progress.loss_sum):
            raise ValueError(f"its loss must be finite, got {progress.loss_sum}")
        return progress


class Watcher(Protocol):
    """Callbacks of the trainer. Those that a subclass leaves out do nothing."""

    def on_step(self, trainer: Trainer) -> None:  # noqa: ARG002
        return

    def on_epoch(self, trainer: Trainer, record: dict[str, Any]) -> None: ...

    def wants_to_stop(self) -> bool:
        return False


class Interrupted(Exception):  # noqa: N818  not an error
    """The user asked to stop; the state is between two steps and can be saved."""


class Trainer:
    """Trains a model with an objective. Its whole state is in :meth:`state_dict`, at any step.

    Every epoch and every step draws from its own random stream, given by (seed, epoch, step), so a resumed run has
    the same batches and negatives as an uninterrupted one.
    """

    def __init__(
        self, objective: Objective, config: BaseConfig, validate: Callable[[Any], float] | None = None
    ) -> None:
        self.objective, self.settings, self.seed, self.validate = objective, config.train, config.seed, validate
        settings, self.batches = config.train, bounded(objective.batches, config.train.epoch_steps)
        if len(self.batches) == 0:
            raise TrainingError("no user has both a positive and a negative item: there is nothing to rank")
        self.model.sparse_rows = settings.optimizer == "row_adam"
        if settings.clip_norm is not None and self.model.sparse_rows:
            raise ConfigError("train.clip_norm does not go with train.optimizer = 'row_adam'; leave one of them out")
        self._rounds = any(one.dtype == torch.bfloat16 for one in self.model.parameters())
        if self._rounds and not self.model.sparse_rows:
            raise ConfigError(
                f"tables of bfloat16 are trained with train.optimizer = 'row_adam', which rounds them so that no step "
                f"is lost, got {settings.optimizer!r}; set it, or set model.tables = 'float32'"
            )
        rate, decay = settings.learning_rate, settings.weight_decay
        parameters = [{"params": list(self.model.parameters())}, *self.loss.parameter_groups(rate)]
        self.optimizer: torch.optim.Optimizer = (
            RowAdam(parameters, lr=rate, weight_decay=decay)
            if settings.optimizer == "row_adam"
            else torch.optim.Adam(parameters, lr=rate, weight_decay=decay, fused=True)
        )
        self._first_rates = [group["lr"] for group in self.optimizer.param_groups]
        self.progress = Progress()
        self.best_weights: dict[str, Tensor] | None = None

    @property
    def model(self) -> Trainable:
        return self.objective.model

    @property
    def loss(self) -> Loss:
        return self.objective.loss

    @property
    def is_finished(self) -> bool:
        progress, settings = self.progress, self.settings
        if progress.epoch >= settings.epochs:
            return True
        if self.validate is None or not settings.patience:
            return False
        since = (progress.epoch - progress.best_epoch) // settings.validate_every
        return progress.best_epoch > 0 and progress.step == 0 and since >= settings.patience

    def run(self, watcher: Watcher | None = None) -> None:
        """Train to the end. Then the model has the weights of the best epoch, or of the last without validation."""
        with torch.random.fork_rng(devices=[]):
            while not self.is_finished:
                self._epoch(watcher)
        if self.best_weights is not None:
            self.model.load_state_dict(self.best_weights)

    def _epoch(self, watcher: Watcher | None) -> None:
        progress, epoch = self.progress, self.progress.epoch + 1
        started = time.perf_counter()
        self.loss.begin_epoch(epoch)
        self._set_rates(epoch)
        for hook in self.objective.hooks:
            generator = stream(self.seed, _THRESHOLD, epoch)
            hook.begin_epoch(epoch, self.model, generator, is_resumed=progress.step > 0)
        for step, batch in enumerate(self.batches.epoch(stream(self.seed, _ORDER, epoch))):
            if step < progress.step:
                continue  # done before the interruption
            progress.loss_sum += self._step(batch, epoch, step)
            progress.step += 1
            if watcher is not None:
                progress.seconds += time.perf_counter() - started
                watcher.on_step(self)
                if watcher.wants_to_stop() and progress.step < len(self.batches):
                    raise Interrupted
                started = time.perf_counter()
        self._finish_epoch(epoch, started, watcher)

    def _set_rates(self, epoch: int) -> None:
        """The learning rates of an epoch, counted from 1: they depend on nothing else."""
        every, factor = self.settings.decay_every, self.settings.decay_factor
        for group, rate in zip(self.optimizer.param_groups, self._first_rates, strict=True):
            group["lr"] = rate if every is None else rate * factor ** ((epoch - 1) // every)

    def _step(self, batch: StepBatch, epoch: int, step: int) -> float:
        generator = stream(self.seed, _STEP, epoch, step)
        # For models that draw noise. torch.manual_seed would format the stack at every call, for other devices.
        if batch.query.device.type == "cpu":
            torch.default_generator.manual_seed(generator.initial_seed())
        else:
            torch.manual_seed(generator.initial_seed())
        self.optimizer.zero_grad(set_to_none=True)
        number, encoded = self.objective.backward(batch, generator)
        if not math.isfinite(number):
            raise TrainingError(self._diverged(number, epoch, step))
        if self.settings.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip_norm)
        if self._rounds:
            assert isinstance(self.optimizer, RowAdam)
            self.optimizer.generator = stream(self.seed, _ROUNDING, epoch, step)
        self.optimizer.step()
        for hook in self.objective.hooks:
            hook.after_step(batch, encoded, generator)
        return number

    def _finish_epoch(self, epoch: int, started: float, watcher: Watcher | None) -> None:
        progress = self.progress
        record: dict[str, Any] = {"epoch": epoch, "loss": progress.loss_sum / progress.step}
        if (threshold := _mean_threshold(self.loss)) is not None:
            record["threshold"] = threshold
        is_last = epoch == self.settings.epochs
        if self.validate is not None and (is_last or epoch % self.settings.validate_every == 0):
            score = record["valid"] = self.validate(self.model)
            if score > progress.best_score:
                progress.best_score, progress.best_epoch = score, epoch
                self.best_weights = copy.deepcopy(self.model.state_dict())
        progress.epoch, progress.step, progress.loss_sum = epoch, 0, 0.0
        progress.seconds += time.perf_counter() - started
        record["seconds"] = round(progress.seconds, 3)
        progress.history.append(record)
        if watcher is not None:
            watcher.on_epoch(self, record)
            if watcher.wants_to_stop():
                raise Interrupted

    def _diverged(self, number: float, epoch: int, step: int) -> str:
        return (
            f"the loss became {number} in epoch {epoch}, step {step + 1} (learning_rate "
            f"{self.settings.learning_rate:g}); the last good checkpoint is kept. Try a lower train.learning_rate"
            f"{' or a higher loss.tau' if hasattr(self.loss, 'tau') else ''}"
        )

    def state_dict(self) -> dict[str, Any]:
        """The whole state, to resume from; refuses weights that are not finite."""
        self._check_finite()
        return {
            "model": self.model.state_dict(),
            "loss": self.loss.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "best_weights": self.best_weights,
            "progress": vars(self.progress),
        }

    def _check_finite(self) -> None:
        for name, tensor in self.model.state_dict().items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise TrainingError(f"the model's {name} is no longer finite; the last good checkpoint is kept")

    def whole_best(self) -> dict[str, Tensor] | None:
        """The weights of the best epoch so far, whole."""
        return self.best_weights

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state read from a file; every part of it is checked."""
        try:
            progress = Progress.of(state["progress"], self.settings.epochs, len(self.batches))
            if state["best_weights"] is not None:
                load_weights(self.model, state["best_weights"])  # only to check that they fit
            load_weights(self.model, state["model"])
            _load_tensors(self.loss, state["loss"])
            if (state["best_weights"] is None) != (progress.best_epoch == 0 or self.validate is None):
                raise ValueError(f"it must have the weights of its best epoch, {progress.best_epoch}")
            self._load_optimizer(state["optimizer"], progress)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            raise CheckpointError(f"the checkpoint does not fit this run, or is damaged: {error}") from None
        self.best_weights, self.progress = state["best_weights"], progress

    def _load_optimizer(self, state: Any, progress: Progress) -> None:
        """Settings must be the config's, and moments must fit: torch converts types, and fused loops trust shapes."""
        self._set_rates(max(1, progress.epoch + (progress.step > 0)))  # as they were when the state was saved
        expected = self.optimizer.state_dict()["param_groups"]
        if (kept := _groups(state["param_groups"])) != (asked := _groups(expected)):
            pairs = zip(kept, asked, strict=False)
            changes = [
                f"{key} is {now[key]}, was {old.get(key)}"
                for old, now in pairs
                for key in now
                if now[key] != old.get(key)
            ]
            raise ValueError(
                f"the optimizer's settings cannot be changed when a run is resumed ({'; '.join(changes)}): put "
                "train.learning_rate, train.weight_decay and train.decay_every back"
            )
        places = [place for group in expected for place in group["params"]]
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        n_steps = progress.epoch * len(self.batches) + progress.step
        learned = zip(places, parameters, strict=True)  # a loss's own parameters may not be updated yet
        needed = {at for at, one in learned if at in expected[0]["params"] and one.requires_grad} if n_steps else set()
        if not needed <= state["state"].keys() <= set(places):
            raise ValueError(f"the optimizer must have moments for its parameters, got {sorted(state['state'])}")
        names = {"step", "mean", "square"} if isinstance(self.optimizer, RowAdam) else {"step", "exp_avg", "exp_avg_sq"}
        for place, parameter in zip(places, parameters, strict=True):
            if (moments := state["state"].get(place)) is not None:
                _check_moments(moments, names, parameter, n_steps)
        self.optimizer.load_state_dict(state)


def load_weights(model: Trainable, weights: Any) -> None:
    """Load weights read from a file: every name, shape and type must fit, every number must be finite."""
    _load_tensors(model, weights)


def _load_tensors(module: nn.Module, tensors: Any) -> None:
    """Names, shapes and types must be the module's: torch would convert other types and lose precision."""
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise ValueError(f"the state of {type(module).__name__} must be named tensors")
    for name, value in module.state_dict().items():
        if name in tensors and tensors[name].dtype != value.dtype:
            raise ValueError(f"{name} must be of {value.dtype}, got {tensors[name].dtype}")
    module.load_state_dict(tensors)
    for name, value in module.state_dict().items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise ValueError(f"{name} must hold finite numbers")


def _groups(groups: Any) -> list[dict[str, Any]]:
    """The settings of an optimizer's groups that decide its steps, as in a file."""
    names = ("params", "lr", "betas", "eps", "weight_decay")
    return [
        {name: list(group[name]) if isinstance(group[name], tuple) else group[name] for name in names if name in group}
        for group in groups
    ]


def _check_moments(moments: Any, names: set[str], parameter: Tensor, n_steps: int) -> None:
    """Check an optimizer's state of one parameter, read from a file."""
    if moments.keys() != names:
        raise ValueError(f"the optimizer's state must have {', '.join(sorted(names))}, got {sorted(moments)}")
    for name, value in moments.items():
        shapes = [(), tuple(parameter.shape[:1])] if name == "step" else [tuple(parameter.shape)]  # RowAdam's, by rows
        dtype = torch.promote_types(parameter.dtype, torch.float32) if name == "step" else parameter.dtype
        if not isinstance(value, Tensor) or tuple(value.shape) not in shapes or value.dtype != dtype:
            got = f"{tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else repr(value)
            raise ValueError(f"the optimizer's {name} must be {shapes[-1]} of {dtype}, as its parameter, got {got}")
        if not bool(value.isfinite().all()) or (name not in ("exp_avg", "mean") and bool((value < 0).any())):
            raise ValueError(f"the optimizer's {name} must be finite, and no count or square below 0")
    if bool((moments["step"] > n_steps).any()) or bool(moments["step"].frac().any()):
        raise ValueError(f"the optimizer's step must be a whole number of at most {n_steps} steps")


def _mean_threshold(loss: Any) -> float | None:
    """The mean of the thresholds that a loss keeps; None where it keeps none, or they are not finite yet."""
    table = getattr(loss, "threshold", None) if getattr(loss, "keeps_thresholds", False) else None
    if not isinstance(table, torch.Tensor) or not table.numel():
        return None
    mean = float(table.detach().double().mean())
    return mean if math.isfinite(mean) else None
