"""Baselines without parameters to learn: popularity."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from topshelf.models.base import Model
from topshelf.ragged import Ragged


class Popularity(Model):
    r"""The same list for everybody: items by how many queries have them in training.

    .. math:: s_{uj} = \sum_v x_{vj}

    Use when: a floor is wanted that every other number must clear.
    Cost: one count an item.
    Paper: as a baseline, Cremonesi et al., Performance of recommender algorithms on top-N recommendation tasks, RecSys
        2010.
    Relations: what users of whom nothing is known get from every model.
    """

    is_closed_form: ClassVar[bool] = True
    counts: Tensor  # (n_items,), a buffer

    def __init__(self, n_queries: int, n_items: int) -> None:
        super().__init__(n_queries, n_items)
        self.register_buffer("counts", torch.zeros(n_items))

    def fit(self, positives: Ragged) -> None:
        self.counts.copy_(torch.bincount(positives.indices, minlength=self.n_items))

    def encode(self, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self._alike(self.n_queries if rows is None else rows.numel()), self.counts.unsqueeze(1)

    def queries_of(self, histories: Ragged) -> Tensor:
        return self._alike(len(histories))

    def _alike(self, n_queries: int) -> Tensor:
        return torch.ones(n_queries, 1, device=self.counts.device)
