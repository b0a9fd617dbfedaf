"""How a text file is written: its separator, whether it has a header, or lists of items on its lines."""

from __future__ import annotations

import csv
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import polars as pl

from topshelf.data.names import GUESS, Columns, is_known
from topshelf.data.times import looks_like_time
from topshelf.errors import DataError

SEPARATORS = ("\t", "::", ",", ";", "|", " ")
UNQUOTED = ("\t", "::")  # titles between them carry stray quotes, so quotes are no syntax
HEADERLESS = ("user", "item", "rating", "timestamp")  # the order in MovieLens' u.data and most others
TIMES_THIRD = ("user", "item", "timestamp", "rating")
TABLES = (".csv", ".tsv", ".inter")  # names of which no lists are expected
_NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")


class Layout(NamedTuple):
    """How a text file is written."""

    separator: str
    has_header: bool
    names: list[str]  # of the columns
    is_lists: bool = False  # LightGCN: a user and then all of its items on one line


def sniff(lines: list[str], separator: str | None, source: str, wanted: Columns = GUESS) -> Layout:
    """Separator, header and shape, from the first lines."""
    if separator is None:
        if _holds_lists(lines, source):
            return Layout(" ", False, [], is_lists=True)
        separator = _separator(lines, source)
    elif separator != "::" and len(separator.encode()) != 1:
        raise DataError(f"separator must be one character or '::', got {separator!r}.")
    rows = [fields(line, separator) for line in lines]
    if _has_header(rows, wanted):
        _refuse_repeated_names(rows[0], wanted, source)
        return Layout(separator, True, rows[0])
    return Layout(separator, False, _headerless_names(rows, source))


def fields(line: str, separator: str) -> list[str]:
    """The fields of one line, without their quotes."""
    if separator not in UNQUOTED and '"' in line:
        with suppress(csv.Error, TypeError, StopIteration, ValueError):  # one field of 128 kB, or a quote as separator
            return [field.strip() for field in next(csv.reader([line], delimiter=separator))]
    return [field.strip().strip('"') for field in line.split(separator)]


def _has_header(rows: list[list[str]], wanted: Columns) -> bool:
    """Whether the first line names the columns: it has no number, or it has names that we know or were given."""
    first = rows[0]
    if not any(is_number(field) for field in first):
        return True
    if any(name is not None and name in first for name in wanted[:4]):
        return True
    words = [field for field in first if not is_number(field)]
    if all(any(is_known(word, role) for word in words) for role in ("user", "item")):
        return True
    # A word on top of nothing but numbers is the name of a column: who,what,2023 above 17,5,3.
    below = [row for row in rows[1:] if len(row) == len(first)]
    return bool(below) and any(
        field and not is_number(field) and all(is_number(row[place]) for row in below)
        for place, field in enumerate(first)
    )


def _refuse_repeated_names(names: list[str], wanted: Columns, source: str) -> None:
    """Polars renames the second of two equal columns, so that the choice between them would be silent."""
    for name, count in Counter(names).items():
        if count > 1 and (name in wanted or any(is_known(name, role) for role in ("user", "item"))):
            raise DataError(f"{source} has {count} columns named {name!r}. Rename or drop all but one.")


def _headerless_names(rows: list[list[str]], source: str) -> list[str]:
    width = len(rows[0])
    if width > len(HEADERLESS):
        return [f"column_{place + 1}" for place in range(width)]
    columns = [pl.Series([row[place] for row in rows if len(row) == width], dtype=pl.String) for place in range(width)]
    for place in range(min(2, width)):
        is_text = columns[place].cast(pl.Float64, strict=False).is_null().all()  # large ids may look like epochs
        if is_text and looks_like_time("", columns[place]):
            raise DataError(
                f"{source}: cannot tell which columns hold the users and items: there is no header line, and column "
                f"{place + 1} looks like a time, such as {columns[place][0]!r}. Add a header line, or put the columns "
                "in the order user, item, rating, time."
            )
    third_is_time = width > 2 and looks_like_time("", columns[2])
    swapped = third_is_time and not (width > 3 and looks_like_time("", columns[3]))
    return list((TIMES_THIRD if swapped else HEADERLESS)[:width])


