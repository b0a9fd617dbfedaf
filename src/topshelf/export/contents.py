"""What is exported of a run: the vectors of users and items, or the weights between items, and who is who."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import scipy.sparse
import torch
from torch import Tensor

from topshelf.artifact import Artifact
from topshelf.config import CatalogueConfig
from topshelf.data import IdMap
from topshelf.errors import CheckpointError, ConfigError
from topshelf.item_table import ItemVectors, SparseRows
from topshelf.models import History
from topshelf.models.base import HistoryRows
from topshelf.queries import QuerySet
from topshelf.ragged import Ragged
from topshelf.training.folder import RunFolder

_MOST_BYTES = 8e9  # of dense vectors that are made for an export only, as of a blend with an item-item model


@dataclass(frozen=True, eq=False)
class Contents:
    """A run's answers. The score of an item is the dot product of a user's vector and the item's.

    vectors    of items (I, d), and of users (U, d); None for an item-item model
    weights    of an item-item model, (I, I): row i has the votes of item i; a score is the sum over the user's items
    histories  of an item-item model, the items of each user that vote
    table      of the model "history", (I, d): a user's vector is made of the rows of the user's items
    seen       per user, the items that are not recommended again
    """

    config: CatalogueConfig
    metrics: dict[str, Any]
    k: int
    users: pl.Series
    items: pl.Series
    titles: list[str] | None
    n_learned: np.ndarray
    counts: np.ndarray
    seen: Ragged
    user_vectors: np.ndarray | None
    item_vectors: np.ndarray | None
    weights: scipy.sparse.csr_array | None
    histories: Ragged | None
    table: np.ndarray | None
    is_cosine: bool = False

    def __repr__(self) -> str:
        return f"Contents({self.config.model.name}: {len(self.users):,} users, {len(self.items):,} items)"

    def user_table(self) -> pl.DataFrame:
        """The users by row: id, number of training items, and the items that they have."""
        return pl.DataFrame({"id": self.users, "n_training": self.n_learned, "seen": lists(self.seen)})

    def item_table(self) -> pl.DataFrame:
        """The items by row: id, title where known, and number of training interactions."""
        titles = {} if self.titles is None else {"title": pl.Series(self.titles, dtype=pl.String)}
        return pl.DataFrame({"id": self.items, **titles, "n_training": self.counts.astype(np.int64)})


def read_run(run: str | Path, *, k: int | None = None, allow: Collection[str] = ()) -> Contents:
    """The contents of a finished run folder."""
    folder = RunFolder.open(run)
    if not folder.is_finished:
        raise CheckpointError(
            f"{run} is not finished, so it cannot be exported; finish it: topshelf train --resume {run}"
        )
    artifact = Artifact.open(run, allow=allow)
    vectors = artifact.encode(QuerySet.known(len(artifact.users)))
    users = items = weights = histories = table = None
    if isinstance(vectors, HistoryRows):
        weights, histories = _votes(artifact.vectors), vectors.histories
    else:
        users, items = _dense(vectors), _table(artifact.vectors)
    model = artifact.model if artifact.config.model.name == "history" else None  # others need not be loaded
    if isinstance(model, History):
        table = model.history_vectors.detach().cpu().numpy()
    return Contents(
        config=artifact.config,
        metrics=folder.load_metrics(),
        k=min(k or artifact.config.k, len(artifact.items)),
        users=_ids(artifact.users),
        items=_ids(artifact.items),
        titles=artifact.titles,
        n_learned=artifact.n_learned.numpy().astype(np.int64),
        counts=artifact.counts.numpy(),
        seen=artifact.seen,
        user_vectors=users,
        item_vectors=items,
        weights=weights,
        histories=histories,
        table=table,
        is_cosine=isinstance(model, History) and model.score == "cosine",
    )


def _votes(items: ItemVectors) -> scipy.sparse.csr_array:
    """The weights (I, I) of an item-item model: row i has the votes of item i."""
    if isinstance(items, Tensor):
        return scipy.sparse.csr_array(items.T.numpy())
    ((factor, part),) = items.parts
    assert isinstance(part, SparseRows)
    bounds, owners, values = (some.numpy() for some in part.by_column)
    return scipy.sparse.csr_array((factor * values, owners, bounds), shape=(part.width, part.n_items))


def _table(items: ItemVectors) -> np.ndarray:
    return np.ascontiguousarray(items[:].numpy(), dtype=np.float32)


def lists(ragged: Ragged) -> pl.Series:
    """Lists of rows as a column."""
    indptr, indices = ragged.indptr.numpy(), ragged.indices.numpy()
    return pl.Series([indices[start:end] for start, end in pairwise(indptr)], dtype=pl.List(pl.Int64))


def _ids(ids: IdMap) -> pl.Series:
    return ids.take(np.arange(len(ids)))


def _dense(vectors: Any) -> np.ndarray:
    """One vector per user; those of a blend are put together from its parts."""
    n = len(vectors)
    first = vectors[torch.arange(min(1, n))]
    if 4.0 * n * first.shape[1] > _MOST_BYTES:
        raise ConfigError(
            f"the run has {n:,} users with vectors of length {first.shape[1]:,}, more than {_MOST_BYTES / 1e9:.0f} GB; "
            "export the runs that it blends one by one"
        )
    blocks = [vectors[rows].detach().to_dense().cpu().numpy() for rows in torch.arange(n).split(4096)]
    return np.ascontiguousarray(np.concatenate(blocks), dtype=np.float32)
