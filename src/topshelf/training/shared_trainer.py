"""The trainer of a run that several processes train together: the same steps on each, and one state of them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from topshelf.config import BaseConfig
from topshelf.errors import ConfigError, WorldError
from topshelf.models import Model
from topshelf.models.slices import ItemSlice
from topshelf.queries import Context
from topshelf.ragged import Ragged
from topshelf.ranking import top_k
from topshelf.thresholds import exact_thresholds
from topshelf.training.batches import Batches
from topshelf.training.objective import CatalogueObjective, Objective
from topshelf.training.shared_heads import choose_shared_head, kth_best
from topshelf.training.shares import Share, gather_rows, slice_rows
from topshelf.training.sliced_checkpoint import Rows
from topshelf.training.thresholding import Exact, ThresholdHook
from topshelf.training.trainer import Trainer, Watcher
from topshelf.world import World

_TRAINED = "mf, history, lightgcn, lightgcn_pp, simgcl, xsimgcl, ncf and simplex"
_QUERIES = 1 << 13  # whose best scores are gathered at once


class SharedTrainer(Trainer):
    """A :class:`Trainer` whose objective is divided among the processes of a world.

    Its state is that of one process, with this process's :class:`Rows` in the place of divided tables; the one it loads
    has whole tables, so it loads on any number of processes. Every process must call :meth:`state_dict`, as with any
    collective operation.
    """

    model: Model

    def __init__(
        self,
        objective: Objective,
        config: BaseConfig,
        validate: Callable[[Any], float] | None,
        *,
        context: Context,
        world: World,
    ) -> None:
        assert isinstance(objective, CatalogueObjective)
        assert isinstance(objective.batches, Batches)
        self.world, self.context = world, context
        self.share = Share(objective.batches.queries.cpu(), context.histories.to("cpu"), world)
        super().__init__(_divided(objective, self.share), config, validate)
        if self.settings.clip_norm is not None and self.model.held is not None:
            raise ConfigError("train.clip_norm does not go with train.shard_items = true; leave one of them out")

    def run(self, watcher: Watcher | None = None) -> None:
        """As one process does; then every process has the whole model."""
        super().run(watcher)
        if self.model.held is not None:
            self.model.hold(None)
            self.model.attach(self.context)

    def _finish_epoch(self, epoch: int, started: float, watcher: Watcher | None) -> None:
        self.share.gather_tables(self.loss)
        self._check_same(epoch)
        super()._finish_epoch(epoch, started, watcher)

    def _check_same(self, epoch: int) -> None:
        """Refuse to go on where parameters that all processes have are no longer the same."""
        replicated = [one for name, one in self.model.named_parameters() if not self._is_sliced(name)]
        sums = [float(one.detach().double().sum()) for one in replicated]
        first, *others = self.world.numbers(sums)
        for rank, other in enumerate(others, 1):
            if other != first:
                raise WorldError(
                    f"the processes no longer have the same parameters after epoch {epoch}: process 0 has sums "
                    f"{first}, process {rank} {other}. Are their machines of one kind, with the same versions?"
                )

    def _is_sliced(self, name: str) -> bool:
        return self.model.held is not None and name in self.model.item_tables

    def state_dict(self) -> dict[str, Any]:
        self.share.gather_tables(self.loss)
        state = super().state_dict()
        if self.model.held is None:
            return state
        names = dict(enumerate(name for name, _ in self.model.named_parameters()))
        moments = {
            place: self._rows(dict.fromkeys(kept, names.get(place, "")), kept)
            for place, kept in state["optimizer"]["state"].items()
        }
        own = {name: name for name in state["model"]}
        best = state["best_weights"]
        return {
            **state,
            "model": self._rows(own, state["model"]),
            "best_weights": None if best is None else self._rows(own, best),
            "optimizer": {**state["optimizer"], "state": moments},
        }

    def _rows(self, parameter: dict[str, str], tensors: dict[str, Tensor]) -> dict[str, Tensor | Rows]:
        """Tensors of parameters, those with a row per item marked as divided."""
        return {
            name: Rows(one) if self._is_sliced(parameter[name]) and one.dim() else one for name, one in tensors.items()
        }

    def _check_finite(self) -> None:
        self.world.agreed(super()._check_finite)

    def whole_best(self) -> dict[str, Tensor] | None:
        return None if self.best_weights is None else gather_rows(self.model, self.best_weights)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.model.held is not None and isinstance(state.get("optimizer"), dict):
            names = dict(enumerate(name for name, _ in self.model.named_parameters()))
            kept = state["optimizer"].get("state")
            moments = kept
            if isinstance(kept, dict):
                moments = {place: self._sliced(names.get(place, ""), one) for place, one in kept.items()}
            state = {
                **state,
                "model": slice_rows(self.model, state.get("model")),
                "best_weights": slice_rows(self.model, state.get("best_weights")),
                "optimizer": {**state["optimizer"], "state": moments},
            }
        super().load_state_dict(state)

    def _sliced(self, parameter: str, moments: Any) -> Any:
        if not self._is_sliced(parameter) or not isinstance(moments, dict):
            return moments
        table = self.model.item_tables[0]
        return {name: slice_rows(self.model, {table: one})[table] for name, one in moments.items()}


def check_shared(model: Any, config: BaseConfig) -> None:
    """Refuse what several processes cannot train; the losses that they cannot are refused with their heads."""
    if config.task != "interactions":
        raise ConfigError(
            f"several processes train runs of task interactions, got task {config.task!r}; use one process"
        )
    if model.is_closed_form:
        raise ConfigError(
            f"model {config.model.name} is fitted in closed form, by one process; several train {_TRAINED}"
        )


def hold_slice(model: Any, config: BaseConfig, world: World) -> None:
    """Keep only this process's slice of a new model's tables of items, where the config says so."""
    if config.train.shard_items and world.size > 1:
        if not model.item_tables:
            raise ConfigError(
                f"train.shard_items does not go with model {config.model.name}, whose tables of items cannot be "
                "divided; use mf, history, simplex, lightgcn or lightgcn_pp, or set train.shard_items = false"
            )
        if any(one.dtype == torch.bfloat16 for one in model.parameters()):
            raise ConfigError(
                "train.shard_items does not go with model.tables = 'bfloat16', whose rounding would depend on the "
                "number of processes; set model.tables = 'float32', or train.shard_items = false"
            )
        model.hold(ItemSlice.of(model.n_items, world))


def _divided(objective: CatalogueObjective, share: Share) -> CatalogueObjective:
    """The objective with a head, and an estimator of thresholds, that several processes share."""
    model = objective.model
    objective.head = choose_shared_head(objective.head, model, share)
    for hook in objective.hooks:
        if isinstance(hook, ThresholdHook):
            if isinstance(hook.estimator, Exact):
                hook.estimator = SharedExact(share, model)
            elif model.held is not None and hook.reads is None:
                raise ConfigError(
                    f"train.shard_items does not go with threshold.estimator {type(hook.estimator).__name__} here, "
                    "which draws from all items; set threshold.estimator = 'exact'"
                )
    return objective


class SharedExact(Exact):
    """Exact thresholds of the process's own queries; with a slice of the items, from the best of every slice."""

    def __init__(self, share: Share, model: Model) -> None:
        self.share, self.model = share, model

    def refresh(
        self,
        now: Tensor,
        queries: Tensor,
        items: Tensor,
        positives: Ragged,  # noqa: ARG002
        k: int,
        generator: torch.Generator,  # noqa: ARG002
    ) -> Tensor:
        if self.model.held is None:
            fresh, first, last = now.clone(), self.share.first, self.share.last
            fresh[first:last] = exact_thresholds(queries[first:last], items, k).to(now.dtype)
            return fresh
        best = [top_k(part, items, min(k, items.size(0)))[0] for part in queries.split(_QUERIES)]
        return torch.cat([kth_best(one, k, self.share.world) for one in best]).to(now.dtype)
