"""Tasks: what is ranked and what counts as relevant. A task has data, batches, an objective and an evaluation.

Interactions of users with items are the first task. The phases of a run depend on the task alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Literal, Protocol

import torch
from torch import Tensor

from topshelf.config import RunConfig
from topshelf.data import Dataset, Split
from topshelf.data.splits import Through
from topshelf.errors import ConfigError, DataError
from topshelf.evalset import EvalSet, protocol_set
from topshelf.evaluation import Evaluation, evaluate_set, ndcg
from topshelf.models import Model
from topshelf.queries import Context, EventLists, QuerySet
from topshelf.ranking import Queries
from topshelf.training.build import build_model, build_objective
from topshelf.training.objective import Objective

Part = Literal["valid", "test"]


class Task(Protocol):
    """What a run needs from its data. ``through`` is what a model may see: "train", "valid" (train too) or "all"."""

    @property
    def n_items(self) -> int: ...

    def has(self, part: Part) -> bool:
        """Whether a held-out part has any interactions."""

    def context(self, through: Through) -> Context:
        """The data that a model's vectors depend on."""

    def model(self, config: RunConfig) -> Model:
        """A new model of the config, on the task's device."""

    def objective(self, config: RunConfig, model: Model, through: Through) -> Objective:
        """What training minimises, with its batches and hooks."""

    def evaluation(self, part: Part, protocol: str = "standard") -> EvalSet:
        """Who asks in a held-out part, what they should find, and what is not listed."""

    def validate(self, model: Model, k: int) -> float:
        """The NDCG@k on the validation part that chooses epochs and settings."""

    def measure(
        self, model: Model, part: Part, *, protocol: str, cutoffs: Sequence[int], auc: bool = True
    ) -> Evaluation:
        """The metrics of a held-out part."""


class InteractionsTask:
    """Users and their items, ranked over the whole catalogue."""

    def __init__(self, split: Split, device: str = "cpu") -> None:
        self.split, self.device = split.check(), device
        self.evaluation = cache(self._evaluation)  # sets are checked when made, and used at every validation

    @property
    def n_items(self) -> int:
        return self.split.n_items

    def has(self, part: Part) -> bool:
        return self.split.lists(part).indices.numel() > 0

    def context(self, through: Through) -> Context:
        def events() -> EventLists | None:
            part = self.split.events(through)
            return None if part is None else EventLists(part.ragged(), part.times())

        return Context(self.split.seen(through), self.n_items, events).to(self.device)

    def model(self, config: RunConfig) -> Model:
        return build_model(config, self.split.n_users, self.n_items).to(self.device)

    def objective(self, config: RunConfig, model: Model, through: Through) -> Objective:
        return build_objective(config, model, self.context(through))

    def _evaluation(self, part: Part, protocol: str = "standard") -> EvalSet:
        """The users of the training as queries, their held-out items, and the excluded items."""
        lists, n_users = self.split.lists, self.split.n_users
        valid = lists("valid") if part == "test" else None
        evalset, _ = protocol_set(lists(part), lists("train"), valid, protocol, None, n_users, self.n_items)
        return replace(evalset, queries=QuerySet.known(n_users, self.device))

    def validate(self, model: Model, k: int) -> float:
        evalset = self.evaluation("valid")
        return ndcg(*vectors_for(model, evalset), evalset.relevant, evalset.exclude, k)

    def measure(
        self, model: Model, part: Part, *, protocol: str, cutoffs: Sequence[int], auc: bool = True
    ) -> Evaluation:
        evalset = self.evaluation(part, protocol)
        popularity = torch.bincount(self.split.lists("train").indices, minlength=self.n_items)
        return evaluate_set(*vectors_for(model, evalset), evalset, cutoffs, auc=auc, item_counts=popularity)


def task_of(dataset: Dataset, device: str) -> Task:
    """The task of a dataset: what kind of data it holds decides."""
    return InteractionsTask(dataset.split, device)


@torch.no_grad()
def vectors_for(model: Model, evalset: EvalSet) -> tuple[Queries, Tensor]:
    """The vectors of the set's queries, and of all items."""
    assert isinstance(evalset.queries, QuerySet)
    return model.encode(evalset.queries)


def check_parts(task: Task, config: RunConfig, kind: str) -> None:
    """Refuse empty held-out parts, before training begins."""
    wanted: dict[Part, str] = {"valid": "data.valid_fraction", "test": "data.test_fraction"}
    if config.data.test_fraction == 0:
        del wanted["test"]
    for part, setting in wanted.items():
        if not task.has(part):
            raise DataError(
                f"the {part} part of the {kind} split is empty: no user has held-out items. Use more data, a larger "
                f"{setting}, or another data.split"
            )


def check_device(name: str) -> None:
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"train.device must be a device of this machine, such as cpu, got {name!r}: {reason}"
        ) from None
