"""From a config to the objects it names. The resolved config spells out every default."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import torch

from topshelf.catalogue import Workspace
from topshelf.config import BaseConfig, CatalogueConfig, Component, NegativesSettings, complete
from topshelf.errors import ConfigError
from topshelf.losses import LISTWISE, LOSSES, ListwiseLoss, Loss
from topshelf.models import MODELS, SEQUENCE_MODELS, Model, Trainable
from topshelf.models.blend import NOT_TRAINED, Blend
from topshelf.models.links import LINK_MODELS, LinkModel
from topshelf.models.lists import LIST_MODELS, ListModel
from topshelf.negatives import NEGATIVES, Negatives
from topshelf.queries import Context, QuerySet
from topshelf.registry import lookup, named
from topshelf.training.batches import Batches, stream
from topshelf.training.link_build import resolve_links
from topshelf.training.objective import CatalogueObjective
from topshelf.training.thresholding import ESTIMATORS, Estimator, ThresholdHook
from topshelf.training.trainer import Trainer


class Registries(NamedTuple):
    """The models and losses of a task by name, and their base classes."""

    models: Mapping[str, type[Trainable]]
    losses: Mapping[str, type[Any]]
    model_base: type[Trainable] = Model
    loss_base: type[Any] = Loss
    # Spells out the automatic choices of a config, given its loss; a config of a catalogue has its own way.
    resolve: Callable[[Any, Any], Any] | None = None


REGISTRIES: dict[str, Registries] = {
    "interactions": Registries(MODELS, LOSSES),
    "ranking": Registries(LIST_MODELS, LISTWISE, ListModel, ListwiseLoss),
    "sequences": Registries(SEQUENCE_MODELS, LOSSES),
    "links": Registries(LINK_MODELS, LOSSES, LinkModel, resolve=resolve_links),
}
_MADE_OF_RUNS: dict[str, type[Model]] = {"blend": Blend}  # fitted already: never trained, so not in MODELS
_GIVEN_TO_LOSS = ("n_queries", "n_items", "n_positives", "reduction")
_INITIAL_VALUES = 3  # a branch of the seed's random streams, beside the trainer's
C = TypeVar("C", bound=BaseConfig)
K = TypeVar("K", bound=CatalogueConfig)
DRAWN = 1000  # items that estimators of thresholds draw: the paper's
_OF_LOSS = 1  # a branch of that, for losses with networks or vectors of their own
AUTO = "auto"  # a setting of a loss that is left to a race on validation


def resolve(config: C, *, is_fitted: bool = False, keep_auto: bool = False) -> C:
    """The config with every setting of its model and loss spelled out and checked.

    Only a fitted model (``is_fitted``) may be a blend: a blend cannot be trained. A setting that is left to a race on
    validation ("auto") gets the loss's default; with ``keep_auto`` it stays, for :mod:`topshelf.training.race`.
    """
    if (left := automatic(config)) is not None:
        given = {key: value for key, value in config.loss.settings.items() if key != left}
        settled = resolve(config.model_copy(update={"loss": Component(name=config.loss.name, **given)}))
        return settled.model_copy(update={"loss": _with(settled.loss, **{left: AUTO})}) if keep_auto else settled
    if config.model.name in _MADE_OF_RUNS and not (is_fitted and "parts" in config.model.settings):
        raise ConfigError(f"model.name must not be {config.model.name!r} here: {NOT_TRAINED}")
    loss, model = config.loss, config.model
    loss_type, model_type = loss_class(config), model_class(config)
    if "k" in _parameters(loss_type) and "k" not in loss.settings:
        loss = _with(loss, k=config.k)
    if (
        model.name in REGISTRIES[config.task].models
        and "score" in _parameters(model_type)
        and "score" not in model.settings
    ):
        model = _with(model, score=loss_type.defaults.score)
    loss = _with(loss, **complete("loss", loss_type, loss.settings, _GIVEN_TO_LOSS))
    model = _with(model, **complete("model", model_type, model.settings, model_type.sizes))
    config = config.model_copy(update={"loss": loss, "model": model})
    build_model(config, *(2 for _ in model_type.sizes))  # checks the settings; the sizes here do not matter
    built = build_loss(config, 2, 2, 2)
    if (resolve_task := REGISTRIES[config.task].resolve) is not None:
        return resolve_task(config, built)
    return _resolved(config, built) if isinstance(config, CatalogueConfig) else config


def _resolved(config: K, built: Loss) -> K:
    """The config with its negatives and its threshold estimator spelled out, and checked against the loss."""
    loss, model = config.loss, config.model
    if "whole_queries" in built.needs and config.train.order == "pair":
        raise ConfigError(
            f"loss {loss.name} as set here needs all positives of a user in one batch: set train.order = 'query', "
            "got 'pair'"
        )
    if "item_vector" in built.needs and model.settings.get("score", "cosine") != "cosine":
        raise ConfigError(
            f"loss {loss.name} takes cosines: set model.score = 'cosine', got {model.settings['score']!r}"
        )
    if "item_vector" in built.needs and config.negatives.prior:
        raise ConfigError(
            f"negatives.prior does not go with loss {loss.name}, which has no negatives, got {config.negatives.prior}; "
            "leave it out"
        )
    estimator = build_estimator(config)
    threshold = config.threshold.model_copy(update={"n": config.threshold.n or getattr(estimator, "n", DRAWN)})
    config = config.model_copy(update={"threshold": threshold})
    return config.model_copy(update={"negatives": _spelled_out(config, built)})


def _spelled_out(config: CatalogueConfig, loss: Loss) -> NegativesSettings:
    """The negatives with every automatic choice resolved, so that the run's file does not depend on later defaults."""
    kind, settings = _chosen_negatives(config, loss)
    negatives = build_negatives(config, loss)
    effective_n = config.negatives.effective_n
    if loss.defaults.effective_n is None:
        if effective_n not in (None, negatives.n):
            raise ConfigError(
                f"negatives.effective_n does not go with loss {config.loss.name}, which is never scaled, got "
                f"{effective_n}; leave it out"
            )
        effective_n = None
    elif effective_n is None and loss.defaults.effective_n != "catalogue":
        effective_n = config.negatives.paper_n if negatives.stands_for_catalogue else negatives.n
    update = {**settings, "kind": kind, "n": negatives.n, "effective_n": effective_n}
    return config.negatives.model_copy(update=update)


