"""Models that were tried on the way to ``models/history.py``; benchmarks/studies/backbone_ideas.py compares them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import scipy.sparse
import torch
from torch import Tensor, nn

from topshelf.models import EASE, MODELS, History, HistoryRows, Model
from topshelf.models.graph import Graph, SparseMatrix
from topshelf.models.history import thinned_at_random
from topshelf.models.item_item import gram_matrix, history_matrix
from topshelf.models.tables import Score, for_score, new_tables
from topshelf.queries import Batch, Context, Encoded, QuerySet
from topshelf.ragged import Ragged


class OneTable(History):
    """An item has one vector, for histories and for scores."""

    def __init__(self, n_queries: int, n_items: int, *, dim: int = 256, drop: float = 0.2) -> None:
        super().__init__(n_queries, n_items, dim=dim, drop=drop)
        self.item_vectors = self.history_vectors


class OwnVector(History):
    """A user is the sum of its items and ``own`` times a user vector."""

    takes: ClassVar[frozenset[str]] = frozenset({"rows"})

    def __init__(self, n_queries: int, n_items: int, *, dim: int = 256, drop: float = 0.2, own: float = 0.3) -> None:
        super().__init__(n_queries, n_items, dim=dim, drop=drop)
        self.own = own
        self.query_vectors, _ = new_tables(n_queries, 1, dim)

    def encode_queries(self, queries: QuerySet) -> Tensor:
        return self._with_own(self.histories_of(queries), queries)

    def encode_batch(self, batch: Batch) -> Encoded:
        histories = thinned_at_random(self.histories_of(batch.queries), self.drop)
        return Encoded(self._with_own(histories, batch.queries), self.encode_items())

    def _with_own(self, histories: Ragged, queries: QuerySet) -> Tensor:
        sums = summed(histories, self.history_vectors, torch.ones(self.n_items))
        return for_score(self.score, sums + self.own * queries.take(self.query_vectors))


class RareFirst(History):
    """An item that n users have is weighted by n^-1/2 in a history."""

    def attach(self, context: Context) -> None:
        super().attach(context)
        counts = torch.bincount(context.histories.indices, minlength=self.n_items)
        self._weights = counts.clamp(min=1).float().rsqrt()

    def _summed(self, histories: Ragged) -> Tensor:
        return for_score(self.score, summed(histories, self.history_vectors, self._weights))


class LeftOut(History):
    """The items that a step predicts are not in the user's history, as in FISM. For pairs."""

    def encode_batch(self, batch: Batch) -> Encoded:
        histories = self.histories_of(batch.queries)
        others = histories.where(
            ~torch.isin(histories.owner() * self.n_items + histories.indices, batch.owner * self.n_items + batch.item)
        )
        return Encoded(self._summed(thinned_at_random(others, self.drop)), self.encode_items())


class Smoothed(History):
    """An item is its vector plus ``share`` times those of the items two steps away in the graph, as in LightGCN."""

    def __init__(self, n_queries: int, n_items: int, *, dim: int = 256, drop: float = 0.2, share: float = 2.0) -> None:
        super().__init__(n_queries, n_items, dim=dim, drop=drop)
        self.share = share

    def attach(self, context: Context) -> None:
        super().attach(context)
        self._graph = Graph(context.histories, self.n_items, like=self.item_vectors)

    def encode_items(self) -> Tensor:
        two_steps = self._graph.to_items @ (self._graph.to_queries @ self.item_vectors)
        return for_score(self.score, self.item_vectors + self.share * two_steps)


class Averaged(History):
    """Scores with a moving average of the weights, over all steps at first; it lags by one step."""

    def __init__(self, n_queries: int, n_items: int, *, dim: int = 256, drop: float = 0.2, decay: float = 0.95) -> None:
        super().__init__(n_queries, n_items, dim=dim, drop=drop)
        self.decay, self._n_steps = decay, 0
        self.mean = History(n_queries, n_items, dim=dim).requires_grad_(False)

    def attach(self, context: Context) -> None:
        super().attach(context)
        self.mean.attach(context)

    def encode(self, queries: QuerySet) -> tuple[Tensor, Tensor]:
        return self.mean.encode_queries(queries), self.mean.encode_items()

    def encode_batch(self, batch: Batch) -> Encoded:
        self._n_steps += 1
        share = max(1 - self.decay, 1 / self._n_steps)
        self.mean.history_vectors.lerp_(self.history_vectors.detach(), share)
        self.mean.item_vectors.lerp_(self.item_vectors.detach(), share)
        return super().encode_batch(batch)


