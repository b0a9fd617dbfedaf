"""Linear item-item models: EASE."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from topshelf.errors import TrainingError, positive
from topshelf.models.item_item import ItemItem, check_memory, gram_matrix, history_matrix
from topshelf.models.low_rank import updated_weights
from topshelf.queries import Context, QuerySet
from topshelf.registry import SearchSpace

# Two float64 matrices (Gram and factor, then factor and inverse) and the float32 weights are alive together.
_BYTES_PER_CELL = 8 + 8 + 4
_LEAST_SHARE = 1e-12  # a penalty beside the largest count; float64 resolves no less


class EASE(ItemItem):
    r"""Item-item weights with a zero diagonal, in closed form: the baseline to beat.

    .. math:: B_{ij} = -P_{ij} / P_{jj}, \quad P = (X^\top X + \lambda I)^{-1}; \qquad s_u = x_u B

    Settings: ``l2`` :math:`\lambda`; ``memory``, the maximum bytes that fitting may take.
    Use when: the catalogue has up to some tens of thousands of items, and one setting is enough to tune.
    Cost: n_items^2 weights and an n_items^3 inverse. Fitting takes 20 n_items^2 bytes; refused above ``memory``.
    Paper: Steck, Embarrassingly shallow autoencoders for sparse data, WWW 2019. The range is around its best, 200 to
        1000, and wider below, for small datasets.
    Relations: :class:`SLIM` without ``l1`` and with negative weights allowed.
    """

    ranges: ClassVar[SearchSpace] = {
        "model.l2": (10.0, 20.0, 30.0, 50.0, 70.0, 100.0, 150.0, 200.0, 300.0, 500.0, 700.0, 1000.0, 2000.0, 5000.0),
    }
    weights: Tensor  # (n_items, n_items), a buffer

    def __init__(self, n_queries: int, n_items: int, *, l2: float = 300.0, memory: float = 8e9) -> None:
        super().__init__(n_queries, n_items)
        self.l2 = positive("l2", l2)
        self.memory = memory
        check_memory("EASE", n_items, _BYTES_PER_CELL * n_items**2, memory)
        self.register_buffer("weights", torch.zeros(n_items, n_items))

    @torch.no_grad()
    def fit(self, context: Context) -> None:
        gram = torch.from_numpy(gram_matrix(history_matrix(context.histories, self.n_items))).to(self.weights.device)
        is_too_small = bool(self.l2 <= _LEAST_SHARE * gram.diagonal().max())
        gram.diagonal().add_(self.l2)
        gram, failed = torch.linalg.cholesky_ex(gram)  # the same name: the matrix is freed before its inverse is made
        if is_too_small or bool(failed):
            raise TrainingError(
                f"EASE's weights are not determined by so small a penalty; raise model.l2, which is {self.l2}"
            )
        inverse = torch.cholesky_inverse(gram)
        weights = inverse.div_(-inverse.diagonal().clone())
        weights.fill_diagonal_(0.0)
        self.weights.copy_(weights)
        self.attach(context)

    def fit_from(self, old: EASE, context: Context) -> None:
        """The same weights by changes of the old inverse, if few histories have changed; else by :meth:`fit`."""
        found = updated_weights(old.weights.cpu(), old.histories_of(QuerySet.known(old.n_queries)), context, self.l2)
        if found is None:
            self.fit(context)
            return
        self.weights.copy_(found)
        self.attach(context)

    def encode_items(self) -> Tensor:
        return self.weights.T
