"""From a run folder to what answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from topshelf import files, registry
from topshelf.artifact import Artifact
from topshelf.config import CatalogueConfig, RankingConfig
from topshelf.data.titles import read_titles
from topshelf.errors import ConfigError
from topshelf.item_table import ItemTable
from topshelf.queries import QuerySet
from topshelf.ranker import Ranker
from topshelf.serving.approximate import Index
from topshelf.serving.attributes import Attributes, Selections, read_attributes
from topshelf.serving.bodies import Query
from topshelf.serving.documents import LoadedRanker
from topshelf.serving.loaded import Loaded
from topshelf.serving.settings import ServeSettings
from topshelf.training.folder import RunFolder

_SAMPLE = 1000  # queries that the recall of an index is measured with


def open_run(path: str | Path, settings: ServeSettings) -> Loaded | LoadedRanker:
    """A finished run, checked and warm."""
    registry.allow(settings.allow)
    folder = RunFolder.open(path)
    config = folder.load_config()
    if not folder.is_finished:
        raise ConfigError(f"{path} is not finished. Finish it: topshelf train --resume {path}")
    if isinstance(config, RankingConfig):
        folder.load_metrics()  # which has the checksum of the model
        return LoadedRanker(Path(path), _version(folder), Ranker.load(path))
    if not isinstance(config, CatalogueConfig):
        raise ConfigError(f"serving takes runs of task interactions, sequences or ranking, got task {config.task!r}")
    artifact = Artifact.open(path)
    if settings.titles is not None:
        artifact.titles = read_titles(settings.titles, artifact.items, artifact.titles)
    attributes = _attributes(artifact, settings)
    selections = Selections(attributes, settings.filter_cache_mib << 20)
    index = _index(artifact, settings)
    loaded = Loaded(Path(path), _version(folder), artifact, selections, index, settings.index.exact_below)
    _warm(loaded)
    return loaded


def _version(folder: RunFolder) -> str:
    """The run's id; of a folder of an early version, which has none, the checksum of its model."""
    return folder.run or files.digest(folder.model)[:16]


def _attributes(artifact: Artifact, settings: ServeSettings) -> Attributes:
    if settings.attributes is None:
        return Attributes.none()
    table, item, name = read_attributes(settings.attributes, settings.attributes_item)
    return Attributes(table, item, artifact.items, name)


def _index(artifact: Artifact, settings: ServeSettings) -> Index | None:
    if settings.index.kind == "exact":
        return None
    known = artifact.is_known(QuerySet.known(len(artifact.users))).nonzero().squeeze(1)
    queries = artifact.encode(QuerySet(rows=known[torch.linspace(0, len(known) - 1, min(_SAMPLE, len(known))).long()]))
    items = artifact.vectors
    if isinstance(items, ItemTable) or not isinstance(queries, torch.Tensor) or queries.layout != torch.strided:
        raise ConfigError(
            f"index.kind {settings.index.kind} is for models with vectors of a fixed length, and "
            f"{artifact.config.model.name} has none; use index.kind exact"
        )
    return Index(items, settings.index, queries, artifact.config.k)


def _warm(loaded: Loaded) -> None:
    """Answer once, alone and together, so that nothing is compiled or loaded in a request."""
    queries = [Query(user=user) for user in loaded.artifact.users.ids(range(min(2, len(loaded.artifact.users))))]
    for some in (queries[:1], [*queries, Query(history=loaded.item_ids[:1])]):
        loaded.answer([loaded.prepare(query, "") for query in some])


def sample_queries(loaded: Loaded, recent: Sequence[Query], n: int) -> list[Query]:
    """Recent queries that do not depend on attributes, then known users of the run."""
    plain = [query for query in recent if query.filter is None][:n]
    users = loaded.artifact.users
    rows = torch.linspace(0, len(users) - 1, min(n - len(plain), len(users))).long().tolist()
    return [*plain, *(Query(user=user) for user in users.ids(rows))]
