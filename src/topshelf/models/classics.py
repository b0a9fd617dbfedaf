"""Baselines without parameters to learn: popularity."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from topshelf.models.base import Model
from topshelf.queries import KINDS, Context, QuerySet


class Popularity(Model):
    r"""The same list for all users: items by the number of training queries that have them.

    .. math:: s_{uj} = \sum_v x_{vj}

    Use when: you need the baseline that every other model must beat.
    Cost: one count per item.
    Paper: as a baseline, Cremonesi et al., Performance of recommender algorithms on top-N recommendation tasks, RecSys
        2010.
    Relations: every model falls back to it for users without a history.
    """

    is_closed_form: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset(KINDS)
    counts: Tensor  # (n_items,), a buffer

    def __init__(self, n_queries: int, n_items: int) -> None:
        super().__init__(n_queries, n_items)
        self.register_buffer("counts", torch.zeros(n_items))

    def fit(self, context: Context) -> None:
        self.counts.copy_(torch.bincount(context.histories.indices, minlength=self.n_items))

    def encode_queries(self, queries: QuerySet) -> Tensor:
        return torch.ones(len(queries), 1, device=self.counts.device)

    def encode_items(self) -> Tensor:
        return self.counts.unsqueeze(1)
