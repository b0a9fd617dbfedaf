"""The table behind every source: its columns resolved, converted and checked."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import polars as pl

from topshelf.data import times
from topshelf.data.names import ID_ROLES, IGNORE, OPTIONS, WORDS, Columns, resolve, time_tier
from topshelf.data.notes import Notes
from topshelf.errors import DataError

Result = TypeVar("Result")
Convert = Callable[[str, pl.Series, str], pl.Series]

MISSING = ["", "NaN", "nan", "NAN", "NULL", "Null", "null", "None", "none", "NA", "<NA>"]  # as programs write it
SAMPLED_ROWS = 100  # of columns that may be times
LARGEST_RATING = float(np.finfo(np.float32).max)  # weights are kept as float32


@dataclass(frozen=True)
class Tabular:
    """Columns by name, read when they are asked for: all rows, or the first few."""

    names: list[str]
    take: Callable[[list[str], int | None], pl.DataFrame]


class Table(NamedTuple):
    """A table with our column names, checked, and what there is to say about it."""

    frame: pl.DataFrame
    notes: Notes


def of_lazy(frame: pl.LazyFrame, source: str) -> Tabular:
    """A lazy table; what is not asked for never fills the memory."""

    def take(names: list[str], rows: int | None) -> pl.DataFrame:
        columns = frame.select(list(dict.fromkeys(names)))
        if rows is not None:
            return attempt(lambda: columns.head(rows).collect(), source)
        # Nothing is converted on the way: Polars would guess the format of dates anew in each batch of rows.
        return attempt(lambda: columns.collect(engine="streaming"), source)

    return Tabular(attempt(frame.collect_schema, source).names(), take)


@dataclass(frozen=True)
class OpenTable:
    """A source whose columns are found but not read. ``names`` are its columns by what they hold."""

    data: Tabular
    names: dict[str, str]
    wanted: Columns
    source: str
    convert: Convert | None = None
    places: tuple[str, ...] = ()  # of a file without a header: its columns in order, which are then named by number

    def column(self, role: str, raw: pl.DataFrame | None = None) -> pl.Series:
        """One column, converted and not yet checked; of ``raw``, or read."""
        name = self.names[role]
        where = f"{self.source}: {role} column {name!r}"
        values = (self.data.take([name], None) if raw is None else raw)[name]
        value = partial(_value, role, values, where, self.wanted.dates, self.convert)
        return attempt(value, self.source).alias(role)

    def table(self) -> Table:
        """All of it, checked."""
        raw = self.data.take(list(self.names.values()), None)
        frame = checked(pl.DataFrame([self.column(role, raw) for role in self.names]), self)
        return Table(frame, self.notes(len(frame)))

    def written(self, role: str, row: int) -> str:
        """How a value is written in the source, as part of a message."""
        name = self.names[role]
        value = self.data.take([name], row + 1)[name][row]
        return "empty" if value is None or value == "" else repr(value)

    def notes(self, n_rows: int) -> Notes:
        """What there is to say, of so many rows."""
        is_ours = self.wanted.timestamp is None  # the choice of the time column
        looks, named = _unused_times(self.data, set(self.names.values())) if is_ours else ((), ())
        guessed = tuple(
            (WORDS.get(role, role), f"column {self.places.index(name) + 1}" if self.places else name)
            for role, name in self.names.items()
            if getattr(self.wanted, role) is None
        )
        time = self.names.get("timestamp")
        return Notes(rows=n_rows, unused_times=looks, time=time, unread_times=named, guessed=guessed)


def open_table(
    data: Tabular | pl.LazyFrame,
    wanted: Columns,
    source: str,
    convert: Convert | None = None,
    places: tuple[str, ...] = (),
) -> OpenTable:
    """The columns of a source by what they hold. ``convert`` makes values of what a text file holds."""
    if isinstance(data, pl.LazyFrame):
        data = of_lazy(data, source)
    if wanted.dates is not None and wanted.dates not in times.ORDERS:
        raise DataError(f"dates must be one of {', '.join(times.ORDERS)}, got {wanted.dates!r}.")

    def holds_times(name: str) -> bool:
        return times.may_hold_times(data.take([name], SAMPLED_ROWS)[name])

    return OpenTable(data, resolve(data.names, wanted, source, holds_times), wanted, source, convert, places)


def canonical(data: Tabular | pl.LazyFrame, wanted: Columns, source: str, convert: Convert | None = None) -> Table:
    """The table with columns ``user``, ``item`` and, where present, ``weight`` and ``timestamp``, checked.

    Only these columns are read in full. ``convert`` makes values of what a text file holds.
    """
    return open_table(data, wanted, source, convert).table()


def _unused_times(data: Tabular, used: set[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Columns not in use whose values look like times, and others whose name alone says so."""
    others = [name for name in dict.fromkeys(data.names) if name not in used]
    sample = data.take(others, SAMPLED_ROWS) if others else pl.DataFrame()
    looks = tuple(name for name in others if times.looks_like_time(name, sample[name]))
    return looks, tuple(name for name in others if name not in looks and time_tier(name) in (1, 2))


