"""Vectors of nodes from their features and their neighbours: GCN, GraphSAGE, and an MLP that sees no edges."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topshelf.errors import ConfigError, at_least
from topshelf.graphs import LinkGraph
from topshelf.models.link_base import PairScore, VectorLinkModel
from topshelf.registry import SearchSpace

ENCODER_RANGES: SearchSpace = {
    "model.dropout": (0.1, 0.3, 0.5),
    "model.n_layers": (1, 2, 3),
    "model.score_layers": (1, 2, 3),
}


class Encoder(VectorLinkModel):
    """Base of the encoders with layers; a subclass has :meth:`layer_output`.

    Without features, or with ``use_features = False``, every node has a learned vector in their place.
    """

    ranges: ClassVar[SearchSpace] = ENCODER_RANGES
    n_weights: ClassVar[int] = 1  # matrices in each layer

    def __init__(
        self,
        n_nodes: int,
        n_features: int,
        is_directed: bool = False,
        *,
        dim: int = 256,
        n_layers: int = 1,
        dropout: float = 0.5,
        score: PairScore = "mlp",
        score_layers: int = 2,
        use_features: bool = True,
    ) -> None:
        super().__init__(n_nodes, n_features, is_directed, dim, score, score_layers, dropout)
        self.n_layers = at_least("n_layers", n_layers, 1)
        self.vectors: nn.Parameter | None = None
        width = n_features
        if not (use_features and n_features):
            self.vectors, width = nn.Parameter(torch.empty(n_nodes, dim)), dim
            nn.init.xavier_uniform_(self.vectors)
        widths = [width] + [dim] * n_layers
        shapes = [(a, b) for a, b in itertools.pairwise(widths) for _ in range(self.n_weights)]
        self.weights = nn.ParameterList(nn.init.xavier_uniform_(torch.empty(shape)) for shape in shapes)
        self.biases = nn.ParameterList(torch.zeros(dim) for _ in range(n_layers))

    @classmethod
    def searched(cls, settings: Mapping[str, Any]) -> SearchSpace:
        """Without the layers of a scorer where the score is a product of vectors."""
        is_product = settings.get("score") in ("dot", "cosine")
        return {name: values for name, values in cls.ranges.items() if not (is_product and "score_layers" in name)}

    def layer_output(self, linear: list[Tensor], graph: LinkGraph) -> Tensor:
        """The next layer from the products of the last one with the layer's matrices, (N, dim) each."""
        raise NotImplementedError

    def encode_nodes(self, graph: LinkGraph) -> Tensor:
        hidden = self._input(graph)
        for place, bias in enumerate(self.biases):
            if place:
                hidden = F.dropout(F.relu(hidden), self.dropout, self.training)
            weights = self.weights[place * self.n_weights : (place + 1) * self.n_weights]
            hidden = self.layer_output([hidden @ weight for weight in weights], graph) + bias
        return hidden

    def _input(self, graph: LinkGraph) -> Tensor:
        if self.vectors is not None:
            return self.vectors
        features = graph.features
        if features is None or features.shape[1] != self.n_features:
            got = "none" if features is None else f"{features.shape[1]}"
            raise ConfigError(f"the graph must have {self.n_features} features per node, as in training; got {got}")
        return features  # type: ignore[return-value]  # a sparse one multiplies as a tensor does


class GCN(Encoder):
    r"""Features, or learned vectors, averaged over neighbours layer by layer, and a score of the pair.

    .. math:: H^{(l+1)} = D^{-1/2} (A + I) D^{-1/2} \, \mathrm{ReLU}(H^{(l)}) \, W^{(l)} + b^{(l)}

    Settings: ``dim`` the width of all layers, ``n_layers``, ``dropout`` between layers and in the scorer; ``score``
        "dot", "cosine", or "mlp" with ``score_layers`` layers on the product of both vectors; ``use_features`` False
        learns a vector per node instead.
    Use when: nodes have features, or neighbours say much about a node; the usual first choice.
    Cost: one sparse product with the edges and one with the features per layer and step; dim (f + dim) parameters.
    Paper: Kipf and Welling, Semi-supervised classification with graph convolutional networks, ICLR 2017; settings of
        Li et al., Evaluating graph neural networks for link prediction, NeurIPS 2023 (HeaRT).
    Relations: with a dot product it is the encoder and decoder of the graph autoencoder (GAE).
    """

    def layer_output(self, linear: list[Tensor], graph: LinkGraph) -> Tensor:
        return graph.smoothing @ linear[0]


class GraphSAGE(Encoder):
    r"""A node's own vector and the mean over its neighbours, each with a matrix of its own.

    .. math:: h_v^{(l+1)} = W_1^{(l)} h_v^{(l)} + W_2^{(l)} \, \mathrm{mean}_{u \in N(v)} h_u^{(l)} + b^{(l)}

    Settings: as :class:`GCN`.
    Use when: a node differs from its neighbours, so that its own vector should not be averaged away.
    Cost: twice the GCN's parameters; the same sparse products.
    Paper: Hamilton et al., Inductive representation learning on large graphs, NeurIPS 2017; over all neighbours here.
    Relations: :class:`GCN` shares one matrix and weights neighbours by degree.
    """

    n_weights: ClassVar[int] = 2

    def layer_output(self, linear: list[Tensor], graph: LinkGraph) -> Tensor:
        own, others = linear
        return own + graph.averaging @ others


class MLP(Encoder):
    """Layers on the features alone, and a score of the pair: what links look like without edges.

    Settings: as :class:`GCN`.
    Use when: as a baseline, or for nodes that have no edges yet.
    Cost: the features' product and dim (f + dim) parameters.
    Relations: :class:`GCN` without its averaging.
    """

    def layer_output(self, linear: list[Tensor], graph: LinkGraph) -> Tensor:  # noqa: ARG002
        return linear[0]
