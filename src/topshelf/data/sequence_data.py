"""A source as sequences: any table with times, or a text file with one user per line."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from topshelf.data.columns import Table
from topshelf.data.given import is_given
from topshelf.data.interaction_datasets import DATASETS
from topshelf.data.interactions import Interactions
from topshelf.data.layouts import TABLES
from topshelf.data.named import not_found
from topshelf.data.names import Columns
from topshelf.data.prepare import prepare
from topshelf.data.readers import PARQUET, are_user_lines, read_table, read_user_lines
from topshelf.data.sequence_datasets import SEQUENCE_DATASETS
from topshelf.data.sequence_split import SequenceKind, SequenceSplit, Targets, split_sequences
from topshelf.errors import ConfigError, DataError, TopshelfWarning, one_of
from topshelf.reprs import brief

Format = Literal["auto", "table", "lines"]
Order = Literal["time", "file"]
_SAID = {
    "short": "users with fewer than 3 events, who are in train whole and are not measured",
    "one": "users with a single event in train, which nothing is learned from",
    "none": "users without events in train, of whom nothing is asked",
    "new": "held-out events of items that train does not know, which are {}",
}


@dataclass(frozen=True, eq=False)
class SequenceData:
    """Sequences in three parts, and how they are measured.

    ``exclude_seen``: what a user had before is not ranked. ``targets``: of a user's held-out events the "first" one is
    asked for, or "each" of them. ``notes`` are sentences to be shown before training. ``guessed``: as in ``Dataset``.
    """

    name: str
    split: SequenceSplit
    titles: list[str] | None = None
    notes: tuple[str, ...] = ()
    exclude_seen: bool = True
    targets: Targets = "first"
    guessed: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return brief(self)

    def warn(self) -> None:
        """Say the notes, each as a :class:`TopshelfWarning`."""
        for line in self.notes:
            warnings.warn(line, TopshelfWarning, stacklevel=3)


def load_sequences(
    source: str | Path,
    *,
    format: Format = "auto",
    user: str | None = None,
    item: str | None = None,
    weight: str | None = None,
    timestamp: str | None = None,
    dates: str | None = None,
    order: Order = "time",
    min_rating: float | None = None,
    core: int = 0,
    split: SequenceKind = "last",
    test_fraction: float = 0.1,
    valid_fraction: float = 0.1,
    exclude_seen: bool = True,
    targets: Targets = "first",
    test: bool = True,
) -> SequenceData:
    """A file or a named dataset as sequences, cut in three. Without ``test`` each user's last events are left out."""
    path = _path(source)
    columns = Columns(user, item, weight, timestamp, dates)
    table, is_lines = _read(path, format, columns)
    data = Interactions.from_canonical(table.frame, notes=table.notes)
    info = SEQUENCE_DATASETS.get(str(source))
    if info is not None:
        info.check_counts({"users": data.n_users, "items": data.n_items, "events": len(table.frame)}, path)
    is_ordered = is_lines or one_of("order", order, ("time", "file")) == "file"
    return cut(
        data,
        path.name if info is None else info.name,
        is_ordered=is_ordered,
        by_file=order == "file",
        min_rating=min_rating,
        core=core,
        split=split,
        test_fraction=test_fraction,
        valid_fraction=valid_fraction,
        exclude_seen=exclude_seen,
        targets=targets,
        test=test,
    )


def cut(
    data: Interactions,
    name: str,
    *,
    is_ordered: bool = False,
    by_file: bool = False,
    min_rating: float | None = None,
    core: int = 0,
    split: SequenceKind = "last",
    test_fraction: float = 0.1,
    valid_fraction: float = 0.1,
    exclude_seen: bool = True,
    targets: Targets = "first",
    test: bool = True,
) -> SequenceData:
    """Interactions as sequences in three parts; ``by_file`` takes the order of the rows, whatever their times."""
    if by_file and data.timestamp is not None:
        raise ConfigError("data.order = 'file' is for rows without times; leave the time column out, or data.order")
    data, _ = prepare(data, min_rating=min_rating, core=core)
    parts = split_sequences(
        data, kind=split, test_fraction=test_fraction, valid_fraction=valid_fraction, is_ordered=is_ordered
    )
    left_out = [f"{count:,} {said(key, split)}" for key, count in parts.notes.items() if count]
    notes = (
        *replace(data.notes, repeats=0).lines(),
        *left_out,
        *_about_repeats(parts, exclude_seen, targets, "test" if test else "valid"),
    )
    split_parts = parts if test else parts.without_test()
    return SequenceData(name, split_parts, None, notes, exclude_seen, targets, data.notes.guessed)


def said(note: str, kind: str) -> str:
    """What a note of a split counts."""
    return _SAID.get(note, note).format("left out" if kind == "time" else "counted as misses")


def _about_repeats(
    split: SequenceSplit, exclude_seen: bool, targets: Targets, part: Literal["valid", "test"]
) -> list[str]:
    asked = split.asked(part, targets)
    n_repeats, n = int(split.is_repeat(asked).sum()), len(asked.rows)
    if not exclude_seen or not n_repeats:
        return []
    return [
        f"{n_repeats:,} of {n:,} {part} events are of items that the user had before. Lists leave those out "
        "(data.exclude_seen), so they count as misses; set data.exclude_seen = false to recommend items again"
    ]


def _path(source: str | Path) -> Path:
    """The file of a source; of a named dataset, wherever the user keeps it."""
    name, path = str(source), Path(source)
    if name in SEQUENCE_DATASETS:
        return SEQUENCE_DATASETS[name].locate()
    if name in DATASETS or is_given(path):
        raise ConfigError(
            f"data.source must be a file of events in order, and {source} comes as sets of items already split; use "
            "task interactions for it"
        )
    if not os.path.exists(path):  # noqa: PTH110  also False for a name that is too long
        raise not_found(name, "sequences")
    return path


def _read(path: Path, format: Format, columns: Columns) -> tuple[Table, bool]:
    """The table of a file, and whether it has one user per line."""
    if one_of("format", format, ("auto", "table", "lines")) != "lines":
        try:
            if format == "table" or not are_user_lines(path, columns):
                return read_table(path, columns), False
        except DataError as error:
            if format == "table" or path.name.lower().removesuffix(".gz").endswith((*TABLES, *PARQUET)):
                raise
            hint = "If each line is a user and then its items, oldest first, set data.format = 'lines'"
            raise DataError(f"{error} {hint}") from None
    given: dict[str, Any] = {name: value for name, value in columns._asdict().items() if value is not None}
    if given:
        raise DataError(f"{path} has one user per line and no columns, got {given}; leave them out")
    return read_user_lines(path), True
