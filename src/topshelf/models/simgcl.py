"""Graph models that also learn to recognise a node through noise: SimGCL and XSimGCL."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf.catalogue import log_partition
from topshelf.errors import at_least, at_most, one_of, positive
from topshelf.models.graph import GraphModel, Tables, mean_tables
from topshelf.models.tables import Score
from topshelf.models.unit import unit_rows
from topshelf.queries import Batch, Encoded
from topshelf.registry import SearchSpace

Variant = Literal["reference", "slatk"]
View = Literal["mean", "final"]


class ContrastModel(GraphModel):
    """Base of the two: vectors without layer 0 in the mean, layers with noise, and a contrast."""

    ranges: ClassVar[SearchSpace] = {"model.weight": (0.05, 0.1, 0.2)}  # the SL@K paper's; it does not say its choice

    def __init__(
        self, n_queries: int, n_items: int, dim: int, n_layers: int, noise: float, contrast: Contrast, score: Score
    ) -> None:
        super().__init__(n_queries, n_items, dim, n_layers, score)
        self.noise, self.contrast = at_least("noise", noise, 0.0), contrast

    def propagated(self) -> Tables:
        return mean_tables(self.layers()[1:])

    def layers(self, noise: float = 0.0) -> list[Tables]:
        """The layers 0 to n_layers; the noise of a layer is propagated to the next."""
        layers = [self.own]
        for _ in range(self.n_layers):
            queries, items = self.graph.spread(*layers[-1])
            if noise:
                queries, items = (perturbed(table, noise, self.contrast.variant) for table in (queries, items))
            layers.append((queries, items))
        return layers


class XSimGCL(ContrastModel):
    r"""LightGCN without its own vectors in the mean, noise at every layer, and a contrast between two layers.

    .. math:: e^{(l+1)} = A e^{(l)} + \epsilon^{(l)}, \quad e = \frac{1}{L} \sum_{l=1}^L e^{(l)}, \qquad
        \lambda \sum_{V} \frac{1}{|V|} \sum_{v \in V} -\log
        \frac{\exp(\cos(e_v, e_v^{(l^*)}) / \tau)}{\sum_{w \in V} \exp(\cos(e_v, e_w^{(l^*)}) / \tau)}

    where A is LightGCN's and V the users, then the items, of the batch; the noise ε has length ``noise`` for every
    node, in training only.

    Settings: ``n_layers`` L; ``noise``; ``contrast_layer`` l* (0: the vectors themselves); ``temperature`` τ;
        ``weight`` λ, by default the smallest in the SL@K paper, which did best (docs/models/measured.md);
        ``n_contrast``: the maximum number of users, and of items, of a batch that are contrasted, drawn at random (a
        batch of whole users may contain most of the catalogue); ``variant`` "reference": noise is uniform, so that it
        stays in the vector's orthant, and each node of the batch counts once; "slatk": as in the SL@K paper's code,
        noise is Gaussian and a node counts once per pair of the batch; ``contrasted``: what layer l* is contrasted
        with, "mean", the vectors e, as in the formula, or "final", the last layer e^(L), as the SL@K paper's text
        says: on Health they reach 0.1354 and 0.1078 (one seed), and 0.1332 is published (docs/models/measured.md).
        ``dim`` and ``score`` as in MF.
    Use when: the long tail matters. The contrast spreads vectors, and costs accuracy where the loss does that already
        (SL@20 on Health in the SL@K paper: NDCG@20 0.1332 with XSimGCL, 0.1371 with LightGCN).
    Cost: LightGCN's with 3 layers, one random number per cell and layer, and contrasts of n_contrast^2 x dim.
    Paper: Yu et al., XSimGCL: towards extremely simple graph contrastive learning for recommendation, TKDE 2023.
    Relations: with neither ``noise`` nor ``weight``, :class:`LightGCN` without the vectors themselves in its mean.
    """

    def __init__(
        self,
        n_queries: int,
        n_items: int,
        *,
        dim: int = 64,
        n_layers: int = 3,
        noise: float = 0.1,
        contrast_layer: int = 1,
        temperature: float = 0.1,
        weight: float = 0.05,
        n_contrast: int = 2048,
        variant: Variant = "reference",
        contrasted: View = "mean",
        score: Score = "cosine",
    ) -> None:
        contrast = Contrast(temperature, weight, n_contrast, variant)
        super().__init__(n_queries, n_items, dim, n_layers, noise, contrast, score)
        self.contrasted: View = one_of("contrasted", contrasted, ("mean", "final"))
        at_least("contrast_layer", contrast_layer, 0)
        self.contrast_layer = at_most("contrast_layer", contrast_layer, n_layers, "n_layers")

    def encode_batch(self, batch: Batch) -> Encoded:
        layers = self.layers(self.noise)
        mean = mean_tables(layers[1:])
        view = mean if self.contrasted == "mean" else layers[-1]
        auxiliary = self.contrast(view, layers[self.contrast_layer], batch.query[batch.owner], batch.item)
        return Encoded(*self.scored(batch.queries, mean), auxiliary)


class SimGCL(ContrastModel):
    r"""XSimGCL's predecessor: vectors without noise for the loss, and a contrast between two more passes with noise.

    .. math:: e = \frac{1}{L} \sum_{l=1}^L A^l e^{(0)}, \qquad \lambda \sum_{V} \frac{1}{|V|} \sum_{v \in V} -\log
        \frac{\exp(\cos(e'_v, e''_v) / \tau)}{\sum_{w \in V} \exp(\cos(e'_v, e''_w) / \tau)}

    Settings: as in XSimGCL.
    Use when: XSimGCL's noise harms the loss.
    Cost: three times XSimGCL's propagation.
    Paper: Yu et al., Are graph augmentations necessary? Simple graph contrastive learning for recommendation, SIGIR
        2022.
    Relations: :class:`XSimGCL` scores and contrasts in one noisy pass.
    """

    def __init__(
        self,
        n_queries: int,
        n_items: int,
        *,
        dim: int = 64,
        n_layers: int = 3,
        noise: float = 0.1,
        temperature: float = 0.1,
        weight: float = 0.05,
        n_contrast: int = 2048,
        variant: Variant = "reference",
        score: Score = "cosine",
    ) -> None:
        contrast = Contrast(temperature, weight, n_contrast, variant)
        super().__init__(n_queries, n_items, dim, n_layers, noise, contrast, score)

    def encode_batch(self, batch: Batch) -> Encoded:
        first, second = (mean_tables(self.layers(self.noise)[1:]) for _ in range(2))
        tables = self.propagated()  # before the contrast: the order decides in which order gradients are added
        auxiliary = self.contrast(first, second, batch.query[batch.owner], batch.item)
        return Encoded(*self.scored(batch.queries, tables), auxiliary)


class Contrast:
    """InfoNCE between two views of a batch's users, and of its items: the sum of two means, times ``weight``."""

    def __init__(self, temperature: float, weight: float, n_contrast: int, variant: Variant) -> None:
        self.temperature, self.weight = positive("temperature", temperature), at_least("weight", weight, 0.0)
        self.n_contrast = at_least("n_contrast", n_contrast, 1)
        self.variant = one_of("variant", variant, ("reference", "slatk"))

    def __call__(self, first: Tables, second: Tables, query: Tensor, item: Tensor) -> Tensor:
        """The loss of the pairs query (P,) and item (P,)."""
        of_queries, of_items = (
            info_nce(one, other, self._nodes(pairs), self.temperature)
            for one, other, pairs in zip(first, second, (query, item), strict=True)
        )
        return self.weight * (of_queries + of_items)

    def _nodes(self, pairs: Tensor) -> Tensor:
        nodes = torch.unique(pairs) if self.variant == "reference" else pairs
        if nodes.numel() <= self.n_contrast:
            return nodes
        return nodes[torch.randperm(nodes.numel())[: self.n_contrast].to(nodes.device)]


def info_nce(first: Tensor, second: Tensor, nodes: Tensor, temperature: float) -> Tensor:
    r"""How hard it is to tell a node's second view from those of other nodes, by the cosine with its first view.

    .. math:: \frac{1}{n} \sum_v \Big( \log \sum_w \exp(\cos(a_v, b_w) / \tau) - \cos(a_v, b_v) / \tau \Big)

    Shapes: first a and second b (N, d); nodes v (n,), rows of both; returns one number.
    """
    one, other = (unit_rows(F.embedding(nodes, table)) for table in (first, second))
    return (log_partition(one, other, temperature) - (one * other).sum(1) / temperature).mean()


def perturbed(table: Tensor, noise: float, variant: Variant) -> Tensor:
    """Each row plus a random vector of length ``noise``; "reference": one in the orthant of the row."""
    drawn = torch.rand_like(table) if variant == "reference" else torch.randn_like(table)
    return table + table.detach().sign() * unit_rows(drawn.detach()) * noise
