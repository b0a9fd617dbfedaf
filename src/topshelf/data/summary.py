"""What a source of interactions looks like, in plain numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from topshelf.data.datasets import DATASETS, DatasetInfo, Source, local_file
from topshelf.data.given import GivenSplit
from topshelf.data.interactions import Interactions
from topshelf.data.splits import Split
from topshelf.errors import DataError

PERCENTILES = (0, 10, 50, 90, 99, 100)
FIRST_ROWS = 5


def describe(source: Source) -> dict[str, Any]:
    """Counts, density, percentiles, ranges and first rows; everything JSON can hold."""
    data = source.interactions()
    facts: dict[str, Any] = {
        "name": source.name,
        "users": data.n_users,
        "items": data.n_items,
        "interactions": len(data),
        "density": len(data) / (data.n_users * data.n_items),
        "per_user": _percentiles(data.counts),
        "per_item": _percentiles(data.item_counts),
        "ratings": _range(data.weight),
        "timestamps": _range(data.timestamp),
        "first_rows": _first_rows(data),
        "notes": list(source.notes.lines()),
    }
    if isinstance(source.content, GivenSplit):
        parts = {"train": source.content.train, "valid": source.content.valid, "test": source.content.test}
        facts["parts"] = {name: len(part) for name, part in parts.items() if part is not None}
    return facts


def describe_split(split: Split) -> dict[str, Any]:
    """Counts of the three parts and what was dropped on the way."""
    parts = {name: len(getattr(split, name)) for name in ("train", "valid", "test")}
    return {"split": split.kind, "users": split.n_users, "items": split.n_items, **parts, **split.notes}


def catalogue() -> list[dict[str, Any]]:
    """The named datasets, with where each one is."""
    return [
        {
            "name": info.name,
            "title": info.title,
            "users": info.users,
            "items": info.items,
            "interactions": info.interactions,
            "train": info.train,
            "test": info.test,
            "at_hand": _whereabouts(info),
            "recipe": info.recipe,
            "licence": info.licence,
            "address": info.address,
            "sha256": info.sha256,
        }
        for info in DATASETS.values()
    ]


def _whereabouts(info: DatasetInfo) -> str | None:
    if info.address is None:
        return "generated"
    try:
        path = local_file(info.name)
    except DataError:
        return "damaged file"
    return None if path is None else str(path)


def _percentiles(counts: np.ndarray) -> dict[str, int]:
    values = np.percentile(counts, PERCENTILES, method="nearest")
    return {f"p{percent}": int(value) for percent, value in zip(PERCENTILES, values, strict=True)}


def _range(values: np.ndarray | None) -> list[float] | None:
    return None if values is None or not len(values) else [values.min().item(), values.max().item()]


def _first_rows(data: Interactions) -> list[dict[str, Any]]:
    head = data.where(np.arange(len(data)) < FIRST_ROWS)
    return head.to_frame().with_columns(pl.col(pl.Float32).cast(pl.Float64)).to_dicts()
