"""What a source of interactions looks like, in plain numbers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import polars as pl

from topshelf.data.datasets import WHOLE, Dataset, local_file
from topshelf.data.given import MEASURED
from topshelf.data.interaction_datasets import DatasetInfo
from topshelf.data.local_datasets import LocalDataset
from topshelf.data.named import NAMED
from topshelf.data.splits import Split
from topshelf.errors import DataError

PERCENTILES = (0, 10, 50, 90, 99, 100)
FIRST_ROWS = 5
# What is counted in the data of each task.
COUNTED = {
    "interactions": ("users", "items", "interactions"),
    "ranking": ("queries", "documents", "features"),
    "sequences": ("users", "items", "events"),
    "links": ("nodes", "edges", "features"),
}


def describe(source: Dataset, rows: pl.DataFrame | None = None) -> dict[str, Any]:
    """Counts, density, percentiles, ranges and first rows; everything JSON can hold.

    ``rows`` are the first of the source's file (``datasets.source_rows``); without them, the first interactions.
    """
    data = source.interactions()
    rows = data.to_frame().head(FIRST_ROWS) if rows is None else rows
    facts: dict[str, Any] = {
        "name": source.name,
        "users": data.n_users,
        "items": data.n_items,
        "interactions": len(data),
        "density": len(data) / (data.n_users * data.n_items),
        "per_user": _percentiles(data.counts),
        "per_item": _percentiles(data.item_counts),
        "ratings": _range(data.weight),
        "timestamps": _range(data.timestamp if data.events is None else data.events.timestamp),
        "events": None if data.events is None else len(data.events),
        "first_rows": [{name: _plain(value) for name, value in row.items()} for row in rows.iter_rows(named=True)],
        "notes": list(source.notes),
        "guessed": dict(source.guessed),
    }
    if source.split.kind != WHOLE:
        facts["parts"] = {
            name: len(part) for name, part in source.split.parts.items() if name in MEASURED and len(part)
        }
    return facts


def describe_split(split: Split) -> dict[str, Any]:
    """Counts of the three parts and what was dropped on the way."""
    parts = {name: len(split.parts[name]) for name in MEASURED}
    return {"split": split.kind, "users": split.n_users, "items": split.n_items, **parts, **split.notes}


def dataset_table() -> list[dict[str, Any]]:
    """The named datasets of all tasks: what is known of each, its counts, and where its file is."""
    return [
        {"task": task, **asdict(info), "local_file": _local_file(info)}
        for task, known in NAMED.items()
        for info in known.values()
    ]


def _local_file(info: DatasetInfo | LocalDataset) -> str | None:
    if isinstance(info, DatasetInfo) and info.address is None:
        return "generated"
    try:
        path = local_file(info.name) if isinstance(info, DatasetInfo) else info.found()
    except DataError:
        return "damaged file"
    return None if path is None else str(path)


def _percentiles(counts: np.ndarray) -> dict[str, int]:
    values = np.percentile(counts, PERCENTILES, method="nearest")
    return {f"p{percent}": int(value) for percent, value in zip(PERCENTILES, values, strict=True)}


def _range(values: np.ndarray | None) -> list[float] | None:
    return None if values is None or not len(values) else [values.min().item(), values.max().item()]


def _plain(value: Any) -> Any:
    """A value that JSON can hold: dates, bytes and other values as text."""
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
