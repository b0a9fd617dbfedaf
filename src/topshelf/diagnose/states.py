"""States to measure: each loss trained for the same epochs from the same initial values; and the time per step."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from topshelf.config import BaseConfig, RunConfig, make_config, merged, of_task, preset, read_config
from topshelf.diagnose.measures import Bound, bound
from topshelf.diagnose.sample import Sample
from topshelf.errors import ConfigError
from topshelf.losses import Loss
from topshelf.models import Model
from topshelf.queries import Context, QuerySet
from topshelf.ragged import Ragged
from topshelf.registry import lookup
from topshelf.training.batches import Batches, stream
from topshelf.training.build import REGISTRIES, build_model, build_trainer, resolve
from topshelf.training.objective import CatalogueObjective, Objective
from topshelf.training.trainer import Trainer, Watcher

_TIMED_POSITIVES = 4096  # of the step that is timed
_ROUNDS = 5

Vectors = tuple[Tensor, Tensor]
C = TypeVar("C", bound=BaseConfig)


@dataclass
class State:
    """A model, the loss that trained it, and the bound of theorem 3.2 after each epoch."""

    label: str
    config: RunConfig
    model: Model
    objective: Objective
    bounds: list[Bound] = field(default_factory=list)

    @property
    def loss(self) -> Loss:
        return self.objective.loss

    @torch.no_grad()
    def vectors(self) -> Vectors:
        """The vectors of queries and items, detached."""
        queries, items = self.model.encode(QuerySet.known(self.model.n_queries, self.config.train.device))
        assert isinstance(queries, Tensor)
        assert isinstance(items, Tensor)
        return queries.detach(), items.detach()

    @property
    def log_weight(self) -> Tensor | None:
        """The log-weight of every item as a negative, (I,); None: all count alike."""
        return self.objective.head.log_weight if isinstance(self.objective, CatalogueObjective) else None

    @property
    def tau_weight(self) -> float | None:
        """The temperature of a loss with sigmoid weights around thresholds, else None."""
        value = getattr(self.loss, "tau_weight", None)
        has_weights = self.loss.keeps_thresholds and getattr(self.loss, "weight", "sigmoid") == "sigmoid"
        return float(value) if has_weights and value is not None else None


@dataclass(frozen=True)
class Timing:
    """The best time per step of one loss, and the size of its batch."""

    label: str
    seconds: float
    n_positives: int
    n_queries: int
    negatives: str


def entry(text: str, base: C, setting: str = "--losses") -> tuple[str, C]:
    """A label and the config of a loss to compare: its name, ``package.module:Class``, or a TOML file.

    By name a loss gets the settings shipped for it on this data, else its general ones; data, K, seed and the model's
    size are those of ``base``. The loss of ``base`` itself keeps its settings. ``setting`` is what an error names.
    """
    common: dict[str, Any] = {"task": base.task, "seed": base.seed, "k": base.k, "data": base.data.model_dump()}
    common["evaluate"] = base.evaluate.model_dump()
    # The loss decides the score: cosine for some, dot products for others.
    model = {key: value for key, value in base.model.settings.items() if key != "score"}
    common["model"] = {"name": base.model.name, **model}
    if text.endswith(".toml"):
        return Path(text).stem, _resolved(merged(read_config(text), common), base)
    label = text.rpartition(":")[2]
    if text == base.loss.name:
        return label, base
    kinds = REGISTRIES[base.task]
    lookup(setting, text, kinds.losses, kinds.loss_base)
    shipped = preset(base.data.source, base.model.name, text, base.task)
    return label, _resolved(merged(shipped, {**common, "loss": {"name": text}}), base)


def entries(base: C, losses: Sequence[str], setting: str = "--losses") -> list[tuple[str, C]]:
    """The loss of ``base``, then those to compare it with, each once."""
    found = [entry(text, base, setting) for text in dict.fromkeys([base.loss.name, *losses])]
    labels = [label for label, _ in found]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise ConfigError(f"{setting} names {', '.join(twice)} twice; name every loss once")
    return found


def _resolved(values: dict[str, Any], base: C) -> C:
    return resolve(of_task(make_config(values), type(base), "diagnose"))


def short(config: C, epochs: int) -> C:
    """The config with this number of epochs, without early stopping and refit."""
    train = config.train.model_copy(update={"epochs": epochs, "patience": 0, "refit": False})
    return config.model_copy(update={"train": train})


@dataclass
class _Watch(Watcher):
    """Measures the bound after every epoch."""

    state: State
    sample: Sample
    k: int

    def measure(self, epoch: int) -> None:
        self.state.bounds.append(bound_of(self.state, self.sample, self.k, epoch))

    def on_epoch(self, trainer: Trainer, record: dict[str, Any]) -> None:  # noqa: ARG002
        self.measure(record["epoch"])


def trained(label: str, config: RunConfig, context: Context, sample: Sample, k: int) -> State:
    """The state after training for the config's epochs; the bound is for ``k``."""
    model = build_model(config, len(context.histories), context.n_items).to(config.train.device)
    trainer = build_trainer(config, model, context)
    state = State(label, config, model, trainer.objective)
    watch = _Watch(state, sample, k)
    watch.measure(0)
    trainer.run(watch)
    state.loss.begin_epoch(1)  # time a step that updates the model
    return state


def bound_of(state: State, sample: Sample, k: int, epoch: int) -> Bound:
    """With the loss's own temperatures if it has both, else with SL@K's defaults."""
    names = ("tau", "tau_weight")
    settings: Mapping[str, Any] = state.config.loss.settings
    settings = settings if all(name in settings for name in names) else {"tau": 0.2, "tau_weight": 3.0}
    queries, items = state.vectors()
    return bound(queries, items, sample, k, **{name: float(settings[name]) for name in names}, epoch=epoch)


def times(states: Sequence[State], positives: Ragged, n_items: int, seed: int) -> list[Timing]:
    """Time of a forward and backward pass per loss, on one batch; losses alternate, the best of several rounds."""
    mean = max(1.0, float(positives.counts.float().mean()))
    size = max(1, min(states[0].config.train.batch_size, round(_TIMED_POSITIVES / mean)))
    batch = next(Batches(positives, n_items, order="query", size=size).epoch(stream(seed, 0, 1)))
    best = [float("inf")] * len(states)
    for turn in range(_ROUNDS):
        for place, state in enumerate(states):
            generator = stream(seed, 1, 1, turn)
            started = time.perf_counter()
            state.objective.backward(batch, generator)
            best[place] = min(best[place], time.perf_counter() - started)
            state.model.zero_grad(set_to_none=True)
            state.loss.zero_grad(set_to_none=True)
    result = []
    for state, seconds in zip(states, best, strict=True):
        kind, n = state.config.negatives.kind, state.config.negatives.n
        negatives = kind if n is None else f"{n} {kind}"
        result.append(Timing(state.label, seconds, batch.item.numel(), batch.query.numel(), negatives))
    return result
