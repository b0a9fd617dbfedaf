"""``topshelf data prepare``: a source, cleaned and split, as a folder that every command takes as data."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any, Unpack

from topshelf import files
from topshelf.data import streaming
from topshelf.data.datasets import check_given, load_split, refuse_changes
from topshelf.data.given import SUMMARY, given_split, is_given, prepared_folder, write_split
from topshelf.data.interaction_datasets import DATASETS
from topshelf.data.mapped import read_mapped, seal, write_mapped
from topshelf.data.named import not_found
from topshelf.data.names import ColumnNames, Columns
from topshelf.data.readers import open_source
from topshelf.data.shards import ROWS, sort_rows, store_rows
from topshelf.data.splits import SPLITS
from topshelf.data.streaming_given import is_tables, stream_tables
from topshelf.data.summary import describe_split
from topshelf.errors import ConfigError, TopshelfWarning, one_of

ROW_BYTES = 40  # of a row while it is streamed: a column as it is read and as it is kept


def prepare_folder(
    source: str | Path,
    out: str | Path,
    *,
    mapped: bool = False,
    separator: str | None = None,
    min_rating: float | None = None,
    core: int = 0,
    split: str = "auto",
    test_fraction: float = 0.2,
    valid_fraction: float = 0.1,
    last_n: int = 1,
    seed: int = 0,
    split_seed: int = 0,
    rows_at_once: int = ROWS,
    **columns: Unpack[ColumnNames],
) -> dict[str, Any]:
    """Clean and split a source into a folder that takes its place as data; returns its summary.

    ``mapped`` writes arrays that are mapped into memory, not Parquet tables, and reads a file, or a folder of Parquet
    parts, column by column and ``rows_at_once`` at once: for data larger than memory. The result is the same.
    """
    one_of("split", split, SPLITS)
    settings: dict[str, Any] = {"min_rating": min_rating, "core": core, "split": split}
    settings |= {"test_fraction": test_fraction, "valid_fraction": valid_fraction, "last_n": last_n}
    settings |= {"seed": seed, "split_seed": split_seed}
    _refuse_no_test(test_fraction)
    out, path = Path(out), Path(source)
    is_named = str(source) in DATASETS
    reading = {"separator": separator, **columns}
    if mapped and not is_named and is_tables(path):
        check_given(str(source), min_rating=min_rating, core=core or None, **reading)
        return _given(path, out, settings, rows_at_once)
    if not mapped or is_named or is_given(path):
        return _in_memory(source, out, settings, mapped, reading)
    if not os.path.exists(path):  # noqa: PTH110  also False for a name that is too long
        raise not_found(str(source), "interactions")
    with prepared_folder(out) as fresh:
        summary, notes = _streamed(path, fresh, settings, Columns(**columns), separator, rows_at_once)
        summary = {"source": str(source), **summary, "notes": list(notes), "settings": settings}
        files.write_text(fresh / SUMMARY, json.dumps(summary, indent=2) + "\n")
    for line in notes:
        warnings.warn(line, TopshelfWarning, stacklevel=2)
    return summary


def _refuse_no_test(test_fraction: float) -> None:
    if test_fraction == 0:
        raise ConfigError(
            "--test-fraction must be > 0 here, because a prepared folder has a test part, got 0. To train without one, "
            "give the file itself: topshelf train --data FILE --set data.test_fraction=0"
        )


def _in_memory(
    source: str | Path, out: Path, settings: dict[str, Any], mapped: bool, reading: dict[str, Any]
) -> dict[str, Any]:
    dataset = load_split(source, **settings, **reading)
    dataset.warn()
    described = describe_split(dataset.split)
    summary = {"source": str(source), **described, "notes": list(dataset.notes), "settings": settings}
    if not mapped:
        write_split(dataset.split, out, summary)
        return summary
    with prepared_folder(out) as fresh:
        write_mapped(dataset.split, fresh)
        files.write_text(fresh / SUMMARY, json.dumps(summary, indent=2) + "\n")
    return summary


def _given(path: Path, out: Path, settings: dict[str, Any], at_once: int) -> dict[str, Any]:
    """A folder of tables, part by part; that no two parts share an interaction is checked at the end."""
    refuse_changes(
        {name: settings[name] for name in ("split", "test_fraction", "last_n", "split_seed")}, "the test part"
    )
    if (path / "valid.parquet").is_file():
        refuse_changes({"valid_fraction": settings["valid_fraction"]}, "the validation part")
    carving = {name: settings[name] for name in ("valid_fraction", "seed")}
    with prepared_folder(out) as fresh:
        sums, described, ids = stream_tables(path, fresh, **carving, row_bytes=ROW_BYTES, at_once=at_once)
        seal(fresh, sums, *ids)
        given_split(**read_mapped(fresh)).check()
        summary = {"source": str(path), **described, "notes": [], "settings": settings}
        files.write_text(fresh / SUMMARY, json.dumps(summary, indent=2) + "\n")
    return summary


def _streamed(
    path: Path, fresh: Path, settings: dict[str, Any], wanted: Columns, separator: str | None, at_once: int
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Write a file into the folder; what is stored on the way is in a folder of its own inside, removed at the end."""
    settings = {**settings, "kind": settings["split"], "at_once": at_once}
    cleaning = {name: settings.pop(name) for name in ("min_rating", "core")}
    del settings["split"]
    work = fresh / "work"
    work.mkdir()
    table = open_source(path, wanted, separator, row_bytes=ROW_BYTES)
    data = sort_rows(store_rows(table, work, at_once), work, at_once)
    kept, below = streaming.clean(data, work, **cleaning, at_once=at_once)
    sums, summary = streaming.split(kept, below, fresh, **settings)
    seal(fresh, sums, kept.users, kept.items)
    shutil.rmtree(work)
    return summary, data.notes.lines(summary["split"])
