"""What a training step of links minimises: edges of the graph against pairs of nodes that are none.

A batch is some edges, and they are taken out of the graph that the step encodes: a model that sees the edge it is asked
for learns nothing. A query is one end of an edge; its positive is the other end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf import thresholds
from topshelf.errors import ConfigError, at_least, one_of
from topshelf.graphs import LinkGraph
from topshelf.losses import Loss
from topshelf.models.link_base import LinkModel
from topshelf.training.objective import StepResult

Anchor = Literal["both", "random", "source"]
ANCHORS = ("both", "random", "source")
LinkNegativesKind = Literal["pairs", "per_node", "shared", "hard"]
LINK_NEGATIVES = ("pairs", "per_node", "shared", "hard")
LINK_ESTIMATORS = ("sampled", "weighted", "exact")


@dataclass(frozen=True, eq=False)
class LinkBatch:
    """Q queries, one positive pair each.

    ``query (Q,)`` indexes state per query: the node, and in a directed graph n_nodes + the node where it is the target.
    ``pairs (Q, 2)``: the positives. ``side (Q,)``: which end asks, 0 the source. ``edge (B,)``: the edges' places among
    all training edges. ``pair (Q,)``: the place of each positive among all that there can be, 2 edge + side.
    """

    query: Tensor
    pairs: Tensor
    side: Tensor
    edge: Tensor
    pair: Tensor

    @property
    def kept(self) -> Tensor:
        """The node that asks, (Q,)."""
        return self.pairs.gather(1, self.side.unsqueeze(1)).squeeze(1)

    @property
    def other(self) -> Tensor:
        """The node to be found, (Q,)."""
        return self.pairs.gather(1, 1 - self.side.unsqueeze(1)).squeeze(1)


class LinkBatches:
    """The edges in an order that only the generator decides.

    ``anchor``: which end of an edge is its query. "both": each edge is two queries; "random": one end, drawn anew in
    each epoch; "source": its first end.
    """

    def __init__(self, graph: LinkGraph, *, size: int, anchor: Anchor = "both") -> None:
        self.edges, self.n_nodes, self.is_directed = graph.edges, graph.n_nodes, graph.is_directed
        self.size, self.anchor = at_least("train.batch_size", size, 1), one_of("anchor", anchor, ANCHORS)

    def __len__(self) -> int:
        return -(-self.edges.size(0) // self.size)

    def epoch(self, generator: torch.Generator) -> Iterator[LinkBatch]:
        n, device = self.edges.size(0), self.edges.device
        order = torch.randperm(n, generator=generator).to(device)
        drawn = torch.randint(2, (n,), generator=generator).to(device)
        for edge in order.split(self.size):
            if self.anchor == "both":
                rows, side = edge.repeat(2), torch.arange(2, device=device).repeat_interleave(edge.numel())
            else:
                rows, side = edge, drawn[edge] if self.anchor == "random" else torch.zeros_like(edge)
            yield self._batch(edge, rows, side)

    def _batch(self, edge: Tensor, rows: Tensor, side: Tensor) -> LinkBatch:
        pairs = self.edges[rows]
        kept = pairs.gather(1, side.unsqueeze(1)).squeeze(1)
        query = kept + side * self.n_nodes if self.is_directed else kept
        return LinkBatch(query, pairs, side, edge, 2 * rows + side)


class LinkDraw(NamedTuple):
    """Scores of a step's negatives (Q, N), which of them do not count, and the other end of each.

    ``is_all``: column j is node j, and every node is there.
    """

    scores: Tensor
    mask: Tensor
    items: Tensor
    is_all: bool = False


class LinkNegatives:
    """Pairs that are no edges, drawn anew in every step. Known edges and pairs of a node with itself never count.

    kind: "pairs", both ends drawn evenly, with no regard to the query; "per_node", the other end drawn evenly, for each
    query its own; "shared", the same other ends for all queries, without repeats, so that a dot product scores them in
    one product of matrices (``n`` of all nodes or more: every node, the exact sum); "hard", the ``n`` best-scored of
    ``pool`` that are drawn as by "per_node".
    """

    def __init__(self, kind: LinkNegativesKind, n: int, *, pool: int | None = None) -> None:
        self.kind, self.n = one_of("negatives.kind", kind, LINK_NEGATIVES), at_least("negatives.n", n, 1)
        if pool is not None and kind != "hard":
            raise ConfigError(f'negatives.pool is for kind = "hard", got pool={pool} with kind = {kind!r}')
        self.pool = at_least("negatives.pool", 10 * n if pool is None else pool, n)

    def draw(
        self, model: LinkModel, nodes: Tensor, batch: LinkBatch, graphs: tuple[LinkGraph, LinkGraph],
        generator: torch.Generator,
    ) -> LinkDraw:  # fmt: skip
        """Negatives of the batch and their scores. ``graphs``: that of the step, and that of all known edges."""
        graph, known = graphs
        if self.kind == "shared":
            return self._shared(model, nodes, batch, graphs, generator)
        n = self.pool if self.kind == "hard" else self.n
        ends = torch.randint(graph.n_nodes, (2, batch.query.numel(), n), generator=generator).to(nodes.device)
        kept, others = batch.kept.unsqueeze(1).expand(-1, n), ends[0]
        if self.kind == "pairs":
            kept = ends[1]
        side = batch.side.unsqueeze(1)
        mask = known.is_known(kept, others, side)
        if self.kind == "hard":
            with torch.no_grad():
                scores = model.score_all(nodes.detach(), _pairs(kept, others, side), graph)
            best = scores.masked_fill(mask, -math.inf).topk(self.n, dim=1).indices
            kept, others, mask = (x.gather(1, best) for x in (kept, others, mask))
        return LinkDraw(model.score(nodes, _pairs(kept, others, side), graph), mask, others)

    def _shared(
        self, model: LinkModel, nodes: Tensor, batch: LinkBatch, graphs: tuple[LinkGraph, LinkGraph],
        generator: torch.Generator,
    ) -> LinkDraw:  # fmt: skip
        graph, known = graphs
        is_all = self.n >= graph.n_nodes
        others = torch.arange(graph.n_nodes, device=nodes.device)
        if not is_all:
            others = torch.randperm(graph.n_nodes, generator=generator)[: self.n].to(nodes.device)
        rows = [(batch.side == side).nonzero().squeeze(1) for side in ((0, 1) if graph.is_directed else (0,))]
        if not graph.is_directed:
            rows = [torch.arange(batch.query.numel(), device=nodes.device)]  # either end asks in the same way
        scores = torch.cat(
            [model.score_others(nodes, batch.kept[some], others, graph, side=side) for side, some in enumerate(rows)]
        )
        back = torch.argsort(torch.cat(rows))
        scores = scores if len(rows) == 1 else F.embedding(back, scores)
        mask = known.known_mask(batch.kept, others, batch.side)
        return LinkDraw(scores, mask, others.unsqueeze(0).expand_as(mask), is_all)


def _pairs(kept: Tensor, others: Tensor, side: Tensor) -> Tensor:
    """Pairs (Q, N, 2) whose source is the kept end where ``side (Q, 1)`` is 0."""
    is_source = side == 0
    return torch.stack([torch.where(is_source, kept, others), torch.where(is_source, others, kept)], dim=-1)


class LinkThresholds:
    """The one owner of a loss's thresholds over nodes: each query's K-th best score.

    ``estimator``: "sampled", the K-th best of the step's negatives and the query's known edges; "weighted", with each
    negative counted as the many that it stands for; "exact", over all nodes. ``scope``: "batch", made from the scores
    of the step itself and used in it; "table", written after the steps of every ``every``-th epoch, used from then on.
    """

    def __init__(self, loss: Loss, graph: LinkGraph, *, estimator: str, scope: str = "batch", every: int = 1) -> None:
        self.loss, self.graph = loss, graph
        self.estimator = one_of("threshold.estimator", estimator, LINK_ESTIMATORS)
        self.scope = one_of("threshold.scope", scope, ("batch", "table"))
        self.every = at_least("threshold.every", every, 1)
        self._is_due = True

    def begin_epoch(
        self,
        epoch: int,
        model: LinkModel | None = None,  # noqa: ARG002
        generator: torch.Generator | None = None,  # noqa: ARG002
        *,
        is_resumed: bool = False,  # noqa: ARG002
    ) -> None:
        """Note whether the steps of this epoch, counted from 1, write the table."""
        self._is_due = epoch % self.every == 0

    def after_step(self, batch: LinkBatch, encoded: None, generator: torch.Generator) -> None:
        """Nothing: the thresholds are written in the step, which has the scores."""

    @torch.no_grad()
    def of_step(
        self, model: LinkModel, nodes: Tensor, batch: LinkBatch, draw: LinkDraw, graph: LinkGraph
    ) -> Tensor | None:
        """The thresholds that the loss of this step is given, (Q,); None where it takes those of its table."""
        if self.scope == "batch":
            return self._estimate(model, nodes, batch, draw, graph)
        if self._is_due:
            values = self._estimate(model, nodes, batch, draw, graph)
            query, row = torch.unique(batch.query, return_inverse=True)
            first = torch.full_like(query, row.numel()).scatter_reduce(
                0, row, torch.arange(row.numel(), device=row.device), "amin"
            )
            self._next = (query, values[first].to(self.loss.threshold.dtype))
        return None

    def write(self) -> None:
        """Write what the step found, after its loss was taken."""
        if self.scope == "table" and self._is_due:
            query, values = self._next
            self.loss.threshold[query] = values

    def _estimate(self, model: LinkModel, nodes: Tensor, batch: LinkBatch, draw: LinkDraw, graph: LinkGraph) -> Tensor:
        if draw.is_all:  # nothing needs to be scored again
            return _kth(draw.scores.detach(), batch.kept, self.loss.k)
        if self.estimator == "exact":
            return self._exact(model, nodes, batch, graph)
        owner, scores, counts = self._known(model, nodes, batch, graph)
        if self.estimator == "sampled":
            return thresholds.sampled_thresholds(scores, draw.scores.detach(), owner, self.loss.k, mask=draw.mask)
        n_negatives = graph.n_nodes - 1 - counts
        return thresholds.weighted_thresholds(
            scores, draw.scores.detach(), owner, self.loss.k, n_negatives, mask=draw.mask
        )

    def _known(
        self, model: LinkModel, nodes: Tensor, batch: LinkBatch, graph: LinkGraph
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The scores of all known edges of the queries: their owners, the scores, and how many per query."""
        owners, pairs = [], []
        for side, lists in enumerate((self.graph.targets, self.graph.sources)):
            rows = (batch.side == side).nonzero().squeeze(1)
            chosen = lists.select(batch.kept[rows]) if rows.numel() else lists.slice(0, 0)
            owner = rows[chosen.owner()]
            kept = batch.kept[owner]
            owners.append(owner)
            pairs.append(torch.stack([kept, chosen.indices] if side == 0 else [chosen.indices, kept], dim=1))
        owner = torch.cat(owners)
        scores = model.score_all(nodes.detach(), torch.cat(pairs), graph)
        return owner, scores, torch.bincount(owner, minlength=batch.query.numel())

    def _exact(self, model: LinkModel, nodes: Tensor, batch: LinkBatch, graph: LinkGraph) -> Tensor:
        levels = nodes.new_empty(batch.query.numel())
        everyone = torch.arange(graph.n_nodes, device=nodes.device)
        for side in (0, 1):
            rows = (batch.side == side).nonzero().squeeze(1)
            for part in rows.split(256):
                kept = batch.kept[part]
                scores = model.score_others(nodes.detach(), kept, everyone, graph, side=side)
                levels[part] = _kth(scores, kept, self.loss.k)
        return levels


