"""The two tables of vectors that trained models start from, and how the score uses them."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topshelf.errors import ConfigError, at_least, one_of
from topshelf.models.base import Model
from topshelf.models.unit import unit_rows
from topshelf.queries import Context

Score = Literal["cosine", "dot"]
Init = Literal["xavier", "normal"]
TableType = Literal["float32", "bfloat16"]


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
    """Vectors with the scores as dot products, at least float32: unchanged, or of length one for the cosine."""
    table = table.to(torch.promote_types(table.dtype, torch.float32))
    return table if score == "dot" else unit_rows(table)


@torch.no_grad()
def place_rows(rows: Tensor, n_known: int, index: Tensor, vectors: Tensor) -> None:
    """Set the rows after the first ``n_known`` to the direction of the sum of their vectors, at those' mean length.

    Shapes: rows (N, d); index (P,), the row that each of vectors (P, d) belongs to. Rows without any stay as they are.
    """
    sums = vectors.new_zeros(rows.shape).index_add_(0, index, vectors)
    is_placed = (torch.arange(len(rows), device=rows.device) >= n_known) & (sums.norm(dim=1) > 0)
    length = rows[:n_known].norm(dim=1).to(sums.dtype).mean()
    rows[is_placed] = (F.normalize(sums[is_placed], dim=1) * length).to(rows.dtype)


class TableModel(Model):
    """Base of the models that learn a vector per query and one per item, in tables of float32 or bfloat16."""

    def __init__(
        self,
        n_queries: int,
        n_items: int,
        dim: int,
        score: Score,
        init: Init = "xavier",
        tables: TableType = "float32",
    ) -> None:
        super().__init__(n_queries, n_items)
        self.score: Score = one_of("score", score, ("cosine", "dot"))
        dtype = getattr(torch, one_of("tables", tables, ("float32", "bfloat16")))
        self.query_vectors, self.item_vectors = (
            nn.Parameter(table.data.to(dtype)) for table in new_tables(n_queries, n_items, dim, init)
        )

    def encode_items(self) -> Tensor:
        return for_score(self.score, self.item_vectors)

    @torch.no_grad()
    def place_new(self, n_queries: int, n_items: int, context: Context) -> None:
        """New items among the known users who have them, then new users among their items."""
        lists, owner = context.histories, context.histories.owner()
        is_new, is_known = lists.indices >= n_items, owner < n_queries
        users = for_score("cosine", self.query_vectors[owner[is_new & is_known]])
        place_rows(self.item_vectors, n_items, lists.indices[is_new & is_known], users)
        items = for_score("cosine", self.item_vectors[lists.indices[~is_known]])
        place_rows(self.query_vectors, n_queries, owner[~is_known], items)
