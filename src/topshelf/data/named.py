"""All named datasets, by the task that takes them."""

from __future__ import annotations

from collections.abc import Mapping

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
        f"{suggestion(source, names)}"
    )
