"""The two tables of vectors that trained models start from, and how the score uses them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from topshelf.errors import ConfigError, at_least, one_of
from topshelf.models.base import Model
from topshelf.models.unit import unit_rows

Score = Literal["cosine", "dot"]
Init = Literal["xavier", "normal"]


def new_tables(n_queries: int, n_items: int, dim: int, init: Init = "xavier") -> tuple[nn.Parameter, nn.Parameter]:
    """Vectors to learn, (n_queries, dim) and (n_items, dim): "xavier" (uniform), or "normal", N(0, 1)."""
    one_of("init", init, ("xavier", "normal"))
    queries, items = empty_tables(n_queries, n_items, dim)
    tables = nn.Parameter(queries), nn.Parameter(items)
    for table in tables:
        nn.init.normal_(table) if init == "normal" else nn.init.xavier_uniform_(table)
    return tables


def empty_tables(n_queries: int, n_items: int, dim: int) -> tuple[Tensor, Tensor]:
    """Uninitialised vectors, (n_queries, dim) and (n_items, dim), or an error if they do not fit in memory."""
    at_least("dim", dim, 1)
    try:
        return torch.empty(n_queries, dim), torch.empty(n_items, dim)
    except (RuntimeError, TypeError) as error:  # torch has no narrower one for memory, or for a size beyond int64
        raise ConfigError(
            f"dim must leave room in memory for {n_queries:,} + {n_items:,} vectors of that length, got {dim}: "
            f"{str(error).splitlines()[0]}"
        ) from None


def for_score(score: Score, table: Tensor) -> Tensor:
    """Vectors with the scores as dot products: unchanged, or of length one for the cosine."""
    return table if score == "dot" else unit_rows(table)


class TableModel(Model):
    """Base of the models that learn a vector per query and one per item."""

    def __init__(self, n_queries: int, n_items: int, dim: int, score: Score, init: Init = "xavier") -> None:
        super().__init__(n_queries, n_items)
        self.score: Score = one_of("score", score, ("cosine", "dot"))
        self.query_vectors, self.item_vectors = new_tables(n_queries, n_items, dim, init)

    def encode_items(self) -> Tensor:
        return for_score(self.score, self.item_vectors)
