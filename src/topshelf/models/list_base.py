"""The contract of a model of lists: it scores the documents of a query from their features."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from topshelf.errors import at_least
from topshelf.graded_lists import ListContext
from topshelf.models.base import Trainable


class ListModel(Trainable):
    """Base of the models that rank documents. A subclass has :meth:`score`; its ``fit`` takes a ``ListContext``."""

    sizes: ClassVar[tuple[str, ...]] = ("n_features",)

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
