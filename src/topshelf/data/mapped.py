"""Splits as arrays on disk, which a process maps into memory: it reads the pages that it needs.

A folder holds ``PART-COLUMN.npy`` for every part of a split, ``users.parquet``, ``items.parquet`` and, sealed,
``arrays.json`` with the format and the length, type and checksum of every file. Files are untrusted: all are checked.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import polars as pl

from topshelf import files
from topshelf.data.columns import attempt
from topshelf.data.events import Events
from topshelf.data.ids import IdMap
from topshelf.data.interactions import Interactions
from topshelf.data.splits import PARTS, Split
from topshelf.errors import CheckpointError, DataError

SEAL = "arrays.json"
FORMAT = 1
IDS = ("users", "items")
_COLUMNS = ("indptr", "indices", "weight", "timestamp")
_EVENTS = "events_"
_KINDS: dict[str, tuple[str, ...]] = {
    "indptr": ("<i8",),
    "indices": ("<i4", "<i8"),
    "weight": ("<f4",),
    "timestamp": ("<i8", "<f8"),
}
WRITTEN = {SEAL, *(f"{part}-{kind}{column}.npy" for part in PARTS for kind in ("", _EVENTS) for column in _COLUMNS)}
_HEADER = 128  # bytes of the header of a one-dimensional .npy file, whatever its length
_BLOCK = 1 << 24  # bytes that are read at once for a checksum
_NARROW = 2**31


class ArrayFile:
    """A one-dimensional .npy file that grows; :meth:`close` writes its length and returns what the seal keeps of it."""

    def __init__(self, path: Path, dtype: Any) -> None:
        self.path, self.dtype, self.length, self.crc = path, np.dtype(dtype).newbyteorder("<"), 0, 0
        files.step("write", path)
        self._file = path.open("wb")
        self._write_header()

    def _write_header(self) -> None:
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.length,)}
        self._file.seek(0)
        np.lib.format.write_array_header_1_0(self._file, header)
        if self._file.tell() != _HEADER:
            raise AssertionError(f"a header of {_HEADER} bytes was expected, got {self._file.tell()}")

    def append(self, values: np.ndarray) -> None:
        raw = np.ascontiguousarray(values, dtype=self.dtype).data
        self.length, self.crc = self.length + len(values), zlib.crc32(raw, self.crc)
        self._file.write(raw)

    def close(self) -> dict[str, Any]:
        self._write_header()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        files.step("done", self.path)
        return {"dtype": self.dtype.str, "length": self.length, "crc32": self.crc}

    def abandon(self) -> None:
        self._file.close()


class PartFiles:
    """The arrays of one part, written user range by user range; as a context it leaves no open files."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name, self.length = folder, name, 0
        self._files: dict[str, ArrayFile] = {}

    def __enter__(self) -> PartFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for file in self._files.values():
            file.abandon()

    def add(self, part: Interactions) -> None:
        """The interactions of the next users."""
        self.length += len(part)
        self._add("", part, part.n_items)
        if part.events is not None:
            self._add(_EVENTS, part.events, part.n_items)

    def _add(self, prefix: str, lists: Interactions | Events, n_items: int) -> None:
        for column in _COLUMNS:
            values = getattr(lists, column)
            if values is None:
                continue
            name = f"{prefix}{column}"
            if (file := self._files.get(name)) is None:
                dtype = np.int32 if column == "indices" and n_items < _NARROW else values.dtype
                file = self._files[name] = ArrayFile(self.folder / f"{self.name}-{name}.npy", dtype)
                if column == "indptr":
                    file.append(np.zeros(1, dtype=np.int64))
            if column == "indptr":
                values = values[1:] - values[0] + self._files.get(f"{prefix}indices", _EMPTY).length
            file.append(values)

    def close(self) -> dict[str, dict[str, Any]]:
        """What the seal keeps of the files."""
        sums = {f"{self.name}-{name}": file.close() for name, file in self._files.items()}
        self._files = {}
        return sums


class _Empty:
    length = 0


_EMPTY = _Empty()


def write_mapped(split: Split, folder: Path) -> None:
    """Write a split as arrays into an empty folder."""
    sums: dict[str, Any] = {}
    for name, part in split.parts.items():
        with PartFiles(folder, name) as written:
            written.add(part)
            sums |= written.close()
    seal(folder, sums, split.users, split.items)


def seal(folder: Path, sums: Mapping[str, Mapping[str, Any]], users: IdMap, items: IdMap) -> None:
    """Write the ids, and what makes the folder whole."""
    digests = {}
    for name, ids in zip(IDS, (users, items), strict=True):
        files.write(folder / f"{name}.parquet", pl.DataFrame({"id": ids.values}).write_parquet)
        digests[name] = files.digest(folder / f"{name}.parquet")
    sizes = {"users": len(users), "items": len(items)}
    files.write_sealed(folder / SEAL, {"format": FORMAT, **sizes, "arrays": dict(sums), "sha256": digests})


