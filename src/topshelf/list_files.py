"""Files of lists, written block by block, so that lists of millions of users need the memory of one block.

Parquet and CSV have a row per place of a list. JSON lines have a line per user (or per item, for similar items):
``{"user": 42, "items": [{"rank": 1, "item": 7, "score": 0.5}]}``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl
from polars.io.plugins import register_io_source

from topshelf import files
from topshelf.errors import ConfigError

ENDINGS = (".parquet", ".csv", ".jsonl")
_LISTS = {"similar": "similar", "item": "items", "document": "documents"}  # what a list is called, by its column


def check_name(name: str, path: Path) -> None:
    """Refuse a name of a file whose format is not known."""
    if path.suffix.lower() not in ENDINGS:
        raise ConfigError(f"{name} must end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}, got {path}")


def write_lists(path: Path, blocks: Iterable[pl.DataFrame]) -> int:
    """Write the lists in the format of the file's ending; returns the number of rows. The old file stays until then."""
    check_name("the file of lists", path)
    counted = _Counted(blocks)
    content = {".parquet": _parquet, ".csv": _csv, ".jsonl": _json_lines}[path.suffix.lower()]
    files.write(path, lambda file: content(file, counted))
    return counted.rows


class _Counted:
    """Blocks, with the number of rows that went by."""

    def __init__(self, blocks: Iterable[pl.DataFrame]) -> None:
        self._blocks = iter(blocks)
        self.rows = 0

    def __iter__(self) -> Iterator[pl.DataFrame]:
        for block in self._blocks:
            self.rows += block.height
            yield block


def _parquet(file: Path, blocks: Iterable[pl.DataFrame]) -> None:
    """One file whose row groups are written as the blocks come."""
    iterator = iter(blocks)
    first = next(iterator, None)
    if first is None:
        pl.DataFrame().write_parquet(file)
        return

    def source(_columns: Any, _predicate: Any, _n_rows: Any, _size: Any) -> Iterator[pl.DataFrame]:
        yield from chain([first], iterator)

    register_io_source(source, schema=first.schema).sink_parquet(file, maintain_order=True)


def _csv(file: Path, blocks: Iterable[pl.DataFrame]) -> None:
    """Lists inside a cell, such as reasons, are joined: the format has none."""
    with file.open("wb") as opened:
        for place, block in enumerate(blocks):
            lists = [name for name, dtype in block.schema.items() if isinstance(dtype, pl.List)]
            joined = (pl.col(name).cast(pl.List(pl.String)).list.join("; ") for name in lists)
            block.with_columns(joined).write_csv(opened, include_header=place == 0)


def _json_lines(file: Path, blocks: Iterable[pl.DataFrame]) -> None:
    with file.open("w", encoding="utf-8") as opened:
        for block in blocks:
            opened.writelines(json.dumps(one, ensure_ascii=False) + "\n" for one in by_owner(block))


def by_owner(table: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """The lists of a table, one per user or item, as JSON has them."""
    owner, *places = table.columns
    name = next((name for column, name in _LISTS.items() if column in places), "rows")
    grouped = table.group_by(owner, maintain_order=True).agg(pl.struct(places).alias(name))
    return grouped.iter_rows(named=True)
