"""Any source of documents as train, validation and test: files, folders, zips and named datasets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from topshelf.data.documents import Documents, RankingData, concatenate
from topshelf.data.letor import Text, read_letor
from topshelf.data.named import not_found
from topshelf.data.ranking_datasets import RANKING_DATASETS
from topshelf.data.ranking_tables import TableColumns, guessed_columns, is_table, read_document_table
from topshelf.data.unpack import open_zip
from topshelf.errors import ConfigError, DataError, at_least

PARTS = ("train", "valid", "test")
TEXTS = (".txt", ".gz", ".letor", ".svm", ".svmlight", ".libsvm", ".dat")
_WORDS = {
    "train": {"train", "training", "trainingset", "trainset"},
    "valid": {"vali", "valid", "val", "validation", "validationset", "dev"},
    "test": {"test", "testing", "testset"},
}
_SECTION = re.compile(r"s([1-5])", re.IGNORECASE)  # LETOR's S1 to S5
_FOLD = re.compile(r"fold[ _-]?(\d+)", re.IGNORECASE)
_LEAST_QUERIES = 2


@dataclass(frozen=True)
class Reading:
    """How files of documents are read."""

    columns: TableColumns
    n_features: int | None = None

    def read(self, texts: list[Text]) -> tuple[Documents, tuple[str, ...]]:
        """The documents of some files as one part, and the names of their features."""
        if _is_table(texts[0]):
            parts, names = zip(*(read_document_table(text.path, self.columns) for text in texts), strict=True)
            return concatenate(parts), names[0]
        _check_numbered(str(texts[0]), self.columns.features)
        found = [read_letor(text, self.n_features).check(str(text)) for text in texts]
        widest = max(part.n_features for part in found)
        if len({part.n_features for part in found}) > 1:  # parts of one fold; zeros may be left out at the end of lines
            found = [read_letor(text, widest) for text in texts]
        return _once(concatenate(found), texts), tuple(str(j + 1) for j in range(widest))

    def like(self, names: tuple[str, ...]) -> Reading:
        """The same for further files, which must have these features."""
        return replace(self, columns=self.columns._replace(features=names), n_features=len(names))


def load_ranking(
    source: str | Path,
    *,
    valid: str | Path | None = None,
    test: str | Path | None = None,
    query: str | None = None,
    grade: str | None = None,
    features: tuple[str, ...] | None = None,
    n_features: int | None = None,
    fold: int = 1,
    valid_fraction: float = 0.2,
    test_fraction: float = 0.2,
    seed: int = 0,
    split_seed: int = 0,
    with_test: bool = True,
) -> RankingData:
    """Documents for training, validation and test.

    ``source`` is a named dataset, a file, or a folder or zip with files for train, validation and test (or with a
    folder per fold). With files for ``valid`` or ``test`` it is the file for training. A part that is not given is
    taken from train by query: the test part by ``split_seed``, validation by ``seed``. Without ``with_test`` a test
    part is not read.
    """
    at_least("fold", fold, 1)
    given = {"valid": valid, "test": test}
    name, path, texts = _texts(source, {part: Path(file) for part, file in given.items() if file is not None}, fold)
    reading = Reading(TableColumns(query, grade, features), n_features)
    if name in RANKING_DATASETS:
        RANKING_DATASETS[name].refuse({"query": query, "grade": grade, "features": features, "n_features": n_features})
        reading = replace(reading, n_features=RANKING_DATASETS[name].features)
    elif not _is_table(texts["train"][0]):
        _refuse_columns(name, {"query": query, "grade": grade, "features": features})
    has_test = "test" in texts
    if not with_test:
        texts = {part: files for part, files in texts.items() if part != "test"}
    parts, names = _read(texts, reading)
    fractions = (valid_fraction, 0.0 if has_test else test_fraction)
    data = _in_parts(name, parts, names, fractions, (seed, split_seed))
    is_single = _is_table(texts["train"][0])
    guessed = guessed_columns(texts["train"][0].path, reading.columns) if is_single else ()
    test_part = data.test if with_test else data.test.none()
    return replace(data, path=str(path.absolute()), test=test_part, guessed=guessed)


def _is_table(text: Text) -> bool:
    return text.member is None and is_table(text.path)


def _refuse_columns(name: str, settings: Mapping[str, object]) -> None:
    for setting, value in settings.items():
        if value is not None:
            raise ConfigError(
                f"data.{setting} names columns, and {name} is SVMlight text without any; leave it out, got {value!r}"
            )


def _check_numbered(source: str, names: tuple[str, ...] | None) -> None:
    """Refuse SVMlight text where features have names: which number is which feature is not known."""
    if names is not None and names != tuple(str(place + 1) for place in range(len(names))):
        raise DataError(
            f"{source} is SVMlight text, whose features have numbers only; those of the training data have names, such "
            f"as {names[0]!r}. Write it as CSV or Parquet with these columns."
        )


def split_documents(
    documents: Documents,
    feature_names: tuple[str, ...],
    *,
    name: str,
    valid_fraction: float = 0.2,
    test_fraction: float = 0.2,
    seed: int = 0,
    split_seed: int = 0,
) -> RankingData:
    """Documents as train, validation and test, by query."""
    if len(documents) < _LEAST_QUERIES:
        raise _too_few(name)
    return _in_parts(name, {"train": documents}, feature_names, (valid_fraction, test_fraction), (seed, split_seed))


def _in_parts(
    name: str,
    parts: dict[str, Documents],
    names: tuple[str, ...],
    fractions: tuple[float, float],
    seeds: tuple[int, int],
) -> RankingData:
    """The parts that are there, and the others drawn from train; of validation and test, in that order."""
    if "test" not in parts and fractions[1]:
        parts["train"], parts["test"] = _carve(parts["train"], fractions[1], seeds[1], name, "test")
    if "valid" not in parts:
        parts["train"], parts["valid"] = _carve(parts["train"], fractions[0], seeds[0], name, "valid")
    data = RankingData(name, parts["train"], parts["valid"], parts.get("test", parts["train"].none()), names)
    return replace(data, notes=_notes(data))


def read_documents(path: str | Path, columns: TableColumns, *, needs_grades: bool = False) -> Documents:
    """A file of new queries with the features of a model (``columns.features``), for scoring or evaluation.

    ``needs_grades`` refuses a table without a column of grades; without it such a table has zeros.
    """
    path = Path(path)
    if is_table(path):
        return read_document_table(path, columns, needs_grades=needs_grades).documents
    if not _exists(path) or path.is_dir():
        raise DataError(f"{path} is not a file. Check the path.")
    assert columns.features is not None
    _check_numbered(str(path), columns.features)
    return read_letor(_single(path), len(columns.features)).check(str(path))


def _read(texts: Mapping[str, list[Text]], reading: Reading) -> tuple[dict[str, Documents], tuple[str, ...]]:
    train, names = reading.read(texts["train"])
    if len(train) < _LEAST_QUERIES:
        raise _too_few(str(texts["train"][0]))
    like = reading.like(names)
    return {"train": train, **{part: like.read(files)[0] for part, files in texts.items() if part != "train"}}, names


def _too_few(source: str) -> DataError:
    return DataError(
        f"{source} has one query only; at least {_LEAST_QUERIES} are needed to learn from. Is the query column the "
        "right one?"
    )


def _once(documents: Documents, texts: list[Text]) -> Documents:
    """Refuse queries that are in several files of one part."""
    known, counts = np.unique(documents.query_ids, return_counts=True)
    if known.size < len(documents):
        where = " and ".join(map(str, texts))
        raise DataError(f"query {known[counts > 1][0]!s} is in more than one of {where}. A query must be in one file.")
    return documents


def _texts(source: str | Path, given: dict[str, Path], fold: int) -> tuple[str, Path, dict[str, list[Text]]]:
    """The name of a source, where it is, and the files of its parts."""
    name = str(source)
    path = RANKING_DATASETS[name].locate() if name in RANKING_DATASETS else Path(source)
    if not _exists(path):
        raise not_found(name, "ranking")
    if not given:
        return name if name in RANKING_DATASETS else path.name, path, _parts_of(_listed(path), fold, str(path))
    if name in RANKING_DATASETS or path.is_dir():
        raise ConfigError(
            f"data.source must be the file for training where data.{next(iter(given))} is given, got {name!r}"
        )
    return path.name, path, {part: [_single(file)] for part, file in {"train": path, **given}.items()}


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, or with a NUL
        return False


def _single(path: Path) -> Text:
    """A file; of a zip its only member."""
    if path.suffix.lower() != ".zip":
        return Text(path)
    members = _listed(path)
    if len(members) != 1:
        raise DataError(f"{path} must hold one file, got {len(members)}. Unpack it, or pass it alone as data.source.")
    return next(iter(members.values()))


def _listed(path: Path) -> dict[str, Text]:
    """The files of documents in a source, by their names inside it."""
    if path.is_dir():
        inside = {str(file.relative_to(path)): Text(file) for file in sorted(path.rglob("*")) if file.is_file()}
    elif path.suffix.lower() == ".zip":
        with open_zip(path) as archive:
            inside = {name: Text(path, name) for name in sorted(archive.namelist()) if not name.endswith("/")}
    else:
        return {path.name: Text(path)}
    found = {name: text for name, text in inside.items() if _is_documents(name)}
    if not found:
        raise DataError(f"{path} holds no files of documents ({', '.join(TEXTS)}, .csv, .tsv, .parquet).")
    return found


def _is_documents(name: str) -> bool:
    file = Path(name)
    is_known = file.suffix.lower() in TEXTS or is_table(file)
    return is_known and not file.name.lower().startswith(("readme", ".", "license"))


def _parts_of(files: dict[str, Text], fold: int, source: str) -> dict[str, list[Text]]:
    """Which files are train, validation and test."""
    if len(files) == 1:
        return {"train": list(files.values())}
    sections = {int(match[1]): text for name, text in files.items() if (match := _SECTION.fullmatch(Path(name).stem))}
    if len(sections) == 5:
        return _rotation(sections, fold, source)
    folds = {int(match[1]) for name in files if (match := _FOLD.search(str(Path(name).parent)))}
    if folds:
        if fold not in folds:
            raise ConfigError(f"data.fold must be one of {sorted(folds)} for {source}, got {fold}")
        files = {name: text for name, text in files.items() if _is_of_fold(name, fold)}
    elif fold != 1:
        raise ConfigError(f"data.fold must be 1 for {source}, which has no folds; got {fold}")
    parts = {part: [text for name, text in files.items() if _WORDS[part] & _words(name)] for part in PARTS}
    for part, texts in parts.items():
        if len(texts) > 1 or (part == "train" and not texts):
            raise DataError(
                f"{source}: there must be one file for {part} with that word in its name, got {len(texts)} of "
                f"{', '.join(files)}. Name the files: data.source for train, data.valid and data.test."
            )
    return {part: texts for part, texts in parts.items() if texts}


def _words(name: str) -> set[str]:
    return set(re.split(r"[^a-z]+", Path(name).name.lower()))


def _is_of_fold(name: str, fold: int) -> bool:
    match = _FOLD.search(str(Path(name).parent))
    return match is not None and int(match[1]) == fold


def _rotation(sections: dict[int, Text], fold: int, source: str) -> dict[str, list[Text]]:
    """LETOR's five folds: three parts train, the next one validation, the last one test."""
    if fold > len(sections):
        raise ConfigError(f"data.fold must be 1 to {len(sections)} for {source}, got {fold}")
    order = [sections[(fold - 1 + place) % 5 + 1] for place in range(5)]
    return {"train": order[:3], "valid": order[3:4], "test": order[4:]}


