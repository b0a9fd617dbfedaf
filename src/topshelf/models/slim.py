"""SLIM: sparse linear item-item weights."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import scipy.sparse

from topshelf.errors import TrainingError, positive
from topshelf.models.item_item import SparseItemItem, blocks, check_memory, history_matrix
from topshelf.queries import Context
from topshelf.registry import SearchSpace

_TOLERANCE = 1e-5  # of the largest change in a sweep; weights are of the order of 0.1
_MOST_ROUNDS = 1000
_GRAM_CELL = 8 + 4  # bytes: a count and an index
_BLOCK = 1 << 24  # bytes of weights that are dense at once: small ones stay in the cache


class SLIM(SparseItemItem):
    r"""Few item-item weights with a zero diagonal, each item predicted from the others by an elastic net.

    .. math:: \min_W \tfrac12 \lVert X - X W \rVert^2 + \tfrac{\lambda_2}{2} \lVert W \rVert^2 + \lambda_1 \lVert W
        \rVert_1, \quad \operatorname{diag} W = 0, \ W \ge 0; \qquad s_u = x_u W

    Settings: ``l1``, which decides how many weights are above 0, and ``l2``; ``memory``, the maximum bytes of its
        tables.
    Use when: weights should be few and readable, and EASE's are too many.
    Cost: coordinate descent to convergence, one item at a time, on the counts of common users. The counts are computed
        once; a step takes as many operations as an item has co-occurring items. (ADMM, the other fast form, multiplies
        two matrices of n_items^2 per step.) Smaller ``l1`` is slower. Scored as a dense table of n_items^2 up to 8,192
        items, else as lists; the table and the counts are refused above ``memory`` bytes.
    Paper: Ning and Karypis, SLIM: sparse linear methods for top-N recommender systems, ICDM 2011; descent on the
        counts as in Friedman et al., Regularization paths for generalized linear models via coordinate descent, 2010.
        The ranges are ours, around what validation chose on Health and MovieLens.
    Relations: without ``l1`` and :math:`W \ge 0` it is :class:`EASE`.
    """

    ranges: ClassVar[SearchSpace] = {
        "model.l1": (0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0),
        "model.l2": (10.0, 20.0, 50.0, 100.0, 200.0, 300.0, 500.0),
    }

    def __init__(
        self,
        n_queries: int,
        n_items: int,
        *,
        l1: float = 1.0,
        l2: float = 100.0,
        memory: float = 8e9,
    ) -> None:
        super().__init__(n_queries, n_items, memory)
        self.l1 = positive("l1", l1)
        self.l2 = positive("l2", l2)

    def weights_from(self, histories: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
        return self._solved(histories, scipy.sparse.csr_array((self.n_items, self.n_items)))

    def fit_from(self, old: SLIM, context: Context) -> None:
        """The same weights, found in fewer sweeps: the descent starts from the old ones."""
        parts = (old.values.cpu().numpy(), old.indices.cpu().numpy(), old.indptr.cpu().numpy())
        start = scipy.sparse.csr_array(parts, shape=(old.n_items, old.n_items))
        start.resize((self.n_items, self.n_items))
        self._keep(self._solved(history_matrix(context.histories, self.n_items), start))
        self.attach(context)

    def _solved(self, histories: scipy.sparse.csr_array, start: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
        most = min(int(np.square(np.diff(histories.indptr)).sum()), self.n_items**2)  # counts above 0
        check_memory("SLIM", self.n_items, _GRAM_CELL * most, self.memory)
        gram = scipy.sparse.csr_array(histories.T @ histories)
        parts = (gram.indptr, gram.indices.astype(np.int32), gram.data, gram.diagonal())
        solved = [
            self._solve(np.arange(rows.start, rows.stop), start[rows].toarray(), parts)
            for rows in blocks(self.n_items, _BLOCK)
        ]
        return scipy.sparse.csr_array(scipy.sparse.vstack(solved))

    def _solve(self, items: np.ndarray, start: np.ndarray, gram: tuple[np.ndarray, ...]) -> scipy.sparse.csr_array:
        from topshelf.models.elastic_net import elastic_net  # numba, which other models do not need

        weights = start.astype(np.float64)
        rounds = elastic_net(
            items,
            weights,
            gram,
            l1=self.l1,
            l2=self.l2,
            tolerance=_TOLERANCE,
            most_rounds=_MOST_ROUNDS,
        )
        if (rounds < 0).any():
            raise TrainingError(
                f"SLIM's weights for item {items[rounds < 0][0]} still change after {_MOST_ROUNDS} sweeps; "
                f"raise model.l2, which is {self.l2}"
            )
        return scipy.sparse.csr_array(weights.astype(np.float32))
