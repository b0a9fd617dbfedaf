"""Files of interactions: CSV and its kin, Parquet, RecBole's .inter and LightGCN's lists.

Files are untrusted: nothing is unpickled, only the columns in use are read, and no more is unpacked than fits.
"""

from __future__ import annotations

import codecs
import io
import os
import re
from pathlib import Path
from typing import Any, Unpack

import polars as pl

from topshelf.data.columns import OpenTable, Table, attempt, not_utf8, open_table, whole_numbers
from topshelf.data.interactions import Interactions
from topshelf.data.layouts import UNQUOTED, Layout, are_lists, refuse_json, sniff
from topshelf.data.memory import ROW_BYTES, Allowance
from topshelf.data.names import GUESS, IGNORE, OPTIONS, ColumnNames, Columns
from topshelf.data.unpack import gunzip
from topshelf.errors import DataError

PARQUET = (".parquet", ".pq")
PARTS = "part-*.parquet"  # the files of a table in parts, as Spark, Polars and `topshelf data expand` name them
_PARQUET_MARKS = (b"PAR1", b"PARE")  # the second with an encrypted footer
_EXCEL_MARKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # a zip, as .xlsx and .ods are, and the older .xls
HEAD_BYTES = 1 << 18
SAMPLED_LINES = 100
DECIMAL_COMMA = r"^[+-]?\d+,\d+$"
THOUSANDS = r"^[+-]?[1-9]\d{0,2},\d{3}$"

Content = Path | bytes


def read_interactions(
    path: str | Path, *, separator: str | None = None, **columns: Unpack[ColumnNames]
) -> Interactions:
    """Interactions of one file; see :func:`read`. Their ``notes`` say what was left out."""
    table, notes = read_table(path, Columns(**columns), separator)
    return Interactions.from_canonical(table, notes=notes)


def read(path: str | Path, *, separator: str | None = None, **columns: Unpack[ColumnNames]) -> pl.DataFrame:
    """Table with columns ``user``, ``item`` and, where present, ``weight`` and ``timestamp``.

    The format follows from the name and the first lines. Columns not named are guessed; ``"none"`` leaves one
    out. ``dates`` is ``"day-first"`` or ``"month-first"``, for dates such as 12/01/2020 that do not show it.
    """
    return read_table(path, Columns(**columns), separator).frame


def read_table(path: str | Path, wanted: Columns, separator: str | None = None) -> Table:
    """What :func:`read` returns, with notes on what was left open."""
    return open_source(path, wanted, separator).table()


def open_source(
    path: str | Path, wanted: Columns, separator: str | None = None, *, row_bytes: int = ROW_BYTES
) -> OpenTable:
    """A file, or a folder of Parquet parts, whose columns are found but not read.

    ``row_bytes`` is what a row of a Parquet file takes on its way, for the refusal of files that do not fit.
    """
    path = Path(path)
    source = str(path)
    if is_parts(path):
        return open_table(scan_parquet(path, row_bytes), wanted, source)
    if not os.path.isfile(path):  # noqa: PTH113  also False for a name that is too long, or with a NUL
        raise DataError(f"{source} is not a file. Check the path, or see the named datasets: topshelf data list")
    if path.suffix.lower() == ".zip":
        raise DataError(f"{source} is a zip. Unpack it first; only a finished split is read from a zip (load_split).")
    if path.suffix.lower() in PARQUET:
        return open_table(scan_parquet(path, row_bytes), wanted, source)
    return _open_content(_content(path), wanted, source, separator)


def is_parts(path: Path) -> bool:
    """Whether the path is a folder whose files are the parts of one Parquet table."""
    return os.path.isdir(path) and next(path.glob(PARTS), None) is not None  # noqa: PTH112  as for files


def read_user_lines(path: str | Path) -> Table:
    """The table of a text file with one user per line, ``user item item ...``, the oldest item first; also .gz.

    Ids may be any words. For files where :func:`read_table` cannot tell lists from columns, or whose ids are text.
    """
    path = Path(path)
    if not os.path.isfile(path):  # noqa: PTH113  also False for a name that is too long, or with a NUL
        raise DataError(f"{path} is not a file. Check the path.")
    content, source = _content(path), str(path)
    for line in head(content, source):
        if len(line.split()) > 1:
            return _open_lists(content, source).table()
    raise DataError(f"{source} must have a user and then its items on each line, separated by blanks, got no items.")


def are_user_lines(path: str | Path, wanted: Columns = GUESS) -> bool:
    """Whether a file has one user per line and then its items, by its first lines."""
    path = Path(path)
    if not os.path.isfile(path) or path.suffix.lower() in (*PARQUET, ".zip"):  # noqa: PTH113  as above
        return False  # reading it says what is wrong with it
    return sniff(head(_content(path), str(path)), None, str(path), wanted).is_lists


