"""The contract of a model of lists: it scores the documents of a query from their features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from topshelf.errors import at_least
from topshelf.graded_lists import ListContext
from topshelf.registry import Recorded, SearchSpace


class ListModel(Recorded, nn.Module):
    """Base of the models that rank documents. A subclass has :meth:`score`."""

    sizes: ClassVar[tuple[str, ...]] = ("n_features",)
    is_closed_form: ClassVar[bool] = False
    ranges: ClassVar[SearchSpace] = {}
    sparse_rows: bool = False

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.n_features = at_least("n_features", n_features, 1)

    def score(self, features: Tensor, indptr: Tensor) -> Tensor:
        """Scores of documents (D,), higher is better; deterministic.

        Shapes: features (D, n_features); indptr (Q + 1,): the documents of query q are rows indptr[q] to indptr[q + 1].
        """
        raise NotImplementedError

    def score_batch(self, features: Tensor, indptr: Tensor) -> Tensor:
        """The scores of a training step. Only here may a model draw noise, from torch's global generator."""
        return self.score(features, indptr)

    def prepare(self, context: ListContext) -> None:
        """Take the statistics of the features that the model keeps, before the first step of training."""

    def fit(self, context: ListContext) -> None:
        """Closed-form models only: compute what is learned from the data."""
        raise NotImplementedError

    def attach(self, context: ListContext) -> None:
        """Nothing: a score depends on the features it is given."""

    def derived(self) -> dict[str, float]:
        return {}

    @classmethod
    def searched(cls, settings: Mapping[str, Any]) -> SearchSpace:  # noqa: ARG003
        return dict(cls.ranges)
