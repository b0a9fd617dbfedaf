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


class SparseColumns:
    """Numbers of a matrix (I, w) by column: column c has ``values`` at the items ``lists[c]``, which ascend."""

    def __init__(self, lists: Ragged, values: Tensor, n_items: int) -> None:
        self.lists, self.values, self.n_items = lists, values, n_items

    @property
    def width(self) -> int:
        return len(self.lists)

    def rows(self, index: Tensor) -> Tensor:
        """Some rows, dense, (R, w)."""
        chosen = self.take(index)
        table = torch.zeros(index.numel(), self.width)
        table[chosen.lists.indices, chosen.lists.owner()] = chosen.values
        return table

    def take(self, index: Tensor) -> SparseColumns:
        """The columns over some rows, which must be different, in their order."""
        place = torch.full((self.n_items,), -1)
        place[index] = torch.arange(index.numel())
        places = place[self.lists.indices]
        there = places >= 0
        return SparseColumns(Ragged(self.lists.where(there).indptr, places[there]), self.values[there], index.numel())

    def add_scores(self, vectors: Tensor, first: int, out: Tensor, factor: float) -> None:
        """Add the products of vectors (B, w), dense or CSR, with the rows from ``first`` on to ``out (B, W)``."""
        if vectors.layout == torch.sparse_csr:
            indptr, indices, numbers = vectors.crow_indices(), vectors.col_indices(), vectors.values()
        else:
            rows, indices = vectors.nonzero(as_tuple=True)
            indptr = F.pad(torch.bincount(rows, minlength=vectors.size(0)).cumsum(0), (1, 0))
            numbers = vectors[rows, indices]
        votes = (self.lists.indptr, self.lists.indices, self.values)
        kernels.add_votes(out, (indptr, indices, numbers.float() * factor), votes, first)


class ItemTable:
    """Vectors of items (I, d), as parts side by side, each times a factor; float32, on the CPU."""

    dtype, device = torch.float32, torch.device("cpu")

    def __init__(self, parts: Sequence[tuple[float, Tensor | SparseColumns]]) -> None:
        self.parts = list(parts)
        self.n_items = _length(self.parts[0][1])

    @classmethod
    def joined(cls, tables: Sequence[tuple[float, Tensor | ItemTable]]) -> ItemTable:
        """Several tables side by side."""
        parts: list[tuple[float, Tensor | SparseColumns]] = []
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
        unique, place = index.unique(return_inverse=True)
        parts = [
            factor * (part[index] if isinstance(part, Tensor) else part.rows(unique)[place])
            for factor, part in self.parts
        ]
        return torch.cat(parts, 1)

    def take(self, rows: Tensor) -> ItemTable:
        """A table of some rows, which must be different, in their order."""
        return ItemTable([(f, part[rows] if isinstance(part, Tensor) else part.take(rows)) for f, part in self.parts])

    def scores(self, vectors: Tensor, first: int, out: Tensor) -> None:
        """Products of ``vectors (B, d)``, dense or CSR, with the rows from ``first`` on, written to ``out (B, W)``."""
        out.zero_()
        if len(self.parts) > 1 and vectors.layout != torch.strided:
            vectors = vectors.to_dense()
        start = 0
        for factor, part in self.parts:
            own = vectors if len(self.parts) == 1 else vectors[:, start : start + _width(part)]
            start += _width(part)
            if isinstance(part, SparseColumns):
                part.add_scores(own, first, out, factor)
            else:
                out.addmm_(own.to(part.dtype), part[first : first + out.size(1)].T, alpha=factor)


ItemVectors = Tensor | ItemTable


def rows_of(items: ItemVectors, rows: Tensor) -> ItemVectors:
    """The vectors of some items, which must be different, as they are stored."""
    return items.take(rows) if isinstance(items, ItemTable) else items[rows]


def products(vectors: Tensor, items: ItemVectors) -> Tensor:
    """The scores of all items, (B, I)."""
    if isinstance(items, Tensor):
        return vectors @ items.T
    scores = torch.empty(vectors.size(0), items.size(0))
    items.scores(vectors, 0, scores)
    return scores


def _length(part: Tensor | SparseColumns) -> int:
    return part.size(0) if isinstance(part, Tensor) else part.n_items


def _width(part: Tensor | SparseColumns) -> int:
    return part.size(1) if isinstance(part, Tensor) else part.width
