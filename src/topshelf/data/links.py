"""Link data from the files that a user has: edges, features and negatives put together, split and checked."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from topshelf.data.edges import node_ids, read_edges
from topshelf.data.graphs import HELD_OUT, LinkData, Table, count_notes, simple_edges, split_edges
from topshelf.data.hard_negatives import hard_negatives, uniform_negatives
from topshelf.data.heart import is_heart, read_heart
from topshelf.data.ids import UNKNOWN, IdMap
from topshelf.data.link_datasets import LINK_DATASETS, LinkInfo, locate
from topshelf.data.named import not_found
from topshelf.data.node_features import NodeFeatures, load_npy, read_features
from topshelf.data.planetoid import read_planetoid
from topshelf.errors import ConfigError, DataError, TopshelfWarning

FRACTIONS = {"valid_fraction": 0.05, "test_fraction": 0.1}  # 85/5/10


def load_links(
    source: str | Path,
    *,
    source_column: str | None = None,
    target_column: str | None = None,
    directed: bool = False,
    features: str | Path | None = None,
    id_column: str | None = None,
    graph: str | None = None,
    valid_fraction: float = FRACTIONS["valid_fraction"],
    test_fraction: float = FRACTIONS["test_fraction"],
    split_seed: int = 0,
    valid_negatives: str | Path | None = None,
    test_negatives: str | Path | None = None,
    test: bool = True,
) -> LinkData:
    """Edges of a file or a named dataset, split 85/5/10 by a seed unless they come split, with their nodes' features.

    Without ``test`` the test part is empty, and the negatives of it are not read.
    """
    splitting = {"valid_fraction": valid_fraction, "test_fraction": test_fraction}
    if (info := LINK_DATASETS.get(str(source))) is not None:
        reading = {"source_column": source_column, "target_column": target_column, "directed": directed or None}
        info.refuse({**reading, "features": features, "id_column": id_column, "graph": graph})
        source, features, graph = *locate(info.name), info.graph
    path = Path(source)
    if not os.path.exists(path):  # noqa: PTH110  also False for a name that is too long
        raise not_found(str(source), "links")
    table = None if features is None else _features(Path(features), id_column, graph)
    if is_heart(path):
        if directed or source_column or target_column:
            raise DataError(
                f"{path} holds HeaRT's split, which is undirected and has no columns; leave these settings out"
            )
        _refuse_splitting(path, splitting)
        data = read_heart(path, n_nodes=None if table is None else _unnamed(table, path).shape[0], test=test)
        data = replace(data, features=None if table is None else table.table)
    else:
        data, table = _unsplit(path, source_column, target_column, directed, table, graph)
        parts = split_edges(data.edges["train"], valid=valid_fraction, test=test_fraction, seed=split_seed)
        data = replace(data, edges=parts)
    if info is not None:
        data = _checked(data, info, path, has_test=test)
    given = {"valid": valid_negatives, "test": test_negatives if test else None}
    kept = {part: _negatives(Path(name), part) for part, name in given.items() if name is not None}
    data = replace(data, negatives={**data.negatives, **kept}).check()
    return data if test else data.without_test()


def _refuse_splitting(path: Path, settings: dict[str, float]) -> None:
    for setting, value in settings.items():
        if value != FRACTIONS[setting]:
            raise ConfigError(f"data.{setting} must be left out for {path}, which comes split; got {value!r}")


def _checked(data: LinkData, info: LinkInfo, path: Path, *, has_test: bool) -> LinkData:
    """The data under the name of the dataset, refused if their counts are others; the test part may be unread."""
    counts = {"nodes": data.n_nodes, "features": data.n_features}
    if has_test:
        counts["edges"] = sum(map(len, data.edges.values()))
    info.check_counts(counts, path)
    return replace(data, name=info.name)


def with_negatives(data: LinkData, protocol: str, n: int, seed: int) -> LinkData:
    """The data with negatives for every held-out part that has none; "uniform" makes new ones for all."""
    kept = dict(data.negatives) if protocol == "heart" else {}
    make = hard_negatives if protocol == "heart" else uniform_negatives
    for part in HELD_OUT:
        if part not in kept and len(data.edges[part]):
            kept[part] = make(data, part, n=n, seed=seed)
    return replace(data, negatives=kept).check()


def warn_of(data: LinkData) -> None:
    """Say what was merged or left out when the source was read."""
    for note in data.notes:
        warnings.warn(f"{data.name}: {note}", TopshelfWarning, stacklevel=3)


def _features(path: Path, id_column: str | None, graph: str | None) -> NodeFeatures:
    is_planetoid = path.is_dir() or path.suffix.lower() == ".zip"
    if is_planetoid:
        if graph is None:
            raise DataError(
                f"data.features is {path}, Planetoid's files: data.graph must name one of its graphs, got none"
            )
        return NodeFeatures(read_planetoid(path, graph)[1])
    return read_features(path, id_column=id_column)


def _unnamed(features: NodeFeatures, path: Path) -> Table:
    if features.ids is not None:
        raise DataError(f"{path} numbers its nodes; data.features must have one row per node without ids (.npy, .npz)")
    return features.table


def _unsplit(
    path: Path, source: str | None, target: str | None, directed: bool, features: NodeFeatures | None, graph: str | None
) -> tuple[LinkData, NodeFeatures | None]:
    """All edges in one part."""
    guessed: tuple[tuple[str, str], ...] = ()
    if path.is_dir() or path.suffix.lower() == ".zip":
        if graph is None:
            raise DataError(
                f"{path} must hold HeaRT's files (train_pos.txt, ...) or Planetoid's; for the latter data.graph must "
                "name one of its graphs, got none"
            )
        pairs, table = read_planetoid(path, graph)
        name, nodes = graph, IdMap.range(table.shape[0])
        features = NodeFeatures(table) if features is None else features
    else:
        frame, names = read_edges(path, source=source, target=target)
        asked = {"source": source, "target": target}
        guessed = tuple((end, name) for (end, given), name in zip(asked.items(), names, strict=True) if given is None)
        name, nodes = path.name.partition(".")[0], node_ids(frame) if features is None else _known_nodes(features)
        pairs = np.column_stack([_found(nodes, frame[end], f"{path}: {end}") for end in ("source", "target")])
    edges, counts = simple_edges(pairs, len(nodes), is_directed=directed)
    if graph is not None and not directed and path.suffix.lower() in (".zip", ""):
        counts = {**counts, "repeated": 0, "reversed": 0}  # Planetoid lists every edge from both of its ends
    if not len(edges):
        raise DataError(f"{path} must hold at least one edge between two nodes, got none")
    nothing = np.zeros((0, 2), dtype=np.int64)
    table = None if features is None else features.table
    parts = {"train": edges, "valid": nothing, "test": nothing}
    return LinkData(name, nodes, parts, table, directed, notes=count_notes(counts), guessed=guessed), features


def _known_nodes(features: NodeFeatures) -> IdMap:
    return IdMap.range(features.table.shape[0]) if features.ids is None else features.ids


def _found(nodes: IdMap, ids: pl.Series, where: str) -> np.ndarray:
    """Dense numbers of ids; an edge to an unknown node is refused."""
    index = nodes.find(ids)
    if (index == UNKNOWN).any():
        first = np.flatnonzero(index == UNKNOWN)[0]
        raise DataError(
            f"{where} {ids[int(first)]!r} in data row {first + 1} is no node of data.features, which has "
            f"{len(nodes):,} nodes like {nodes.ids(range(min(3, len(nodes))))}; {int((index == UNKNOWN).sum()):,} rows "
            "name such nodes. Remove these edges, or give their nodes features"
        )
    return index


def _negatives(path: Path, part: str) -> np.ndarray:
    array = load_npy(path)
    if array.dtype.kind not in "iu" or array.ndim != 3 or array.shape[2] != 2:
        raise DataError(
            f"data.{part}_negatives must hold pairs of nodes (E, n, 2), got {array.dtype} of shape {array.shape} in "
            f"{path}"
        )
    return array.astype(np.int64)
