"""Lists for the users of a Spark DataFrame, by ``mapInPandas``. Needs ``pip install 'topshelf[spark]'`` and a JVM."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from topshelf.engines.lister import Lister
from topshelf.errors import one_of

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

_TYPES = {pl.Int64: "bigint", pl.String: "string", pl.Float32: "float", pl.Float64: "double"}


def recommend(
    users: DataFrame,
    run: str | Path,
    k: int | None = None,
    *,
    column: str = "user",
    filter_seen: bool | None = None,
    allow: Collection[str] = (),
) -> DataFrame:
    """The best ``k`` items of each user of a DataFrame: the rows of :meth:`topshelf.Recommender.recommend`, lazily.

    ``column`` has the user ids; other columns are left out. Users that the run does not know are an error. Batches are
    those of ``spark.sql.execution.arrow.maxRecordsPerBatch``. Their order is Spark's: sort by user and rank where it
    matters.
    """
    one_of("column", column, users.columns)
    lister = Lister.of(run, k, filter_seen, allow)
    schema = ", ".join(f"`{name}` {_TYPES[type(kind)]}" for name, kind in lister.columns().items())

    def lists(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            yield as_pandas(lister(as_series(batch[column])))

    return users.select(column).mapInPandas(lists, schema)


def as_series(ids: Any) -> pl.Series:
    """User ids of pandas: whole numbers, or text."""
    return pl.Series(ids.to_numpy() if ids.dtype.kind in "iu" else ids.to_list())


def as_pandas(lists: pl.DataFrame) -> pd.DataFrame:
    """The same rows; a score that is not there becomes None, which NaN is not."""
    import pandas as pd

    def column(values: pl.Series) -> Any:
        return pd.array(values.to_list(), dtype="Float32") if values.null_count() else values.to_numpy()

    return pd.DataFrame({name: column(values) for name, values in lists.to_dict().items()})
