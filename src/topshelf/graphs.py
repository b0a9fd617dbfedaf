"""A graph of nodes and edges as models see it: neighbours as lists, features as a matrix, edges that can be taken out.

An edge is a row (source, target) of an int64 table (E, 2). An undirected edge is there once, and both of its ends are
neighbours of each other. In a directed graph messages still pass both ways; only the scores tell the ends apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function

from topshelf.ragged import Ragged


class SparseProduct:
    """A constant sparse matrix (n, m) that multiplies tables: ``matrix @ table (m, d)`` is (n, d).

    Shapes: lists, the columns of each of the n rows; values (P,). The backward pass multiplies with the transpose,
    which is kept as well, so both are sums over rows in a fixed order.
    """

    def __init__(self, lists: Ragged, values: Tensor, n_columns: int, *, is_symmetric: bool = False) -> None:
        self.shape = (len(lists), n_columns)
        self.there = lists.matrix(values, n_columns)
        self._lists, self._values, self._is_symmetric = lists, values, is_symmetric

    @cached_property
    def back(self) -> Tensor:
        """The transpose, made when a backward pass first needs it."""
        if self._is_symmetric:
            return self.there
        order = torch.argsort(self._lists.indices, stable=True)  # rows ascend within each column
        indptr = self._lists.indptr.new_zeros(self.shape[1] + 1)
        torch.cumsum(torch.bincount(self._lists.indices, minlength=self.shape[1]), 0, out=indptr[1:])
        return Ragged(indptr, self._lists.owner()[order]).matrix(self._values[order], self.shape[0])

    def __matmul__(self, table: Tensor) -> Tensor:
        product: Tensor = _Product.apply(table, self)
        return product

    def to(self, device: torch.device | str) -> SparseProduct:
        lists, values = self._lists.to(device), self._values.to(device)
        return SparseProduct(lists, values, self.shape[1], is_symmetric=self._is_symmetric)


class _Product(Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, matrix: SparseProduct) -> Tensor:
        ctx.matrix = matrix
        return matrix.there @ table

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.matrix.back @ gradient.contiguous(), None


Features = Tensor | SparseProduct


@dataclass(frozen=True, eq=False)
class LinkGraph:
    """Nodes 0 to n_nodes - 1 and their edges.

    ``edges (E, 2)``: all edges, each once, no self-loops. ``neighbours``: for each node the other ends of its edges,
    ascending; ``of_edge``: which edge each of these entries comes from, where there is one; of a pair of opposite
    directed edges the entry is there twice, and :meth:`sets` has it once. ``features``: a table (N, f), a sparse one,
    or None.
    """

    n_nodes: int
    edges: Tensor
    neighbours: Ragged
    of_edge: Tensor
    is_directed: bool = False
    features: Features | None = None

    @classmethod
    def of(
        cls, edges: Tensor, n_nodes: int, *, is_directed: bool = False, features: Features | None = None
    ) -> LinkGraph:
        """A graph of checked edges (:class:`topshelf.data.graphs.LinkData` checks them)."""
        ends = torch.cat([edges, edges.flip(1)])
        number = torch.arange(edges.size(0), device=edges.device).repeat(2)
        order = torch.argsort(ends[:, 0] * n_nodes + ends[:, 1], stable=True)
        indptr = torch.zeros(n_nodes + 1, dtype=torch.int64, device=edges.device)
        torch.cumsum(torch.bincount(ends[:, 0], minlength=n_nodes), 0, out=indptr[1:])
        lists = Ragged(indptr, ends[order, 1])
        return cls(n_nodes, edges, lists, number[order], is_directed, features)

    def without(self, chosen: Tensor) -> LinkGraph:
        """The graph without the edges ``chosen (B,)``, by their place in ``edges``, in both directions."""
        is_kept = torch.ones(self.edges.size(0), dtype=torch.bool, device=self.edges.device)
        is_kept[chosen] = False
        kept = is_kept[self.of_edge]
        place = is_kept.cumsum(0) - 1
        lists, of_edge = self.neighbours.where(kept), place[self.of_edge[kept]]
        return LinkGraph(self.n_nodes, self.edges[is_kept], lists, of_edge, self.is_directed, self.features)

    @cached_property
    def sets(self) -> Ragged:
        """The neighbours of each node, ascending and without repeats."""
        if not self.is_directed or self.neighbours.indices.numel() < 2:
            return self.neighbours
        lists = self.neighbours
        is_new = torch.ones(lists.indices.numel(), dtype=torch.bool, device=lists.indices.device)
        is_new[1:] = lists.indices[1:] != lists.indices[:-1]
        is_new[lists.indptr[:-1][lists.counts > 0]] = True
        return lists.where(is_new)

    @property
    def degrees(self) -> Tensor:
        """Number of different neighbours of each node, (N,)."""
        return self.sets.counts

    @cached_property
    def targets(self) -> Ragged:
        """What each node links to, ascending: its neighbours, or in a directed graph the targets of its edges."""
        return self._ends(0) if self.is_directed else self.sets

    @cached_property
    def sources(self) -> Ragged:
        """What links to each node, ascending."""
        return self._ends(1) if self.is_directed else self.sets

    def _ends(self, side: int) -> Ragged:
        own, other = self.edges[:, side], self.edges[:, 1 - side]
        order = torch.argsort(own * self.n_nodes + other)
        indptr = torch.zeros(self.n_nodes + 1, dtype=torch.int64, device=own.device)
        torch.cumsum(torch.bincount(own, minlength=self.n_nodes), 0, out=indptr[1:])
        return Ragged(indptr, other[order])

    @cached_property
    def smoothing(self) -> SparseProduct:
        r"""The matrix of a graph convolution, :math:`D^{-1/2} (A + I) D^{-1/2}` with D the degrees of A + I."""
        lists = with_self(self.sets)
        scale = lists.counts.double().rsqrt()
        values = (scale[lists.owner()] * scale[lists.indices]).float()
        return SparseProduct(lists, values, self.n_nodes, is_symmetric=True)

    @cached_property
    def averaging(self) -> SparseProduct:
        """The matrix that takes the mean over each node's neighbours; zeros for a node without any."""
        lists = self.sets
        values = lists.counts.clamp(min=1).double().reciprocal().float()[lists.owner()]
        return SparseProduct(lists, values, self.n_nodes)

    def common(self, edges: Tensor) -> Ragged:
        """The common neighbours of both ends of each pair, (E, 2) to E lists."""
        lists, counts = self.sets, self.sets.counts
        # The shorter of the two lists is looked up in the longer one.
        is_first = counts[edges[:, 0]] <= counts[edges[:, 1]]
        few = torch.where(is_first, edges[:, 0], edges[:, 1])
        many = torch.where(is_first, edges[:, 1], edges[:, 0])
        own = lists.select(few)
        return own.where(_holds(self._set_keys, many[own.owner()] * self.n_nodes + own.indices))

    def is_known(self, kept: Tensor, others: Tensor, side: Tensor | int = 0) -> Tensor:
        """Whether the kept end has an edge with the other one, or is the same node; any shapes that fit.

        ``side``: 0 where the kept end is the source, 1 where it is the target.
        """
        source = torch.where(torch.as_tensor(side, device=kept.device) == 0, kept, others)
        target = kept + others - source
        if not self.is_directed:
            source, target = torch.minimum(kept, others), torch.maximum(kept, others)
        return _holds(self._edge_keys, source * self.n_nodes + target) | (kept == others)

    def known_mask(self, kept: Tensor, others: Tensor, side: Tensor) -> Tensor:
        """:meth:`is_known` of each kept end (Q,) with each of the other ends (M,), which are all different, (Q, M).

        Its cost is that of the known edges, not of the Q M pairs.
        """
        place = torch.full((self.n_nodes,), -1, device=kept.device)
        place[others] = torch.arange(others.numel(), device=kept.device)
        mask = torch.zeros(kept.numel(), others.numel(), dtype=torch.bool, device=kept.device)
        own = place[kept]
        rows = torch.arange(kept.numel(), device=kept.device)
        mask[rows[own >= 0], own[own >= 0]] = True
        for one, lists in enumerate((self.targets, self.sources) if self.is_directed else (self.sets,)):
            chosen = rows[side == one] if self.is_directed else rows
            ends = lists.select(kept[chosen]) if chosen.numel() else lists.slice(0, 0)
            columns = place[ends.indices]
            mask[chosen[ends.owner()][columns >= 0], columns[columns >= 0]] = True
        return mask

    @cached_property
    def _edge_keys(self) -> Tensor:
        """One number for each edge, ascending."""
        ends = self.edges if self.is_directed else self.edges.sort(dim=1).values
        return (ends[:, 0] * self.n_nodes + ends[:, 1]).sort().values

    @cached_property
    def _set_keys(self) -> Tensor:
        """One number for each entry of ``sets``, ascending."""
        return self.sets.owner() * self.n_nodes + self.sets.indices

    def to(self, device: torch.device | str) -> LinkGraph:
        features = None if self.features is None else self.features.to(device)
        tensors = (self.edges.to(device), self.neighbours.to(device), self.of_edge.to(device))
        return LinkGraph(self.n_nodes, *tensors, self.is_directed, features)


def _holds(keys: Tensor, wanted: Tensor) -> Tensor:
    """Whether the ascending keys hold each of the wanted ones."""
    if not keys.numel():
        return torch.zeros_like(wanted, dtype=torch.bool)
    return keys[torch.searchsorted(keys, wanted).clamp_(max=keys.numel() - 1)] == wanted


def with_self(lists: Ragged) -> Ragged:
    """The lists with each node in its own list, ascending; it must not be there yet."""
    nodes = torch.arange(len(lists), device=lists.indptr.device)
    owner = torch.cat([lists.owner(), nodes])
    indices = torch.cat([lists.indices, nodes])
    order = torch.argsort(owner * len(lists) + indices)
    return Ragged(lists.indptr + torch.arange(len(lists) + 1, device=nodes.device), indices[order])
