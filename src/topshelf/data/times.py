"""Times: as numbers, as dates, and as the many ways in which text writes them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import polars as pl

from topshelf.data.names import IGNORE, OPTIONS, says_id, time_tier
from topshelf.errors import DataError

ORDERS = ("day-first", "month-first")
HOW_TO_TELL = "--dates day-first or --dates month-first (in Python dates=..., in a config data.dates)"

# A day and a month in some order, then the year: 12/01/2020, 12.1.2020 8:26, 1-12-2020.
_DAY_MONTH = r"^(\d{1,2})([/.-])(\d{1,2})[/.-]\d{4}(?:\D.*)?$"
_TWO_DIGIT_YEAR = r"^\d{1,2}[/.-]\d{1,2}[/.-]\d{2}(?:\D.*)?$"
_YEAR_FIRST = r"^\d{4}[/.-]\d{1,2}[/.-]\d{1,2}(?:[T ].*)?$"
_MONTH_NAME = (
    r"(?i)^(?:[a-z]{3,9},? )?(?:\d{1,2}[ -])?(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*[ ,-]+\d"
)
_COMPACT = r"^\d{8}T\d{4}"  # 20200131T101010Z
_MONTH = (
    "(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|"
    "nov(?:ember)?|dec(?:ember)?)"
)
_NAMED_DATE = rf"(?i)^(?:[a-z]{{3,9}},? )?(?:\d{{1,2}}[ /-]{_MONTH}[ ,/-]+\d|{_MONTH} \d{{1,2}}\b)"
_ONE_DATE = "|".join((_DAY_MONTH, _TWO_DIGIT_YEAR, _YEAR_FIRST, _COMPACT, _NAMED_DATE))  # one such value is enough
# Years of one to three digits: 1/2/20, 20-1-5, 3 Jan 20, Jan 3, 20 and 01 3, 14.
_SHORT_YEAR = "|".join(
    (
        r"^\d{1,3}[/.-]\d{1,2}[/.-]\d{1,3}(?:\D.*)?$",
        rf"(?i)^(?:[a-z]{{3,9}},? )?\d{{1,2}}[ /-]{_MONTH}[ ,/-]+\d{{1,3}}(?:[^\d:].*)?$",
        rf"(?i)^(?:[a-z]{{3,9}},? )?{_MONTH}[ -]+\d{{1,2}},? +\d{{1,3}}(?:[^\d:].*)?$",
        r"^\d{1,2} \d{1,2}, \d{1,3}$",
    )
)
_YEAR = re.compile(r"^\d{4}[/.-]\d")
_MAY_BE_TIME = re.compile(
    rf"(?i)\s*(?:\d{{8,}}|\d{{1,4}}[/.-]\d|\d+(?:\.\d*)?\s*$|{_MONTH_NAME.removeprefix('(?i)^')})"
)
_CLOCKS = ("", " %H:%M", " %H:%M:%S%.f", " %I:%M %p", " %I:%M:%S %p")
_ZONES = ("", "%#z")
_NAMED_MONTHS = ("%d %B %Y", "%d-%B-%Y", "%B %d, %Y", "%B %d %Y", "%a, %d %B %Y")
_WHOLE_FORMATS = ("%a %B %d %H:%M:%S %Y", "%d/%B/%Y:%H:%M:%S %z", "%m %d, %Y")  # ctime, web servers, Amazon 2014
_COMPACT_FORMATS = tuple(f"%Y%m%dT{clock}{zone}" for clock in ("%H%M%S%.f", "%H%M") for zone in ("", "%#z"))
_EARLIEST = int(datetime(1000, 1, 1, tzinfo=UTC).timestamp())  # years of four digits
_SECONDS = (datetime(1990, 1, 1, tzinfo=UTC).timestamp(), datetime(2100, 1, 1, tzinfo=UTC).timestamp())
_UNITS = {"seconds": 1, "milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
_DATES_AS_NUMBERS = (19900101, 21000101)
_LEAST_OLD = 100_000_000  # 1973: smaller numbers of seconds may as well be dates such as 20200131, or an order


def from_text(column: pl.Series, dates: str | None, where: str) -> pl.Series:
    """Whole seconds since 1970 of a text column; what cannot be read is null. UTC where no zone is given."""
    moments = without_short_years(_year_first(column))
    if moments.null_count() == column.null_count():
        return moments
    left = moments.is_null() & column.is_not_null()
    texts = column.filter(left).str.strip_chars()
    _refuse_short_years(texts, where)
    formats = [
        f"{day}{clock}{zone}" for day in _other_dates(texts, dates, where) for clock in _CLOCKS for zone in _ZONES
    ]
    rest = _first_that_fits(_plain(texts), [*formats, *_WHOLE_FORMATS, *_COMPACT_FORMATS])
    return moments.scatter(left.arg_true(), without_short_years(rest))


def without_short_years(moments: pl.Series) -> pl.Series:
    """Null for moments before the year 1000: a cut year, or the 0001-01-01 that programs write for a missing date."""
    return moments.set((moments < _EARLIEST).fill_null(False), None)


def _year_first(column: pl.Series) -> pl.Series:
    # Polars knows the many forms of ISO dates; it guesses from the first value, so that must be one.
    first = column[int(column.is_not_null().arg_max() or 0)] if len(column) else None
    if not _YEAR.match(first or ""):
        is_iso = column.str.contains(_YEAR.pattern).fill_null(False)
        column = column.set(~is_iso, None)
    if column.null_count() == len(column):
        return pl.Series(column.name, [None] * len(column), dtype=pl.Int64)
    return column.str.to_datetime(time_zone="UTC", strict=False).dt.epoch("s")


def _plain(texts: pl.Series) -> pl.Series:
    """One blank between date and clock, zones as +0000."""
    texts = texts.str.replace(r"^(\d{4}\D\d{1,2}\D\d{1,2})T", "$1 ").str.replace(r" ?(?:Z|UTC|GMT)$", "+0000")
    texts = texts.str.replace(r", (\d{1,2}:\d{2})", " $1")
    return texts.str.replace(r"(:\d{2}(?:\.\d+)?) ?([+-]\d{2}):?(\d{2})$", "$1$2$3")


def _first_that_fits(texts: pl.Series, formats: list[str]) -> pl.Series:
    seconds = pl.Series(texts.name, [None] * len(texts), dtype=pl.Int64)
    for form in formats:
        left = seconds.is_null()
        if not left.any():
            break
        moments = texts.filter(left).str.to_datetime(form, strict=False, time_unit="us").dt.epoch("s")
        seconds = seconds.scatter(left.arg_true(), moments)
    return seconds


def _other_dates(texts: pl.Series, dates: str | None, where: str) -> list[str]:
    """Formats of the dates, with day and month in the order that the values themselves show."""
    years_first = ["%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d"]
    days = texts.str.extract_groups(_DAY_MONTH).struct.unnest()
    days = days.rename(dict(zip(days.columns, ("first", "mark", "second"), strict=True))).drop_nulls("first")
    if days.is_empty():
        return [*years_first, *_NAMED_MONTHS]
    one, other = days["first"].cast(pl.Int64), days["second"].cast(pl.Int64)
    order = dates or _order_of(days["mark"], one, other, texts, where)
    front = "%d{0}%m{0}%Y" if order == "day-first" else "%m{0}%d{0}%Y"
    return [*(front.format(mark) for mark in days["mark"].unique()), *years_first, *_NAMED_MONTHS]


def _order_of(mark: pl.Series, one: pl.Series, other: pl.Series, texts: pl.Series, where: str) -> str:
    is_day_first, is_month_first = bool((one > 12).any()), bool((other > 12).any())
    if is_day_first and is_month_first:
        raise DataError(
            f"{where} has dates with the day first and dates with the month first, such as "
            f"{_example(texts, one > 12)} and {_example(texts, other > 12)}. Write all of them as 2020-12-31."
        )
    if is_day_first or is_month_first:
        return ORDERS[is_month_first]
    if (mark == ".").all() or (one == other).all():  # with dots the day always comes first
        return ORDERS[0]
    raise DataError(
        f"{where} has dates such as {_example(texts, one != other)}, and no value tells whether the day or the month "
        f"comes first. Say it: {HOW_TO_TELL}; or write them as 2020-12-31."
    )


def _example(texts: pl.Series, mask: pl.Series) -> str:
    return repr(texts.filter(texts.str.contains(_DAY_MONTH)).filter(mask)[0])


def _refuse_short_years(texts: pl.Series, where: str) -> None:
    short = texts.filter(texts.str.contains(_SHORT_YEAR))
    if len(short):
        raise DataError(
            f"{where} has years of fewer than four digits, such as {short[0]!r}, which can be read in several ways. "
            f"Write dates as 2020-12-31, or pass {OPTIONS['timestamp']} {IGNORE} to ignore the column."
        )


def refuse_mixed_units(numbers: pl.Series, where: str) -> None:
    """Seconds beside milliseconds put events into the wrong order; numbers of one unit are taken as they are."""
    highest = numbers.max()
    if highest is None or highest < _SECONDS[0] * 1e3:  # type: ignore[operator]
        return
    low, high = _SECONDS
    masks = {unit: numbers.is_between(low * factor, high * factor) for unit, factor in _UNITS.items()}
    present = [unit for unit, mask in masks.items() if mask.any()]
    if len(present) > 1:
        shown = [f"{unit} (data row {masks[unit].arg_max() + 1}: {numbers.filter(masks[unit])[0]})" for unit in present]  # type: ignore[operator]
        raise DataError(f"{where} mixes {' and '.join(shown)}. Write all times in one unit.")


def seconds_since_1970(number: float) -> float | None:
    """A number that is plausible as a time, in seconds; None for others, such as 1, 2, 3 or 20200131."""
    low, high = _SECONDS
    for factor in _UNITS.values():
        if low * factor <= number <= high * factor:
            return number / factor
    return number if _LEAST_OLD <= abs(number) < low else None


def looks_like_time(name: str, sample: pl.Series) -> bool:
    """Whether the values are dates or plausible epochs, or the name says that they are."""
    values = sample.drop_nulls()
    if values.is_empty() or values.dtype.is_temporal():
        return not values.is_empty() and values.dtype not in (pl.Time, pl.Duration)
    if values.dtype == pl.String:
        if not _MAY_BE_TIME.match(values[0]):  # of most columns the first value is enough
            return False
        texts = values.str.strip_chars()
        if texts.str.contains(f"{_DAY_MONTH}|{_TWO_DIGIT_YEAR}|{_YEAR_FIRST}|{_COMPACT}|{_MONTH_NAME}").all():
            return True
        numbers = texts.cast(pl.Float64, strict=False)
        values = pl.Series() if numbers.null_count() else numbers
    if values.is_empty() or not values.dtype.is_numeric():
        return False
    return time_tier(name) is not None or (not says_id(name) and _are_epochs(values.cast(pl.Float64)))


def may_hold_times(sample: pl.Series) -> bool:
    """Whether a column with the name of a time can be one: it has a date, or a number of any kind."""
    values = sample.drop_nulls()
    if values.is_empty():
        return False
    if values.dtype == pl.String:
        texts = values.str.strip_chars()
        is_number = texts.cast(pl.Float64, strict=False).is_not_null()
        return bool((is_number | texts.str.contains(_ONE_DATE)).any())
    return values.dtype.is_numeric() or (values.dtype.is_temporal() and values.dtype not in (pl.Time, pl.Duration))


def _are_epochs(numbers: pl.Series) -> bool:
    low, high = _SECONDS
    if any(numbers.is_between(low * factor, high * factor).all() for factor in _UNITS.values()):
        return True
    days = numbers if numbers.is_between(*_DATES_AS_NUMBERS).all() else pl.Series()
    if days.is_empty() or not (days == days.floor()).all():
        return False
    return not days.cast(pl.Int64).cast(pl.String).str.to_date("%Y%m%d", strict=False).null_count()
