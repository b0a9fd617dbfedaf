"""Linear item-item models: EASE."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from topshelf.errors import positive
from topshelf.models.base import HistoryRows, Model, Ranges
from topshelf.models.item_item import check_memory, history_matrix
from topshelf.ragged import Ragged

# Two float64 matrices (Gram and factor, then factor and inverse) and the float32 weights are alive together.
_BYTES_PER_CELL = 8 + 8 + 4


class EASE(Model):
    r"""Item-item weights with a zero diagonal, in closed form: the baseline to beat.

    .. math:: B_{ij} = -P_{ij} / P_{jj}, \quad P = (X^\top X + \lambda I)^{-1}; \qquad s_u = x_u B

    Settings: ``l2`` :math:`\lambda`; ``memory``, the most bytes that fitting may take.
    Use when: the catalogue has up to some tens of thousands of items, and one setting is enough to tune.
    Cost: n_items^2 weights and an n_items^3 inverse. Fitting takes 20 n_items^2 bytes; refused above ``memory``.
    Paper: Steck, Embarrassingly shallow autoencoders for sparse data, WWW 2019. The range is around its best, 200 to
        1000, and wider below, where small datasets have theirs.
    Relations: :class:`SLIM` without ``l1``, its weights free to be negative.
    """

    is_closed_form: ClassVar[bool] = True
    ranges: ClassVar[Ranges] = {
        "model.l2": (10.0, 20.0, 30.0, 50.0, 70.0, 100.0, 150.0, 200.0, 300.0, 500.0, 700.0, 1000.0, 2000.0, 5000.0),
    }
    weights: Tensor  # (n_items, n_items), a buffer

    def __init__(self, n_queries: int, n_items: int, *, l2: float = 300.0, memory: float = 8e9) -> None:
        super().__init__(n_queries, n_items)
        self.l2 = positive("l2", l2)
        check_memory("EASE", n_items, _BYTES_PER_CELL * n_items**2, memory)
        self.register_buffer("weights", torch.zeros(n_items, n_items))
        self._positives: Ragged | None = None

    @torch.no_grad()
    def fit(self, positives: Ragged) -> None:
        histories = history_matrix(positives, self.n_items)
        gram = torch.from_numpy((histories.T @ histories).toarray()).to(self.weights.device)
        gram.diagonal().add_(self.l2)
        gram = torch.linalg.cholesky(gram)  # the same name: the matrix itself is freed before its inverse is made
        inverse = torch.cholesky_inverse(gram)
        weights = inverse.div_(-inverse.diagonal().clone())
        weights.fill_diagonal_(0.0)
        self.weights.copy_(weights)
        self.attach(positives)

    def attach(self, positives: Ragged) -> None:
        self._positives = positives

    def encode(self, rows: Tensor | None = None) -> tuple[Tensor | HistoryRows, Tensor]:
        assert self._positives is not None, "attach histories first"
        histories = HistoryRows(self._positives, self.n_items)
        return (histories if rows is None else histories[rows]), self.weights.T
