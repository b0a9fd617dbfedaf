"""Item attributes: a table with a row per item, and the items that a filter leaves."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from topshelf.data import IdMap
from topshelf.data.columns import attempt
from topshelf.data.frames import of_frame
from topshelf.data.ids import UNKNOWN
from topshelf.data.names import KNOWN_NAMES
from topshelf.data.readers import PARQUET, check_parquet
from topshelf.errors import ConfigError, DataError
from topshelf.serving.filters import parse

_PLAIN = (pl.String, pl.Boolean, pl.Date)


class Attributes:
    """Attributes of the items of one run, by item index; items that the table does not name have none."""

    def __init__(self, table: pl.DataFrame, item: str, items: IdMap, source: str) -> None:
        ids = table[item]
        if ids.null_count() or ids.n_unique() != len(ids):
            raise DataError(f"{source}: each item must have one row, and column {item!r} has missing or repeated ids")
        places = items.find(ids)
        is_here = places != UNKNOWN
        if not is_here.any():
            like = ", ".join(map(str, items.ids(range(min(3, len(items))))))
            raise DataError(f"{source} must name items of the run, such as {like}; it has {len(ids):,} others")
        row_of = np.full(len(items), -1)
        row_of[places[is_here]] = np.nonzero(is_here)[0]
        rows = pl.Series(row_of).set(pl.Series(row_of < 0), None)  # a missing row gives missing values
        self.table = pl.DataFrame([_column(table[name]).gather(rows) for name in table.columns if name != item])
        self.n_missing = len(items) - int(is_here.sum())

    @classmethod
    def none(cls) -> Attributes:
        made = cls.__new__(cls)
        made.table, made.n_missing = pl.DataFrame(), 0
        return made

    @property
    def columns(self) -> list[str]:
        return self.table.columns

    def select(self, condition: str) -> np.ndarray:
        """Which items the condition holds for, (I,) of bool."""
        if not self.columns:
            raise ConfigError(
                "filter needs a table of item attributes, and the server has none: set attributes = 'items.csv'"
            )
        expression = parse(condition, self.table.schema)
        try:
            return self.table.select(expression.fill_null(False)).to_series().to_numpy()
        except pl.exceptions.PolarsError as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise ConfigError(f"filter {condition[:100]!r} does not fit its columns: {reason}") from None


class Selections:
    """What filters leave, computed once per distinct text and kept while there is memory for it."""

    def __init__(self, attributes: Attributes, most_bytes: int) -> None:
        self.attributes, self.most_bytes = attributes, most_bytes
        self._kept: OrderedDict[str, np.ndarray] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def of(self, condition: str) -> np.ndarray:
        with self._lock:
            found = self._kept.get(condition)
            if found is not None:
                self._kept.move_to_end(condition)
                return found
        found = self.attributes.select(condition)
        with self._lock:
            if condition not in self._kept:
                self._kept[condition] = found
                self._bytes += found.nbytes
            while self._bytes > self.most_bytes and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes
            return found


def read_attributes(source: Any, item: str | None = None) -> tuple[pl.DataFrame, str, str]:
    """A table of attributes, the name of its column of items, and what it is called in messages."""
    if isinstance(source, str | Path):
        table, name = _file(Path(source)), str(source)
    else:
        frame = of_frame(source, "the attributes")
        table, name = frame.take(frame.names, None), "the attributes"
    if item is None:
        item = _item_column(table.columns)
    if item not in table.columns:
        raise DataError(f"{name} has no column {item!r} of items; it has {', '.join(table.columns)}")
    return table, item, name


def _item_column(names: list[str]) -> str:
    """The column with a common name of items, else the first."""
    plain = {name.lower().replace("_", "").replace(" ", ""): name for name in reversed(names)}
    return next((plain[known] for known in ("id", *KNOWN_NAMES["item"].split()) if known in plain), names[0])


def _file(path: Path) -> pl.DataFrame:
    if not path.is_file():
        raise DataError(f"{path} does not exist, or is not a file. Give a CSV, TSV or Parquet file of attributes.")
    if path.suffix.lower() in PARQUET:
        check_parquet(path)
        return attempt(lambda: pl.read_parquet(path, glob=False), str(path))
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    options: dict[str, Any] = {"infer_schema_length": None, "try_parse_dates": True, "glob": False}
    return attempt(lambda: pl.read_csv(path, separator=separator, **options), str(path))


def _column(values: pl.Series) -> pl.Series:
    """Types that the grammar of filters has; others as text. NaN is a missing value."""
    dtype = values.dtype
    if dtype.is_float():
        return values.fill_nan(None)
    if dtype.is_integer() or dtype in _PLAIN:
        return values
    if isinstance(dtype, pl.Datetime):
        return values if dtype.time_zone is None else values.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    if isinstance(dtype, pl.List) and (dtype.inner == pl.String or dtype.inner.is_numeric()):
        return values
    return values.cast(pl.String, strict=False)