class FromEASE(History):
    """Starts with the strongest factors of EASE's weights, with the largest weight on the diagonal."""

    def __init__(self, n_queries: int, n_items: int, *, dim: int = 256, drop: float = 0.2, l2: float = 300.0) -> None:
        super().__init__(n_queries, n_items, dim=dim, drop=drop)
        self.l2 = l2

    def attach(self, context: Context) -> None:
        super().attach(context)
        weights = ease_weights(context.histories, self.n_items, self.l2)
        left, values, right = torch.linalg.svd(weights.fill_diagonal_(float(weights.max())))
        dim = self.item_vectors.size(1)
        begin_with(self.history_vectors, left[:, :dim] * values[:dim].sqrt())
        begin_with(self.item_vectors, right[:dim].T * values[:dim].sqrt())


class FromSpectrum(History):
    """Starts with the strongest singular vectors of the normalised histories, in both tables."""

    def attach(self, context: Context) -> None:
        super().attach(context)
        histories = history_matrix(context.histories, self.n_items)
        roots = [histories.sum(axis).clip(min=1) ** -0.5 for axis in (1, 0)]
        scaled = scipy.sparse.diags_array(roots[0]) @ histories @ scipy.sparse.diags_array(roots[1])
        values, vectors = torch.linalg.eigh(torch.from_numpy(gram_matrix(scipy.sparse.csr_array(scaled))))
        dim = self.item_vectors.size(1)
        strongest = vectors[:, -dim:] * values[-dim:].clamp(min=0) ** 0.25  # squares of the singular values
        for table in (self.history_vectors, self.item_vectors):
            begin_with(table, strongest)


class Linear(History):
    """A weight for every pair of items, EASE's at the start; ``for_itself``: also of an item and itself."""

    def __init__(
        self,
        n_queries: int,
        n_items: int,
        *,
        drop: float = 0.0,
        score: Score = "dot",
        l2: float = 300.0,
        for_itself: bool = True,
    ) -> None:
        super().__init__(n_queries, n_items, dim=1, drop=drop, score=score)
        self.l2 = l2
        del self.history_vectors
        self.item_vectors = nn.Parameter(torch.zeros(n_items, n_items))
        if not for_itself:  # Adam does not change what never has a gradient
            self.item_vectors.register_hook(lambda gradient: gradient.clone().fill_diagonal_(0.0))

    def attach(self, context: Context) -> None:
        super().attach(context)
        with torch.no_grad():
            self.item_vectors.copy_(ease_weights(context.histories, self.n_items, self.l2).T)

    def _summed(self, histories: Ragged) -> Tensor:
        # The step needs gradients of both tables, though nothing is learned here.
        rows = HistoryRows(histories, self.n_items)[torch.arange(len(histories))].to_dense().requires_grad_()
        return for_score(self.score, rows)


def summed(histories: Ragged, table: Tensor, weights: Tensor) -> Tensor:
    """The sum of each history's vectors by the items' ``weights (I,)``, over the root of its length."""
    return SparseMatrix(histories, histories.counts.clamp(min=1).float().rsqrt(), weights) @ table


def ease_weights(positives: Ragged, n_items: int, l2: float) -> Tensor:
    """Row i, column j: the weight of item i in the score of j."""
    fitted = EASE(len(positives), n_items, l2=l2)
    fitted.fit(Context(positives, n_items))
    return fitted.weights


@torch.no_grad()
def begin_with(table: nn.Parameter, values: Tensor) -> None:
    """Copy the values into the table, scaled to its standard deviation."""
    table.copy_(values / values.std() * table.std())


VARIANTS: dict[str, type[Model]] = {
    "one_table": OneTable,
    "own_vector": OwnVector,
    "rare_first": RareFirst,
    "left_out": LeftOut,
    "smoothed": Smoothed,
    "averaged": Averaged,
    "from_ease": FromEASE,
    "from_spectrum": FromSpectrum,
    "linear": Linear,
}


@contextmanager
def registered() -> Iterator[None]:
    """The models above are in the registry inside the block."""
    MODELS.update(VARIANTS)
    try:
        yield
    finally:
        for name in VARIANTS:
            del MODELS[name]
