"""What a model is: something that encodes queries and items as two tables of vectors.

The score of a query and an item is the dot product of their vectors. Trained models are moved by a loss; closed-form
ones have ``fit``. Both are ``nn.Module``s, so that both are saved and loaded the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from topshelf.errors import ConfigError, at_least
from topshelf.ragged import Ragged
from topshelf.ranking import Queries

Ranges = dict[str, tuple[float | int | str, ...]]


class Encoded(NamedTuple):
    """What a training step sees of a model."""

    queries: Tensor  # (Q, d), of the batch
    items: Tensor  # (I, d), of all items
    auxiliary: Tensor | None = None  # a loss of the model's own, one number, that the step adds to the loss


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

    def encode(self, rows: Tensor | None = None) -> tuple[Queries, Tensor]:
        """Vectors of the queries ``rows`` (default all), (Q, d), and of all items, (I, d): the same at every call."""
        raise NotImplementedError

    def queries_of(self, histories: Ragged) -> Queries:  # noqa: ARG002  for those that override it
        """Vectors (Q, d) of users who have these items, one a list, whether they were in training or not.

        Scored against the items of :meth:`encode`; the training positives give its queries. A model of which something
        belongs to each user of the training cannot do it, and leaves this as it is.
        """
        raise ConfigError(
            f"{type(self).__name__} has vectors for the users of its training only, and none for new ones. Train again "
            "with their interactions, or use a model that takes new users; topshelf models says which do"
        )

    def encode_batch(self, query: Tensor, owner: Tensor, item: Tensor) -> Encoded:  # noqa: ARG002  for those that override it
        """The vectors of a training step, called once a step, with the model's own loss of the batch if it has one.

        Shapes: query (Q,), the batch's queries; item (P,), their positives; owner (P,), which of the Q each belongs to.
        Noise belongs here and never in :meth:`encode`; it comes from torch's global generator, which every step seeds.
        """
        queries, items = self.encode(query)
        assert isinstance(queries, Tensor)
        return Encoded(queries, items)

    def fit(self, positives: Ragged) -> None:
        """Closed-form models only: find the parameters from each query's positives."""
        raise NotImplementedError

    def derived(self) -> dict[str, float]:
        """Settings that were left out and that the last fit took from the data, by name."""
        return {}

    @classmethod
    def searched(cls, settings: Mapping[str, Any]) -> Ranges:  # noqa: ARG003  for those that override it
        """The ranges that matter with these settings of the model."""
        return dict(cls.ranges)

    def attach(self, positives: Ragged) -> None:
        """Give the model the training positives that its vectors are made of, where it needs them.

        Called before the first step and after loading: what is made of them is never in ``state_dict``.
        """


class HistoryRows:
    """Queries whose vectors are their histories: row u has ones at u's items. Rows are sparse (CSR) matrices."""

    def __init__(self, positives: Ragged, n_items: int) -> None:
        self.positives, self.n_items = positives, n_items

    def __len__(self) -> int:
        return len(self.positives)

    def __getitem__(self, rows: Tensor) -> Tensor:
        chosen = self.positives.select(rows)
        return chosen.matrix(torch.ones(chosen.indices.shape, device=rows.device), self.n_items)
