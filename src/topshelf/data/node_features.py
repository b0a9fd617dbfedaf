"""Features of nodes from files: NumPy .npy, SciPy's sparse .npz, Parquet with an id column. Nothing is unpickled."""

from __future__ import annotations

import io
import tokenize
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from scipy import sparse

from topshelf.data.columns import attempt, whole_numbers
from topshelf.data.graphs import Table
from topshelf.data.ids import IdMap
from topshelf.data.memory import Allowance
from topshelf.data.readers import PARQUET, scan_parquet
from topshelf.data.unpack import member_bytes, open_zip
from topshelf.errors import DataError

_LARGEST = float(np.finfo(np.float32).max)


class NodeFeatures(NamedTuple):
    """A table with one row per node; ``ids`` where the file names its nodes, else row i is of node i."""

    table: Table
    ids: IdMap | None = None


def read_features(path: str | Path, *, id_column: str | None = None) -> NodeFeatures:
    """The features in a file, by its ending."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"data.features must be a file (.npy, .npz, .parquet), got {str(path)!r}, which is none.")
    kind = path.suffix.lower()
    if kind in PARQUET:
        return _read_parquet(path, id_column)
    if id_column is not None:
        raise DataError(f"data.id_column is for Parquet features, and data.features is {path}. Leave it out.")
    if kind == ".npy":
        return NodeFeatures(_dense(_load_npy(path.read_bytes(), str(path)), str(path)))
    if kind == ".npz":
        return NodeFeatures(_read_npz(path))
    raise DataError(f"data.features must end in .npy, .npz or .parquet, got {str(path)!r}.")


def load_npy(path: Path) -> np.ndarray:
    """The array in a .npy file."""
    if not path.is_file():
        raise DataError(f"{path} is not a file.")
    return _load_npy(path.read_bytes(), str(path))


def _load_npy(content: bytes, where: str) -> np.ndarray:
    Allowance(where).take(len(content), 0)
    try:
        array = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, OSError, EOFError, MemoryError, SyntaxError, tokenize.TokenError, TypeError) as error:
        raise DataError(f"{where} is no sound .npy file of numbers: {error}. Nothing is unpickled.") from None
    if not isinstance(array, np.ndarray):
        raise DataError(f"{where} must hold one array, got an archive of several.")
    return array


def npy_member(content: bytes, where: str) -> np.ndarray:
    """The array of a .npy file that was in an archive."""
    return _load_npy(content, where)


def _dense(array: np.ndarray, where: str) -> np.ndarray:
    if array.ndim != 2 or array.dtype.kind not in "fiub":
        raise DataError(f"{where} must hold numbers, one row per node, got {array.dtype} of shape {array.shape}.")
    _refuse_beyond(array, where)
    return np.ascontiguousarray(array, dtype=np.float32)


def _refuse_beyond(values: np.ndarray, where: str) -> None:
    if values.dtype.kind == "f" and values.size and not (np.abs(values) <= _LARGEST).all():
        place = np.argwhere(~(np.abs(values) <= _LARGEST))[0]
        raise DataError(
            f"{where}: features must be finite, got {values[tuple(place)]} for node {place[0]}. Fill in what is "
            "missing."
        )


def _read_npz(path: Path) -> sparse.csr_array:
    """A matrix of ``scipy.sparse.save_npz`` in compressed rows, read member by member."""
    with open_zip(path) as archive:
        names = ("format", "shape", "data", "indices", "indptr")
        found = {name: member_bytes(archive, f"{name}.npy") for name in names}
    missing = [name for name, content in found.items() if content is None]
    if missing:
        raise DataError(f"{path} must be made by scipy.sparse.save_npz(path, matrix.tocsr()); it has no {missing[0]}.")
    parts = {name: _load_npy(content or b"", f"{path} {name}") for name, content in found.items()}
    kind = parts["format"].item() if parts["format"].ndim == 0 else b""
    if kind not in (b"csr", "csr"):
        raise DataError(f"{path} must hold a matrix in compressed rows (csr), got {kind!r}. Save matrix.tocsr().")
    try:
        n_rows, n_columns = (int(n) for n in parts["shape"])
        table = sparse.csr_array((parts["data"], parts["indices"], parts["indptr"]), shape=(n_rows, n_columns))
        table.check_format(full_check=True)
        table.sum_duplicates()
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{path} is damaged: {error}.") from None
    if table.data.dtype.kind not in "fiub":
        raise DataError(f"{path} must hold numbers, got {table.data.dtype}.")
    if table.data.dtype.kind == "f" and not (np.abs(table.data) <= _LARGEST).all():
        row = np.repeat(np.arange(n_rows), np.diff(table.indptr))[~(np.abs(table.data) <= _LARGEST)][0]
        raise DataError(f"{path}: features must be finite, got NaN or infinity for node {row}.")
    return table.astype(np.float32)


def _read_parquet(path: Path, id_column: str | None) -> NodeFeatures:
    frame = attempt(lambda: scan_parquet(path).collect(), str(path))
    name = id_column or next((one for one in ("id", "node", "node_id", "nodeid") if one in frame.columns), None)
    if name is None or name not in frame.columns:
        raise DataError(
            f"{path}: data.id_column must name the column of node ids, one of {', '.join(frame.columns)}; got {name!r}."
        )
    ids = frame[name]
    if ids.null_count():
        raise DataError(f"{path}: column {name!r} has {ids.null_count():,} missing ids. Remove these rows.")
    if not (ids.dtype.is_integer() or ids.dtype == pl.String):
        raise DataError(f"{path}: column {name!r} must hold whole numbers or text, got {ids.dtype}.")
    columns = [_numbers(frame[column], path) for column in frame.columns if column != name]
    if not columns:
        raise DataError(f"{path} must have at least one column of numbers beside {name!r}, got none.")
    table = _dense(np.column_stack(columns), str(path))
    return NodeFeatures(table, IdMap(whole_numbers(ids)))


def _numbers(column: pl.Series, path: Path) -> np.ndarray:
    dtype = column.dtype
    if isinstance(dtype, pl.List | pl.Array):  # a vector in each row
        lengths = column.list.len() if isinstance(dtype, pl.List) else None
        if lengths is not None and (lengths.null_count() or lengths.n_unique() != 1):
            raise DataError(f"{path}: the lists of column {column.name!r} must be of one length.")
        inner = column.explode()
        if inner.dtype.is_numeric() and not inner.null_count():
            return inner.cast(pl.Float64).to_numpy().reshape(len(column), -1)
    elif (dtype.is_numeric() or dtype == pl.Boolean) and not column.null_count():
        return column.cast(pl.Float64).to_numpy().reshape(-1, 1)
    raise DataError(f"{path}: feature column {column.name!r} must hold numbers in every row, got {dtype} or nothing.")
