"""topshelf rank."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from topshelf.cli import lists
from topshelf.cli.options import Allow, ListFile, RunPath, argument, option


def rank(
    run: RunPath,
    file: Annotated[Path, argument("FILE", "File of queries: SVMlight text, CSV or Parquet.")],
    k: Annotated[int | None, option("Only the first K places of each query, best first; default: all.")] = None,
    out: ListFile = None,
    allow: Allow = None,  # noqa: ARG001
) -> None:
    """Score the documents of new queries with a run of task ranking.

    The file must have the features of the run's data; grades may be left out of CSV and Parquet files. The result has
    a row per document: its query, its place in the file's list, its score and its rank.

    Examples:

      topshelf rank runs/ranker new.txt --out scores.csv

      topshelf rank runs/ranker new.parquet --k 10
    """
    lists.check(out)
    from topshelf.ranker import Ranker

    lists.give(Ranker.load(run).rank(file, k), out)
