"""Lists for the users of a Ray Dataset, by ``map_batches``. Needs ``pip install 'topshelf[ray]'``."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import polars as pl

from topshelf.engines.lister import Lister
from topshelf.errors import one_of

if TYPE_CHECKING:
    import pyarrow as pa
    from ray.data import Dataset


def recommend(
    users: Dataset,
    run: str | Path,
    k: int | None = None,
    *,
    column: str = "user",
    filter_seen: bool | None = None,
    allow: Collection[str] = (),
    batch_size: int = 4096,
    **options: Any,
) -> Dataset:
    """The best ``k`` items of each user of a Dataset: the rows of :meth:`topshelf.Recommender.recommend`, lazily.

    ``column`` has the user ids; other columns are left out. Users that the run does not know are an error. ``options``
    go to ``Dataset.map_batches``, such as ``num_cpus=2`` or ``concurrency=8``. The order of batches is Ray's: sort by
    user and rank where it matters.
    """
    one_of("column", column, users.columns() or [])
    lister = Lister.of(run, k, filter_seen, allow)

    def lists(batch: pa.Table) -> pa.Table:
        return lister(cast(pl.Series, pl.from_arrow(batch[column]))).to_arrow()

    return users.map_batches(lists, batch_format="pyarrow", batch_size=batch_size, zero_copy_batch=True, **options)
