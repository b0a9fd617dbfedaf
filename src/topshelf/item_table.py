"""Item vectors that are mostly zeros, (I, d): what a large catalogue's item-item weights are scored by.

A table has parts side by side, sparse or dense. It stands where a tensor of item vectors stands in a ranking; what it
gives for some rows is a dense tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf import kernels
from topshelf.ragged import Ragged

MULTIPLE = 16  # rows and columns of a product, where the last bits must not depend on how many there are


def multiply(vectors: Tensor, rows: Tensor, out: Tensor, *, alpha: float = 1.0, beta: float = 0.0) -> None:
    """Put ``alpha`` times the products of vectors (B, d) with rows (W, d) plus ``beta`` times ``out`` into ``out``.

    A BLAS has other loops for a few rows or columns, and for those that are left at the end of a thread's share, and
    they differ in the last bit. So the columns at the end are multiplied as whole multiples, where ``out (B, at least
    W)`` has room for them; the caller does the same with B. Then a score is the same in any block, and with any number
    of threads.
    """
    n = rows.size(0)
    whole = n // MULTIPLE * MULTIPLE
    if whole:
        out[:, :whole].addmm_(vectors, rows[:whole].T, alpha=alpha, beta=beta)
    if n > whole:
        end = min(whole + MULTIPLE, out.size(1))
        out[:, whole:end].addmm_(vectors, F.pad(rows[whole:], (0, 0, 0, end - n)).T, alpha=alpha, beta=beta)


class SparseRows:
    """A matrix (I, w) by rows: row j has ``values`` at the columns ``lists[j]``, which are different."""

    def __init__(self, lists: Ragged, values: Tensor, width: int) -> None:
        self.lists, self.values, self.width, self.n_items = lists, values, width, len(lists)
        order = torch.argsort(lists.indices, stable=True)
        bounds = F.pad(torch.bincount(lists.indices, minlength=width).cumsum(0), (1, 0))
        self.by_column = (bounds, lists.owner()[order], values[order])  # of every column its rows, ascending

    def take(self, rows: Tensor) -> SparseRows:
        """Some rows, in their order."""
        return SparseRows(*self._chosen(rows), self.width)

    def dense(self, rows: Tensor) -> Tensor:
        """Some rows, (R, w)."""
        lists, values = self._chosen(rows)
        table = torch.zeros(rows.numel(), self.width)
        table[lists.owner(), lists.indices] = values
        return table

    def scaled(self, factors: Tensor) -> SparseRows:
        """Every row times its own factor, (I,)."""
        return SparseRows(self.lists, self.values * factors[self.lists.owner()], self.width)

    def squares(self) -> Tensor:
        """The squared length of every row, (I,)."""
        return torch.zeros(self.n_items).index_add_(0, self.lists.owner(), self.values.square())

    def add_scores(self, vectors: Tensor, first: int, out: Tensor, factor: float) -> None:
        """Add the products of vectors (B, w), dense or CSR, with the rows from ``first`` on to ``out (B, W)``."""
        if vectors.layout == torch.sparse_csr:
            indptr, indices, numbers = vectors.crow_indices(), vectors.col_indices(), vectors.values()
        else:
            rows, indices = vectors.nonzero(as_tuple=True)
            indptr = F.pad(torch.bincount(rows, minlength=vectors.size(0)).cumsum(0), (1, 0))
            numbers = vectors[rows, indices]
        kernels.add_votes(out, (indptr, indices, numbers.float() * factor), self.by_column, first)

    def _chosen(self, rows: Tensor) -> tuple[Ragged, Tensor]:
        places = Ragged(self.lists.indptr, torch.arange(self.values.numel())).select(rows).indices
        return self.lists.select(rows), self.values[places]


class ItemTable:
    """Vectors of items (I, d), as parts side by side, each times a factor; float32, on the CPU."""

    dtype, device = torch.float32, torch.device("cpu")

    def __init__(self, parts: Sequence[tuple[float, Tensor | SparseRows]]) -> None:
        self.parts = list(parts)
        self.n_items = _length(self.parts[0][1])

    @classmethod
    def joined(cls, tables: Sequence[tuple[float, Tensor | ItemTable]]) -> ItemTable:
        """Several tables side by side."""
        parts: list[tuple[float, Tensor | SparseRows]] = []
        for factor, table in tables:
            inner = table.parts if isinstance(table, ItemTable) else [(1.0, table)]
            parts += [(factor * own, part) for own, part in inner]
        return cls(parts)

    def size(self, axis: int) -> int:
        return self.n_items if axis == 0 else sum(_width(part) for _, part in self.parts)

    def __len__(self) -> int:
        return self.n_items

    def element_size(self) -> int:
        return 4

    def cpu(self) -> ItemTable:
        return self

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """Some rows, dense."""
        index = torch.arange(self.n_items)[rows].flatten()
        own = [(factor, part[index] if isinstance(part, Tensor) else part.dense(index)) for factor, part in self.parts]
        return torch.cat([factor * part for factor, part in own], 1)

    def take(self, rows: Tensor) -> ItemTable:
        """A table of some rows, in their order."""
        return ItemTable([(f, part[rows] if isinstance(part, Tensor) else part.take(rows)) for f, part in self.parts])

    def unit(self) -> ItemTable:
        """Every row divided by its length; rows of zeros stay."""
        squares = sum(factor**2 * _squares(part) for factor, part in self.parts)
        shares = torch.as_tensor(squares).sqrt().clamp(min=torch.finfo(torch.float32).tiny).reciprocal()
        parts = [
            (f, part * shares[:, None] if isinstance(part, Tensor) else part.scaled(shares)) for f, part in self.parts
        ]
        return ItemTable(parts)

    def scores(self, vectors: Tensor, first: int, out: Tensor) -> None:
        """Products of ``vectors (B, d)``, dense or CSR, with the rows from ``first`` on, written to ``out (B, W)``.

        Columns of ``out`` beyond the last item become 0.
        """
        out.zero_()
        if len(self.parts) > 1 and vectors.layout != torch.strided:
            vectors = vectors.to_dense()
        start = 0
        for factor, part in self.parts:
            own = vectors if len(self.parts) == 1 else vectors[:, start : start + _width(part)]
            start += _width(part)
            if isinstance(part, SparseRows):
                part.add_scores(own, first, out, factor)
            else:
                multiply(own.to(part.dtype), part[first : first + out.size(1)], out, alpha=factor, beta=1.0)


ItemVectors = Tensor | ItemTable


def rows_of(items: ItemVectors, rows: Tensor) -> ItemVectors:
    """The vectors of some items, as they are stored."""
    return items.take(rows) if isinstance(items, ItemTable) else items[rows]


def products(vectors: Tensor, items: ItemVectors) -> Tensor:
    """The scores of all items, (B, I)."""
    if isinstance(items, Tensor):
        return vectors @ items.T
    scores = torch.empty(vectors.size(0), items.size(0))
    items.scores(vectors, 0, scores)
    return scores


def _length(part: Tensor | SparseRows) -> int:
    return part.size(0) if isinstance(part, Tensor) else part.n_items


def _width(part: Tensor | SparseRows) -> int:
    return part.size(1) if isinstance(part, Tensor) else part.width


def _squares(part: Tensor | SparseRows) -> Tensor:
    return part.square().sum(1) if isinstance(part, Tensor) else part.squares()
