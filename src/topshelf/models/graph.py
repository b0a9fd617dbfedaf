"""Products with sparse matrices of ragged lists, and the graph of who has what that graph models propagate over."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd.function import Function

from topshelf.errors import TopshelfError
from topshelf.ragged import Ragged, ragged_from_pairs


class SparseMatrix:
    r"""Lists as a matrix to multiply tables with: :math:`\mathrm{diag}(l)\, B\, \mathrm{diag}(r)`, B one at the lists.

    Shapes: lists, n lists of columns; transposed, the lists of rows of each of the m columns (made when not given);
        left l (n,) and right r (m,), whose type the products have. ``matrix @ table (m, d)`` is (n, d).
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
    zeros. It has the type of ``like``, and the device of the positives.
    """

    def __init__(
        self, positives: Ragged, n_items: int, *, like: Tensor, to_target: float = 0.5, to_source: float = 0.5
    ) -> None:
        owners = transpose(positives, n_items)
        degrees = [lists.counts.clamp(min=1).double() for lists in (positives, owners)]
        targets = [(degree**-to_target).to(like.dtype) for degree in degrees]
        sources = [(degree**-to_source).to(like.dtype) for degree in degrees]
        self.to_queries = SparseMatrix(positives, targets[0], sources[1], owners)
        self.to_items = SparseMatrix(owners, targets[1], sources[0], positives)

    def spread(self, queries: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """The next layer of both tables, (U, d) and (I, d)."""
        return self.to_queries @ items, self.to_items @ queries


def attached(graph: Graph | None, model: object) -> Graph:
    """The graph of a model that has one."""
    if graph is None:
        raise TopshelfError(
            f"{type(model).__name__} has no graph yet: call attach(positives) with the training positives"
        )
    return graph


def mean_tables(layers: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The mean over layers of both tables."""
    queries, items = layers[0]
    for more_queries, more_items in layers[1:]:
        queries, items = queries + more_queries, items + more_items
    return queries / len(layers), items / len(layers)


def transpose(lists: Ragged, n_columns: int) -> Ragged:
    """For each column the rows whose lists have it."""
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
