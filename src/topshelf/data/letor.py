"""Files of SVMlight text, as LETOR, MSLR-WEB and Istella have them: ``grade qid:N 1:v 2:v ... # comment``.

Features that are not named are 0. A file is read in pieces, so the memory needed is that of the result; a large one is
kept in the cache as Parquet, which is read several times faster the next time.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import polars as pl

from topshelf import files
from topshelf.data.documents import Documents, from_rows
from topshelf.data.download import cache_folder
from topshelf.data.memory import SHARE, available, size
from topshelf.data.unpack import DAMAGE, open_zip
from topshelf.errors import CheckpointError, DataError

CHUNK = 1 << 24  # bytes of text that are parsed at once
CACHED_FROM = 1 << 23  # bytes of a file, packed or not, from which its numbers are kept
SHORTEST = 4  # bytes of a feature: "1:2 "
THREADS = min(4, os.cpu_count() or 1)
_FORMAT = 1  # of the cache
_SPARE = b"\0\0\0\0"  # the parser looks a few characters ahead
_SHOWN = 60  # characters of a line in a message


class Text(NamedTuple):
    """A file, or a member of a zip."""

    path: Path
    member: str | None = None

    def __str__(self) -> str:
        return str(self.path) if self.member is None else f"{self.path}: {self.member}"

    def key(self, *, is_checked: bool) -> str:
        """Changes when the file does; ``is_checked`` where all lines were found to have one number of features."""
        found = self.path.stat()
        parts = (_FORMAT, self.path.resolve(), self.member, found.st_size, found.st_mtime_ns, is_checked)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


@dataclass
class Block:
    """The documents of one piece of text."""

    features: np.ndarray  # (D, width) float32; other pieces may be wider
    grades: np.ndarray  # (D,) float32
    queries: np.ndarray  # (D,) int64


@dataclass
class Widths:
    """Whether the lines of a file agree on the number of features.

    A file in which every line has features 1, 2, ... without gaps writes zeros too, so a line with fewer is broken.
    """

    count: int = 0
    has_gaps: bool = False
    first_other: tuple[int, int] | None = None  # line and its number of features
    n_lines: int = field(default=0)


def read_letor(text: Text, n_features: int | None = None) -> Documents:
    """The documents of an SVMlight file (.txt, .gz) or of a member of a zip.

    ``n_features``: the number of features; an index above it is refused. Default: the highest index in the file, and
    then lines that have no gaps must all have the same number of features.
    """
    try:
        is_large = text.path.stat().st_size >= CACHED_FROM
    except OSError as error:
        raise DataError(f"{text.path} cannot be read: {error}.") from None
    if not is_large:
        documents = assemble(list(parse_blocks(text, n_features)), str(text))
    else:
        folder = cache_folder() / "letor" / text.key(is_checked=n_features is None)
        documents = _from_cache(folder, text) or _through_cache(folder, text, n_features)
    return widened(documents, n_features, str(text))


def widened(documents: Documents, n_features: int | None, source: str) -> Documents:
    """With zeros for features that no line names."""
    found = documents.n_features
    if n_features is None or found == n_features:
        return documents
    if found > n_features:
        raise DataError(
            f"{source} has feature {found}, but there must be {n_features} features, as in the training data or as "
            "data.n_features says. Write all files with the same features."
        )
    return Documents(
        np.pad(documents.features, ((0, 0), (0, n_features - found))),
        documents.grades,
        documents.indptr,
        documents.query_ids,
    )


def parse_blocks(text: Text, n_features: int | None = None) -> Iterator[Block]:
    """The documents piece by piece, some pieces at once; a queue of a few of them is all that is in memory."""
    widths, waiting = Widths(), deque[tuple[bytes, Future[tuple[Block, np.ndarray]]]]()
    with ThreadPoolExecutor(THREADS, thread_name_prefix="letor") as pool:
        for piece in pieces(text):
            waiting.append((piece, pool.submit(_parse, piece)))
            if len(waiting) > THREADS:
                yield _finished(*waiting.popleft(), text, widths)
        while waiting:
            yield _finished(*waiting.popleft(), text, widths)
    if n_features is None and not widths.has_gaps and widths.first_other is not None:
        line, count = widths.first_other
        raise DataError(
            f"{text} line {line} has {count} features, and the lines before it have {widths.count}: every line must "
            "have the same number. If zeros are left out on purpose, say how many there are: data.n_features "
            "(in Python n_features=...)."
        )


def _finished(piece: bytes, future: Future[tuple[Block, np.ndarray]], text: Text, widths: Widths) -> Block:
    from topshelf.data import letor_parser as parser

    block, report = future.result()
    if report[parser.CODE]:
        _refuse(text, piece, int(report[parser.POSITION]), parser.FAULTS[int(report[parser.CODE])], widths.n_lines)
    first, other = int(report[parser.FIRST_COUNT]), int(report[parser.OTHER_ROW])
    widths.has_gaps |= bool(report[parser.GAPS])
    if widths.first_other is None and first and widths.count not in (0, first):
        widths.first_other = (widths.n_lines + 1, first)
    elif widths.first_other is None and other >= 0:
        widths.first_other = (_line_of_row(piece, other, widths.n_lines), int(report[parser.VALUES]))
    widths.count = widths.count or first
    widths.n_lines += piece.count(b"\n")
    return block


def _parse(piece: bytes) -> tuple[Block, np.ndarray]:
    from topshelf.data import letor_parser as parser

    text = np.frombuffer(piece + _SPARE, np.uint8)
    n_rows, n_values = piece.count(b"\n"), len(piece) // SHORTEST + 1
    grades, queries, ends = np.empty(n_rows, np.float32), np.empty(n_rows, np.int64), np.empty(n_rows, np.int64)
    indices, values = np.empty(n_values, np.int32), np.empty(n_values, np.float32)
    report = np.zeros(8, np.int64)
    report[parser.OTHER_ROW] = -1
    parser.parse(text, len(piece), grades, queries, ends, indices, values, report)
    n, width = int(report[parser.ROWS]), int(report[parser.WIDTH])
    if 4 * n * width > SHARE * available():
        raise DataError(f"a piece of the file has {n:,} documents of {width:,} features, which do not fit into memory")
    dense = np.zeros((n, width), np.float32)
    parser.spread(dense, ends[:n], indices, values)
    if (other := int(report[parser.OTHER_ROW])) >= 0:  # how many features that row has, for the message
        report[parser.VALUES] = ends[other] - (ends[other - 1] if other else 0)
    return Block(dense, grades[:n].copy(), queries[:n].copy()), report


def pieces(text: Text) -> Iterator[bytes]:
    """The content as pieces of whole lines, each ending with a newline."""
    left = b""
    try:
        with _opened(text) as file:
            while part := file.read(CHUNK):
                cut = part.rfind(b"\n") + 1
                if cut:
                    yield left + part[:cut]
                left = part[cut:] if cut else left + part
                if len(left) > CHUNK:
                    raise DataError(f"{text} has a line of more than {size(CHUNK)}. It is no SVMlight text.")
    except DAMAGE as error:
        raise DataError(f"{text} cannot be read: {error or 'it is cut off'}. It is damaged; fetch it again.") from error
    if left:
        yield left + b"\n"


def _opened(text: Text) -> IO[bytes]:
    import gzip

    if text.member is None:
        return gzip.open(text.path, "rb") if text.path.suffix.lower() == ".gz" else text.path.open("rb")  # type: ignore[return-value]
    archive = open_zip(text.path)
    try:
        return archive.open(text.member)
    except KeyError:
        raise DataError(f"{text.path} has no member {text.member!r}; it has {', '.join(_members(archive))}.") from None


def _members(archive: zipfile.ZipFile) -> list[str]:
    return [name for name in archive.namelist() if not name.endswith("/")]


def _refuse(text: Text, piece: bytes, position: int, rule: str, lines_before: int) -> None:
    start = piece.rfind(b"\n", 0, position) + 1
    end = piece.find(b"\n", position)
    line = lines_before + piece.count(b"\n", 0, position) + 1
    # The word that the position is in, or that ends there; the next one where the line begins with blanks.
    begin = max(start, *(piece.rfind(blank, start, position) + 1 for blank in (b" ", b"\t")))
    word = piece[begin:end].split()[:1]
    shown = piece[start : min(end, start + _SHOWN)].decode("utf-8", "replace")
    got = f", got {word[0][:_SHOWN].decode('utf-8', 'replace')!r}" if word else ""
    raise DataError(
        f"{text} line {line}: {rule}{got}. The line begins {shown!r}; SVMlight lines are 'grade qid:N 1:v 2:v ...'."
    )


def _line_of_row(piece: bytes, row: int, lines_before: int) -> int:
    """The line of a document; lines that are empty or comments hold none."""
    for number, line in enumerate(piece.split(b"\n")):
        content = line.strip()
        if content and not content.startswith(b"#"):
            if row == 0:
                return lines_before + number + 1
            row -= 1
    return lines_before + 1


def assemble(blocks: list[Block], source: str) -> Documents:
    """One table of all blocks."""
    n, width = sum(block.grades.size for block in blocks), max((block.features.shape[1] for block in blocks), default=0)
    _check_memory(n, width, source)
    features, start = np.zeros((n, width), np.float32), 0
    for block in blocks:
        rows = block.grades.size
        features[start : start + rows, : block.features.shape[1]] = block.features
        start += rows
    grades = np.concatenate([block.grades for block in blocks]) if blocks else np.zeros(0, np.float32)
    queries = np.concatenate([block.queries for block in blocks]) if blocks else np.zeros(0, np.int64)
    return from_rows(features, grades, queries, source)


def _check_memory(n: int, width: int, source: str) -> None:
    needed, free = 4 * n * width, available()
    if needed > SHARE * free:
        raise DataError(
            f"{source} does not fit into memory: {n:,} documents of {width:,} features need {size(needed)}, and "
            f"{size(free)} are free. Use a machine with more memory, or fewer queries."
        )


def _through_cache(folder: Path, text: Text, n_features: int | None) -> Documents:
    """Parse the text into the cache, then read it from there: only a few pieces are in memory at once."""
    try:
        with files.new_folder(folder, replace=True) as place:
            for number, block in enumerate(parse_blocks(text, n_features)):
                columns = [f"f{j + 1}" for j in range(block.features.shape[1])]
                table = pl.DataFrame({"query": block.queries, "grade": block.grades})
                table = table.hstack(pl.DataFrame(block.features, schema=columns)) if columns else table
                table.write_parquet(place / f"{number:06}.parquet", compression="lz4", statistics=False)
    except CheckpointError as error:
        raise DataError(f"{error} (the cache; TOPSHELF_CACHE names another folder)") from None
    documents = _from_cache(folder, text)
    if documents is None:
        raise DataError(f"{folder} was deleted while it was read. Try again.")
    return documents


def _from_cache(folder: Path, text: Text) -> Documents | None:
    """What an earlier reading of the same file left, or None; what cannot be read is made again."""
    parts = sorted(folder.glob("*.parquet")) if folder.is_dir() else []
    if not parts:
        return None
    try:
        shapes = [(pl.scan_parquet(part, glob=False), part) for part in parts]
        rows = [int(frame.select(pl.len()).collect().item()) for frame, _ in shapes]
        width = max(len(frame.collect_schema()) for frame, _ in shapes) - 2
        _check_memory(sum(rows), width, str(text))
        features, start = np.zeros((sum(rows), width), np.float32), 0
        grades, queries = np.empty(sum(rows), np.float32), np.empty(sum(rows), np.int64)
        for part, n in zip(parts, rows, strict=True):
            table = pl.read_parquet(part, glob=False)
            queries[start : start + n], grades[start : start + n] = table["query"], table["grade"]
            features[start : start + n, : table.width - 2] = table.drop("query", "grade").to_numpy()
            start += n
    except (OSError, ValueError, pl.exceptions.PolarsError):
        return None
    return from_rows(features, grades, queries, str(text)).check(str(text))
