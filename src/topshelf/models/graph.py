"""Products with sparse matrices of ragged lists, and the graph of users and items that graph models propagate over."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function

from topshelf.errors import TopshelfError, at_least
from topshelf.models.slices import ItemSlice
from topshelf.models.tables import Init, Score, TableModel, for_score
from topshelf.queries import Batch, Context, Encoded, QuerySet
from topshelf.ragged import Ragged, ragged_from_pairs
from topshelf.world import summed, used_in_parts

Tables = tuple[Tensor, Tensor]


class SparseMatrix:
    r"""Lists as a matrix to multiply tables with: :math:`\mathrm{diag}(l)\, B\, \mathrm{diag}(r)`, B one at the lists.

    Shapes: lists, n lists of columns; transposed, the lists of rows of each of the m columns (made when not given);
        left l (n,) and right r (m,); products have their type. ``matrix @ table (m, d)`` is (n, d).
    Cost: one sparse product each way; the backward pass multiplies with the transpose, which is kept as well, so both
        are sums over rows in a fixed order.
    """

    def __init__(self, lists: Ragged, left: Tensor, right: Tensor, transposed: Ragged | None = None) -> None:
        if transposed is None:
            transposed = transpose(lists, right.numel())
        self.there = _csr(lists, left, right)
        self.back = _csr(transposed, right, left)

    def __matmul__(self, table: Tensor) -> Tensor:
        product: Tensor = _Product.apply(table, self.there, self.back)
        return product


class Graph:
    r"""The training positives as edges between queries and items. One layer of propagation is

    .. math:: e'_t = \sum_{s \in N(t)} d_t^{-a}\, d_s^{-b}\, e_s

    with d the numbers of neighbours, :math:`a` ``to_target`` and :math:`b` ``to_source``. Nodes without neighbours get
    zeros. It has the type of ``like``, and the device of the positives. With ``held``, its tables of items are slices.
    """

    def __init__(
        self,
        positives: Ragged,
        n_items: int,
        to_target: float = 0.5,
        to_source: float = 0.5,
        *,
        like: Tensor,
        held: ItemSlice | None = None,
    ) -> None:
        self.held = held
        owners = transpose(positives, n_items)
        degrees = [lists.counts.clamp(min=1).double() for lists in (positives, owners)]
        if held is not None:
            positives, owners = held.local(positives), owners.slice(held.first, held.last)
            degrees[1] = held.rows(degrees[1])
        targets = [(degree**-to_target).to(like.dtype) for degree in degrees]
        sources = [(degree**-to_source).to(like.dtype) for degree in degrees]
        self.to_queries = SparseMatrix(positives, targets[0], sources[1], owners)
        self.to_items = SparseMatrix(owners, targets[1], sources[0], positives)

    def spread(self, queries: Tensor, items: Tensor) -> Tables:
        """The next layer of both tables, (U, d) and (I, d)."""
        if self.held is not None:
            world = self.held.world
            return summed(self.to_queries @ items, world), self.to_items @ used_in_parts(queries, world)
        return self.to_queries @ items, self.to_items @ queries


class GraphModel(TableModel):
    """Base of the models with vectors propagated over the graph; a subclass has :meth:`propagated`."""

    exponents: tuple[float, float] = (0.5, 0.5)  # of the degrees of target and source
    _graph: Graph | None = None
    _least_layers: int = 1

    def __init__(
        self, n_queries: int, n_items: int, dim: int, n_layers: int, score: Score, init: Init = "xavier"
    ) -> None:
        super().__init__(n_queries, n_items, dim, score, init)
        self.n_layers = at_least("n_layers", n_layers, self._least_layers)

    def propagated(self) -> Tables:
        """The vectors of all queries and all items, before they are normalised for the score."""
        raise NotImplementedError

    def attach(self, context: Context) -> None:
        graph = Graph(context.histories, self.n_items, *self.exponents, like=self.query_vectors, held=self.held)
        self._graph = graph

    @property
    def graph(self) -> Graph:
        if self._graph is None:
            raise TopshelfError(f"{type(self).__name__} has no graph yet: call attach(context) with the training data")
        return self._graph

    @property
    def own(self) -> Tables:
        """The learned vectors, layer 0."""
        return self.query_vectors, self.item_vectors

    def encode_queries(self, queries: QuerySet) -> Tensor:
        return for_score(self.score, queries.take(self.propagated()[0]))

    def encode_items(self) -> Tensor:
        return for_score(self.score, self.propagated()[1])

    def encode(self, queries: QuerySet) -> Tables:
        """One propagation for both."""
        return self.scored(queries, self.propagated())

    def scored(self, queries: QuerySet, tables: Tables) -> Tables:
        """The vectors of the queries and of all items, from the propagated tables."""
        return for_score(self.score, queries.take(tables[0])), for_score(self.score, tables[1])

    def encode_batch(self, batch: Batch) -> Encoded:
        return Encoded(*self.encode(batch.queries))


def mean_tables(layers: list[Tables]) -> Tables:
    """The mean over layers of both tables."""
    queries, items = layers[0]
    for more_queries, more_items in layers[1:]:
        queries, items = queries + more_queries, items + more_items
    return queries / len(layers), items / len(layers)


def sums_over(lists: Ragged, shares: Tensor, table: Tensor, held: ItemSlice | None) -> Tensor:
    """For each list, the sum of its rows of ``table (I, d)`` times its share (n,); ``held``: the rows in the table."""
    ones = torch.ones_like(table[:, 0])
    if held is None:
        return SparseMatrix(lists, shares, ones) @ table
    return summed(SparseMatrix(held.local(lists), shares, ones) @ table, held.world)


def transpose(lists: Ragged, n_columns: int) -> Ragged:
    """For each column, the rows that list it."""
    return ragged_from_pairs(lists.indices, lists.owner(), n_columns)


def _csr(lists: Ragged, left: Tensor, right: Tensor) -> Tensor:
    return lists.matrix(left[lists.owner()] * right[lists.indices], right.numel())


class _Product(Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.there, ctx.back = there, back
        return there @ table

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _Product.apply(gradient, ctx.back, ctx.there), None, None