def components(sections: Mapping[str, Any], task: str = "interactions") -> dict[str, Any]:
    """Sections of a config as plain values; classes and instances in them become names and settings."""
    of_task = REGISTRIES[task]
    kinds: dict[str, tuple[str, Mapping[str, type[Any]], type[Any]]] = {
        "model": ("name", {**of_task.models, **_MADE_OF_RUNS}, of_task.model_base),
        "loss": ("name", of_task.losses, of_task.loss_base),
        "negatives": ("kind", NEGATIVES, Negatives),
        "threshold": ("estimator", ESTIMATORS, Estimator),
    }
    plain = dict(sections)
    for section, (key, registry, base) in kinds.items():
        value = plain.get(section)
        inner = value.get(key) if isinstance(value, Mapping) else value
        if inner is None or (isinstance(value, Mapping) and isinstance(inner, str)):
            continue
        described = named(inner, registry, base, section)
        more = {name: one for name, one in value.items() if name != key} if isinstance(value, Mapping) else {}
        plain[section] = {key: described.pop("name"), **described, **more}
    return plain


def automatic(config: BaseConfig) -> str | None:
    """The setting of the loss that is left to a race on validation; None if there is none."""
    raced = getattr(loss_class(config), "raced", {})
    return next((name for name in raced if config.loss.settings.get(name) == AUTO), None)


def model_class(config: BaseConfig) -> type[Any]:
    name, kinds = config.model.name, REGISTRIES[config.task]
    return _MADE_OF_RUNS[name] if name in _MADE_OF_RUNS else lookup("model.name", name, kinds.models, kinds.model_base)


def loss_class(config: BaseConfig) -> type[Any]:
    kinds = REGISTRIES[config.task]
    return lookup("loss.name", config.loss.name, kinds.losses, kinds.loss_base)


def build_model(config: BaseConfig, *sizes: int) -> Any:
    """The model with the seed's initial values; ``sizes`` are those that its class names.

    The config may come from a damaged folder, so it is checked.
    """
    cls = model_class(config)
    settings = complete("model", cls, config.model.settings, cls.sizes)
    given = dict(zip(cls.sizes, sizes, strict=True))
    try:
        with _initial_values(config.seed):
            return cls(**given, **settings)
    except (MemoryError, RuntimeError) as error:  # torch has no other for a tensor that does not fit
        named = ", ".join(f"{name} = {size}" for name, size in given.items())
        reason = (str(error) or "out of memory").splitlines()[0]
        raise ConfigError(f"model {config.model.name} of {named} cannot be made: {reason}") from error


