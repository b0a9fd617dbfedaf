"""Documents with an order that can be learned, as a table, as SVMlight text, and as RankingData."""

from __future__ import annotations

import numpy as np
import polars as pl

from topshelf.data.documents import RankingData
from topshelf.data.ranking_sources import split_documents
from topshelf.data.ranking_tables import TableColumns, documents_of_frame

NAMES = ("clicks", "age", "match", "noise")


def table(n_queries: int = 60, seed: int = 0, first: int = 0) -> pl.DataFrame:
    """Three to twelve documents per query; the grade, 0 to 3, follows from the first three features."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 13, n_queries)
    n = int(lengths.sum())
    features = rng.normal(size=(n, len(NAMES)))
    starts = np.cumsum(lengths) - lengths
    features[starts, :3], features[starts + 1, :3] = (2.5, 0, 0), (-2.5, 0, 0)  # so that every query has an order
    signal = features[:, 0] - 0.5 * features[:, 1] + features[:, 2] + 0.2 * rng.normal(size=n)
    columns = {"query": np.repeat(np.arange(first, first + n_queries), lengths), "grade": np.clip(signal.round(), 0, 3)}
    return pl.DataFrame(columns | dict(zip(NAMES, features.T, strict=True)))


def svmlight(frame: pl.DataFrame) -> str:
    rows = frame.select("grade", "query", *NAMES).iter_rows()
    return "".join(
        f"{grade:g} qid:{query} " + " ".join(f"{j + 1}:{value:.6f}" for j, value in enumerate(values)) + "\n"
        for grade, query, *values in rows
    )


def ranking_data(n_queries: int = 60, seed: int = 0) -> RankingData:
    documents, names = documents_of_frame(table(n_queries, seed), TableColumns())
    return split_documents(documents, names, name="made up")