def is_mapped(path: Path) -> bool:
    """Whether the path is a folder of arrays, perhaps a damaged one."""
    return any((path / name).is_file() for name in (SEAL, "train-indptr.npy", "train-indices.npy"))


def read_mapped(folder: Path, wanted: Iterable[str] = PARTS) -> dict[str, Interactions]:
    """The parts of a folder that :func:`write_mapped` wrote, by name; every file of them is checked."""
    try:
        content = files.read_sealed(folder / SEAL, is_always_sealed=True)
        if content.get("format") != FORMAT:
            raise DataError(f"it has format {content.get('format')!r}, and this version reads format {FORMAT}")
        users, items = (_ids(folder, name, content) for name in IDS)
        return {name: _part(folder, name, content["arrays"], users, items) for name in wanted}
    except (CheckpointError, DataError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{folder} is damaged: {error}. Make it again: topshelf data prepare --mapped --out {folder}"
        ) from None


def first_rows(folder: Path, n: int) -> pl.DataFrame:
    """The first rows of the train part."""
    train = read_mapped(folder, PARTS[:1])["train"]
    item = np.asarray(train.indices[:n], dtype=np.int64)
    user = np.searchsorted(train.indptr, np.arange(len(item)), side="right") - 1
    columns = {"user": train.users.take(user), "item": train.items.take(item)}
    values = {name: getattr(train, name) for name in ("weight", "timestamp")}
    return pl.DataFrame(columns | {name: some[:n] for name, some in values.items() if some is not None})


def _ids(folder: Path, name: str, content: Mapping[str, Any]) -> IdMap:
    path = folder / f"{name}.parquet"
    if not path.is_file() or files.digest(path) != content["sha256"][name]:
        raise DataError(f"{path.name} is missing, or is not the file that was written")
    ids = IdMap(attempt(lambda: pl.read_parquet(path, glob=False)["id"], path.name))
    if len(ids) != content[name]:
        raise DataError(f"{path.name} must hold {content[name]} ids, got {len(ids)}")
    return ids


def _part(folder: Path, name: str, known: Mapping[str, Any], users: IdMap, items: IdMap) -> Interactions:
    values, events = (
        {
            column: mapped_array(folder / f"{key}.npy", known[key], _KINDS[column])
            for column in _COLUMNS
            if (key := f"{name}-{prefix}{column}") in known
        }
        for prefix in ("", _EVENTS)
    )
    for lists in (values, events):
        if lists and len({len(some) for column, some in lists.items() if column != "indptr"}) != 1:
            raise DataError(f"the columns of {name} must be of one length")
    happened = Events(**events).check(len(users), len(items), f"the events of {name}") if events else None
    part = interactions_of(values, users, items, happened)
    part.ragged().check(len(items), f"the {name} part", n_lists=len(users), unique=True)
    return part


def interactions_of(
    values: Mapping[str, np.ndarray], users: IdMap, items: IdMap, events: Events | None
) -> Interactions:
    """Interactions of columns by name."""
    more = {name: values.get(name) for name in ("weight", "timestamp")}
    return Interactions(
        values["indptr"], values["indices"], users, items, more["weight"], more["timestamp"], events=events
    )


def mapped_array(path: Path, known: Mapping[str, Any], dtypes: tuple[str, ...]) -> np.ndarray:
    """An array of a file, mapped; refused if it is not the one that was written. Writing to it changes no file."""
    dtype, length = str(known["dtype"]), known["length"]
    if dtype not in dtypes or type(length) is not int or length < 0:
        raise DataError(f"{path.name} must be of one of the types {', '.join(dtypes)}, got {dtype!r} of {length!r}")
    size = _HEADER + length * np.dtype(dtype).itemsize
    if not path.is_file() or path.stat().st_size != size:
        got = f"{path.stat().st_size} bytes" if path.is_file() else "no such file"
        raise DataError(f"{path.name} must have {size} bytes, got {got}")
    if _checksum(path) != known["crc32"]:
        raise DataError(f"the checksum of {path.name} does not match")
    return open_array(path, dtype, length)


def open_array(path: Path, dtype: Any, length: int) -> np.ndarray:
    """The array of an :class:`ArrayFile` that is closed, mapped and not checked."""
    if not length:
        return np.empty(0, dtype=dtype)
    # Copy on write: torch takes only arrays that can be written to.
    return np.memmap(path, dtype=dtype, mode="c", offset=_HEADER, shape=(length,)).view(np.ndarray)


def _checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        file.seek(_HEADER)
        while block := file.read(_BLOCK):
            value = zlib.crc32(block, value)
    return value
