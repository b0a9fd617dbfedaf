"""What the suites share: comparisons that say which promise was broken, and planted data that a model can learn."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import polars as pl
import torch
from torch import Tensor

from topshelf.config import RunConfig, make_config, of_task
from topshelf.data import Dataset, Interactions, make_split
from topshelf.errors import ConfigError
from topshelf.evaluation import ndcg
from topshelf.losses import LOSSES, Loss
from topshelf.models import MODELS, Model
from topshelf.negatives import NEGATIVES, Negatives
from topshelf.queries import Context, EventLists, QuerySet
from topshelf.ragged import Ragged
from topshelf.ranking import QueryVectors
from topshelf.registry import lookup, named
from topshelf.training.build import build_model, build_trainer, resolve
from topshelf.training.thresholding import ESTIMATORS, Estimator
from topshelf.training.trainer import Trainer

N_BLOCKS, USERS, ITEMS = 4, 20, 24  # blocks; users and items of a block
Drawn = TypeVar("Drawn")


def same(actual: Any, expected: Any, promise: str, **tolerance: Any) -> None:
    """Tensors, or mappings of them, are close; the message says which promise is broken."""
    torch.testing.assert_close(actual, expected, msg=lambda text: f"{promise}.\n{text}", **tolerance)


def identical(actual: Any, expected: Any, promise: str) -> None:
    same(actual, expected, promise, rtol=0, atol=0)


def check_draws(draw: Callable[[], Drawn], compare: Callable[[Drawn, Drawn], None]) -> None:
    """Two draws are the same whatever the state of torch's global generator, and leave that alone."""
    results, is_left = [], True
    for seed in (0, 1):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            before = torch.get_rng_state()
            results.append(draw())
            is_left = is_left and torch.equal(torch.get_rng_state(), before)
    compare(*results)
    assert is_left, "draws must come from the given generator, not from torch's global one"


def check_is_named(cls: type[Any], base: type[Any], registry: Mapping[str, type[Any]]) -> None:
    """A run keeps the class by its name, and finds it by that again."""
    assert isinstance(cls, type), f"name the class to be tested, got {cls!r}"
    assert issubclass(cls, base), f"{cls.__name__} must be a subclass of topshelf's {base.__name__}"
    name = named(cls, registry, base, "the class")["name"]
    try:
        is_found = lookup("the class", name, registry, base) is cls
    except ConfigError:
        is_found = False
    assert is_found, f"{name} must name the class: define it at the top level of a module that can be imported"


@functools.cache
def planted() -> Dataset:
    """Users of a block take a third of its items, in random order, and nothing else. Blocks take turns."""
    random = np.random.default_rng(0)
    users = np.repeat(np.arange(N_BLOCKS * USERS), ITEMS // 3)
    chosen = [random.choice(ITEMS, ITEMS // 3, replace=False) for _ in range(N_BLOCKS * USERS)]
    items = np.concatenate(chosen) * N_BLOCKS + users % N_BLOCKS
    return Dataset("planted", make_split(Interactions.from_frame(pl.DataFrame({"user": users, "item": items}))))


def run_config(
    *, model: Any = "mf", loss: Any = "slatk", negatives: Any = None, threshold: Any = None, **train: Any
) -> RunConfig:
    """A run at K = 5. Each component is a name, a class, or (either, settings)."""
    parts: dict[str, tuple[Any, str, Mapping[str, type[Any]], type[Any]]] = {
        "model": (model, "name", MODELS, Model),
        "loss": (loss, "name", LOSSES, Loss),
        "negatives": (negatives, "kind", NEGATIVES, Negatives),
        "threshold": (threshold, "estimator", ESTIMATORS, Estimator),
    }
    values: dict[str, Any] = {"k": 5, "train": {"epochs": 30, **train}}
    for section, (given, key, registry, base) in parts.items():
        if given is not None:
            value, settings = given if isinstance(given, tuple) else (given, {})
            values[section] = {key: named(value, registry, base, section)["name"], **settings}
    return of_task(make_config(values), RunConfig, "run_config")


def planted_trainer(config: RunConfig) -> tuple[Trainer, Ragged]:
    """A trainer of the planted data before its first step, and the training positives."""
    config = resolve(config)
    positives = planted().split.train.ragged()
    model = build_model(config, N_BLOCKS * USERS, N_BLOCKS * ITEMS)
    context = Context(positives, model.n_items, lambda: EventLists(planted_events(), None))
    return build_trainer(config, model, context), positives


def planted_events() -> Ragged:
    """The training items of the planted users, in the order they took them."""
    events = planted().split.train.events
    assert events is not None
    return events.ragged()


def check_training(config: RunConfig) -> Trainer:
    """A few epochs lower the loss or improve what it stands for, and weights stay finite. Returns the trainer."""
    trainer, positives = planted_trainer(config)
    model: Any = trainer.model
    before = ndcg_of(model, positives)
    trainer.run()
    losses = [record["loss"] for record in trainer.progress.history]
    what = f"{config.model.name} trained by {config.loss.name}"
    for key, value in model.state_dict().items():
        assert value.isfinite().all(), f"{what} must keep finite weights: {key} has others"
    # A graph of blocks ranks them before anything is learned; and where thresholds are updated, a loss need not fall.
    assert losses[-1] < losses[0] or ndcg_of(model, positives) > before, (
        f"{what} must learn: the loss went from {losses[0]} to {losses[-1]}, and the NDCG@5 of the training items did "
        "not rise"
    )
    return trainer


def ndcg_of(model: Model, positives: Ragged) -> float:
    """NDCG@5 of the training positives themselves."""
    nothing = Ragged(torch.zeros_like(positives.indptr), positives.indices[:0])
    with torch.no_grad():
        return ndcg(*model.encode(QuerySet.known(model.n_queries)), positives, nothing, 5)


def dense(queries: QueryVectors) -> Tensor:
    """All rows of a model's queries, (Q, d); some models give their rows as sparse matrices."""
    return queries[torch.arange(len(queries))].to_dense()
