"""Files of interactions: CSV and its kin, Parquet, RecBole's .inter and LightGCN's lists.

Files are untrusted: nothing is unpickled, and only the columns in use are read.
"""

from __future__ import annotations

import codecs
import gzip
from pathlib import Path
from typing import NamedTuple

import polars as pl

from topshelf.data.columns import IGNORE, ROLES, Columns, attempt, canonical, collect, not_utf8, resolve, whole_numbers
from topshelf.data.interactions import IdMap, Interactions
from topshelf.errors import DataError

PARQUET = (".parquet", ".pq")
SEPARATORS = ("\t", "::", ",", ";", "|", " ")
HEADERLESS = (
    "user",
    "item",
    "rating",
    "timestamp",
)  # order of the columns in MovieLens' u.data and most others
TABLES = (".csv", ".tsv", ".inter")  # names of which no lists are expected
HEAD_BYTES = 1 << 18
SAMPLED_LINES = 100


class Layout(NamedTuple):
    """How a text file is written."""

    separator: str
    has_header: bool
    first: list[str]  # the fields of the first line
    is_lists: bool = False  # LightGCN: a user and then all of its items on one line


def read_interactions(
    path: str | Path,
    *,
    user: str | None = None,
    item: str | None = None,
    weight: str | None = None,
    timestamp: str | None = None,
    separator: str | None = None,
) -> Interactions:
    """Interactions of one file; see :func:`read`."""
    table = read(path, user=user, item=item, weight=weight, timestamp=timestamp, separator=separator)
    return from_table(table)


def from_table(table: pl.DataFrame) -> Interactions:
    """Interactions of a table that :func:`read` or :func:`prepare` returned."""
    users, items = IdMap.sorted_from(table["user"]), IdMap.sorted_from(table["item"])
    return Interactions.from_canonical(table, users, items)


def read(
    path: str | Path,
    *,
    user: str | None = None,
    item: str | None = None,
    weight: str | None = None,
    timestamp: str | None = None,
    separator: str | None = None,
) -> pl.DataFrame:
    """Table with columns ``user``, ``item`` and, where present, ``weight`` and ``timestamp``.

    The format follows from the name and the first lines. Columns not named are guessed; ``"none"`` leaves one
    out.
    """
    path = Path(path)
    source, wanted = str(path), Columns(user, item, weight, timestamp)
    if not path.is_file():
        raise DataError(f"{source} is not a file. Check the path, or see the named datasets: topshelf data list")
    if path.suffix.lower() == ".zip":
        raise DataError(f"{source} is a zip. Unpack it first; only a finished split is read from a zip (load_split).")
    if path.suffix.lower() in PARQUET:
        return canonical(pl.scan_parquet(path, glob=False), wanted, source)
    layout = sniff(_head(path), separator, source)
    return _read_lists(path) if layout.is_lists else read_text(_scan(path, layout), wanted, source)


def read_alike(paths: list[Path]) -> list[pl.DataFrame]:
    """Tables of the files of one split: where one of them holds LightGCN's lists, all must."""
    claims = {path: are_lists(_head(path)) for path in paths}
    if True not in claims.values():
        return [read(path) for path in paths]
    for path, claim in claims.items():
        if claim is False:
            raise DataError(f"{path} must hold a user and then its items on each line, like the files beside it.")
    return [_read_lists(path) for path in paths]


def _head(path: Path) -> list[str]:
    """The first lines of a text file, plain or gzipped."""
    try:
        with gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb") as file:
            raw = file.read(HEAD_BYTES)
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be opened: {error}.") from error
    if b"\0" in raw:
        raise DataError(f"{path} is not a text file. Known formats: csv, tsv, txt (also .gz), inter, parquet.")
    try:  # incremental: the last character may be cut in two
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(raw, final=False)
    except UnicodeDecodeError:
        raise not_utf8(str(path)) from None
    lines = text.splitlines()
    if len(raw) == HEAD_BYTES and len(lines) > 1:
        lines.pop()
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise DataError(f"{path} is empty. It must hold at least one interaction.")
    return lines[:SAMPLED_LINES]


def sniff(lines: list[str], separator: str | None, source: str) -> Layout:
    """Separator, header and shape, from the first lines."""
    if separator is None:
        if _holds_lists(lines, source):
            return Layout(" ", False, lines[0].split(), is_lists=True)
        separator = _separator(lines, source)
    elif separator != "::" and len(separator.encode()) != 1:
        raise DataError(f"separator must be one character or '::', got {separator!r}.")
    first = [field.strip().strip('"') for field in lines[0].split(separator)]
    return Layout(separator, not any(_is_number(field) for field in first), first)


