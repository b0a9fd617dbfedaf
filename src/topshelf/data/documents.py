"""Documents of queries: features, grades, and which documents belong to one query."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topshelf.errors import DataError, TopshelfWarning
from topshelf.reprs import brief

LARGEST_GRADE = 1000.0  # 2^y is finite in float64


@dataclass(frozen=True, eq=False)
class Documents:
    """Lists of documents, one per query: those of query q are rows ``indptr[q]`` to ``indptr[q + 1]``.

    features   (D, f) float32, finite
    grades     (D,) float32, how relevant each document is, >= 0; 0 is irrelevant
    indptr     (Q + 1,) int64
    query_ids  (Q,) int64 or text, each once
    """

    features: np.ndarray
    grades: np.ndarray
    indptr: np.ndarray
    query_ids: np.ndarray

    def __repr__(self) -> str:
        return brief(self)

    def __len__(self) -> int:
        return self.indptr.size - 1

    @property
    def n_documents(self) -> int:
        return int(self.grades.size)

    @property
    def n_features(self) -> int:
        return int(self.features.shape[1])

    @property
    def lengths(self) -> np.ndarray:
        """Number of documents of each query, (Q,)."""
        return np.diff(self.indptr)

    @property
    def highest_grade(self) -> float:
        return float(self.grades.max()) if self.grades.size else 0.0

    def select(self, queries: np.ndarray) -> Documents:
        """The documents of some queries, in that order."""
        lengths = self.lengths[queries]
        indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        rows = np.repeat(self.indptr[queries] - indptr[:-1], lengths) + np.arange(indptr[-1])
        return Documents(self.features[rows], self.grades[rows], indptr, self.query_ids[queries])

    def none(self) -> Documents:
        """No queries, of the same features."""
        return self.select(np.zeros(0, np.int64))

    def check(self, source: str) -> Documents:
        """These documents, or a DataError that says what is wrong with them; later code trusts every number."""
        _check_shapes(self, source)
        _refuse_first(self, ~np.isfinite(self.grades), source, "a grade that is not a finite number", self.grades)
        _refuse_first(self, self.grades < 0, source, "a negative grade; grades must be >= 0", self.grades)
        _refuse_first(
            self, self.grades > LARGEST_GRADE, source, f"a grade above {LARGEST_GRADE:g}; use grades such as 0 to 4",
            self.grades,
        )  # fmt: skip
        for start in range(0, self.n_documents, 1 << 16):  # in blocks: a mask of all cells may not fit into memory
            block = self.features[start : start + (1 << 16)]
            if not np.isfinite(block).all():
                row, column = (int(at[0]) for at in np.nonzero(~np.isfinite(block)))
                raise DataError(
                    f"{source}: feature {column + 1} of document {start + row + 1} must be a finite number, got "
                    f"{block[row, column]}. Fill in missing values first."
                )
        return self

    def fingerprint(self) -> str:
        """A checksum of everything in it."""
        total = hashlib.sha256()
        for array in (self.features, self.grades, self.indptr):
            total.update(np.ascontiguousarray(array).view(np.uint8).data)
        total.update("\n".join(map(str, self.query_ids.tolist())).encode())
        return total.hexdigest()


@dataclass(frozen=True, eq=False)
class RankingData:
    """Documents for training, validation and test; a part without queries is not there.

    ``feature_names`` are the columns of the features, in order. ``notes`` are sentences for the user,
    ``path`` is where the data were read, None for tables in memory. ``guessed`` are the columns that the
    user did not name.
    """

    name: str
    train: Documents
    valid: Documents
    test: Documents
    feature_names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    path: str | None = None
    guessed: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return brief(self)

    def __post_init__(self) -> None:
        for name, part in self.parts.items():
            if part.n_features != len(self.feature_names):
                raise DataError(
                    f"{self.name}: every part must have the {len(self.feature_names)} features of train, got "
                    f"{part.n_features} in {name}. Write all parts with the same features."
                )

    @property
    def parts(self) -> dict[str, Documents]:
        return {"train": self.train, "valid": self.valid, "test": self.test}

    @property
    def n_features(self) -> int:
        return len(self.feature_names)

    @property
    def highest_grade(self) -> float:
        """The highest grade of all parts: what a document can be worth at most."""
        return max(part.highest_grade for part in self.parts.values())

    def through(self, through: str) -> Documents:
        """What a model may learn from: "train", "valid" (with train), or "all"."""
        names = {"train": ("train",), "valid": ("train", "valid"), "all": ("train", "valid", "test")}[through]
        return concatenate([self.parts[name] for name in names if len(self.parts[name])])

    def warn(self) -> None:
        """Say the notes, each as a :class:`TopshelfWarning`."""
        for line in self.notes:
            warnings.warn(line, TopshelfWarning, stacklevel=3)

    def fingerprints(self) -> dict[str, str]:
        """A checksum per part."""
        return {name: part.fingerprint() for name, part in self.parts.items()}


def concatenate(parts: Sequence[Documents]) -> Documents:
    """The queries of several parts, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([part.lengths for part in parts])
    return Documents(
        np.concatenate([part.features for part in parts]),
        np.concatenate([part.grades for part in parts]),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.concatenate([part.query_ids for part in parts]),
    )


