"""Which column is the user, the item, the rating and the time, and what their values may be."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import polars as pl

from topshelf.errors import DataError

Result = TypeVar("Result")

IGNORE = "none"  # given as a column name: do not use such a column even if there is one

# Compared without case and punctuation: "User ID", "user_id" and "userId" are one name.
KNOWN_NAMES = {
    "user": "user userid uid userprocid userorgid reviewerid customer customerid visitor visitorid member "
    "memberid account accountid profileid query queryid",
    "item": "item itemid iid itemprocid itemorgid movie movieid product productid asin parentasin business "
    "businessid location locationid poi venueid track trackid song songid artist artistid book bookid isbn "
    "article articleid recipe recipeid game gameid",
    "weight": "rating ratings weight score stars value overall",
    "timestamp": "timestamp time ts date datetime unixreviewtime eventtime createdat",
}
OPTIONS = {
    "user": "--user-column",
    "item": "--item-column",
    "weight": "--rating-column",
    "timestamp": "--time-column",
}
ROLES = tuple(KNOWN_NAMES)
ID_ROLES = ("user", "item")
MISSING = ["", "NaN", "nan", "NAN", "NULL", "Null", "null", "None", "none", "NA", "<NA>"]  # as programs write it


class Columns(NamedTuple):
    """Names of the columns to use; None means: guess it from the common names."""

    user: str | None = None
    item: str | None = None
    weight: str | None = None
    timestamp: str | None = None


def bare(name: str) -> str:
    """Column name without RecBole's type: ``user_id:token`` is ``user_id``."""
    return name.partition(":")[0]


def resolve(present: list[str], wanted: Columns, source: str) -> dict[str, str]:
    """Role to column name, for every role found; users and items must be found."""
    found = {}
    for role in ROLES:
        name = getattr(wanted, role)
        if name is not None and name.lower() == IGNORE:
            continue
        column = _guess(present, role) if name is None else _named(present, role, name, source)
        if column is not None:
            found[role] = column
        elif role in ID_ROLES:
            raise DataError(
                f"{source}: cannot tell which column holds the {role}s; the columns are {_listed(present)}. "
                f"Name it with {OPTIONS[role]} (in Python {role}=...); a file with no header line needs one."
            )
    return found


def _guess(present: list[str], role: str) -> str | None:
    by_key: dict[str, str] = {}
    for name in present:
        by_key.setdefault(re.sub(r"[^a-z0-9]", "", bare(name).lower()), name)
    return next((by_key[key] for key in KNOWN_NAMES[role].split() if key in by_key), None)


def _named(present: list[str], role: str, name: str, source: str) -> str:
    for candidate in present:
        if name in (candidate, bare(candidate)):
            return candidate
    raise DataError(
        f"{source}: there is no {role} column {name!r}; the columns are {_listed(present)}. "
        f"Give one of them to {OPTIONS[role]} (in Python {role}=...)."
    )


def _listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names[:20]) + (", ..." if len(names) > 20 else "")


def canonical(frame: pl.LazyFrame, wanted: Columns, source: str, labels: dict[str, str] | None = None) -> pl.DataFrame:
    """The table with columns ``user``, ``item`` and, where present, ``weight`` and ``timestamp``, checked.

    Only these columns are read from the file behind ``frame``. ``labels`` are the names for the messages,
    where the columns had other names before.
    """
    schema = attempt(frame.collect_schema, source)
    found = resolve(list(schema), wanted, source)
    labels = found if labels is None else labels
    rules = {"weight": _weight, "timestamp": _timestamp}
    chosen = []
    for role, name in found.items():
        rule = rules.get(role, _identifier)
        chosen.append(rule(pl.col(name), schema[name], f"{source}: {role} column {labels[role]!r}").alias(role))
    raw = collect(frame, list(found.values()), source)
    return checked(attempt(lambda: raw.select(chosen), source), source, labels)


def collect(frame: pl.LazyFrame, names: list[str], source: str) -> pl.DataFrame:
    """Some columns of a lazy table, in the order of its rows; what is not among them never fills the memory."""
    # Nothing is converted on the way: Polars would guess the format of dates anew in each batch of rows.
    columns = frame.select(list(dict.fromkeys(names)))
    return attempt(lambda: columns.collect(engine="streaming"), source)


def _identifier(column: pl.Expr, dtype: pl.DataType, where: str) -> pl.Expr:
    if dtype.is_integer():
        return column  # made Int64, or text if that is too narrow, once the values are known
    if dtype.is_float():
        return column.fill_nan(None)  # made whole, or refused, once the values are known
    if dtype in (pl.String, pl.Categorical, pl.Enum, pl.Null):
        return column.cast(pl.String).replace("", None)
    raise DataError(f"{where} must hold whole numbers or text, got {dtype}. Convert the ids to text first.")


def _weight(column: pl.Expr, dtype: pl.DataType, where: str) -> pl.Expr:
    if dtype.is_numeric() or dtype in (pl.Boolean, pl.Null):
        return column.cast(pl.Float64).fill_nan(None)
    raise DataError(f"{where} must hold numbers, got {dtype}. Pass {OPTIONS['weight']} {IGNORE} to do without ratings.")


