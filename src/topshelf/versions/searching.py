"""Look for people in the files of a run folder: what is left of them, and where."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from safetensors import SafetensorError, safe_open

from topshelf.data.names import KNOWN_NAMES
from topshelf.errors import CheckpointError, DataError
from topshelf.files import LOCK, reason
from topshelf.training.folder import RunFolder

_LEAST_RAW = 6  # bytes of an id that is also looked for in files of numbers, where shorter ones occur by chance
_CHUNK = 1 << 24  # bytes of a file at once


@dataclass(frozen=True)
class Found:
    """``files``: how many were searched, and their ``size`` in bytes. ``places``: files that name a user, and the id.

    ``words``: files with a longer text, such as a path, that has the id as a word: it may mean something else.
    """

    files: int
    size: int
    places: tuple[tuple[str, str], ...]
    words: tuple[tuple[str, str], ...]

    @property
    def is_nothing(self) -> bool:
        return not self.places


def search_run(path: str | Path, users: Sequence[Any]) -> Found:
    """Search every file of a run folder for the ids of users.

    In tables: as a cell. In JSON, TOML and text: as a value, or as a word of one. In files of numbers: as a value of
    their headers, and ids of at least six bytes anywhere. Ids and titles of items are not searched, for an item may
    have the same id; numbers are looked for as whole values only, because they are everywhere.
    """
    folder, names = RunFolder(path), [str(user) for user in users]
    places: list[tuple[str, str]] = []
    words: list[tuple[str, str]] = []
    size = n_files = 0
    for file in sorted(one for one in folder.path.rglob("*") if one.is_file() and one.name != LOCK):
        where = str(file.relative_to(folder.path))
        n_files, size = n_files + 1, size + file.stat().st_size
        if file == folder.items:
            continue
        values = set(_values(file))
        rest = [name for name in names if name not in values]
        places += [(where, name) for name in names if name in values]
        if file.suffix != ".parquet":  # there, other people's ids may have this one as a word
            text = "\n".join(values)
            inside = [name for name in rest if not _is_number(name) and _is_word(name, text)]
            words += [(where, name) for name in inside]
            if file.suffix == ".safetensors":
                places += [(where, name) for name in _raw(file, [name for name in rest if name not in inside])]
    return Found(n_files, size, tuple(places), tuple(words))


def read_ids(path: str | Path) -> list[str]:
    """The user ids of a file: one per line, or the column of users in a CSV, TSV or Parquet file with a header."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path} is not a file. Give a file of user ids: one per line, or a CSV or Parquet column.")
    try:
        if path.suffix.lower() in (".parquet", ".csv", ".tsv"):
            is_parquet = path.suffix.lower() == ".parquet"
            separator = "\t" if path.suffix.lower() == ".tsv" else ","
            frame = (
                pl.read_parquet(path, glob=False)
                if is_parquet
                else pl.read_csv(path, infer_schema=False, glob=False, separator=separator)
            )
            found = _user_column(frame, path)
        else:
            found = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise DataError(f"{path} cannot be read as user ids: {reason(error)}") from None
    ids = [one.strip() for one in found if one and one.strip()]
    if not ids:
        raise DataError(f"{path} must hold user ids, one per line, got none")
    return ids


def _user_column(frame: pl.DataFrame, path: Path) -> list[str]:
    names = set(KNOWN_NAMES["user"].split())
    plain = {name: re.sub(r"[^a-z0-9]", "", name.lower()) for name in frame.columns}
    found = [name for name in frame.columns if plain[name] in names or name == "id"]
    if not found and frame.width > 1:
        raise DataError(f"{path} must have a column of users, such as user, got {frame.columns}")
    column = frame[found[0] if found else frame.columns[0]].cast(pl.String).to_list()
    return column if found else [frame.columns[0], *column]  # without a known name the first line is an id too


def _values(file: Path) -> Iterator[str]:
    """The texts in a file: cells, keys and values; for a file of another kind, its lines."""
    try:
        if file.suffix == ".parquet":
            for column in pl.read_parquet(file, glob=False).iter_columns():
                yield from column.cast(pl.String, strict=False).drop_nulls().to_list()
        elif file.suffix == ".safetensors":
            with safe_open(file, framework="np") as opened:
                for text in (opened.metadata() or {}).values():
                    yield from _leaves(_parsed(text))
        elif file.suffix in (".json", ".jsonl"):
            for line in file.read_text(encoding="utf-8").splitlines() if file.suffix == ".jsonl" else [_text(file)]:
                yield from _leaves(_parsed(line))
        elif file.suffix == ".toml":
            yield from re.findall(r'"((?:[^"\\]|\\.)*)"', _text(file))
        else:
            yield from file.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError, SafetensorError, pl.exceptions.PolarsError) as error:
        raise CheckpointError(f"{file} cannot be searched: {reason(error)}. Delete it, or restore it") from None


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _leaves(value: Any) -> Iterator[str]:
    """The texts of a JSON value, keys too; numbers are counts and measures, never ids."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    elif isinstance(value, str):
        yield value


def _is_number(name: str) -> bool:
    return name.lstrip("-").isdigit()


def _is_word(name: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def _raw(file: Path, names: Sequence[str]) -> list[str]:
    """The ids whose bytes are in a file, as UTF-8 or UTF-16; short ones and numbers are left out."""
    forms = {name: (name.encode(), name.encode("utf-16-le")) for name in names if not _is_number(name)}
    forms = {name: some for name, some in forms.items() if len(some[0]) >= _LEAST_RAW}
    if not forms:
        return []
    found, longest, rest = set(), max(len(one) for some in forms.values() for one in some), b""
    with file.open("rb") as opened:
        while block := opened.read(_CHUNK):
            block = rest + block
            found |= {name for name, some in forms.items() if any(one in block for one in some)}
            rest = block[-longest:]
    return sorted(found)
