"""Matrix factorisation: one vector a query, one vector an item."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topshelf.errors import at_least, one_of
from topshelf.models.base import Model
from topshelf.models.unit import unit_rows


class MF(Model):
    """Matrix factorisation with cosine or dot scores.

    Use when: in doubt; the fastest model to train, and on most of the paper's datasets its best or second best.
    Cost: (n_queries + n_items) x dim parameters.   Paper: Koren et al., Matrix factorization techniques, 2009.
    Settings: ``score`` "cosine" for softmax losses, "dot" for BPR; ``init`` "xavier" (uniform) or "normal", N(0, 1).
    """

    def __init__(
        self,
        n_queries: int,
        n_items: int,
        *,
        dim: int = 64,
        score: Literal["cosine", "dot"] = "cosine",
        init: Literal["xavier", "normal"] = "xavier",
    ) -> None:
        super().__init__(n_queries, n_items)
        self.dim = at_least("dim", dim, 1)
        self.score = one_of("score", score, ("cosine", "dot"))
        one_of("init", init, ("xavier", "normal"))
        self.query_vectors = nn.Parameter(torch.empty(n_queries, dim))
        self.item_vectors = nn.Parameter(torch.empty(n_items, dim))
        for table in self.parameters():
            nn.init.normal_(table) if init == "normal" else nn.init.xavier_uniform_(table)

    def encode(self, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        queries = self.query_vectors if rows is None else F.embedding(rows, self.query_vectors, sparse=self.sparse_rows)
        if self.score == "dot":
            return queries, self.item_vectors
        return unit_rows(queries), unit_rows(self.item_vectors)
