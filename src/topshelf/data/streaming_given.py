"""A ready-made split in Parquet tables, ``train.parquet`` and its like, streamed into mapped arrays part by part."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from topshelf.data.columns import attempt, open_table, whole_ids
from topshelf.data.given import MEASURED, prepared_ids
from topshelf.data.ids import IdMap
from topshelf.data.interactions import Interactions
from topshelf.data.mapped import PartFiles
from topshelf.data.names import GUESS, ID_ROLES
from topshelf.data.readers import scan_parquet
from topshelf.data.shards import ROWS, ranges_of, sort_rows, store_rows
from topshelf.data.splits import PARTS, carve_validation
from topshelf.errors import DataError


def is_tables(path: Path) -> bool:
    """Whether the path is a folder with a split in Parquet tables."""
    return path.is_dir() and (path / "train.parquet").is_file()


def stream_tables(
    source: Path, fresh: Path, *, valid_fraction: float, seed: int, row_bytes: int, at_once: int = ROWS
) -> tuple[dict[str, Any], dict[str, Any], tuple[IdMap, IdMap]]:
    """Write the parts of a folder of tables; returns what the seal keeps, counts, and the ids.

    Where the folder has no validation part, one is carved out of train, as when it is read into memory.
    """
    present = [name for name in PARTS if _has_rows(source / f"{name}.parquet")]
    for name in ("train", "test"):
        if name not in present:
            raise DataError(f"{source} has no interactions in {name}.parquet. Make it again: topshelf data prepare")
    ids = {role: _ids(source, role, present) for role in ID_ROLES}
    work = fresh / "work"
    parts = {name: _part(source, name, work, ids, row_bytes, at_once) for name in present}
    nothing, generator = parts["train"].none(), np.random.default_rng(seed)
    sums: dict[str, Any] = {}
    with ExitStack() as opened:
        written = {name: opened.enter_context(PartFiles(fresh, name)) for name in PARTS}
        for start, stop in ranges_of(parts["train"].counts, at_once):
            some = {name: parts.get(name, nothing).of_users(start, stop) for name in PARTS}
            if "valid" not in parts:
                some["train"], some["valid"] = carve_validation(some["train"], fraction=valid_fraction, seed=generator)
            for name, part in some.items():
                written[name].add(part)
        counts = {name: written[name].length for name in MEASURED}
        for one in written.values():
            sums |= one.close()
    shutil.rmtree(work)
    users, items = (ids[role] for role in ID_ROLES)
    return sums, {"split": "given", "users": len(users), "items": len(items), **counts}, (users, items)


def _has_rows(path: Path) -> bool:
    return path.is_file() and not attempt(pl.scan_parquet(path, glob=False).head(1).collect, str(path)).is_empty()


def _ids(source: Path, role: str, present: list[str]) -> IdMap:
    def seen() -> list[pl.Series]:
        tables = [
            (name, open_table(scan_parquet(source / f"{name}.parquet", 0), GUESS, str(source))) for name in present
        ]
        return [whole_ids(one.column(role), role, one.names[role], f"{source} {name}").unique() for name, one in tables]

    return prepared_ids(source, role, seen)


def _part(source: Path, name: str, work: Path, ids: dict[str, IdMap], row_bytes: int, at_once: int) -> Interactions:
    def sorted_table(table: str) -> Interactions:
        path, folder = source / f"{table}.parquet", work / table
        folder.mkdir(parents=True)
        opened = open_table(scan_parquet(path, row_bytes), GUESS, str(path))
        return sort_rows(store_rows(opened, folder, at_once, ids), folder, at_once)

    has_events = _has_rows(source / f"{name}_events.parquet")
    events = sorted_table(f"{name}_events").events if has_events else None
    return replace(sorted_table(name), events=events)