def _open_content(content: Content, wanted: Columns, source: str, separator: str | None = None) -> OpenTable:
    layout = sniff(head(content, source), separator, source, wanted)
    if layout.is_lists:
        return _open_lists(content, source)
    places = () if layout.has_header else tuple(layout.names)
    return _open_text(_scan(content, layout), wanted, source, layout.separator in UNQUOTED, places)


def first_rows(path: Path, n: int, wanted: Columns = GUESS, separator: str | None = None) -> pl.DataFrame:
    """The first rows of a file as they are written: all its columns, in its order; of a text file, as text."""
    source = str(path)
    if path.suffix.lower() in PARQUET or is_parts(path):
        return attempt(lambda: scan_parquet(path, row_bytes=0).head(n).collect(), source)
    content = _content(path)
    lines = head(content, source)
    layout = sniff(lines, separator, source, wanted)
    if layout.is_lists:
        return pl.DataFrame({"user and items": lines[:n]})
    return attempt(lambda: _scan(content, layout).head(n).collect(), source)


def read_alike(paths: list[Path]) -> list[Table]:
    """Tables of the files of one split: where one of them holds LightGCN's lists, all must."""
    contents = {path: _content(path) for path in paths}
    claims = {path: are_lists(head(content, str(path))) for path, content in contents.items()}
    if True not in claims.values():
        return [_open_content(content, Columns(), str(path)).table() for path, content in contents.items()]
    for path, claim in claims.items():
        if claim is False:
            raise DataError(f"{path} must hold a user and then its items on each line, like the files beside it.")
    return [_open_lists(content, str(path)).table() for path, content in contents.items()]


def scan_parquet(path: Path, row_bytes: int = ROW_BYTES) -> pl.LazyFrame:
    """A lazy table whose rows fit into memory; of a folder, the rows of its parts in the order of their names."""
    paths = sorted(path.glob(PARTS)) if path.is_dir() else [path]
    for one in paths:
        check_parquet(one)
    frame = pl.scan_parquet(paths, glob=False)
    rows = attempt(lambda: frame.select(pl.len()).collect(), str(path)).item()
    Allowance(str(path), row_bytes=row_bytes).take(0, rows)
    return frame


def check_parquet(path: Path) -> None:
    """Refuse what is no whole Parquet file, and say what it is: it begins and ends with the same four letters."""
    try:
        with path.open("rb") as file:
            first, size = file.read(4), file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 4))
            last = file.read(4)
    except OSError as error:
        raise DataError(f"{path} cannot be opened: {error}.") from error
    if first not in _PARQUET_MARKS:
        raise DataError(
            f"{path} is named like a Parquet file but is none: it begins with {first!r}, not with b'PAR1'. If it is "
            "text, rename it to .csv or .tsv; else write it again as Parquet."
        )
    if last != first or size <= 2 * len(first):
        raise DataError(
            f"{path} is a damaged Parquet file: its end is missing, as after a copy or download that was cut off "
            f"({size:,} bytes are here). Copy it again, or write it again."
        )


def _content(path: Path) -> Content:
    """Where the text is: in the file itself, or unpacked in memory."""
    return gunzip(path) if path.suffix.lower() == ".gz" else path


def head(content: Content, source: str) -> list[str]:
    """The first lines of a text file."""
    try:
        with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
            raw = file.read(HEAD_BYTES)
    except OSError as error:
        raise DataError(f"{source} cannot be opened: {error}.") from error
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise not_utf8(source, "utf-16", " but UTF-16")
    if raw.startswith(_EXCEL_MARKS):
        raise DataError(
            f"{source} is no text file but one of Excel (or another packed file). Save it as CSV UTF-8 in the program "
            "that made it, or in Python: polars.read_excel(...).write_csv(...)"
        )
    if b"\0" in raw or raw.startswith(b"x\x01"):  # the latter Polars takes for zlib
        raise DataError(f"{source} is not a text file. Known formats: csv, tsv, txt (also .gz), inter, parquet.")
    try:  # incremental: the last character may be cut in two
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(raw, final=False)
    except UnicodeDecodeError:
        raise not_utf8(source) from None
    if "\r" in text and "\n" not in text:
        raise DataError(f"{source} ends its lines with carriage returns alone. Convert it first: tr '\\r' '\\n'")
    lines = re.split(r"\r?\n", text)
    if len(raw) == HEAD_BYTES and len(lines) > 1:
        lines.pop()
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise DataError(f"{source} is empty. It must hold at least one interaction.")
    refuse_json(lines[0].lstrip(), source)
    return lines[:SAMPLED_LINES]


