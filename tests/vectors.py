"""What a model encodes, and the batches and data it is given, in one call each."""

from __future__ import annotations

import torch
from torch import Tensor

from topshelf.models import Model
from topshelf.queries import Batch, Context, QuerySet
from topshelf.ragged import Ragged, ragged_from_pairs
from topshelf.ranking import QueryVectors


def vectors_of(model: Model, rows: Tensor | None = None) -> tuple[QueryVectors, Tensor]:
    """Vectors of all known queries, or of those of some rows, and of all items."""
    queries = QuerySet.known(model.n_queries) if rows is None else QuerySet(rows=rows)
    return model.encode(queries)


def dense(queries: QueryVectors) -> Tensor:
    """All rows of a model's queries, (Q, d); some models hand out their rows as sparse matrices."""
    return queries[torch.arange(len(queries))].to_dense()


def queries_of(model: Model, histories: Ragged) -> QueryVectors:
    """Vectors of queries that the model knows by their items only."""
    return model.encode_queries(QuerySet(history=histories))


def attach(model: Model, histories: Ragged) -> None:
    model.attach(Context(histories, model.n_items))


def fit_to(model: Model, histories: Ragged) -> None:
    model.fit(Context(histories, model.n_items))


def batch_of(query: Tensor, owner: Tensor, item: Tensor) -> Batch:
    """A batch whose positives are all that its queries have."""
    positives = ragged_from_pairs(owner, item, query.numel())
    return Batch(query, owner, item, positives, is_whole=True, begin=positives.indptr[:-1])
