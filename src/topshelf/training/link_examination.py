"""Links examined: by the degrees of both ends, by their common neighbours, and beside the heuristics."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from topshelf.data.splits import Through
from topshelf.edge_ranks import edge_ranks
from topshelf.graphs import LinkGraph
from topshelf.link_settings import LinksConfig
from topshelf.models.link_base import LinkModel
from topshelf.models.ncn import NCN
from topshelf.training.batches import stream
from topshelf.training.build import build_loss
from topshelf.training.examination import Advice, Examination, Gap, ScoreSample, Trait, effective_count

if TYPE_CHECKING:
    from topshelf.training.tasks.links import LinksTask

REFERENCES = ("common_neighbours", "adamic_adar", "resource_allocation")
ALONE = 0.1  # share of edges with an end that the model has seen no edge of
_STREAM = 15  # a branch of the seed's random streams
_NEGATIVES = 100  # of each edge, where training edges are compared with others
_SHARE = 0.1  # of the training edges, at most: the graph stays nearly what it is
_MOST_SCORES = 5_000_000


@torch.no_grad()
def examine_links(
    task: LinksTask, model: LinkModel, config: LinksConfig, part: Any, through: Through, n: int
) -> Examination:
    """The edges of a part, by what the graph says of their ends."""
    model.eval()
    graph = model.graph
    edges = torch.from_numpy(task.data.edges[part].copy()).to(task.device)
    degree = graph.degrees[edges].amin(1).cpu().numpy()
    common = graph.common(edges).counts.cpu().numpy()
    traits = [
        Trait.of_counts("neighbours of the end with fewer", degree, (0, 1, 2, 4, 8, 16)),
        Trait.of_counts("common neighbours", common, (0, 1, 2, 4)),
    ]
    has_loss = not model.is_closed_form
    found = Examination(
        part,
        task.metric(config),
        task.measure(model, part, config),
        task.references(REFERENCES, part, config, through),
        traits,
        _gap(model, config, edges, n) if has_loss else None,
        _scores(model, config, n) if has_loss else None,
        [
            ("edges", f"{len(edges):,}"),
            ("with an end without a training edge, %", f"{100 * (degree == 0).mean():.1f}"),
            ("with a common neighbour, %", f"{100 * (common > 0).mean():.1f}"),
            ("nodes without a training edge", f"{int((graph.degrees == 0).sum()):,} of {graph.n_nodes:,}"),
        ],
    )
    return found.with_advice(
        nodes_alone(float((degree == 0).mean()), has_features=task.data.n_features > 0, found=found),
        unused_neighbours(found, common > 0, is_ncn=isinstance(model, NCN)),
    )


def _gap(model: LinkModel, config: LinksConfig, held: Tensor, n: int) -> Gap:
    """Training edges, taken out of the graph as in training, and held-out ones, both against random pairs."""
    graph, generator = model.graph, stream(config.seed, _STREAM, 0)
    n_edges = graph.edges.size(0)
    chosen = torch.randperm(n_edges, generator=generator)[: max(1, min(n, int(_SHARE * n_edges)))].to(held.device)
    held = held[torch.randperm(held.size(0), generator=generator)[:n].to(held.device)]
    without = graph.without(chosen)
    nodes = model.encode_nodes(without)
    own = _reciprocal(model, nodes, graph.edges[chosen], without, graph, generator)
    other = _reciprocal(model, nodes, held, without, graph, generator)
    return Gap(own, other, f"MRR of {chosen.numel():,} training edges among {_NEGATIVES} random pairs")


def _reciprocal(
    model: LinkModel, nodes: Tensor, edges: Tensor, graph: LinkGraph, known: LinkGraph, generator: torch.Generator
) -> float:
    """The mean reciprocal rank among pairs of the source with random nodes; those that are edges do not count."""
    others = torch.randint(graph.n_nodes, (edges.size(0), _NEGATIVES), generator=generator).to(edges.device)
    kept = edges[:, :1].expand_as(others)
    scores = model.score_all(nodes, torch.stack([kept, others], dim=-1), graph)
    scores = scores.masked_fill(known.is_known(kept, others) | (others == edges[:, 1:]), -math.inf)
    return float((1 / edge_ranks(model.score_all(nodes, edges, graph), scores)).mean())


def _scores(model: LinkModel, config: LinksConfig, n: int) -> ScoreSample:
    """Some training edges, taken out of the graph as in training: the other end among all nodes."""
    graph, generator = model.graph, stream(config.seed, _STREAM, 1)
    size = max(1, min(n, int(_SHARE * graph.edges.size(0)), int(_MOST_SCORES / graph.n_nodes)))
    chosen = torch.randperm(graph.edges.size(0), generator=generator)[:size].to(graph.edges.device)
    without, edges = graph.without(chosen), graph.edges[chosen]
    nodes = model.encode_nodes(without)
    kept, everyone = edges[:, 0], torch.arange(graph.n_nodes, device=edges.device)
    scores = model.score_others(nodes, kept, everyone, without)
    is_known = graph.known_mask(kept, everyone, torch.zeros_like(kept))
    is_self = everyone == kept.unsqueeze(1)
    settings = config.loss.settings
    k = min(int(settings.get("k", config.k)), graph.n_nodes - 1)
    threshold = scores.masked_fill(is_self, -math.inf).topk(k, dim=1).values[:, -1]
    tau = settings.get("tau") if "log_partition" in build_loss(config, 2, 2, 2).needs else None
    negative = scores[~is_known]
    order = torch.randperm(negative.numel(), generator=generator)[:20_000].to(negative.device)
    return ScoreSample(
        scores.gather(1, edges[:, 1:]).squeeze(1).cpu().numpy(),
        threshold.cpu().numpy(),
        None,
        negative[order].cpu().numpy(),
        None if tau is None else effective_count(scores, tau, is_self),
        np.full(size, graph.n_nodes - 1),
    )


def nodes_alone(share: float, *, has_features: bool, found: Examination) -> Advice | None:
    if share <= ALONE:
        return None
    alone = found.groups(found.traits[0])[0]
    remedy = (
        'Their features are all that is known of them: compare model.name = "mlp" and "sage" on validation.'
        if has_features
        else "Give node features (data.features), or hold out fewer edges (data.valid_fraction, data.test_fraction)."
    )
    return Advice(
        "edges of unknown nodes",
        f"{share:.0%} of the edges have an end without a training edge; {found.metric} is {alone.mean:.3f} there and "
        f"{found.mean:.3f} overall.",
        f"Over {ALONE:.0%}, much of the metric says nothing about the graph.",
        remedy,
    )


def unused_neighbours(found: Examination, has_common: np.ndarray, *, is_ncn: bool) -> Advice | None:
    """Where there are common neighbours, counting them is better than the model."""
    if is_ncn or not has_common.any():
        return None
    own = float(found.values[has_common].mean())
    others = {name: one.per_user[found.metric].numpy() for name, one in found.references.items()}
    counted = {name: float(values[has_common].mean()) for name, values in others.items()}
    best = max(counted, key=lambda name: counted[name])
    if counted[best] <= own:
        return None
    return Advice(
        "common neighbours not used",
        f"On the {has_common.mean():.0%} of edges with a common neighbour, {best} reaches {found.metric} "
        f"{counted[best]:.3f} and this model {own:.3f}.",
        "A model that scores two vectors alone cannot count what both ends share.",
        'Set model.name = "ncn", which scores the common neighbours too.',
    )