def _holds_lists(lines: list[str], source: str) -> bool:
    if source.lower().removesuffix(".gz").endswith(TABLES):
        return False
    claim, width = are_lists(lines), len(lines[0].split())
    if claim is None and width > 2:  # with two numbers on each line, lists and tables say the same
        raise DataError(
            f"{source}: cannot tell whether {lines[0][:80]!r} is a user with {width - 1} items or one interaction. "
            "For a table, add a header line, rename the file to .csv, or prepare it with topshelf data prepare "
            "--separator ' ' (in Python separator=' '). For lists, write one user and one item on each line."
        )
    return bool(claim)


def are_lists(lines: list[str]) -> bool | None:
    """Whether each line is a user and then its items, as LightGCN writes them; None if it cannot be told.

    Lists are whole numbers between blanks, and name each user once. They are known by lines of different
    lengths, or by lines longer than a table without a header may have.
    """
    rows = [line.split() for line in lines]
    if any("\t" in line for line in lines) or not all(field.isdecimal() for row in rows for field in row):
        return False
    widths = {len(row) for row in rows}
    if len(widths) > 1:
        return True
    width, n_users = widths.pop(), len({row[0] for row in rows})
    if width > 2 and n_users < len(rows):
        return False
    return True if width > len(HEADERLESS) else None


def _separator(lines: list[str], source: str) -> str:
    counts = [str.count, lambda line, mark: len(fields(line, mark)) - 1]  # quoted fields may hold the separator
    for count in reversed(counts) if any('"' in line for line in lines) else counts[:1]:
        widths = {mark: {count(line, mark) for line in lines} for mark in SEPARATORS}
        steady = [mark for mark, found in widths.items() if len(found) == 1 and found != {0}]
        if steady:
            return _without_decimal_commas(lines, steady)
    present = [mark for mark in SEPARATORS if mark in lines[0]]
    if present:
        return _without_decimal_commas(lines[:1], present)
    raise DataError(
        f"{source}: cannot tell the separator of its columns; the first line is {lines[0][:80]!r}. "
        "A file of interactions needs at least a user and an item column."
    )


def _without_decimal_commas(lines: list[str], steady: list[str]) -> str:
    """The first separator, unless it is a comma inside the numbers of another one: ``1;2;3,5``."""
    if steady[0] != ",":
        return steady[0]
    return next((mark for mark in steady[1:] if _has_decimal_commas(lines, mark)), ",")


def _has_decimal_commas(lines: list[str], mark: str) -> bool:
    rows = [fields(line, mark) for line in lines]
    return all(
        len(row) > 2
        and not any("," in field for field in row[:2])  # ids
        and all(_DECIMAL_COMMA.fullmatch(field) for field in row[2:] if "," in field)
        for row in rows
    )


def is_number(field: str) -> bool:
    return _NUMBER.fullmatch(field) is not None


def refuse_json(first: str, source: str) -> None:
    """JSON would pass for a table of one line, or of odd columns."""
    if not re.match(r"""\{\s*("|$)|\[\s*(\{|\[|$)""", first):
        return
    name, is_lines = Path(source).name, first.startswith("{") and first.rstrip().endswith("}")
    stem = re.sub(r"\.(json|jsonl|ndjson|txt)(\.gz)?$", "", name, flags=re.IGNORECASE)
    reader = "read_ndjson" if is_lines else "read_json"
    raise DataError(
        f"{source} is JSON{' with an object per line' if is_lines else ''}, which is not read. Write it as Parquet or "
        f"CSV first, in Python: polars.{reader}({name!r}).write_parquet('{stem}.parquet')"
    )
