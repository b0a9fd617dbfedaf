"""HeaRT's files: a fixed split and, for each held-out edge, the pairs that it is ranked against."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from topshelf.data.graphs import HELD_OUT, PARTS, LinkData, count_notes, simple_edges
from topshelf.data.ids import IdMap
from topshelf.data.node_features import npy_member
from topshelf.data.unpack import member_bytes, open_zip
from topshelf.errors import DataError

_SAMPLES = ("heart_{}_samples.npy", "{}_samples_agg-min_norm-1.npy", "{}_samples.npy")


def is_heart(path: Path) -> bool:
    """Whether a folder or zip holds a split as HeaRT writes it."""
    if path.is_dir():
        return (path / "train_pos.txt").is_file()
    if path.suffix.lower() != ".zip":
        return False
    with open_zip(path) as archive:
        return any(name.rpartition("/")[2] == "train_pos.txt" for name in archive.namelist())


def read_heart(path: Path, *, n_nodes: int | None = None, test: bool = True) -> LinkData:
    """The split in a folder or zip, nodes 0 to n_nodes - 1; without ``n_nodes``, as many as the files name.

    Self-loops only say which nodes there are, and are left out.
    """
    tables: dict[str, np.ndarray] = {}
    for part in PARTS if test else PARTS[:2]:
        content = _content(path, f"{part}_pos.txt")
        if content is None:
            raise DataError(
                f"{path} has no {part}_pos.txt. HeaRT's split has train_pos.txt, valid_pos.txt, test_pos.txt."
            )
        tables[part] = _pairs(content, f"{path} {part}_pos.txt")
    tables.setdefault("test", np.zeros((0, 2), dtype=np.int64))
    n_named = max((int(table.max()) + 1 for table in tables.values() if table.size), default=0)
    n_nodes = n_named if n_nodes is None else n_nodes
    if n_named > n_nodes:
        raise DataError(f"{path} names node {n_named - 1}, but data.features has {n_nodes} nodes (0 to {n_nodes - 1}).")
    edges, counts = {}, {"self_loops": 0, "repeated": 0, "reversed": 0}
    for part in PARTS:
        edges[part], found = simple_edges(tables[part], n_nodes, is_directed=False)
        counts = {name: counts[name] + found[name] for name in counts}
    negatives = {part: _samples(path, part) for part in HELD_OUT if part in edges and (test or part == "valid")}
    kept = {part: pairs for part, pairs in negatives.items() if pairs is not None}
    name = path.stem if path.suffix.lower() == ".zip" else path.name
    notes = count_notes(counts)
    return LinkData(name, IdMap.range(n_nodes), edges, negatives=kept, notes=notes).check()


def _content(path: Path, file: str) -> bytes | None:
    if path.is_dir():
        return (path / file).read_bytes() if (path / file).is_file() else None
    with open_zip(path) as archive:
        names = [name for name in archive.namelist() if name.rpartition("/")[2] == file]
        return member_bytes(archive, names[0]) if names else None


def _pairs(content: bytes, where: str) -> np.ndarray:
    try:
        rows = [[int(field) for field in line.split()] for line in content.splitlines() if line.strip()]
        table = np.array(rows, dtype=np.int64).reshape(-1, 2) if rows else np.zeros((0, 2), dtype=np.int64)
        if any(len(row) != 2 for row in rows) or (table.size and table.min() < 0):
            raise ValueError("a line has no two numbers from 0 on")
    except (ValueError, OverflowError) as error:
        raise DataError(f"{where} must hold two nodes, whole numbers from 0 on, on each line: {error}.") from None
    return table


def _samples(path: Path, part: str) -> np.ndarray | None:
    for name in _SAMPLES:
        content = _content(path, name.format(part))
        if content is not None:
            where = f"{path} {name.format(part)}"
            array = npy_member(content, where)
            if array.dtype.kind not in "iu" or array.ndim != 3:
                raise DataError(f"{where} must hold pairs of nodes (E, n, 2), got {array.dtype} of {array.shape}.")
            return array.astype(np.int64)
    return None