def _holds_lists(lines: list[str], source: str) -> bool:
    if source.lower().removesuffix(".gz").endswith(TABLES):
        return False
    claim, width = are_lists(lines), len(lines[0].split())
    if claim is None and width > 2:  # with two numbers a line, lists and tables say the same
        raise DataError(
            f"{source}: cannot tell whether {lines[0][:80]!r} is a user with {width - 1} items or one interaction. "
            "For a table, add a header line, rename the file to .csv, or pass --separator ' ' (in Python "
            "separator=' '). For lists, write one user and one item on each line."
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
    for candidate in SEPARATORS:
        widths = {line.count(candidate) for line in lines}
        if len(widths) == 1 and widths.pop() > 0:
            return candidate
    for candidate in SEPARATORS:  # quoted fields may hold the separator, so the lines differ
        if candidate in lines[0]:
            return candidate
    raise DataError(
        f"{source}: cannot tell the separator of its columns; the first line is {lines[0][:80]!r}. "
        "A file of interactions needs at least a user and an item column."
    )


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _scan(path: Path, layout: Layout) -> pl.LazyFrame:
    """Every column as text, under its name."""
    if layout.separator == "::":
        return _scan_double_colons(path, layout)
    return pl.scan_csv(
        path,
        separator=layout.separator,
        has_header=layout.has_header,
        new_columns=None if layout.has_header else _headerless_names(len(layout.first)),
        quote_char=None if layout.separator == "\t" else '"',  # titles between tabs carry stray quotes
        infer_schema=False,
        glob=False,
    )


def _scan_double_colons(path: Path, layout: Layout) -> pl.LazyFrame:
    """Polars splits at one byte only, so read single colons and leave out the empty columns between."""
    names = layout.first if layout.has_header else _headerless_names(len(layout.first))
    columns = [column for place, name in enumerate(names) for column in (f"gap {place}", name)][1:]
    frame = pl.scan_csv(
        path,
        separator=":",
        has_header=False,
        new_columns=columns,
        skip_rows=1 if layout.has_header else 0,
        quote_char=None,
        infer_schema=False,
        glob=False,
    )
    return frame.select(names)


def _headerless_names(width: int) -> list[str]:
    if width <= len(HEADERLESS):
        return list(HEADERLESS[:width])
    return [f"column_{place + 1}" for place in range(width)]


def read_text(frame: pl.LazyFrame, wanted: Columns, source: str) -> pl.DataFrame:
    """The table of a scan whose columns are all text."""
    # Ids are read as text and made numbers only if all are: a guess from the first rows fails at row 10,001.
    found = resolve(attempt(frame.collect_schema, source).names(), wanted, source)
    table = collect(frame, list(found.values()), source)
    converters = {"weight": _numbers, "timestamp": _numbers_or_text}
    table = table.select(converters.get(role, _ids)(table[name]).alias(role) for role, name in found.items())
    return canonical(
        table.lazy(), Columns(**{role: role if role in found else IGNORE for role in ROLES}), source, found
    )


def _ids(column: pl.Series) -> pl.Series:
    # RecBole declares its ids as tokens, that is text, even when they look like numbers.
    return column if column.name.endswith(":token") else whole_numbers(column)


def _numbers(column: pl.Series) -> pl.Series:
    return column.cast(pl.Float64, strict=False)


def _numbers_or_text(column: pl.Series) -> pl.Series:
    for dtype in (pl.Int64, pl.Float64):
        numbers = column.cast(dtype, strict=False)
        if numbers.null_count() == column.null_count():
            return numbers
    return column


def _read_lists(path: Path) -> pl.DataFrame:
    """LightGCN's format: on each line a user and then its items."""
    lines = pl.scan_csv(
        path, has_header=False, separator="\x01", quote_char=None, new_columns=["line"], infer_schema=False, glob=False
    )
    fields = pl.col("line").str.extract_all(r"\S+")
    frame = (
        lines.select(fields.list.first().alias("user"), fields.list.slice(1).alias("item"))
        .filter(pl.col("item").list.len() > 0)  # a user may have no items in one of the files
        .explode("item")
    )
    return read_text(frame, Columns(), str(path))
