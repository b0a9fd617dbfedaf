"""Edge lists: CSV and its kin, and Parquet, with two columns of node ids of any kind. Files are untrusted."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import NamedTuple

import polars as pl

from topshelf.data.columns import attempt, canonical, not_utf8
from topshelf.data.ids import IdMap
from topshelf.data.layouts import fields, is_number
from topshelf.data.memory import Allowance
from topshelf.data.names import IGNORE, Columns
from topshelf.data.readers import PARQUET, read_text, scan_parquet
from topshelf.data.unpack import gunzip
from topshelf.errors import DataError

SEPARATORS = ("\t", ",", ";", "|", " ")
# Compared without case and punctuation, as (source, target).
KNOWN_PAIRS = (
    "source target",
    "src dst",
    "from to",
    "fromnodeid tonodeid",
    "sourceid targetid",
    "fromid toid",
    "head tail",
    "u v",
    "node1 node2",
    "node1id node2id",
    "nodea nodeb",
    "id1 id2",
    "follower followee",
    "follower followed",
    "citing cited",
    "start end",
)
COMMENTS = (b"#", b"%")  # lines before the table in SNAP's and KONECT's files


class EdgeTable(NamedTuple):
    """The rows of an edge list, and the names that its two columns have in the file."""

    frame: pl.DataFrame
    names: tuple[str, str]


def read_edges(path: str | Path, *, source: str | None = None, target: str | None = None) -> EdgeTable:
    """The rows of an edge list as two columns ``source`` and ``target`` of ids, all whole numbers or all text.

    Columns that are not named are found by their usual names, or are the first two of a file without a header.
    """
    path, where = Path(path), str(path)
    if not path.is_file():
        raise DataError(f"{where} is not a file. data.source must be an edge list (csv, tsv, txt, parquet).")
    if path.suffix.lower() in PARQUET:
        frame = scan_parquet(path)
        names = _chosen(attempt(frame.collect_schema, where).names(), source, target, where)
        table = canonical(frame, Columns(*names, IGNORE, IGNORE), where).frame
    else:
        table, names = _read_text_file(path, source, target, where)
    columns = [table["user"].alias("source"), table["item"].alias("target")]
    if len({column.dtype for column in columns}) > 1:  # numbers in one column and text in the other: all are text
        columns = [column.cast(pl.String) for column in columns]
    return EdgeTable(pl.DataFrame(columns), names)


def _read_text_file(path: Path, source: str | None, target: str | None, where: str) -> EdgeTable:
    content = gunzip(path) if path.suffix.lower() == ".gz" else _bytes(path)
    content = _without_comments(content, where)
    lines = _first_lines(content, where)
    separator = _separator(lines, where)
    rows = [fields(line, separator) for line in lines]
    has_header = _has_header(rows, source, target, where)
    names = rows[0] if has_header else [f"column {place + 1}" for place in range(len(rows[0]))]
    chosen = _chosen(names, source, target, where, has_header=has_header)
    frame = pl.scan_csv(
        content,
        separator=separator,
        has_header=has_header,
        new_columns=None if has_header else names,
        quote_char=None if separator == "\t" else '"',
        infer_schema=False,
    )
    frame = frame.rename(dict(zip(attempt(frame.collect_schema, where).names(), names, strict=True)))
    table = read_text(frame, Columns(*chosen, IGNORE, IGNORE), where, is_raw=separator == "\t").frame
    return EdgeTable(table, chosen)


def _bytes(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be opened: {error}.") from error
    Allowance(str(path)).take(len(content), content.count(b"\n"))
    return content


def _without_comments(content: bytes, where: str) -> bytes:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in content[: 1 << 18]:
        raise DataError(f"{where} is not a text file in UTF-8. Known formats: csv, tsv, txt (also .gz), parquet.")
    content = content.removeprefix(codecs.BOM_UTF8)
    start = 0
    while content.startswith(COMMENTS, start):
        end = content.find(b"\n", start)
        start = len(content) if end < 0 else end + 1
    return content[start:]


def _first_lines(content: bytes, where: str) -> list[str]:
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(content[: 1 << 18], final=False)
    except UnicodeDecodeError:
        raise not_utf8(where) from None
    lines = [line for line in re.split(r"\r?\n", text)[:100] if line.strip()]
    if not lines:
        raise DataError(f"{where} is empty. It must hold at least one edge.")
    return lines


def _separator(lines: list[str], where: str) -> str:
    """The first that parts every line into the same number of fields, two at least."""
    for separator in SEPARATORS:
        counts = {len(fields(line, separator)) for line in lines[:50]}
        if len(counts) == 1 and counts.pop() > 1:
            return separator
    raise DataError(
        f"{where}: its lines must have the same number of fields, two at least, separated by tab, comma, semicolon, "
        f"bar or one space; the first line is {lines[0][:80]!r}."
    )


def _has_header(rows: list[list[str]], source: str | None, target: str | None, where: str) -> bool:
    first = rows[0]
    if source in first or target in first or _known_pair(first) is not None:
        return True
    if any(is_number(field) for field in first):
        return False
    if any(any(is_number(field) for field in row) for row in rows[1:]):
        return True
    raise DataError(
        f"{where}: cannot tell whether its first line {first} names the columns or is an edge. Give it a header line "
        "source,target, or name the columns (data.source_column, data.target_column)."
    )


def _known_pair(names: list[str]) -> tuple[str, str] | None:
    by_key = {re.sub(r"[\W_]+", "", name.lower()): name for name in names}
    for pair in KNOWN_PAIRS:
        source, target = pair.split()
        if source in by_key and target in by_key:
            return by_key[source], by_key[target]
    return None


def _chosen(
    names: list[str], source: str | None, target: str | None, where: str, *, has_header: bool = True
) -> tuple[str, str]:
    """The names of the two columns."""
    known = _known_pair(names) or ((names[0], names[1]) if len(names) == 2 or not has_header else (None, None))
    chosen = (source or known[0], target or known[1])
    listed = ", ".join(map(repr, names))
    for setting, name in zip(("data.source_column", "data.target_column"), chosen, strict=True):
        if name is None:
            raise DataError(
                f"{where}: cannot tell which columns hold the edges; they are {listed}. "
                f"Name them: --set data.source_column=COLUMN --set data.target_column=COLUMN."
            )
        if names.count(name) != 1:
            raise DataError(f"{where}: {setting} must be one of its columns ({listed}), got {name!r}.")
    if chosen[0] == chosen[1]:
        raise DataError(f"{where}: data.source_column and data.target_column must differ, got {chosen[0]!r} for both.")
    return str(chosen[0]), str(chosen[1])


def node_ids(edges: pl.DataFrame) -> IdMap:
    """All nodes of an edge list, in order."""
    return IdMap.sorted_from(pl.concat([edges["source"], edges["target"]]))