def _scan(content: Content, layout: Layout) -> pl.LazyFrame:
    """Every column as text, under its name."""
    if layout.separator == "::":
        return _scan_double_colons(content, layout)
    is_raw = layout.separator in UNQUOTED
    names = None if layout.has_header else layout.names
    frame = _scan_csv(content, layout.separator, names, quote_char=None if is_raw else '"')
    return frame.rename(lambda name: name.strip('"')) if is_raw else frame


def _scan_csv(content: Content, separator: str, names: list[str] | None, **options: Any) -> pl.LazyFrame:
    """A scan whose columns are all text; those of a file without a header are given ``names``."""
    options = {"has_header": names is None, "new_columns": names, "quote_char": None, **options}
    return pl.scan_csv(content, separator=separator, infer_schema=False, glob=False, **options)


def _scan_double_colons(content: Content, layout: Layout) -> pl.LazyFrame:
    """Polars splits at one byte only, so read single colons and leave out the empty columns between."""
    columns = [column for place, name in enumerate(layout.names) for column in (f"gap {place}", name)][1:]
    return _scan_csv(content, ":", columns, skip_rows=int(layout.has_header)).select(layout.names)


def read_text(frame: pl.LazyFrame, wanted: Columns, source: str, *, is_raw: bool = False) -> Table:
    """The table of a scan whose columns are all text; ``is_raw`` where their quotes are still around them."""
    return _open_text(frame, wanted, source, is_raw).table()


def _open_text(
    frame: pl.LazyFrame, wanted: Columns, source: str, is_raw: bool = False, places: tuple[str, ...] = ()
) -> OpenTable:
    # Ids are read as text and made numbers only if all are: a guess from the first rows fails at row 10,001.
    def convert(role: str, column: pl.Series, where: str) -> pl.Series:
        column = unquoted(column) if is_raw else column
        if role == "weight":
            return _numbers(column, where)
        return _numbers_or_text(column) if role == "timestamp" else _ids(column)

    return open_table(frame, wanted, source, convert, places)


def unquoted(column: pl.Series) -> pl.Series:
    """Fields without the quotes that a program put around them; quotes that belong to a title stay.

    A program quotes every field of a column, or those that hold a quote, which it then doubles.
    """
    if not column.str.starts_with('"').any():
        return column
    is_quoted = column.str.contains(r'^"(?:[^"]|"")*"$').fill_null(True)
    chosen = is_quoted if is_quoted.all() else is_quoted & column.str.contains('.""').fill_null(False)
    if not chosen.any():
        return column
    inner = column.str.replace(r'(?s)^"(.*)"$', "$1").str.replace_all('""', '"', literal=True)
    return inner.zip_with(chosen, column)


def _ids(column: pl.Series) -> pl.Series:
    # After ", " every field begins with a blank; it is no part of the id.
    if len(column) and (column[0] or "").startswith(" ") and column.drop_nulls().str.starts_with(" ").all():
        column = column.str.strip_chars_start(" ")
    # RecBole declares its ids as tokens, that is text, even when they look like numbers.
    return column if column.name.endswith(":token") else whole_numbers(column)


def _numbers(column: pl.Series, where: str) -> pl.Series:
    """Ratings; with decimal commas where all that is no number has one."""
    numbers = column.cast(pl.Float64, strict=False)
    left = numbers.is_null() & column.is_not_null()
    if not left.any():
        return numbers
    column = column.str.strip_chars()
    rest = column.filter(left)
    if not rest.str.contains(DECIMAL_COMMA).any():
        return column.cast(pl.Float64, strict=False)
    if column.filter(~left).str.contains(".", literal=True).any() or rest.str.contains(THOUSANDS).all():
        raise DataError(
            f"{where} has numbers such as {rest[0]!r}, and it cannot be told whether their comma marks decimals or "
            f"thousands. Write 3.5 with a point and 1000 without a comma, or pass {OPTIONS['weight']} {IGNORE} to "
            "ignore the column."
        )
    is_decimal = column.str.contains(DECIMAL_COMMA).fill_null(False)
    return column.str.replace(",", ".", literal=True).zip_with(is_decimal, column).cast(pl.Float64, strict=False)


def _numbers_or_text(column: pl.Series) -> pl.Series:
    for dtype in (pl.Int64, pl.Float64):
        numbers = column.cast(dtype, strict=False)
        if numbers.null_count() == column.null_count():
            return numbers
    return column


def _open_lists(content: Content, source: str) -> OpenTable:
    """LightGCN's format: on each line a user and then its items."""
    lines = _scan_csv(content, "\x01", ["line"])
    fields = pl.col("line").str.extract_all(r"\S+")
    frame = (
        lines.select(fields.list.first().alias("user"), fields.list.slice(1).alias("item"))
        .filter(pl.col("item").list.len() > 0)  # a user may have no items in one of the files
        .explode("item")
    )
    return _open_text(frame, Columns(user="user", item="item"), source)
