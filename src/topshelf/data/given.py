"""Splits that come ready made: the paper's files, LightGCN's, and what ``data prepare`` writes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from topshelf import files
from topshelf.data import mapped
from topshelf.data.columns import Table, attempt, canonical, whole_numbers
from topshelf.data.interactions import IdMap, Interactions
from topshelf.data.memory import Allowance
from topshelf.data.names import GUESS
from topshelf.data.readers import first_rows, is_parts, read_alike, read_text, scan_parquet, unquoted
from topshelf.data.splits import PARTS, Split
from topshelf.data.unpack import member_bytes, open_zip
from topshelf.errors import CheckpointError, DataError

MEASURED = ("train", "valid", "test")
SUMMARY = "summary.json"
TABLES = (*PARTS, *(f"{name}_events" for name in PARTS), "users", "items")
WRITTEN = {SUMMARY, *(f"{name}.parquet" for name in TABLES), *mapped.WRITTEN}
SUMMARY_KEYS = {"split", "users", "items", *MEASURED}
Open = Callable[[str], bytes | None]


def given_split(**parts: Interactions) -> Split:
    """A split whose test part is given; the parts that are not given are empty."""
    nothing = parts["train"].none()
    train, valid, test, left_out, below = (parts.get(name, nothing) for name in PARTS)
    return Split(train, valid, test, "given", left_out=left_out, below=below)


def is_given(path: Path) -> bool:
    """Whether the path is a zip or a folder that should hold a ready-made split."""
    return (path.is_dir() and not is_parts(path)) or path.suffix.lower() == ".zip"


def read_given(path: Path, *, test: bool = True) -> Split:
    """Read the paper's zip, a folder of its files or of LightGCN's, or a prepared folder.

    The validation part is empty where there is none. Without ``test`` so is the test part: its file is neither opened
    nor needed, and where no file lists the ids, the users and items are those of the other parts.
    """
    try:
        return _read_any(path, test).check()
    except DataError as error:
        raise error if str(path) in str(error) else DataError(f"{path}: {error}") from None


def first_given_rows(path: Path, n: int) -> pl.DataFrame:
    """The first rows of the train part of a ready-made split, as they are in its file."""
    if mapped.is_mapped(path):
        return mapped.first_rows(path, n)
    if path.is_dir():
        names = ("train.parquet", "train.tsv", "train.txt")  # as they are looked for when a split is read
        return first_rows(next(path / name for name in names if (path / name).is_file()), n)
    with open_zip(path) as archive:
        return tab_separated(member_bytes(archive, "train.tsv") or b"", f"{path} train.tsv").head(n)


def _read_any(path: Path, test: bool) -> Split:
    if mapped.is_mapped(path):
        return given_split(**mapped.read_mapped(path, PARTS if test else PARTS[:2]))
    if path.is_dir():
        if (path / "train.parquet").is_file():
            return _read_prepared(path, test)
        if (path / "train.txt").is_file() and not (path / "train.tsv").is_file():
            return _read_texts(path, test)
        return _read_paper(lambda name: _file_bytes(path / name), str(path), test)
    with open_zip(path) as archive:
        return _read_paper(lambda name: member_bytes(archive, name), str(path), test)


def _file_bytes(path: Path) -> bytes | None:
    try:
        if not path.is_file():
            return None
        raw = path.read_bytes()
        Allowance(str(path)).take(0, raw.count(b"\n"))
        return raw
    except OSError as error:
        raise DataError(f"{path} cannot be opened: {error}.") from error


def _read_paper(open_file: Open, source: str, test: bool) -> Split:
    names = ("train", "test") if test else ("train",)
    return _numbered({name: _pairs(open_file, f"{name}.tsv", source) for name in names}, open_file, source, ".tsv")


def _read_texts(folder: Path, test: bool) -> Split:
    """LightGCN's folder: train.txt and test.txt, perhaps valid.txt; the numbers in them are the ids."""
    names = ["train", *(["test"] if test else []), *(["valid"] if (folder / "valid.txt").is_file() else [])]
    if test and not (folder / "test.txt").is_file():
        raise DataError(f"{folder} has no test.txt beside its train.txt. A ready-made split holds both.")
    tables = read_alike([folder / f"{name}.txt" for name in names])
    return _numbered(dict(zip(names, tables, strict=True)), lambda _: None, str(folder), ".txt")


def _numbered(tables: dict[str, Table], open_file: Open, source: str, suffix: str) -> Split:
    """The split of tables by part, over the ids of their list files, or of all tables."""
    users, items = (
        _listed_ids(open_file, role, [table.frame[role] for table in tables.values()], source)
        for role in ("user", "item")
    )
    return given_split(
        **{name: _indexed(table, users, items, f"{source} {name}{suffix}") for name, table in tables.items()}
    )


def _pairs(open_file: Open, name: str, source: str) -> Table:
    raw = open_file(name)
    if raw is None:
        raise DataError(
            f"{source} has no {name}. A ready-made split holds train.tsv and test.tsv, "
            "train.txt and test.txt, or train.parquet and test.parquet."
        )
    return read_text(tab_separated(raw, f"{source} {name}").lazy(), GUESS, f"{source} {name}", is_raw=True)


def tab_separated(raw: bytes, where: str) -> pl.DataFrame:
    """A table whose columns are all text, with their quotes."""
    if b"\0" in raw:
        raise DataError(f"{where} is not a text file.")
    table = attempt(lambda: pl.read_csv(io.BytesIO(raw), separator="\t", quote_char=None, infer_schema=False), where)
    return attempt(lambda: table.rename(lambda name: name.strip('"')), where)


