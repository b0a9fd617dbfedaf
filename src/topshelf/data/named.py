"""All named datasets, by the task that takes them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

from topshelf.data.interaction_datasets import DATASETS, DatasetInfo
from topshelf.data.link_datasets import LINK_DATASETS
from topshelf.data.local_datasets import LocalDataset
from topshelf.data.ranking_datasets import RANKING_DATASETS
from topshelf.data.sequence_datasets import SEQUENCE_DATASETS
from topshelf.errors import DataError, suggestion

NAMED: dict[str, Mapping[str, DatasetInfo | LocalDataset]] = {
    "interactions": DATASETS,
    "ranking": RANKING_DATASETS,
    "sequences": SEQUENCE_DATASETS,
    "links": LINK_DATASETS,
}


def task_of(name: str) -> str | None:
    """The first task that has a dataset of this name."""
    return next((task for task, known in NAMED.items() if name in known), None)


def not_found(source: str, task: str) -> DataError:
    """The error for a source that is neither there nor a named dataset of the task."""
    if owners := [other for other, known in NAMED.items() if source in known]:
        return DataError(
            f"{source!r} is a named dataset of task {' and '.join(owners)}, not of task {task}; use --task {owners[0]} "
            f'(in Python task="{owners[0]}")'
        )
    names = list(NAMED[task])
    return DataError(
        f"{source!r} is neither a file nor a named dataset of task {task}. Named datasets: {', '.join(names)}"
        f"{suggestion(source, names) or _file_like(source)}"
    )


def _file_like(source: str) -> str:
    """The file of that folder whose name is closest, as the end of a message."""
    path = Path(source)
    try:
        names = [one.name for one in path.parent.iterdir() if not one.name.startswith(".")]
    except (OSError, ValueError):
        return ""
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.8)
    return f"; did you mean {path.with_name(close[0])}?" if close else ""
