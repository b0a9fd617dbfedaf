"""Lists of documents with features and grades, as models and training take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from topshelf.ragged import Ragged


@dataclass(frozen=True, eq=False)
class GradedLists:
    """Lists of documents, one per query: those of query q are rows ``indptr[q]`` to ``indptr[q + 1]``.

    Shapes: features (D, f) float32; grades (D,) float32, >= 0; indptr (Q + 1,) int64.
    """

    features: Tensor
    grades: Tensor
    indptr: Tensor

    def __len__(self) -> int:
        return self.indptr.numel() - 1

    @property
    def lengths(self) -> Tensor:
        """Number of documents of each query, (Q,)."""
        return self.indptr.diff()

    def select(self, queries: Tensor) -> GradedLists:
        """The lists of some queries, in that order."""
        rows = Ragged(self.indptr, torch.arange(self.grades.numel(), device=self.indptr.device)).select(queries)
        return GradedLists(self.features[rows.indices], self.grades[rows.indices], rows.indptr)

    def to(self, device: torch.device | str) -> GradedLists:
        return GradedLists(self.features.to(device), self.grades.to(device), self.indptr.to(device))


class ListContext(NamedTuple):
    """What a model of lists may learn from; ``valid`` is held out, for early stopping, where there is such a part."""

    train: GradedLists
    valid: GradedLists | None = None


class ListBatch(NamedTuple):
    """The lists of one training step. ``query (Q,)`` are their places among all lists of the training."""

    query: Tensor
    lists: GradedLists


def places_in_rows(indptr: Tensor) -> tuple[Tensor, int]:
    """Where each document of ragged lists stands in a table with one row per list, (D,), and its number of columns."""
    lengths = indptr.diff()
    width = int(lengths.max()) if lengths.numel() else 0
    shift = torch.arange(lengths.numel(), device=indptr.device) * width - indptr[:-1]
    total = int(indptr[-1])
    places = torch.arange(total, device=indptr.device) + torch.repeat_interleave(shift, lengths, output_size=total)
    return places, max(width, 1)


def in_rows(values: Tensor, indptr: Tensor) -> tuple[Tensor, Tensor]:
    """Ragged values (D,) as a table (Q, L), 0 at padding, and the mask (Q, L), True at padding. Differentiable."""
    places, width = places_in_rows(indptr)
    n = indptr.numel() - 1
    table = values.new_zeros(n * width).index_copy(0, places, values)
    mask = torch.ones(n * width, dtype=torch.bool, device=values.device).index_fill(0, places, False)
    return table.view(n, width), mask.view(n, width)
