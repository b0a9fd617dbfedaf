"""From a config of links to its objective; automatic choices are spelled out."""

from __future__ import annotations

from typing import Any

from topshelf.errors import ConfigError
from topshelf.graphs import LinkGraph
from topshelf.link_settings import LinksConfig
from topshelf.losses import Loss
from topshelf.models.link_base import LinkModel
from topshelf.training.link_batches import LinkBatches, LinkNegatives
from topshelf.training.link_objective import LinkObjective, LinkThresholds

PER_NODE = 50  # negatives of each query where a score is more than a dot product
SHARED = 1000  # the paper's N
POINTWISE = ("bce", "gbce")  # losses whose reference draws one random pair per edge


def resolve_links(config: LinksConfig, loss: Loss) -> LinksConfig:
    """The config with the choice of negatives and thresholds spelled out, and checked."""
    if "whole_queries" in loss.needs:
        raise ConfigError(
            f"loss {config.loss.name} as set here needs all positives of a query in one batch, and links come edge by "
            "edge; choose another loss, or other settings of it"
        )
    if config.train.optimizer != "adam" or config.train.precision != "float32":
        raise ConfigError("links are trained with train.optimizer = 'adam' and train.precision = 'float32' only")
    is_product = config.model.settings.get("score") in ("dot", "cosine")
    negatives, kind = config.negatives, config.negatives.kind
    if kind == "auto":
        kind = "pairs" if config.loss.name in POINTWISE else "shared" if is_product else "per_node"
    if negatives.pool is not None and kind != "hard":
        raise ConfigError(f'negatives.pool is for negatives.kind = "hard", got kind = {kind!r}; leave it out')
    n = negatives.n or {"pairs": 1, "per_node": PER_NODE, "hard": PER_NODE, "shared": SHARED}[kind]
    if negatives.effective_n is not None and "log_partition" not in loss.needs:
        raise ConfigError(f"negatives.effective_n scales a partition sum, and loss {config.loss.name} has none")
    estimator = config.threshold.estimator
    if estimator == "auto":
        estimator = "weighted"
    return config.model_copy(
        update={
            "negatives": negatives.model_copy(update={"kind": kind, "n": n}),
            "threshold": config.threshold.model_copy(update={"estimator": estimator}),
        }
    )


def link_sizes(graph: LinkGraph) -> dict[str, int]:
    """What a loss's constructor is given: slots of queries, nodes, and positives."""
    n_slots = graph.n_nodes * (2 if graph.is_directed else 1)
    return {"n_queries": n_slots, "n_items": graph.n_nodes, "n_positives": 2 * graph.edges.size(0)}


def build_link_objective(config: LinksConfig, model: LinkModel, loss: Loss, graph: LinkGraph) -> LinkObjective:
    """The objective of a resolved config."""
    settings: Any = config.negatives
    owner = None
    if loss.keeps_thresholds:
        threshold = config.threshold
        owner = LinkThresholds(loss, graph, estimator=threshold.estimator, scope=threshold.scope, every=threshold.every)
    return LinkObjective(
        model,
        loss,
        graph,
        LinkBatches(graph, size=config.train.batch_size, anchor=config.train.anchor),
        LinkNegatives(settings.kind, settings.n, pool=settings.pool),
        owner=owner,
        effective_n=settings.effective_n,
    )
