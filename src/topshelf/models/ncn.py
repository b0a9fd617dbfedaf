"""A scorer that also sees what both ends have in common: their neighbours' vectors, and counts of them."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topshelf.errors import at_least
from topshelf.graphs import LinkGraph, SparseProduct
from topshelf.models.gcn import GCN
from topshelf.registry import SearchSpace


class NCN(GCN):
    r"""A GCN whose score of a pair sees the sum of the vectors of the common neighbours, and how many there are.

    .. math:: s(i, j) = w^\top \mathrm{ReLU}\Big(W_1 (h_i \odot h_j) + W_2 \sum_{u \in N(i) \cap N(j)} h_u
        + W_3 \, c(i, j)\Big)

    with c the counts of common neighbours, plain and weighted by 1 / log d and 1 / d, as logarithms of 1 + count.

    Settings: ``dim``, ``n_layers``, ``dropout``, ``use_features`` as in :class:`GCN`; ``score_layers`` layers in all.
    Use when: common neighbours matter, as in social graphs, and the features alone do not say enough.
    Cost: the GCN's, and one look-up per neighbour of the end with fewer neighbours for each pair that is scored.
    Paper: Wang et al., Neural common neighbor with completion for link prediction, ICLR 2024 (without completion);
        counts as in Chamberlain et al., Graph neural networks for link prediction with subgraph sketching, ICLR 2023.
    Relations: without W_2 and W_3 it is :class:`GCN` with ``score = "mlp"``.
    """

    ranges: ClassVar[SearchSpace] = {"model.dropout": (0.1, 0.3, 0.5), "model.n_layers": (1, 2, 3)}

    def __init__(
        self,
        n_nodes: int,
        n_features: int,
        is_directed: bool = False,
        *,
        dim: int = 256,
        n_layers: int = 1,
        dropout: float = 0.3,
        score_layers: int = 2,
        use_features: bool = True,
    ) -> None:
        super().__init__(
            n_nodes,
            n_features,
            is_directed,
            dim=dim,
            n_layers=n_layers,
            dropout=dropout,
            score="mlp",
            score_layers=at_least("score_layers", score_layers, 2),
            use_features=use_features,
        )
        self.from_common = nn.Linear(dim, dim, bias=False)
        self.from_counts = nn.Linear(3, dim, bias=False)
        self.norm = nn.LayerNorm(dim)

    def score_product(self, product: Tensor, edges: Tensor, nodes: Tensor, graph: LinkGraph) -> Tensor:
        assert self.scorer is not None
        shape = edges.shape[:-1]
        vectors, counts = self._common(edges.reshape(-1, 2), nodes, graph)
        extra = (self.from_common(vectors) + self.from_counts(counts)).reshape(*shape, self.dim)
        hidden = self.norm(self.scorer[0](product) + extra)
        for layer in list(self.scorer)[1:]:
            hidden = layer(F.dropout(F.relu(hidden), self.dropout, self.training))
        return hidden.squeeze(-1)

    @staticmethod
    def _common(edges: Tensor, nodes: Tensor, graph: LinkGraph) -> tuple[Tensor, Tensor]:
        """The sum of the common neighbours' vectors, (E, d), and the logarithms of their counts, (E, 3)."""
        common = graph.common(edges)
        ones = torch.ones(common.indices.numel(), device=nodes.device)
        matrix = SparseProduct(common, ones, graph.n_nodes)
        degree = graph.degrees.clamp(min=2).to(nodes.dtype)  # a common neighbour has two neighbours
        weights = torch.stack([torch.ones_like(degree), degree.log().reciprocal(), degree.reciprocal()], dim=1)
        return matrix @ nodes, (matrix.there @ weights).log1p()
