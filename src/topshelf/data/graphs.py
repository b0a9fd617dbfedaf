"""Graphs for link prediction: edges merged and counted, split by a seed, with features and negatives, all checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from topshelf.data.ids import IdMap
from topshelf.data.memory import available
from topshelf.errors import ConfigError, DataError
from topshelf.graphs import Features, LinkGraph, SparseProduct
from topshelf.ragged import Ragged

PARTS = ("train", "valid", "test")
HELD_OUT = ("valid", "test")
Table = Any  # (N, f) float32: a NumPy array, or a csr_array of SciPy, which has no types


@dataclass(frozen=True, eq=False)
class LinkData:
    """Nodes, and the edges of three parts.

    ``edges``: (E, 2) int64 by part, dense indices of ``nodes``; no self-loop, and no edge twice. ``features``: (N, f)
    float32, dense or sparse, or None. ``negatives``: (E, n, 2) for a held-out part, the pairs that each of its edges is
    ranked against, where they are known. ``notes``: what was merged or left out when the source was read. ``guessed``:
    the columns that the user did not name, by what they were taken for.
    """

    name: str
    nodes: IdMap
    edges: Mapping[str, np.ndarray]
    features: Table | None = None
    is_directed: bool = False
    negatives: Mapping[str, np.ndarray] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    guessed: tuple[tuple[str, str], ...] = ()

    @property
    def n_nodes(self) -> int:
        return len(self.nodes)

    @property
    def n_features(self) -> int:
        return 0 if self.features is None else self.features.shape[1]

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(self.edges[part])} {part}" for part in PARTS)
        kind = "directed" if self.is_directed else "undirected"
        return f"LinkData({self.name!r}, {self.n_nodes} nodes, {kind} edges: {counts}, {self.n_features} features)"

    def known(self, through: str) -> np.ndarray:
        """The edges of train; of train and validation ("valid"); of all parts ("all"); (E, 2)."""
        n_parts = {"train": 1, "valid": 2, "all": 3}[through]
        return np.concatenate([self.edges[part] for part in PARTS[:n_parts]])

    def graph(self, through: str = "train") -> LinkGraph:
        """The graph of these edges, for models."""
        edges = torch.from_numpy(self.known(through).copy())
        return LinkGraph.of(edges, self.n_nodes, is_directed=self.is_directed, features=feature_table(self.features))

    def without_test(self) -> LinkData:
        """The same without the test part."""
        edges = {**self.edges, "test": np.zeros((0, 2), dtype=np.int64)}
        kept = {part: pairs for part, pairs in self.negatives.items() if part != "test"}
        return replace(self, edges=edges, negatives=kept)

    def check(self) -> LinkData:
        """This object, or a DataError: every index exists, no edge is there twice, negatives fit their edges."""
        for part in PARTS:
            if part not in self.edges:
                raise DataError(f"{self.name}: there must be edges of {', '.join(PARTS)}, got none of {part}")
            _check_table(f"{self.name}: the edges of {part}", self.edges[part], (None, 2), self.n_nodes)
        _check_simple(self)
        for part, pairs in self.negatives.items():
            if part not in HELD_OUT:
                raise DataError(f"{self.name}: only valid and test have negatives, got some of {part!r}")
            name = f"{self.name}: the negatives of {part}"
            _check_table(name, pairs, (len(self.edges[part]), None, 2), self.n_nodes)
            if len(pairs) and not pairs.shape[1]:
                raise DataError(f"{name} must hold at least one pair for each edge, got none")
        if self.features is not None:
            check_features(self.features, self.n_nodes, f"{self.name}: the features")
        return self


def _check_table(name: str, table: Any, shape: tuple[int | None, ...], n_nodes: int) -> None:
    is_table = isinstance(table, np.ndarray) and table.dtype == np.int64 and table.ndim == len(shape)
    if not is_table or any(want is not None and want != got for want, got in zip(shape, table.shape, strict=True)):
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        got = f"{table.shape} of {table.dtype}" if isinstance(table, np.ndarray) else type(table).__name__
        raise DataError(f"{name} must be an int64 table of shape ({wanted}), got {got}")
    if table.size and not (table.min() >= 0 and table.max() < n_nodes):
        wrong = table.min() if table.min() < 0 else table.max()
        raise DataError(f"{name} name node {wrong}, but there are {n_nodes} nodes (0 to {n_nodes - 1})")


def _check_simple(data: LinkData) -> None:
    edges = data.known("all")
    if bool((loops := edges[:, 0] == edges[:, 1]).any()):
        raise DataError(f"{data.name}: an edge must join two nodes, got a self-loop of node {edges[loops][0, 0]}")
    keys = edge_keys(edges, data.n_nodes, data.is_directed)
    if len(np.unique(keys)) != len(keys):
        values, counts = np.unique(keys, return_counts=True)
        twice = divmod(int(values[counts > 1][0]), data.n_nodes)
        raise DataError(f"{data.name}: an edge must be in one part and there once, got {twice} more than once")


def check_features(features: Table, n_nodes: int, name: str) -> None:
    """Refuse features of another number of nodes, and those that are not finite."""
    is_sparse = isinstance(features, sparse.csr_array)
    if not (is_sparse or isinstance(features, np.ndarray)) or features.ndim != 2:
        got = f"{features.ndim} dimensions" if hasattr(features, "ndim") else type(features).__name__
        raise DataError(f"{name} must be a table with one row per node, got {got}")
    if features.shape[0] != n_nodes:
        raise DataError(f"{name} must have one row for each of the {n_nodes} nodes, got {features.shape[0]} rows")
    if features.shape[1] == 0:
        raise DataError(f"{name} must have at least one column, got none; leave data.features out")
    if features.dtype != np.float32:
        raise DataError(f"{name} must be float32, got {features.dtype}")
    if is_sparse:
        try:
            features.check_format(full_check=True)
        except ValueError as error:
            raise DataError(f"{name} are damaged: {error}") from None
    values = features.data if is_sparse else features
    if not np.isfinite(values).all():
        rows = np.repeat(np.arange(n_nodes), np.diff(features.indptr)) if is_sparse else np.arange(n_nodes)
        wrong = ~np.isfinite(values) if is_sparse else ~np.isfinite(values).all(1)
        raise DataError(f"{name} must be finite numbers, got NaN or infinity for node {rows[wrong][0]}")


def edge_keys(edges: np.ndarray, n_nodes: int, is_directed: bool) -> np.ndarray:
    """One number for each edge, the same for an undirected edge and its reverse, (E,)."""
    ends = edges if is_directed else np.sort(edges, axis=1)
    return ends[:, 0] * np.int64(n_nodes) + ends[:, 1]


def simple_edges(edges: np.ndarray, n_nodes: int, *, is_directed: bool) -> tuple[np.ndarray, dict[str, int]]:
    """Each edge once, as first written, and how many rows were left out: self-loops, repeats and reversed ones.

    In a directed graph an edge and its reverse are two edges.
    """
    is_loop = edges[:, 0] == edges[:, 1]
    kept = edges[~is_loop]
    _, first = np.unique(edge_keys(kept, n_nodes, is_directed), return_index=True)
    chosen = kept[np.sort(first)]
    n_different = len(np.unique(edge_keys(kept, n_nodes, True)))
    counts = {
        "self_loops": int(is_loop.sum()),
        "repeated": len(kept) - n_different,
        "reversed": n_different - len(chosen),
    }
    return chosen, counts


def count_notes(counts: Mapping[str, int]) -> tuple[str, ...]:
    """What was left out, in words."""
    words = {
        "self_loops": "{} self-loop(s) left out: an edge joins two nodes",
        "repeated": "{} repeated edge(s) merged",
        "reversed": "{} reversed edge(s) merged: the graph is undirected (data.directed = true keeps both)",
    }
    return tuple(words[name].format(f"{n:,}") for name, n in counts.items() if n)


def split_edges(edges: np.ndarray, *, valid: float = 0.05, test: float = 0.10, seed: int = 0) -> dict[str, np.ndarray]:
    """Train, validation and test edges, drawn by the seed; shares are rounded down, as in the published splits."""
    for name, share in (("valid_fraction", valid), ("test_fraction", test)):
        if not 0 <= share < 1:
            raise ConfigError(f"{name} must be >= 0 and < 1, got {share!r}")
    if not valid + test < 1:
        raise ConfigError(f"valid_fraction + test_fraction must be < 1, got {valid + test!r}: train would be empty")
    n = len(edges)
    n_valid, n_test = int(valid * n + 1e-9), int(test * n + 1e-9)
    order = np.random.default_rng(np.random.SeedSequence([seed, 15])).permutation(n)
    places = {"test": order[:n_test], "valid": order[n_test : n_test + n_valid], "train": order[n_test + n_valid :]}
    return {part: edges[np.sort(places[part])] for part in PARTS}


def feature_table(features: Table | None) -> Features | None:
    """Features as models multiply with them."""
    if features is None:
        return None
    if isinstance(features, np.ndarray):
        return torch.from_numpy(features.copy())
    columns = (features.indptr.astype(np.int64), features.indices.astype(np.int64), features.data.astype(np.float32))
    indptr, indices, values = (torch.from_numpy(column.copy()) for column in columns)
    return SparseProduct(Ragged(indptr, indices), values, features.shape[1])


def to_state(data: LinkData) -> dict[str, Any]:
    """Everything but the ids of the nodes, as tensors and plain values."""
    features: Any = None
    if isinstance(data.features, np.ndarray):
        features = {"dense": torch.from_numpy(data.features.copy())}
    elif data.features is not None:
        table = data.features
        columns = {"indptr": table.indptr, "indices": table.indices, "data": table.data}
        kept = {name: torch.from_numpy(np.ascontiguousarray(x).copy()) for name, x in columns.items()}
        features = {**kept, "n_columns": table.shape[1]}
    return {
        "name": data.name,
        "n_nodes": data.n_nodes,
        "is_directed": data.is_directed,
        "notes": list(data.notes),
        "edges": {part: torch.from_numpy(edges.copy()) for part, edges in data.edges.items()},
        "negatives": {part: torch.from_numpy(pairs.copy()) for part, pairs in data.negatives.items()},
        "features": features,
    }


def from_state(state: Mapping[str, Any], nodes: IdMap) -> LinkData:
    """What :func:`to_state` gave, checked; anything else is a DataError."""
    try:
        if state["n_nodes"] != len(nodes):
            raise DataError(f"there must be {state['n_nodes']} nodes, got {len(nodes)} ids")
        if not all(isinstance(note, str) for note in state["notes"]) or not isinstance(state["is_directed"], bool):
            raise DataError("notes must be text and is_directed true or false")
        return LinkData(
            str(state["name"]),
            nodes,
            {str(part): _array(edges) for part, edges in state["edges"].items()},
            _features_of(state["features"], len(nodes)),
            state["is_directed"],
            {str(part): _array(pairs) for part, pairs in state["negatives"].items()},
            tuple(state["notes"]),
        ).check()
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"the data of a graph do not fit together: {error}") from None


def _array(value: Any) -> np.ndarray:
    if not isinstance(value, Tensor):
        raise DataError(f"there must be a tensor, got {type(value).__name__}")
    return value.numpy()


def _features_of(state: Mapping[str, Any] | None, n_nodes: int) -> Table | None:
    if state is None:
        return None
    if "dense" in state:
        return _array(state["dense"])
    columns, n_columns = tuple(_array(state[name]) for name in ("data", "indices", "indptr")), state["n_columns"]
    if type(n_columns) is not int or n_columns < 1 or 4 * n_columns > available():  # a model has a weight per column
        raise DataError(f"n_columns must be a whole number from 1 on that fits into memory, got {n_columns!r}")
    return sparse.csr_array(columns, shape=(n_nodes, n_columns))
