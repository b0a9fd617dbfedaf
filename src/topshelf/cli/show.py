"""Tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.table import Table

from topshelf.errors import ConfigError
from topshelf.evaluation import Evaluation
from topshelf.recommender import Recommender
from topshelf.statistics import PairedResult
from topshelf.training import Fitted


def run(fitted: Fitted, out: Path) -> None:
    """The end of a training run."""
    split, config = fitted.dataset.split, fitted.config
    console = Console()
    found = fitted.evaluate()
    what = config.model.name if fitted.model.is_closed_form else f"{config.model.name} with {config.loss.name}"
    evaluation(found, f"{what} on {fitted.dataset.name}: {split.n_users:,} users, {split.n_items:,} items")
    if split.kind == "ratio":
        console.print(
            "The split is random: the model may know a user's later choices. With timestamps, split by time.",
            style="dim",
        )
    for note, count in split.notes.items():
        console.print(f"{note}: {count:,}", style="dim", highlight=False)
    if not fitted.model.is_closed_form:
        console.print(f"best epoch {fitted.best_epoch}, trained in {fitted.seconds:.1f} s", highlight=False)
    console.print(f"kept in {out}; lists: topshelf recommend {out} --user ID", highlight=False, soft_wrap=True)


def evaluation(found: Evaluation, title: str) -> None:
    """Metrics by cut-off, with an interval for the NDCG."""
    intervals, means = found.intervals(), found.mean()
    table = Table(title=f"{title}\nprotocol {found.protocol}, {found.users.numel():,} users", title_justify="left")
    table.add_column("metric")
    for k in found.cutoffs:
        table.add_column(f"@{k}", justify="right")
    names = dict.fromkeys(name.partition("@")[0] for name in means if "@" in name)
    for name in names:
        table.add_row(name, *(f"{means[f'{name}@{k}']:.4f}" for k in found.cutoffs))
        if name == "ndcg":
            ends = (intervals[f"ndcg@{k}"] for k in found.cutoffs)
            table.add_row("  95% interval", *(f"{low:.4f} to {high:.4f}" for low, high in ends), style="dim")
    for name in dict.fromkeys(name.partition("@")[0] for name in found.extras):
        table.add_row(name, *(f"{found.extras[f'{name}@{k}']:.4f}" for k in found.cutoffs))
    console = Console()
    console.print(table)
    if "auc" in means:
        console.print(f"auc {means['auc']:.4f}", highlight=False)
    if found.n_skipped:
        console.print(f"{found.n_skipped:,} users with nothing to find left out", style="dim", highlight=False)


def paired(result: PairedResult, metric: str, first: str, second: str) -> None:
    Console().print(
        f"{metric}: {first} minus {second} = {result.difference:+.4f} "
        f"(95% interval {result.low:+.4f} to {result.high:+.4f}, p = {result.p_value:.4f}, {result.n:,} users)",
        highlight=False,
        soft_wrap=True,
    )


def recommendations(table: pl.DataFrame, out: Path | None) -> None:
    """Print, or write by the file's ending."""
    if out is None:
        shown = Table(*table.columns)
        for row in table.with_columns(pl.col("score").round(4)).iter_rows():
            shown.add_row(*map(str, row))
        Console().print(shown)
    elif out.suffix in (".csv", ".parquet"):
        table.write_csv(out) if out.suffix == ".csv" else table.write_parquet(out)
        Console().print(f"{table.height:,} rows written to {out}", highlight=False)
    else:
        raise ConfigError(f"--out must end in .csv or .parquet, got {out}")


def ids(recommender: Recommender, texts: Sequence[str] | None) -> list[Any] | None:
    """Ids from the command line in the type of the data's own."""
    if texts is None:
        return None
    is_number = recommender.fitted.dataset.split.users.values.dtype.is_integer()
    try:
        return [int(text) if is_number else text for text in texts]
    except ValueError:
        raise ConfigError(f"--user must be a whole number for this data, got {', '.join(texts)}") from None
