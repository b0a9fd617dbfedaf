"""Links without training: how near two nodes are by the edges alone."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from topshelf.errors import at_least, at_most, positive
from topshelf.graphs import LinkGraph
from topshelf.models.link_base import LinkModel
from topshelf.proximity import EPSILON, adjacency, katz, pagerank
from topshelf.registry import SearchSpace

_ROWS_BYTES = 1 << 21  # of a dense table that is worked on at once: it stays in the cache


class LinkHeuristic(LinkModel):
    """Base of the scores that are read off the graph; nothing is learned, and directions do not matter."""

    is_closed_form: ClassVar[bool] = True

    def __init__(self, n_nodes: int, n_features: int, is_directed: bool = False) -> None:
        super().__init__(n_nodes, n_features, is_directed)

    def fit(self, context: LinkGraph) -> None:
        self.attach(context)

    def encode_nodes(self, graph: LinkGraph) -> Tensor:
        """There are no vectors: (N, 0)."""
        return torch.zeros(graph.n_nodes, 0, device=graph.edges.device)


class NeighbourCount(LinkHeuristic):
    """Base of the sums over common neighbours; a subclass has :meth:`weight`."""

    def weight(self, degree: Tensor) -> Tensor:
        """What a common neighbour of this degree counts, (N,) float64."""
        raise NotImplementedError

    def score(self, nodes: Tensor, edges: Tensor, graph: LinkGraph) -> Tensor:  # noqa: ARG002
        flat = edges.reshape(-1, 2)
        common = graph.common(flat)
        # A common neighbour has two neighbours at least; others are not looked at.
        weights = self.weight(graph.degrees.clamp(min=2).double())[common.indices]
        total = torch.zeros(flat.size(0), dtype=torch.float64, device=flat.device)
        return total.index_add_(0, common.owner(), weights).to(torch.float32).reshape(edges.shape[:-1])


class CommonNeighbours(NeighbourCount):
    r"""The number of neighbours that two nodes share, :math:`|N(i) \cap N(j)|`.

    Use when: as the first baseline of any graph.   Cost: one look-up per neighbour.
    Paper: Newman, Clustering and preferential attachment in growing networks, Physical Review E 2001.
    """

    def weight(self, degree: Tensor) -> Tensor:
        return torch.ones_like(degree)


class AdamicAdar(NeighbourCount):
    r"""Shared neighbours, each worth less the more neighbours it has: :math:`\sum_u 1 / \log d_u`.

    Use when: as a baseline where some nodes have very many neighbours.   Cost: one look-up per neighbour.
    Paper: Adamic and Adar, Friends and neighbors on the web, Social Networks 2003.
    """

    def weight(self, degree: Tensor) -> Tensor:
        return degree.log().reciprocal()


class ResourceAllocation(NeighbourCount):
    r"""Shared neighbours, each worth one over its number of neighbours: :math:`\sum_u 1 / d_u`.

    Use when: as a baseline; hubs count for less than with Adamic-Adar.   Cost: one look-up per neighbour.
    Paper: Zhou et al., Predicting missing links via local information, European Physical Journal B 2009.
    """

    def weight(self, degree: Tensor) -> Tensor:
        return degree.reciprocal()


class RowHeuristic(LinkHeuristic):
    """Base of the scores that are made for a node with all others at once; a subclass has :meth:`rows`."""

    def rows(self, graph: LinkGraph, sources: np.ndarray) -> np.ndarray:
        """Scores of the sources (R,) with all nodes, (R, N)."""
        raise NotImplementedError

    def score(self, nodes: Tensor, edges: Tensor, graph: LinkGraph) -> Tensor:  # noqa: ARG002
        flat = edges.reshape(-1, 2).cpu().numpy()
        total = np.zeros(len(flat))
        for side in (0, 1):  # the mean of both ways, so that the score does not depend on the order of the ends
            total += self._one_way(graph, flat[:, side], flat[:, 1 - side])
        return torch.from_numpy(total / 2).to(torch.float32).reshape(edges.shape[:-1]).to(edges.device)

    def _one_way(self, graph: LinkGraph, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
        distinct, place = np.unique(sources, return_inverse=True)
        scores = np.zeros(len(sources))
        at_once = max(1, _ROWS_BYTES // (8 * graph.n_nodes))
        for start in range(0, len(distinct), at_once):
            chosen = (place >= start) & (place < start + at_once)
            table = self.rows(graph, distinct[start : start + at_once])
            scores[chosen] = table[place[chosen] - start, targets[chosen]]
        return scores


class Katz(RowHeuristic):
    r"""Walks between two nodes, the longer the less they count: :math:`\sum_{l=1}^{L} \beta^l \, (A^l)_{ij}`.

    Settings: ``beta`` β, small enough that longer walks count less (below 1 over the largest degree); ``length`` L.
    Use when: as a baseline where few pairs share a neighbour.   Cost: L sparse products per source.
    Paper: Katz, A new status index derived from sociometric analysis, Psychometrika 1953; β and L as with HeaRT.
    """

    ranges: ClassVar[SearchSpace] = {"model.beta": (0.001, 0.005, 0.02, 0.05), "model.length": (2, 3, 5)}

    def __init__(
        self, n_nodes: int, n_features: int, is_directed: bool = False, *, beta: float = 0.005, length: int = 3
    ) -> None:
        super().__init__(n_nodes, n_features, is_directed)
        self.beta, self.length = positive("beta", beta), at_least("length", length, 1)

    def rows(self, graph: LinkGraph, sources: np.ndarray) -> np.ndarray:
        return katz(adjacency(graph.edges.cpu().numpy(), graph.n_nodes), sources, beta=self.beta, length=self.length)


class PageRank(RowHeuristic):
    """Personalised PageRank: how often a random walk from one end, which may end at each step, is at the other.

    Settings: ``alpha``, the probability that the walk ends at each step. The score is the mean of both ways.
    Use when: as a baseline where few pairs share a neighbour.   Cost: about 100 sparse products per source.
    Paper: Page et al., The PageRank citation ranking, 1999; computed as in Andersen et al., FOCS 2006.
    """

    ranges: ClassVar[SearchSpace] = {"model.alpha": (0.05, 0.15, 0.3, 0.5)}

    def __init__(self, n_nodes: int, n_features: int, is_directed: bool = False, *, alpha: float = 0.15) -> None:
        super().__init__(n_nodes, n_features, is_directed)
        self.alpha = at_most("alpha", positive("alpha", alpha), 1.0)

    def rows(self, graph: LinkGraph, sources: np.ndarray) -> np.ndarray:
        matrix = adjacency(graph.edges.cpu().numpy(), graph.n_nodes)
        return pagerank(matrix, sources, alpha=self.alpha, epsilon=EPSILON)
