"""The contract of a model of links: it encodes the nodes of a graph, and scores pairs of nodes."""

from __future__ import annotations

import itertools
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topshelf.errors import TopshelfError, at_least, at_most, one_of
from topshelf.graphs import LinkGraph
from topshelf.models.base import Trainable

PairScore = Literal["dot", "cosine", "mlp"]
PAIR_SCORES = ("dot", "cosine", "mlp")
PAIRS_AT_ONCE = 1 << 16  # scored in one piece where no gradient is needed


class LinkModel(Trainable):
    """Base of the models of links. A subclass has :meth:`encode_nodes` and :meth:`score`, and says:

    - ``is_closed_form``: it is fitted once by :meth:`fit` instead of trained;
    - ``ranges``: the values that tuning searches, by the names of a run's settings.

    In an undirected graph the score of (a, b) is that of (b, a); in a directed one the first is the source.
    """

    sizes: ClassVar[tuple[str, ...]] = ("n_nodes", "n_features", "is_directed")
    _graph: LinkGraph | None = None

    def __init__(self, n_nodes: int, n_features: int, is_directed: bool = False) -> None:
        super().__init__()
        self.n_nodes = at_least("n_nodes", n_nodes, 1)
        self.n_features = at_least("n_features", n_features, 0)
        self.is_directed = bool(is_directed)

    def encode_nodes(self, graph: LinkGraph) -> Tensor:
        """Vectors of all nodes, (N, d); in training mode it may draw noise from torch's global generator."""
        raise NotImplementedError

    def score(self, nodes: Tensor, edges: Tensor, graph: LinkGraph) -> Tensor:
        """Scores of pairs of nodes, (..., 2) to (...), from the vectors of all nodes and the graph."""
        raise NotImplementedError

    def score_others(self, nodes: Tensor, kept: Tensor, others: Tensor, graph: LinkGraph, *, side: int = 0) -> Tensor:
        """Scores of each kept end with each other end, (Q,) and (M,) to (Q, M); ``side``: 0 if the kept is the source.

        Override it where a product of matrices does it.
        """
        shape = (kept.numel(), others.numel())
        ends = (kept.unsqueeze(1).expand(shape), others.unsqueeze(0).expand(shape))
        pairs = torch.stack(ends if side == 0 else ends[::-1], dim=-1)
        return self.score(nodes, pairs, graph) if torch.is_grad_enabled() else self.score_all(nodes, pairs, graph)

    def attach(self, context: LinkGraph) -> None:
        """Give the model the graph that its scores depend on. Nothing of it is saved."""
        self._graph = context

    @property
    def graph(self) -> LinkGraph:
        if self._graph is None:
            raise TopshelfError(f"{type(self).__name__} has no graph yet: call attach(graph) with the training data")
        return self._graph

    @torch.no_grad()
    def score_all(self, nodes: Tensor, edges: Tensor, graph: LinkGraph) -> Tensor:
        """:meth:`score` without gradients, some pairs at a time: for evaluation."""
        flat = edges.reshape(-1, 2)
        parts = [self.score(nodes, part, graph) for part in flat.split(PAIRS_AT_ONCE)]
        return torch.cat(parts).reshape(edges.shape[:-1]) if parts else nodes.new_zeros(edges.shape[:-1])


class VectorLinkModel(LinkModel):
    """Base of the models that score two vectors: their dot product, their cosine, or an MLP of their product.

    A directed graph has another vector for a node as target, a learned turn of the one as source.
    """

    def __init__(
        self,
        n_nodes: int,
        n_features: int,
        is_directed: bool,
        dim: int,
        score: PairScore,
        score_layers: int,
        dropout: float,
    ) -> None:
        super().__init__(n_nodes, n_features, is_directed)
        self.dim = at_least("dim", dim, 1)
        self.pair_score: PairScore = one_of("score", score, PAIR_SCORES)
        self.dropout = at_most("dropout", at_least("dropout", dropout, 0.0), 1.0)
        self.turn: nn.Parameter | None = None
        if self.is_directed:
            self.turn = nn.Parameter(torch.eye(dim))  # begins as an undirected score
        self.scorer: nn.ModuleList | None = None
        if score == "mlp":
            widths = [dim] * at_least("score_layers", score_layers, 1) + [1]
            self.scorer = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))

    def ends(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """The vectors of all nodes as sources and as targets."""
        targets = nodes if self.turn is None else nodes @ self.turn
        if self.pair_score == "cosine":
            return F.normalize(nodes, dim=-1), F.normalize(targets, dim=-1)
        return nodes, targets

    def score(self, nodes: Tensor, edges: Tensor, graph: LinkGraph) -> Tensor:
        sources, targets = self.ends(nodes)
        return self.score_product(self.products(sources, targets, edges), edges, nodes, graph)

    @staticmethod
    def products(sources: Tensor, targets: Tensor, edges: Tensor) -> Tensor:
        """The products of the vectors of both ends, (..., d)."""
        # F.embedding, not indexing: its backward pass adds in a fixed order.
        return F.embedding(edges[..., 0], sources) * F.embedding(edges[..., 1], targets)

    def score_product(self, product: Tensor, edges: Tensor, nodes: Tensor, graph: LinkGraph) -> Tensor:  # noqa: ARG002
        """The scores from the products of the vectors; a model with more to say of a pair overrides it."""
        if self.scorer is None:
            return product.sum(-1)
        for layer in list(self.scorer)[:-1]:
            product = F.dropout(F.relu(layer(product)), self.dropout, self.training)
        return self.scorer[-1](product).squeeze(-1)

    def score_others(self, nodes: Tensor, kept: Tensor, others: Tensor, graph: LinkGraph, *, side: int = 0) -> Tensor:
        if self.scorer is not None:
            return super().score_others(nodes, kept, others, graph, side=side)
        ends = self.ends(nodes)
        return F.embedding(kept, ends[side]) @ F.embedding(others, ends[1 - side]).T