def _timestamp(column: pl.Expr, dtype: pl.DataType, where: str) -> pl.Expr:
    if dtype.is_integer():
        return column.cast(pl.Int64)
    if dtype.is_numeric():
        return column.cast(pl.Float64).fill_nan(None)
    if dtype == pl.String:
        return column.str.to_datetime(time_zone="UTC", strict=False).dt.epoch("s")
    if dtype == pl.Date or dtype.base_type() == pl.Datetime:
        return column.dt.epoch("s")
    raise DataError(
        f"{where} must hold numbers, dates or times, got {dtype}. Pass {OPTIONS['timestamp']} {IGNORE} to do without."
    )


def attempt(action: Callable[[], Result], source: str) -> Result:
    """Run a step of Polars and say its failures in our words."""
    try:
        return action()
    except pl.exceptions.NoDataError:
        raise DataError(f"{source} is empty. It must hold at least one interaction.") from None
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0]
        if "utf-8" in reason.lower() or "utf8" in reason.lower():
            raise not_utf8(source) from None
        raise DataError(f"{source} cannot be read as a table: {reason}. Check its separator and its lines.") from error


def not_utf8(source: str) -> DataError:
    return DataError(f"{source} is not UTF-8 text. Convert it first: iconv -f latin1 -t utf-8 {source} > converted.csv")


def checked(table: pl.DataFrame, source: str, names: dict[str, str]) -> pl.DataFrame:
    """Refuse an empty table and missing values; make ids of any numeric type integers, or text."""
    if table.is_empty():
        raise DataError(f"{source} is empty: it has columns but no rows. It must hold at least one interaction.")
    for role, name in names.items():
        missing = table[role].is_null()
        if missing.any():
            raise DataError(
                f"{source}: column {name!r} has {missing.sum():,} missing or unreadable value(s), "
                f"first in data row {int(missing.arg_max() or 0) + 1}. {_remedy(role)}"
            )
    for role in ID_ROLES:
        ids = table[role]
        if ids.dtype.is_float():
            wrong = ids.filter((ids != ids.floor()) | ~ids.is_finite() | (ids.abs() >= 2.0**63))
            if len(wrong):
                raise DataError(
                    f"{source}: column {names[role]!r} must hold ids, whole and below 2^63, got {wrong[0]!r}. "
                    f"Name the right column with {OPTIONS[role]} (in Python {role}=...)."
                )
            ids = ids.cast(pl.Int64)
        table = table.with_columns(narrow(ids))
    return table


def narrow(ids: pl.Series) -> pl.Series:
    """Integers as Int64, or as text where one of them does not fit; everything else as it is."""
    if not ids.dtype.is_integer():
        return ids
    numbers = ids.cast(pl.Int64, strict=False)
    return numbers if numbers.null_count() == ids.null_count() else ids.cast(pl.String)


def _remedy(role: str) -> str:
    if role in ID_ROLES:
        return "Remove these rows or fill in the ids."
    return f"Mend these rows, or pass {OPTIONS[role]} {IGNORE} to do without the column."


def whole_numbers(ids: pl.Series) -> pl.Series:
    """Text ids as integers when nothing is lost by it: ids such as ``007`` stay text.

    ``nan`` and its like are missing among integers; among text they may be names.
    """
    if ids.dtype != pl.String:
        return ids
    numbers = ids.cast(pl.Int64, strict=False)
    is_word = numbers.is_null() & ids.is_not_null()
    if not ids.filter(is_word).is_in(MISSING).all():
        return ids
    is_exact = numbers.cast(pl.String).filter(~is_word).equals(ids.filter(~is_word))
    return numbers if is_exact else ids


def plain_frame(frame: Any, wanted: Columns, source: str) -> pl.LazyFrame:
    """A lazy Polars frame from a Polars or pandas frame, with the columns in use made of plain values."""
    if isinstance(frame, pl.LazyFrame):
        return frame
    if isinstance(frame, pl.DataFrame):
        objects = [name for name, dtype in frame.schema.items() if dtype == pl.Object]
        return frame.with_columns(_as_text(frame[name].to_list(), name) for name in objects).lazy()
    if not (hasattr(frame, "columns") and hasattr(frame, "dtypes")):
        raise DataError(f"{source} must be a Polars or pandas frame, got {type(frame).__name__}.")
    found = resolve([str(name) for name in frame.columns], wanted, source)
    # By hand and not pl.from_pandas, which needs pyarrow for text columns.
    return pl.LazyFrame([_from_pandas(frame[name], name) for name in dict.fromkeys(found.values())])


def _from_pandas(column: Any, name: str) -> pl.Series:
    kind = getattr(column.dtype, "kind", "O")
    if kind == "M":
        moments = column if getattr(column.dtype, "tz", None) is None else column.dt.tz_convert(None)
        return pl.Series(name, moments.to_numpy().astype("datetime64[us]"))  # Polars does not know whole seconds
    if kind in "iufb":
        return pl.Series(name, column.to_numpy())
    return _as_text([None if missing else value for value, missing in zip(column, column.isna(), strict=True)], name)


def _as_text(values: list[Any], name: str) -> pl.Series:
    """Numbers stay numbers; everything else (text, UUIDs) becomes text."""
    present = [value for value in values if value is not None]
    if present and all(isinstance(value, (int, float)) for value in present):
        return pl.Series(name, values, strict=False)
    return pl.Series(name, [None if value is None else str(value) for value in values], dtype=pl.String)