def _value(role: str, column: pl.Series, where: str, dates: str | None, convert: Convert | None) -> pl.Series:
    column = column if convert is None else convert(role, column, where)
    if role == "weight":
        return _weight(column, where)
    return _timestamp(column, where, dates) if role == "timestamp" else _identifier(column, where)


def _identifier(column: pl.Series, where: str) -> pl.Series:
    dtype = column.dtype
    if dtype.is_integer():
        return column  # made Int64, or text if that is too narrow, once the values are known
    if dtype.is_float():
        return column.fill_nan(None)  # made whole, or refused, once the values are known
    if dtype == pl.Binary:
        return _decoded(column, where).replace("", None)
    if dtype in (pl.String, pl.Categorical, pl.Enum, pl.Null):
        return column.cast(pl.String).replace("", None)
    raise DataError(f"{where} must hold whole numbers or text, got {dtype}. Convert the ids to text first.")


def _decoded(column: pl.Series, where: str) -> pl.Series:
    values = []
    for row, value in enumerate(column.to_list()):
        try:
            values.append(None if value is None else value.decode())
        except UnicodeDecodeError:
            raise DataError(
                f"{where} holds bytes that are not UTF-8 text, got {value[:40]!r} in data row {row + 1}. "
                "Convert the ids to text first."
            ) from None
    return pl.Series(column.name, values, dtype=pl.String)


def _weight(column: pl.Series, where: str) -> pl.Series:
    if column.dtype.is_numeric() or column.dtype in (pl.Boolean, pl.Null):
        numbers = column.cast(pl.Float64).fill_nan(None)
        _refuse_beyond(numbers, where, LARGEST_RATING, OPTIONS["weight"])
        return numbers
    raise DataError(
        f"{where} must hold numbers, got {column.dtype}. Pass {OPTIONS['weight']} {IGNORE} to ignore the column."
    )


def _timestamp(column: pl.Series, where: str, dates: str | None) -> pl.Series:
    dtype = column.dtype
    if dtype == pl.String:
        return times.from_text(column, dates, where)
    if dtype == pl.Date or dtype.base_type() == pl.Datetime:
        return times.without_short_years(column.dt.epoch("s"))
    if not dtype.is_numeric():
        raise DataError(
            f"{where} must hold numbers, dates or times, got {dtype}. "
            f"Pass {OPTIONS['timestamp']} {IGNORE} to ignore the column."
        )
    numbers = column.cast(pl.Int64) if dtype.is_integer() else column.cast(pl.Float64).fill_nan(None)
    if not dtype.is_integer():
        _refuse_beyond(numbers, where, float(np.finfo(np.float64).max), OPTIONS["timestamp"])
    times.refuse_mixed_units(numbers, where)
    return numbers


def _refuse_beyond(numbers: pl.Series, where: str, most: float, option: str) -> None:
    """Infinite values, and those that would become so."""
    lowest, highest = numbers.min(), numbers.max()
    if lowest is not None and (lowest < -most or highest > most):  # type: ignore[operator]
        row = int((numbers.abs() > most).arg_max() or 0)
        raise DataError(
            f"{where} must hold finite numbers up to {most:.3g}, got {numbers[row]!r} in data row {row + 1}. "
            f"Correct or remove these rows, or pass {option} {IGNORE} to ignore the column."
        )


