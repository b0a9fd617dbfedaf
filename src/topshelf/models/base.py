"""What a model is: something that encodes queries and items as two tables of vectors.

The score of a query and an item is the dot product of their vectors. Trained models are moved by a loss; closed-form
ones have ``fit``. Both are ``nn.Module``s, so that both are saved and loaded the same way.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from topshelf.errors import at_least
from topshelf.ragged import Ragged

Ranges = dict[str, tuple[float | int | str, ...]]


class Model(nn.Module):
    """Base of every model. ``is_closed_form`` models are fitted once instead of trained.

    ``ranges``: what is searched when the model is tuned, by the names of a run's settings. With ``sparse_rows``, tables
    that a step reads by rows have sparse gradients, for an optimizer that wants them.
    """

    is_closed_form: ClassVar[bool] = False
    ranges: ClassVar[Ranges] = {}
    sparse_rows: bool = False

    def __init__(self, n_queries: int, n_items: int) -> None:
        super().__init__()
        self.n_queries = at_least("n_queries", n_queries, 1)
        self.n_items = at_least("n_items", n_items, 1)

    def encode(self, rows: Tensor | None = None) -> tuple[Tensor | HistoryRows, Tensor]:
        """Vectors of the queries ``rows`` (default all), (Q, d), and of all items, (I, d)."""
        raise NotImplementedError

    def fit(self, positives: Ragged) -> None:
        """Closed-form models only: find the parameters from each query's positives."""
        raise NotImplementedError

    def attach(self, positives: Ragged) -> None:
        """Give the model the histories that its query vectors are made of, where it needs them."""


class HistoryRows:
    """Queries whose vectors are their histories: row u has ones at u's items. Dense only where it is indexed."""

    def __init__(self, positives: Ragged, n_items: int) -> None:
        self.positives, self.n_items = positives, n_items

    def __len__(self) -> int:
        return len(self.positives)

    def __getitem__(self, rows: Tensor) -> Tensor:
        chosen = self.positives.select(rows)
        dense = torch.zeros(rows.numel(), self.n_items, device=rows.device)
        dense[chosen.owner(), chosen.indices] = 1.0
        return dense