def build_loss(config: BaseConfig, n_queries: int, n_items: int, n_positives: int) -> Any:
    cls = loss_class(config)
    settings = complete("loss", cls, config.loss.settings, _GIVEN_TO_LOSS)
    sizes = {"n_queries": n_queries, "n_items": n_items, "n_positives": n_positives}
    given: dict[str, Any] = {name: size for name, size in sizes.items() if name in _parameters(cls)}
    with _initial_values(config.seed, _OF_LOSS):
        loss = cls(**given, **settings)
    loss.shares_state = False  # a run is one process, even beside other processes
    return loss


def build_negatives(config: CatalogueConfig, loss: Loss) -> Negatives:
    kind, settings = _chosen_negatives(config, loss)
    return lookup("negatives.kind", kind, NEGATIVES, Negatives)(**settings)


def _chosen_negatives(config: CatalogueConfig, loss: Loss) -> tuple[str, dict[str, Any]]:
    """The name of the source of negatives, and all its settings; "auto" is the loss's choice."""
    settings, kind, n = config.negatives, config.negatives.kind, config.negatives.n
    is_auto = kind == "auto"
    if is_auto:
        kind = loss.defaults.negatives
    if kind == "auto":
        kind = "catalogue" if "log_partition" in loss.needs else "per_query"
    cls = lookup("negatives.kind", kind, NEGATIVES, Negatives)
    given = dict(settings.more)
    if "n" in _parameters(cls):
        n = n or (loss.defaults.n if is_auto else None) or (settings.paper_n if kind in NEGATIVES else None)
        given |= {} if n is None else {"n": n}  # a class of another package has its own default
    elif n is not None:
        raise ConfigError(f"negatives.n does not go with negatives.kind = {kind!r}, got {n}; leave it out")
    return kind, complete("negatives", cls, given)


def build_estimator(config: CatalogueConfig) -> Estimator:
    settings = config.threshold
    cls = lookup("threshold.estimator", settings.estimator, ESTIMATORS, Estimator)
    common = {"n": settings.n, "rate": settings.rate}
    given = {key: value for key, value in common.items() if key in _parameters(cls) and value is not None}
    return cls(**complete("threshold", cls, {**given, **settings.more}))


def build_objective(config: CatalogueConfig, model: Model, context: Context) -> CatalogueObjective:
    """The objective of positives against the catalogue, with its batches and its threshold hook."""
    positives, train = context.histories, config.train
    loss = build_loss(config, model.n_queries, model.n_items, positives.indices.numel()).to(train.device)
    objective = catalogue_objective(config, model, loss, context)
    objective.batches = Batches(
        positives,
        model.n_items,
        order=train.order,
        size=train.batch_size,
        repeat_queries=objective.negatives.layout == "own",
    )
    if loss.keeps_thresholds:
        objective.own_thresholds(
            ThresholdHook(
                loss,
                build_estimator(config),
                QuerySet.known(len(positives), positives.indptr.device),
                positives,
                every=config.threshold.every,
                in_steps=objective.head.reads_blocks and train.order == "query",
            )
        )
    return objective


def catalogue_objective(config: CatalogueConfig, model: Model, loss: Loss, context: Context) -> CatalogueObjective:
    """The objective of a loss against the catalogue, without its batches and hooks."""
    train = config.train
    half = train.precision == "bfloat16"
    if half and train.device == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        raise ConfigError(
            "train.precision = 'bfloat16' needs a processor with bfloat16 products (AVX-512 or AMX), and this one has "
            "none, so it would be slower. Set train.precision = 'float32'"
        )
    negatives = build_negatives(config, loss)
    return CatalogueObjective(
        model,
        loss,
        negatives,
        context,
        effective_n=config.negatives.effective_n,
        prior=config.negatives.prior,
        workspace=Workspace(train.workspace_mib * 2**20),
        half=half,
    )


def build_trainer(
    config: CatalogueConfig, model: Model, context: Context, validate: Callable[[Model], float] | None = None
) -> Trainer:
    return Trainer(build_objective(config, model, context), config, validate)


@contextmanager
def _initial_values(seed: int, *path: int) -> Iterator[None]:
    """Inside, random values depend on the seed and ``path`` alone."""
    with torch.random.fork_rng(devices=[]):
        # Initial values are drawn on the CPU. torch.manual_seed would format the stack at every call: a third of a ms.
        torch.default_generator.manual_seed(stream(seed, _INITIAL_VALUES, *path).initial_seed())
        yield


def _with(component: Component, **settings: Any) -> Component:
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}  # as in TOML
    return Component.model_validate({"name": component.name, **component.settings, **plain})


def _parameters(cls: type[Any]) -> frozenset[str]:
    return _names(cls.__init__)


@lru_cache(maxsize=512)
def _names(init: Callable[..., None]) -> frozenset[str]:
    return frozenset(inspect.signature(init).parameters)
