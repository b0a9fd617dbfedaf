"""Sparse EASE: each item predicted by a ridge regression on its nearest items, for catalogues too large for EASE."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from topshelf.errors import TrainingError, at_least, positive
from topshelf.models.item_item import SparseItemItem, check_memory, history_matrix, strongest
from topshelf.queries import Context
from topshelf.registry import SearchSpace

_COUNT = 4 + 4  # bytes of a count and its index
_TOLERANCE, _MOST_STEPS = 1e-5, 300  # of the exact columns that the error is measured by
_LEAST_SHARE = 1e-12  # a penalty beside the largest count; float64 resolves no less
_SAMPLE_SEED = 0


class SparseEASE(SparseItemItem):
    r"""EASE with few weights per item: the ridge regression of each item on its nearest items alone.

    .. math:: w_j = (G_{NN} + \lambda I)^{-1} G_{Nj}, \quad G = X^\top X, \quad
        N = N_m(j): \text{ the } m \text{ largest } \frac{G_{ij}^2}{G_{ii} + \lambda}; \qquad s_{uj} = x_{uN} w_j

    Settings: ``l2`` :math:`\lambda`; ``neighbours`` m, the items whose regression alone would explain most of item j;
        with n_items - 1 or more it is EASE, exactly. ``checked``, the number of items on which the error is measured, 0
        for none; ``memory``, the maximum bytes of counts and weights.
    Use when: EASE's n_items^2 numbers do not fit memory, or its inverse takes too long.
    Cost: the counts of common users, 8 bytes for each pair of items that has any, refused above ``memory``; a system of
        m numbers per item; at most m weights per item.
    Error: on ``checked`` items, drawn at random, the exact weights of EASE are found by conjugate gradients. The
        relative distance of the predictions, :math:`\lVert X (w - w^*) \rVert / \lVert X w^* \rVert` over all of them,
        is ``score_error`` in the run's ``metrics.json``, under ``derived``; that of the weights is ``weight_error``.
    Paper: the weights of Steck, Embarrassingly shallow autoencoders for sparse data, WWW 2019, with candidates chosen
        beforehand as in fsSLIM of Ning and Karypis, ICDM 2011. The choice of the neighbours is ours.
    Relations: :class:`EASE` without the limit to neighbours; :class:`SLIM` chooses its items by ``l1``.
    """

    ranges: ClassVar[SearchSpace] = {
        "model.l2": (5.0, 10.0, 20.0, 30.0, 50.0, 70.0, 100.0, 150.0, 200.0, 300.0, 500.0, 1000.0),
        "model.neighbours": (50, 100, 200, 400),
    }
    errors: Tensor  # (2,), a buffer: of scores and of weights in the last fit, NaN if they were not measured

    def __init__(
        self,
        n_queries: int,
        n_items: int,
        *,
        l2: float = 100.0,
        neighbours: int = 200,
        checked: int = 16,
        memory: float = 4e9,
    ) -> None:
        self.l2, self.checked = positive("l2", l2), at_least("checked", checked, 0)
        self.neighbours = at_least("neighbours", neighbours, 1)
        super().__init__(n_queries, n_items, memory, most=neighbours)
        self.register_buffer("errors", torch.full((2,), torch.nan, dtype=torch.float64))

    def weights_from(self, histories: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
        most = min(int(np.square(np.diff(histories.indptr)).sum()), self.n_items**2)  # counts above 0
        check_memory("SparseEASE", self.n_items, _COUNT * most, self.memory)
        some = histories.astype(np.float32)
        gram = scipy.sparse.csr_array(some.T @ some)
        gram.sort_indices()
        squares = gram.diagonal().astype(np.float64)
        if self.l2 <= _LEAST_SHARE * squares.max(initial=0.0):
            raise TrainingError(
                f"EASE's weights are not determined by so small a penalty; raise model.l2, which is {self.l2}"
            )
        return self._solved(gram, self._nearest(gram, squares + self.l2))

    def _nearest(self, gram: scipy.sparse.csr_array, squares: np.ndarray) -> np.ndarray:
        """The neighbours of every item, (n_items, m), ascending, -1 after the last."""
        n, m = self.n_items, min(self.neighbours, max(1, self.n_items - 1))
        if self.neighbours >= n - 1:  # also those without a common user
            places = np.arange(m)[None, :] + np.zeros((n, 1), np.int64)
            return places + (places >= np.arange(n)[:, None]) if n > 1 else np.full((1, 1), -1)

        def gains(rows: slice) -> np.ndarray:
            counts = gram[rows].toarray()
            return counts * counts / squares

        chosen = strongest(gains, n, m)
        chosen.sort_indices()
        nearest = np.full((n, m), -1)
        lengths = np.diff(chosen.indptr)
        owner = np.repeat(np.arange(n), lengths)
        nearest[owner, np.arange(owner.size) - chosen.indptr[owner]] = chosen.indices
        return nearest

    def _solved(self, gram: scipy.sparse.csr_array, nearest: np.ndarray) -> scipy.sparse.csr_array:
        """The weights of every item on its neighbours."""
        from topshelf.models.neighbour_systems import solve_neighbours  # numba, which other models do not need

        n, weights = self.n_items, np.empty(nearest.shape)
        solve_neighbours(np.arange(n), nearest, weights, (gram.indptr, gram.indices, gram.data), self.l2)
        there = nearest >= 0
        indptr = np.concatenate([[0], there.sum(1).cumsum()])
        return scipy.sparse.csr_array((weights[there], nearest[there], indptr), shape=(n, n))

    def fit(self, context: Context) -> None:
        super().fit(context)
        if self.checked:
            self._measure(history_matrix(context.histories, self.n_items))

    def derived(self) -> dict[str, float]:
        """The errors of the last fit."""
        names = ("score_error", "weight_error")
        return {} if bool(self.errors.isnan().any()) else dict(zip(names, self.errors.tolist(), strict=True))

    def _measure(self, histories: scipy.sparse.csr_array) -> None:
        """Compare some columns with the exact ones."""
        counts = histories.sum(axis=0)
        known = np.flatnonzero(counts > 0)
        draw = np.random.default_rng(_SAMPLE_SEED)
        items = np.sort(draw.choice(known, min(self.checked, known.size), replace=False))
        exact = exact_columns(histories, items, self.l2)
        parts = (part.cpu().numpy() for part in (self.values, self.indices, self.indptr))
        kept = scipy.sparse.csr_array(tuple(parts), shape=(self.n_items, self.n_items))
        away = kept[items].toarray().T - exact
        shares = [_relative(histories @ away, histories @ exact), _relative(away, exact)]
        self.errors.copy_(torch.tensor(shares, dtype=torch.float64))


def exact_columns(histories: scipy.sparse.csr_array, items: np.ndarray, l2: float) -> np.ndarray:
    """EASE's weights (n_items, len(items)) for some items, by conjugate gradients: no matrix of n_items^2 is made."""
    by_item = scipy.sparse.csr_array(histories.T)
    columns = np.arange(items.size)

    def product(vectors: np.ndarray) -> np.ndarray:
        result: Any = by_item @ (histories @ vectors) + l2 * vectors
        result[items, columns] = 0.0  # no item votes for itself: its row and column are left out
        return result

    residual = np.asarray((by_item @ histories[:, items].toarray()), dtype=np.float64)
    residual[items, columns] = 0.0
    found, direction = np.zeros_like(residual), residual.copy()
    size = np.square(residual).sum(0)
    wanted = _TOLERANCE**2 * size
    for _ in range(_MOST_STEPS):
        if (size <= wanted).all():
            break
        image = product(direction)
        step = _share(size, (direction * image).sum(0))
        found += step * direction
        residual -= step * image
        before, size = size, np.square(residual).sum(0)
        direction = residual + _share(size, before) * direction
    return found


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Quotients, 0 where a column is solved already."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def _relative(distance: np.ndarray, size: np.ndarray) -> float:
    length = np.linalg.norm(size)
    return float(np.linalg.norm(distance) / length) if length > 0 else 0.0
