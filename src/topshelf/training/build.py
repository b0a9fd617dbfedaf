"""From a config to the objects it names. The resolved config spells out every default."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from topshelf.catalogue import Workspace
from topshelf.config import Component, NegativesSettings, RunConfig, complete
from topshelf.errors import ConfigError, one_of
from topshelf.losses import LOSSES, Loss
from topshelf.models import MODELS, Model
from topshelf.models.blend import NOT_TRAINED, Blend
from topshelf.negatives import NEGATIVES, Negatives, PerQuery, Shared
from topshelf.ragged import Ragged
from topshelf.training.batches import stream
from topshelf.training.objective import Objective

_MADE_OF_RUNS: dict[str, type[Model]] = {"blend": Blend}  # fitted already: never trained, so not in MODELS
_GIVEN_TO_LOSS = ("n_queries", "n_items", "n_positives", "reduction")
_GIVEN_TO_MODEL = ("n_queries", "n_items")
_INITIAL_VALUES = 3  # a branch of the seed's random streams, beside the trainer's
_OF_LOSS = 1  # a branch of that, for losses with networks or vectors of their own


def resolve(config: RunConfig, *, is_fitted: bool = False) -> RunConfig:
    """The config with every setting of its model and loss spelled out and checked.

    Only what ``is_fitted`` may be a blend: there is nothing to train in it.
    """
    models = _registry(config.model.name)
    if models is _MADE_OF_RUNS and not (is_fitted and "parts" in config.model.settings):
        raise ConfigError(f"model.name must not be {config.model.name!r} here: {NOT_TRAINED}")
    loss_class = LOSSES[one_of("loss.name", config.loss.name, LOSSES)]
    model_class = models[one_of("model.name", config.model.name, models)]
    loss, model = config.loss, config.model
    if "k" in _parameters(loss_class) and "k" not in loss.settings:
        loss = _with(loss, k=config.k)
    if "score" in _parameters(model_class) and "score" not in model.settings:
        model = _with(model, score=loss_class.defaults.score)
    loss = _with(loss, **complete("loss", LOSSES, loss, _GIVEN_TO_LOSS))
    model = _with(model, **complete("model", models, model, _GIVEN_TO_MODEL))
    config = config.model_copy(update={"loss": loss, "model": model})
    build_model(config, 2, 2)  # its constructor checks the settings; sizes do not matter for that, nor below
    built = build_loss(config, 2, 2, 2)
    if "whole_queries" in built.needs and config.train.order == "pair":
        raise ConfigError(
            f"loss {loss.name} as set here needs all positives of a user in one batch: set train.order = 'query', "
            "got 'pair'"
        )
    if "item_vector" in built.needs and model.settings.get("score", "cosine") != "cosine":
        raise ConfigError(
            f"loss {loss.name} takes cosines: set model.score = 'cosine', got {model.settings['score']!r}"
        )
    return config.model_copy(update={"negatives": _spelled_out(config, built)})


def _spelled_out(config: RunConfig, loss: Loss) -> NegativesSettings:
    """The negatives with every automatic choice made, so that the run's file repeats it whatever ships later."""
    negatives = build_negatives(config, loss)
    kind = next(name for name, cls in NEGATIVES.items() if type(negatives) is cls)
    n = negatives.n if isinstance(negatives, Shared | PerQuery) else None
    effective_n = config.negatives.effective_n
    if loss.defaults.effective_n is None:
        if effective_n not in (None, n):
            raise ConfigError(
                f"negatives.effective_n does not go with loss {config.loss.name}, whose sum over negatives is its own, "
                f"got {effective_n}; leave it out"
            )
        effective_n = None
    elif effective_n is None and loss.defaults.effective_n != "catalogue":
        effective_n = n or config.negatives.paper_n
    return config.negatives.model_copy(update={"kind": kind, "n": n, "effective_n": effective_n})


def build_model(config: RunConfig, n_queries: int, n_items: int) -> Model:
    """The model with the seed's initial values. The config may come from a folder, and be damaged."""
    models = _registry(config.model.name)
    settings = complete("model", models, config.model, _GIVEN_TO_MODEL)
    with _initial_values(config.seed):
        return models[config.model.name](n_queries, n_items, **settings)


def _registry(name: str) -> dict[str, type[Model]]:
    return _MADE_OF_RUNS if name in _MADE_OF_RUNS else MODELS


def build_loss(config: RunConfig, n_queries: int, n_items: int, n_positives: int) -> Loss:
    cls = LOSSES[one_of("loss.name", config.loss.name, LOSSES)]
    settings = complete("loss", LOSSES, config.loss, _GIVEN_TO_LOSS)
    sizes = {"n_queries": n_queries, "n_items": n_items, "n_positives": n_positives}
    given: dict[str, Any] = {name: size for name, size in sizes.items() if name in _parameters(cls)}
    with _initial_values(config.seed, _OF_LOSS):
        loss = cls(**given, **settings)
    loss.shares_state = False  # a run is one process, whatever other processes there are
    return loss


def build_negatives(config: RunConfig, loss: Loss) -> Negatives:
    settings = config.negatives
    kind, n = settings.kind, settings.n
    if kind == "auto":
        kind = loss.defaults.negatives
        if kind == "auto":
            kind = "catalogue" if "log_partition" in loss.needs else "per_query"
        n = n or (loss.defaults.n if "n" in _parameters(NEGATIVES[kind]) else None)
    cls = NEGATIVES[kind]
    if n is None and "n" in _parameters(cls):
        n = settings.paper_n
    if n is not None and "n" not in _parameters(cls):
        raise ConfigError(f"negatives.n does not go with negatives.kind = {kind!r}, got {n}; leave it out")
    return cls(n) if n is not None else cls()  # type: ignore[call-arg]


def build_objective(config: RunConfig, model: Model, positives: Ragged) -> Objective:
    loss = build_loss(config, model.n_queries, model.n_items, positives.indices.numel()).to(config.train.device)
    half = config.train.precision == "bfloat16"
    if half and config.train.device == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        raise ConfigError(
            "train.precision = 'bfloat16' needs a processor with bfloat16 products (AVX-512 or AMX), and this one has "
            "none: it would be slower. Set train.precision = 'float32'"
        )
    return Objective(
        model,
        loss,
        build_negatives(config, loss),
        positives,
        effective_n=config.negatives.effective_n,
        workspace=Workspace(config.train.workspace_mib * 2**20),
        half=half,
    )


@contextmanager
def _initial_values(seed: int, *path: int) -> Iterator[None]:
    """Random values drawn inside are the seed's own."""
    with torch.random.fork_rng(devices=[]):
        # Values begin on the CPU. torch.manual_seed would format the stack at every call, for CUDA: a third of a ms.
        torch.default_generator.manual_seed(stream(seed, _INITIAL_VALUES, *path).initial_seed())
        yield


def _with(component: Component, **settings: Any) -> Component:
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}  # as in TOML
    return Component.model_validate({"name": component.name, **component.settings, **plain})


def _parameters(cls: type[Any]) -> set[str]:
    return set(inspect.signature(cls.__init__).parameters)