def _carve(train: Documents, fraction: float, seed: int, name: str, part: str) -> tuple[Documents, Documents]:
    """Some queries of train as another part, drawn by the seed; both keep their order."""
    if not 0 < fraction < 1:
        raise ConfigError(f"data.{part}_fraction must lie between 0 and 1, got {fraction!r}")
    n_taken = max(1, round(fraction * len(train)))
    if len(train) - n_taken < _LEAST_QUERIES:
        raise DataError(
            f"{name} has {len(train)} queries, too few to take {n_taken} as the {part} part. Use more queries, or "
            f"give data.{part}."
        )
    taken = np.zeros(len(train), bool)
    taken[np.random.default_rng([seed, PARTS.index(part)]).permutation(len(train))[:n_taken]] = True
    return train.select(np.flatnonzero(~taken)), train.select(np.flatnonzero(taken))


def has_order(documents: Documents) -> np.ndarray:
    """Queries with documents of different grades, (Q,): the others say nothing about order."""
    starts, filled = documents.indptr[:-1], documents.lengths > 0
    differs = np.zeros(len(documents), bool)
    if filled.any():
        highest = np.maximum.reduceat(documents.grades, starts[filled])
        lowest = np.minimum.reduceat(documents.grades, starts[filled])
        differs[filled] = highest > lowest
    return differs


def _notes(data: RankingData) -> tuple[str, ...]:
    """What a user should know before training."""
    flat = int((~has_order(data.train)).sum())
    if flat == len(data.train):
        raise DataError(
            f"{data.name}: in every query of train all documents have one grade, so there is nothing to learn. Is the "
            "grade column the right one?"
        )
    share = f"{flat:,} of {len(data.train):,} queries of train have documents of one grade only"
    return (f"{share}; they say nothing about order and are left out of training.",) if flat else ()