def _kth(scores: Tensor, kept: Tensor, k: int) -> Tensor:
    """The K-th best score of each kept end with all nodes, (Q, N) to (Q,)."""
    scores = scores.scatter(1, kept.unsqueeze(1), -math.inf)  # a node is not listed for itself
    return scores.topk(min(k, scores.size(1) - 1), dim=1).values[:, -1]


class LinkObjective:
    """Edges against negatives, by any loss that takes positive and negative scores.

    ``effective_n``: the sum over N negatives is scaled by effective_n / N, for losses with a partition sum.
    """

    def __init__(
        self,
        model: LinkModel,
        loss: Loss,
        graph: LinkGraph,
        batches: LinkBatches,
        negatives: LinkNegatives,
        *,
        owner: LinkThresholds | None = None,
        effective_n: int | None = None,
    ) -> None:
        if "whole_queries" in loss.needs:
            raise ConfigError(
                f"{type(loss).__name__} needs all positives of a query in its batch, and links come edge by edge; "
                "choose another loss"
            )
        if loss.reduction != "mean":
            raise ConfigError(f"training takes the mean: reduction must be 'mean', got {loss.reduction!r}")
        if effective_n is not None and "log_partition" not in loss.needs:
            raise ConfigError(f"negatives.effective_n scales a partition sum, and {type(loss).__name__} has none")
        self.model, self.loss, self.graph, self.batches = model, loss, graph, batches
        self.negatives, self.owner, self.effective_n = negatives, owner, effective_n
        model.attach(graph)

    @property
    def hooks(self) -> Sequence[LinkThresholds]:
        return [] if self.owner is None else [self.owner]

    def backward(self, batch: LinkBatch, generator: torch.Generator) -> StepResult:
        """The loss of a batch; its gradients are added to the parameters'."""
        value = self(batch, generator)
        value.backward()
        if self.owner is not None:
            self.owner.write()
        return StepResult(float(value.detach()))

    def __call__(self, batch: LinkBatch, generator: torch.Generator) -> Tensor:
        """The differentiable loss of a batch."""
        self.model.train()
        graph = self.graph.without(batch.edge)
        nodes = self.model.encode_nodes(graph)
        positive = self.model.score(nodes, batch.pairs, graph)
        draw = self.negatives.draw(self.model, nodes, batch, (graph, self.graph), generator)
        threshold = None
        if self.owner is not None:
            threshold = self.owner.of_step(self.model, nodes, batch, draw, graph)
        return self.loss(
            positive,
            draw.scores,
            query=batch.query,
            mask=draw.mask,
            log_q=self._log_q(draw.scores),
            threshold=threshold,
            pair=batch.pair,
            negative_item=draw.items,
            query_vector=F.embedding(batch.kept, nodes),
            item_vector=F.embedding(batch.other, nodes),
        )

    def _log_q(self, scores: Tensor) -> Tensor | None:
        if self.effective_n is None:
            return None
        return scores.new_full((scores.size(1),), math.log(scores.size(1) / self.effective_n))
