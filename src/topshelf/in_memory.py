"""Tables in memory as the data of a run: frames, matrices, interactions, splits."""

from __future__ import annotations

from typing import Any

import numpy as np

from topshelf import kernels
from topshelf.artifact import Artifact
from topshelf.config import CatalogueConfig, RunConfig, SequenceConfig
from topshelf.data import Dataset, Interactions, Split, prepare, split_interactions
from topshelf.data.sequence_data import SequenceData, cut
from topshelf.errors import ConfigError, DataError
from topshelf.metrics import ndcg_at_k
from topshelf.queries import QuerySet
from topshelf.ranking import NO_ITEM


def dataset_of(data: Any, config: CatalogueConfig) -> Any:
    """The data of a run from a frame, a matrix, interactions or a split, by the settings of its config."""
    if isinstance(config, SequenceConfig):
        return _sequences(data, config)
    assert isinstance(config, RunConfig)
    settings = config.data
    if isinstance(data, Dataset | Split):
        if unused := settings.model_dump(exclude={"source"}, exclude_defaults=True):
            raise ConfigError(f"data settings must be left out for split data, got {unused}")
        return data if isinstance(data, Dataset) else Dataset("split", data)
    if not isinstance(data, Interactions):
        is_matrix = isinstance(data, np.ndarray) or hasattr(data, "tocsr")
        columns = settings.model_dump(include={"user", "item", "weight", "timestamp", "dates"})
        data = Interactions.from_csr(data) if is_matrix else Interactions.from_frame(data, **columns)
    data, below = prepare(data, min_rating=settings.min_rating, core=settings.core)
    kept = {"split", "test_fraction", "valid_fraction", "last_n", "split_seed", "noise", "measured_users"}
    return split_interactions(data, name="table", below=below, seed=config.seed, **settings.model_dump(include=kept))


def _sequences(data: Any, config: SequenceConfig) -> SequenceData:
    """Sequences from a table in memory."""
    settings = config.data
    if isinstance(data, SequenceData):
        if unused := settings.model_dump(exclude={"source"}, exclude_defaults=True):
            raise ConfigError(f"data settings must be left out for split data, got {unused}")
        return data
    if not isinstance(data, Interactions):
        columns = settings.model_dump(include={"user", "item", "weight", "timestamp", "dates"})
        data = Interactions.from_frame(data, **columns)
    kept = {"min_rating", "core", "split", "test_fraction", "valid_fraction", "exclude_seen", "targets"}
    by_file = settings.order == "file"
    return cut(data, "table", is_ordered=by_file, by_file=by_file, **settings.model_dump(include=kept))


def held_out_ndcg(artifact: Artifact, data: Any, k: int) -> float:
    """Mean NDCG@k on a frame of interactions that the fit has not seen, over the known users with something to find."""
    settings: Any = artifact.config.data
    columns = settings.model_dump(include={"user", "item", "weight", "timestamp", "dates"})
    frame = Interactions.from_frame(data, **columns).to_frame()
    if (least := settings.min_rating) is not None and "weight" in frame.columns:
        frame = frame.filter(frame["weight"] >= least)
    users, items = artifact.users.find(frame["user"].to_list()), artifact.items.find(frame["item"].to_list())
    known = (users >= 0) & (items >= 0)
    pairs = np.unique(np.stack([users[known], items[known]], 1), axis=0)
    wanted = Interactions.from_indices(pairs[:, 0], pairs[:, 1], artifact.users, artifact.items).ragged()
    wanted = wanted.where(artifact.seen.find(wanted.owner(), wanted.indices) < 0)
    rows = (wanted.counts > 0).nonzero().squeeze(1)
    if rows.numel() == 0:
        raise DataError(
            "data must hold interactions of users and items that the recommender was fitted on, and that are new to "
            f"those users; got none among {len(frame):,} rows"
        )
    places = artifact.rank(QuerySet(rows=rows), k, exclude=artifact.seen.select(rows)).items
    relevant = wanted.select(rows)
    gains = kernels.hits(places.clamp(min=NO_ITEM), relevant.indptr, relevant.indices)
    return float(ndcg_at_k(gains, relevant.counts).mean())