def attempt(action: Callable[[], Result], source: str) -> Result:
    """Run a step of Polars and say its failures in our words."""
    try:
        return action()
    except pl.exceptions.NoDataError:
        raise DataError(f"{source} is empty. It must hold at least one interaction.") from None
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        if "utf-8" in reason.lower() or "utf8" in reason.lower():
            raise not_utf8(source) from None
        is_parquet = reason.startswith("parquet: ")
        remedy = (
            "It is damaged or no Parquet file; write it again" if is_parquet else "Check its separator and its lines"
        )
        raise DataError(f"{source} cannot be read as a table: {reason}. {remedy}.") from error
    except pl.exceptions.PanicException as error:  # a file that Polars did not expect
        raise DataError(f"{source} cannot be read as a table; it is damaged ({error}).") from None


def not_utf8(source: str, encoding: str = "latin1", what: str = "") -> DataError:
    command = f"iconv -f {encoding} -t utf-8 {shlex.quote(source)} > converted.csv"
    return DataError(f"{source} is not UTF-8 text{what}. Convert it first: {command}")


def checked(table: pl.DataFrame, source: OpenTable) -> pl.DataFrame:
    """Refuse an empty table and missing values; make ids of any numeric type integers, or text."""
    refuse_empty(len(table), source.source)
    for role in source.names:
        refuse_missing(table[role], role, source)
    return table.with_columns(whole_ids(table[role], role, source.names[role], source.source) for role in ID_ROLES)


def refuse_empty(n_rows: int, source: str) -> None:
    if not n_rows:
        raise DataError(f"{source} is empty: it has columns but no rows. It must hold at least one interaction.")


def refuse_missing(column: pl.Series, role: str, source: OpenTable) -> None:
    missing = column.is_null()
    if missing.any():
        row = int(missing.arg_max() or 0)
        remedy = f"Correct these rows, or pass {OPTIONS[role]} {IGNORE} to ignore the column."
        raise DataError(
            f"{source.source}: column {source.names[role]!r} has {missing.sum():,} missing or unreadable value(s), "
            f"first in data row {row + 1} ({source.written(role, row)}). "
            f"{'Remove these rows or fill in the ids.' if role in ID_ROLES else remedy}"
        )


def whole_ids(ids: pl.Series, role: str, name: str, source: str) -> pl.Series:
    """Ids of any numeric type as integers, or text; numbers that are not whole are refused."""
    if ids.dtype.is_float():
        wrong = ids.filter((ids != ids.floor()) | ~ids.is_finite() | (ids.abs() >= 2.0**63))
        if len(wrong):
            raise DataError(
                f"{source}: column {name!r} must hold ids, whole and below 2^63, got {wrong[0]!r}. "
                f"Name the right column with {OPTIONS[role]} (in Python {role}=...)."
            )
        ids = ids.cast(pl.Int64)
    return narrow(ids)


def narrow(ids: pl.Series) -> pl.Series:
    """Integers as Int64, or as text where one of them does not fit; everything else as it is."""
    if not ids.dtype.is_integer():
        return ids
    numbers = ids.cast(pl.Int64, strict=False)
    return numbers if numbers.null_count() == ids.null_count() else ids.cast(pl.String)


def whole_numbers(ids: pl.Series) -> pl.Series:
    """Text ids as integers when nothing is lost by it: ids such as ``007`` stay text.

    ``nan`` and similar words are missing among integers; among text they may be names.
    """
    if ids.dtype != pl.String:
        return ids
    numbers = ids.cast(pl.Int64, strict=False)
    is_word = numbers.is_null() & ids.is_not_null()
    if not ids.filter(is_word).is_in(MISSING).all():
        return ids
    is_exact = numbers.cast(pl.String).filter(~is_word).equals(ids.filter(~is_word))
    return numbers if is_exact else ids