def _listed_ids(open_file: Open, role: str, seen: list[pl.Series], source: str) -> tuple[IdMap, bool]:
    """Id map of the list file, and whether the pairs hold dense indices rather than ids."""
    raw = open_file(f"{role}_list.tsv")
    if raw is None:
        if len({column.dtype for column in seen}) > 1:  # numbers in one file and text in the other: all are text
            seen = [column.cast(pl.String) for column in seen]
        return IdMap.sorted_from(pl.concat(seen)), False
    where = f"{source} {role}_list.tsv"
    table = tab_separated(raw, where).select(pl.all().map_batches(unquoted, pl.String))
    if table.width != 2:
        raise DataError(f"{where} must have 2 columns (original id, dense id), got {table.width}.")
    table = table.rename(dict(zip(table.columns, ("id", "index"), strict=True)))
    table = attempt(lambda: table.with_columns(pl.col("index").cast(pl.Int64)), where).sort("index")
    if not table["index"].equals(pl.int_range(len(table), eager=True), check_names=False):
        raise DataError(f"{where} must number its {len(table)} ids from 0 without gaps.")
    numbers = whole_numbers(table["id"])
    # Where the ids were ordered as text ("1", "10", "100"), the program that wrote the file took them as text.
    is_ordered = not numbers.null_count() and numbers.is_sorted()
    return _id_map(numbers if is_ordered else table["id"], where), True


def _id_map(ids: pl.Series, where: str) -> IdMap:
    try:
        return attempt(lambda: IdMap(ids), where)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None


def _indexed(table: Table, users: tuple[IdMap, bool], items: tuple[IdMap, bool], where: str) -> Interactions:
    pairs = table.frame
    try:
        rows, cols = (_positions(pairs[role], *known) for role, known in (("user", users), ("item", items)))
        extra = {name: pairs[name].to_numpy() for name in ("weight", "timestamp") if name in pairs.columns}
        return Interactions.from_indices(rows, cols, users[0], items[0], **extra)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None


def _positions(column: pl.Series, ids: IdMap, is_dense: bool) -> np.ndarray:
    if not is_dense:
        return ids.index(column)
    if column.dtype != pl.Int64:
        raise DataError(f"{column.name} column must hold dense indices (0 to {len(ids) - 1}), got text.")
    return column.to_numpy()


def _read_prepared(folder: Path, test: bool) -> Split:
    wanted = PARTS if test else ("train", "valid")
    tables = {name: table for name in wanted if (table := _prepared_table(folder / f"{name}.parquet")) is not None}
    for name in ("train", "test"):
        if name in wanted and name not in tables:
            raise DataError(f"{folder} has no interactions in {name}.parquet. Make it again: topshelf data prepare")
    seen = {role: [table[role] for table in tables.values()] for role in ("user", "item")}
    users, items = (prepared_ids(folder, role, lambda role=role: seen[role]) for role in seen)  # type: ignore[misc]
    parts = {}
    for name, table in tables.items():
        rows = _prepared_table(folder / f"{name}_events.parquet")
        events = None if rows is None else Interactions.from_canonical(rows, users, items).events
        parts[name] = replace(Interactions.from_canonical(table, users, items), events=events)
    return given_split(**parts)


def _prepared_table(path: Path) -> pl.DataFrame | None:
    """The rows of a file; None if there is no such file or it has no rows."""
    if not path.is_file() or attempt(pl.scan_parquet(path, glob=False).head(1).collect, str(path)).is_empty():
        return None
    return canonical(scan_parquet(path), GUESS, str(path)).frame


def prepared_ids(folder: Path, role: str, seen: Callable[[], list[pl.Series]]) -> IdMap:
    """The ids of the folder's list, or those that are seen in its parts."""
    path = folder / f"{role}s.parquet"
    if path.is_file():
        return _id_map(attempt(scan_parquet(path).select("id").collect, str(path))["id"], str(path))
    return IdMap.sorted_from(attempt(lambda: pl.concat(seen()), str(folder)))


def write_split(split: Split, folder: Path, summary: dict[str, Any]) -> None:
    """Write the parts, the ids and a summary; the folder appears whole or not at all.

    An earlier folder of ours is replaced, and known by ``summary.describe_split`` being in its summary.
    """
    parts = {name: part for name, part in split.parts.items() if name in MEASURED or len(part)}
    tables = {name: part.to_frame() for name, part in parts.items()}
    tables |= {f"{name}_events": part.to_frame(events=True) for name, part in parts.items() if part.events is not None}
    tables |= {name: pl.DataFrame({"id": getattr(split, name).values}) for name in ("users", "items")}
    with prepared_folder(folder) as fresh:
        for name, table in tables.items():
            files.write(fresh / f"{name}.parquet", table.write_parquet)
        files.write_text(fresh / SUMMARY, json.dumps(summary, indent=2) + "\n")


@contextmanager
def prepared_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which replaces an earlier one of ours when the block ends without an error."""
    if folder.exists() and not _is_ours(folder):
        raise DataError(f"{folder} exists and was not made by `topshelf data prepare`. Choose another --out.")
    with files.new_folder(folder, replace=True) as fresh:
        yield fresh


def _is_ours(folder: Path) -> bool:
    """Whether nothing is lost with the folder: it is empty, or holds only what ``write_split`` wrote."""
    if not folder.is_dir():
        return False
    paths = list(folder.iterdir())
    if not all(path.name in WRITTEN and path.is_file() and not path.is_symlink() for path in paths):
        return False
    try:
        return not paths or files.read_json(folder / SUMMARY).keys() >= SUMMARY_KEYS
    except CheckpointError:
        return False