def from_rows(features: np.ndarray, grades: np.ndarray, queries: np.ndarray, source: str) -> Documents:
    """Documents from one row each; the rows of a query must stand together.

    Shapes: features (D, f); grades (D,); queries (D,), the id of each row's query.
    """
    if grades.size == 0:
        raise DataError(f"{source} holds no documents. It must have at least one line per document.")
    starts = np.concatenate([[0], np.flatnonzero(queries[1:] != queries[:-1]) + 1])
    ids = queries[starts]
    known, first = np.unique(ids, return_index=True)
    if known.size < ids.size:
        again = int(np.setdiff1d(np.arange(ids.size), first)[0])
        raise DataError(
            f"{source}: query ids must be contiguous, but query {ids[again]!s} appears again at document "
            f"{int(starts[again]) + 1}, after other queries. Sort the file by query, keeping the order of lines "
            "otherwise (sort --stable)."
        )
    indptr = np.concatenate([starts, [grades.size]]).astype(np.int64)
    return Documents(features.astype(np.float32, copy=False), grades.astype(np.float32, copy=False), indptr, ids)


def _check_shapes(documents: Documents, source: str) -> None:
    features, grades, indptr = documents.features, documents.grades, documents.indptr
    if features.ndim != 2 or features.dtype != np.float32 or features.shape[0] != grades.size:
        raise DataError(f"{source}: features must be float32 (documents, features), got {features.shape}")
    if indptr.ndim != 1 or indptr.dtype != np.int64 or indptr.size < 1:
        raise DataError(f"{source}: indptr must be int64 (queries + 1,), got {indptr.dtype} {indptr.shape}")
    if indptr[0] != 0 or indptr[-1] != grades.size or (np.diff(indptr) < 0).any():
        raise DataError(f"{source}: indptr must ascend from 0 to the number of documents ({grades.size})")
    if grades.ndim != 1 or grades.dtype != np.float32:
        raise DataError(f"{source}: grades must be float32 (documents,), got {grades.dtype} {grades.shape}")
    if documents.query_ids.shape != (indptr.size - 1,):
        raise DataError(f"{source}: there must be {indptr.size - 1} query ids, got {documents.query_ids.shape}")


def _refuse_first(documents: Documents, wrong: np.ndarray, source: str, what: str, values: np.ndarray) -> None:
    if wrong.any():
        row = int(wrong.argmax())
        query = documents.query_ids[int(np.searchsorted(documents.indptr, row, side="right")) - 1]
        raise DataError(f"{source}: document {row + 1} (query {query!s}) has {what}, got {values[row]:g}")
