"""A model: matrix factorisation with a bias per item."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from topshelf.models import Model
from topshelf.queries import QuerySet


class BiasedMF(Model):
    """Matrix factorisation with a bias per item: popular items need not be popular with everyone's vector.

    Settings: ``dim``, the length of the vectors; ``spread``, the standard deviation of their first values.
    Use when: scores are dot products and popularity should be learned apart from taste.
    Cost: (n_queries + n_items) x dim + n_items parameters.
    """

    def __init__(self, n_queries: int, n_items: int, *, dim: int = 32, spread: float = 0.1) -> None:
        super().__init__(n_queries, n_items)
        self.query_vectors = nn.Parameter(torch.randn(n_queries, dim) * spread)
        self.item_vectors = nn.Parameter(torch.randn(n_items, dim) * spread)
        self.item_bias = nn.Parameter(torch.zeros(n_items, 1))

    def encode_queries(self, queries: QuerySet) -> Tensor:
        vectors = queries.take(self.query_vectors, sparse=self.sparse_rows)
        return torch.cat([vectors, torch.ones_like(vectors[:, :1])], 1)  # the one meets the bias

    def encode_items(self) -> Tensor:
        return torch.cat([self.item_vectors, self.item_bias], 1)
