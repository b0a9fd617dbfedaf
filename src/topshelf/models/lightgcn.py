"""Vectors smoothed over the graph of users and their items: LightGCN and LightGCN++."""

from __future__ import annotations

from typing import ClassVar

from topshelf.errors import at_least, at_most
from topshelf.models.graph import GraphModel, Tables, mean_tables
from topshelf.models.tables import Init, Score
from topshelf.models.unit import unit_rows
from topshelf.registry import SearchSpace


class LightGCN(GraphModel):
    r"""Vectors averaged with those of their neighbours, layer by layer, without layer weights.

    .. math:: e_t^{(l+1)} = \sum_{s \in N(t)} e_s^{(l)} / \sqrt{d_t d_s}, \qquad e = \frac{1}{L+1} \sum_{l=0}^L e^{(l)}

    Settings: ``n_layers`` L (2 in the SL@K paper); ``dim``, ``score`` and ``init`` as in MF.
    Use when: users have few items each, so that neighbours say more about a user than its own vector.
    Cost: MF's parameters; 2 n_layers sparse products with the positives per step, and as many backwards. The graph
        takes 24 bytes per positive in memory, and nothing in files.
    Paper: He et al., LightGCN: simplifying and powering graph convolution network for recommendation, SIGIR 2020.
    Relations: without layers it is :class:`MF`.
    """

    item_tables = ("item_vectors",)
    _least_layers = 0

    def __init__(
        self,
        n_queries: int,
        n_items: int,
        *,
        dim: int = 64,
        n_layers: int = 2,
        score: Score = "cosine",
        init: Init = "xavier",
    ) -> None:
        super().__init__(n_queries, n_items, dim, n_layers, score, init)

    def propagated(self) -> Tables:
        layers = [self.own]
        for _ in range(self.n_layers):
            layers.append(self.graph.spread(*layers[-1]))
        return mean_tables(layers)


class LightGCNPlusPlus(GraphModel):
    r"""LightGCN with neighbours of length one, free exponents of the degrees, and a weight for the vector itself.

    .. math:: e_t^{(l+1)} = \sum_{s \in N(t)} d_t^{-\alpha} d_s^{-\beta} \frac{e_s^{(l)}}{\|e_s^{(l)}\|}, \qquad
        e = \gamma e^{(0)} + \frac{1 - \gamma}{L} \sum_{l=1}^L e^{(l)}

    Settings: ``alpha`` α, ``beta`` β, ``gamma`` γ as published with the SL@K benchmark; ``n_layers`` L; ``dim``,
        ``score`` and ``init`` as in MF. The searched values lie around the published ones.
    Use when: LightGCN does well and there is time to tune α, β and γ.
    Cost: LightGCN's, and normalised rows at every layer.
    Paper: Lee et al., Revisiting LightGCN: unexpected inflexibility, inconsistency, and a remedy towards improved
        recommendation, RecSys 2024.
    Relations: :class:`LightGCN` has α = β = 1/2, γ = 1/(L + 1), and neighbours of their own length.
    """

    item_tables = ("item_vectors",)
    ranges: ClassVar[SearchSpace] = {
        "model.alpha": (0.4, 0.5, 0.6),
        "model.beta": (-0.1, 0.0, 0.1),
        "model.gamma": (0.0, 0.2, 0.4, 0.6, 0.8),
    }

    def __init__(
        self,
        n_queries: int,
        n_items: int,
        *,
        dim: int = 64,
        n_layers: int = 2,
        alpha: float = 0.6,
        beta: float = -0.1,
        gamma: float = 0.2,
        score: Score = "cosine",
        init: Init = "xavier",
    ) -> None:
        super().__init__(n_queries, n_items, dim, n_layers, score, init)
        self.exponents = (alpha, beta)
        self.gamma = at_most("gamma", at_least("gamma", gamma, 0.0), 1.0)

    def propagated(self) -> Tables:
        layers = [self.own]
        for _ in range(self.n_layers):
            layers.append(self.graph.spread(*(unit_rows(table) for table in layers[-1])))
        own, mean = self.own, mean_tables(layers[1:])
        queries, items = (self.gamma * a + (1 - self.gamma) * b for a, b in zip(own, mean, strict=True))
        return queries, items
