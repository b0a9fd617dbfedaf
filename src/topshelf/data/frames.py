"""Frames of Polars and pandas as tables of plain values."""

from __future__ import annotations

from decimal import InvalidOperation
from typing import Any

import numpy as np
import polars as pl

from topshelf.data.columns import Tabular, of_lazy
from topshelf.errors import DataError


def of_frame(frame: Any, source: str) -> Tabular:
    """A Polars or pandas frame; a column is converted when it is asked for."""
    if isinstance(frame, pl.LazyFrame):
        return of_lazy(frame, source)
    if isinstance(frame, pl.DataFrame):
        return Tabular(frame.columns, lambda names, rows: _of_polars(frame, names, rows, source))
    if not (hasattr(frame, "columns") and hasattr(frame, "dtypes")):
        raise DataError(f"{source} must be a Polars or pandas frame, got {type(frame).__name__}.")
    return Tabular(
        [_text(name, "column names", source) for name in frame.columns],
        lambda names, rows: _of_pandas(frame, names, rows, source),
    )


def _of_polars(frame: pl.DataFrame, names: list[str], rows: int | None, source: str) -> pl.DataFrame:
    part = frame.select(list(dict.fromkeys(names)))
    part = part if rows is None else part.head(rows)
    objects = [name for name, dtype in part.schema.items() if dtype == pl.Object]
    return part.with_columns(_plain(part[name].to_list(), name, source) for name in objects)


def _of_pandas(frame: Any, names: list[str], rows: int | None, source: str) -> pl.DataFrame:
    present = [_text(name, "column names", source) for name in frame.columns]
    columns = {}
    for name in dict.fromkeys(names):
        if present.count(name) > 1 and rows is None:
            raise DataError(f"{source} has {present.count(name)} columns named {name!r}. Rename or drop all but one.")
        column = frame.iloc[:, present.index(name)]
        columns[name] = _of_series(column if rows is None else column.iloc[:rows], name, source)
    return pl.DataFrame(columns)


def _of_series(column: Any, name: str, source: str) -> pl.Series:
    # By hand and not pl.from_pandas, which needs pyarrow for text columns.
    kind = column.dtype.kind if isinstance(column.dtype, np.dtype) else getattr(column.dtype, "kind", "O")
    if kind == "M":
        moments = column if getattr(column.dtype, "tz", None) is None else column.dt.tz_convert(None)
        return pl.Series(name, moments.to_numpy().astype("datetime64[us]"))  # Polars does not know whole seconds
    if isinstance(column.dtype, np.dtype) and kind in "iufb":
        values = column.to_numpy()
        return pl.Series(name, values.astype(np.float64) if kind == "f" else values)
    try:
        is_missing = column.array.isna()  # a name that cannot be hashed does not matter here
    except InvalidOperation:  # a signalling NaN, which cannot be compared
        raise DataError(f"{source}: column {name!r} must not hold Decimal('sNaN'), got one. Make it None.") from None
    return _plain([None if gone else value for value, gone in zip(column, is_missing, strict=True)], name, source)


def _plain(values: list[Any], name: str, source: str) -> pl.Series:
    """Numbers stay numbers; everything else (text, bytes, UUIDs) becomes text."""
    # Whole floats beside integers are integers: as floats, large ids would become each other.
    values = (
        [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]
        if any(type(value) is int for value in values)
        else values
    )
    present = [value for value in values if value is not None]
    if present and all(isinstance(value, (bool, np.bool_)) for value in present):
        return pl.Series(name, values, dtype=pl.Boolean)
    is_wide = any(isinstance(value, int) and abs(value) >= 2**63 for value in present)  # such ids become text
    if present and not is_wide and all(isinstance(value, (int, float, np.number)) for value in present):
        return pl.Series(name, values, strict=False)
    where = f"{source}: column {name!r}"
    return pl.Series(name, [None if value is None else _text(value, where, source) for value in values], pl.String)


def _text(value: Any, where: str, source: str) -> str:
    """Text of a value; bytes are decoded, and text that UTF-8 cannot write is refused."""
    try:
        text = bytes(value).decode() if isinstance(value, (bytes, bytearray, memoryview)) else str(value)
        text.encode()
    except UnicodeError:
        label = where if where.startswith(source) else f"{source}: {where}"
        raise DataError(
            f"{label} must hold text that UTF-8 can write, got {value!r}. Decode it again with the right encoding."
        ) from None
    return text
