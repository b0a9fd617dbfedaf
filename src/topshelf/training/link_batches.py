"""Batches of links, and the pairs of nodes that are none.

A batch is some edges, and they are taken out of the graph that the step encodes: a model that sees the edge it is asked
for learns nothing. A query is one end of an edge; its positive is the other end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf.errors import ConfigError, at_least, one_of
from topshelf.graphs import LinkGraph
from topshelf.models.link_base import LinkModel

Anchor = Literal["both", "random", "source"]
ANCHORS = ("both", "random", "source")
LinkNegativesKind = Literal["pairs", "per_node", "shared", "hard"]
LINK_NEGATIVES = ("pairs", "per_node", "shared", "hard")


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
