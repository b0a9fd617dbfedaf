"""CSV and Parquet files of documents: a column of queries, one of grades, and one per feature."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from topshelf.data.columns import attempt, whole_numbers
from topshelf.data.documents import Documents, from_rows
from topshelf.data.frames import of_frame
from topshelf.data.readers import PARQUET, check_parquet
from topshelf.errors import DataError

TABLES = (*PARQUET, ".csv", ".tsv")
QUERY_NAMES = ("query", "query_id", "qid", "queryid", "srch_id", "group", "group_id", "session")
GRADE_NAMES = ("grade", "label", "relevance", "rel", "target", "y")


class TableColumns(NamedTuple):
    """The columns of a table of documents; None: guessed, and every other column of numbers is a feature."""

    query: str | None = None
    grade: str | None = None
    features: tuple[str, ...] | None = None


class DocumentTable(NamedTuple):
    """Documents, and the names of their features."""

    documents: Documents
    feature_names: tuple[str, ...]


def is_table(path: Path) -> bool:
    """Whether a file is a table by its name; .csv.gz and .tsv.gz too."""
    name = path.name.lower()
    return name.removesuffix(".gz").endswith(TABLES)


def read_document_table(path: Path, columns: TableColumns, *, needs_grades: bool = True) -> DocumentTable:
    """The documents of a table; without ``needs_grades`` a missing column of grades is as good as zeros."""
    return _read(_scan(path), columns, str(path), needs_grades)


def guessed_columns(path: Path, columns: TableColumns) -> tuple[tuple[str, str], ...]:
    """What the columns of the query and the grade are taken to be where they are not named; only the header is read."""
    names = attempt(_scan(path).collect_schema, str(path)).names()
    known = {"query": (columns.query, QUERY_NAMES), "grade": (columns.grade, GRADE_NAMES)}
    return tuple(
        (what, _column(None, common, names, what, str(path)))
        for what, (given, common) in known.items()
        if given is None
    )


def documents_of_frame(frame: Any, columns: TableColumns, *, needs_grades: bool = True) -> DocumentTable:
    """The documents of a polars or pandas frame, as :func:`read_document_table` reads a file."""
    if not isinstance(frame, pl.LazyFrame):
        data = of_frame(frame, "the table")
        frame = data.take(data.names, None).lazy()
    return _read(frame, columns, "the table", needs_grades)


def _read(frame: pl.LazyFrame, columns: TableColumns, source: str, needs_grades: bool) -> DocumentTable:
    schema = attempt(frame.collect_schema, source)
    query = _column(columns.query, QUERY_NAMES, schema.names(), "query", source)
    grade = _grade(columns.grade, schema.names(), source, needs_grades)
    if attempt(frame.head(1).collect, source).is_empty():
        raise DataError(f"{source} holds no documents: it has columns but no rows.")
    names = _features(columns.features, schema, {query, grade}, source)
    if columns.features is None:
        _refuse_spoilt(frame, schema, {query, grade}, source)
    chosen = [pl.col(query), *([] if grade is None else [pl.col(grade)])]
    casts = [_number(name, schema[name]) for name in names]
    table = attempt(lambda: frame.select(*chosen, *casts).collect(engine="streaming"), source)
    queries = _query_ids(table[query], source)
    grades = np.zeros(len(table), np.float32) if grade is None else _grades(table[grade], source)
    features = _matrix(table, names, source)
    return DocumentTable(from_rows(features, grades, queries, source).check(source), names)


def _scan(path: Path) -> pl.LazyFrame:
    source = str(path)
    if not path.is_file():
        raise DataError(f"{source} is not a file. Check the path.")
    if path.suffix.lower() in PARQUET:
        check_parquet(path)
        return attempt(lambda: pl.scan_parquet(path, glob=False), source)
    separator = "\t" if ".tsv" in path.name.lower() else ","
    return attempt(lambda: pl.scan_csv(path, separator=separator, infer_schema_length=10_000, glob=False), source)


def _column(given: str | None, common: Sequence[str], names: list[str], what: str, source: str) -> str:
    if given is not None:
        if given not in names:
            raise DataError(f"{source} has no column {given!r} (data.{what}); it has {_some(names)}.")
        return given
    by_lower = {name.lower(): name for name in reversed(names)}
    for name in common:
        if name in by_lower:
            return by_lower[name]
    raise DataError(
        f"{source}: no column looks like that of the {what}; it has {_some(names)}. Name it: --set data.{what}=COLUMN "
        f"(in Python {what}=...)."
    )


def _grade(given: str | None, names: list[str], source: str, needs_grades: bool) -> str | None:
    try:
        return _column(given, GRADE_NAMES, names, "grade", source)
    except DataError:
        if needs_grades:
            raise
        return None


def _features(given: tuple[str, ...] | None, schema: pl.Schema, taken: set[str | None], source: str) -> tuple[str, ...]:
    if given is not None:
        missing = [name for name in given if name not in schema]
        if missing:
            raise DataError(
                f"{source} must have the {len(given)} features {_some(given)}, and has no {_some(missing)}."
            )
        if both := [name for name in given if name in taken]:
            raise DataError(f"{source}: {both[0]!r} cannot be a feature, for it is the query or the grade.")
        return tuple(given)
    names = tuple(name for name, dtype in schema.items() if name not in taken and _is_number(dtype))
    if not names:
        raise DataError(f"{source} has no column of numbers beside {_some([one for one in taken if one])}.")
    return names


def _refuse_spoilt(frame: pl.LazyFrame, schema: pl.Schema, taken: set[str | None], source: str) -> None:
    """Refuse columns of text that are numbers but for some words: they would be left out of the features unnoticed."""
    texts = [name for name, dtype in schema.items() if dtype == pl.String and name not in taken]
    filled = [pl.col(name).count().alias(f"{place} filled") for place, name in enumerate(texts)]
    parsed = [pl.col(name).cast(pl.Float64, strict=False).count().alias(f"{place}") for place, name in enumerate(texts)]
    counts = attempt(lambda: frame.select(*filled, *parsed).collect(engine="streaming"), source).row(0) if texts else ()
    for name, n_filled, n_numbers in zip(texts, counts[: len(texts)], counts[len(texts) :], strict=True):
        if 2 * n_numbers > n_filled:
            column = attempt(frame.select(name).collect, source)[name]
            raise _not_numbers(column, source, "; or list the features without it (data.features)")


def _not_numbers(column: pl.Series, source: str, otherwise: str = "") -> DataError:
    """What is wrong with a feature that was read as text."""
    finite = column.cast(pl.Float64, strict=False).is_finite().fill_null(False)
    wrong = ~finite & column.is_not_null()
    where = f"{column.filter(wrong)[0]!r} in row {_first(wrong)}" if wrong.any() else "text"
    return DataError(f"{source}: feature {column.name!r} must hold finite numbers, got {where}. Correct it{otherwise}.")


def _is_number(dtype: pl.DataType) -> bool:
    return dtype.is_numeric() or dtype == pl.Boolean


def _number(name: str, dtype: pl.DataType) -> pl.Expr:
    # A column that is numbers but for some words was read as text: those words are named in the message below.
    return pl.col(name) if dtype == pl.String else pl.col(name).cast(pl.Float32)


def _query_ids(column: pl.Series, source: str) -> np.ndarray:
    if column.dtype == pl.String:
        column = whole_numbers(column)
    if not (column.dtype.is_integer() or column.dtype == pl.String):
        raise DataError(f"{source}: column {column.name!r} must hold query ids, whole numbers or text; got "
                        f"{column.dtype}.")  # fmt: skip
    if column.null_count():
        raise DataError(f"{source}: column {column.name!r} has no query id in row {_first(column.is_null())}.")
    return column.to_numpy().astype(np.int64 if column.dtype.is_integer() else np.str_)


def _grades(column: pl.Series, source: str) -> np.ndarray:
    if not _is_number(column.dtype):
        numbers = column.cast(pl.Float64, strict=False) if column.dtype == pl.String else None
        wrong = (
            ""
            if numbers is None or not numbers.is_null().any()
            else f", such as {column.filter(numbers.is_null())[0]!r}"
        )
        raise DataError(f"{source}: column {column.name!r} must hold grades, numbers >= 0; got {column.dtype}{wrong}.")
    if column.null_count():
        raise DataError(f"{source}: column {column.name!r} has no grade in row {_first(column.is_null())}.")
    return column.cast(pl.Float32).to_numpy()


def _matrix(table: pl.DataFrame, names: tuple[str, ...], source: str) -> np.ndarray:
    features = np.empty((len(table), len(names)), np.float32)
    for place, name in enumerate(names):
        column = table[name]
        if column.dtype == pl.String:
            raise _not_numbers(column, source)
        if not column.dtype.is_numeric():
            raise DataError(f"{source}: feature {name!r} must hold numbers, got {column.dtype}.")
        if column.null_count():
            raise DataError(
                f"{source}: feature {name!r} is missing in row {_first(column.is_null())}. Fill it in first."
            )
        features[:, place] = column.to_numpy()
    return features


def _first(flags: pl.Series) -> int:
    return int(flags.arg_max() or 0) + 1


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
