"""Lists of items for the terminal, for programs (--json), and as files of any size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from topshelf import terminal
from topshelf.errors import ConfigError

if TYPE_CHECKING:
    import polars as pl

    from topshelf.recommender import Recommender

SHOWN = 200  # rows that are printed
REASONS = 3  # own items that --why names per listed item


def is_folder(out: Path | None) -> bool:
    """Whether lists go into a folder of parts: a folder that is there, or a name without an ending."""
    return out is not None and (out.is_dir() or not out.suffix)


def check(out: Path | None, *, as_json: bool = False, may_be_folder: bool = False) -> None:
    """Refuse a file of an unknown format, and two outputs at once."""
    if out is None:
        return
    from topshelf.list_files import check_name

    if not (may_be_folder and is_folder(out)):
        check_name("--out", out)
    if as_json:
        raise ConfigError("give --json or --out FILE, not both; a .jsonl file has the same content")


def opened(run: Path, titles: Path | None) -> Recommender:
    """The recommender of a run folder, with the titles of a file where one is given."""
    from topshelf.recommender import Recommender

    recommender = Recommender.load(run)
    return recommender if titles is None else recommender.set_titles(titles)


def of_new_user(recommender: Recommender, items: str, k: int | None, options: dict[str, Any]) -> pl.DataFrame:
    """The list of a new user with the given items."""
    import polars as pl

    has = [item.strip() for item in items.split(",") if item.strip()]
    return recommender.recommend_new([has], k, **options).with_columns(pl.lit("new").alias("user"))


def write_all(recommender: Recommender, k: int | None, out: Path | None, options: dict[str, Any]) -> None:
    """The lists of all users, block by block."""
    from topshelf.list_files import write_lists

    assert out is not None
    blocks = recommender.recommend_blocks(None, k, **options)
    rows = write_lists(out, _watched(blocks, len(recommender.artifact.users)))
    terminal.say(f"{rows:,} rows written to {out}")


def write_parts(run: Path, out: Path, options: dict[str, Any]) -> None:
    """The lists of all users as a folder of parts."""
    from topshelf.parts import recommend_parts

    rows = recommend_parts(run, out, **options, quiet=False)
    terminal.say(f"{rows:,} rows in the parts of {out}")


def _watched(blocks: Iterator[pl.DataFrame], n_users: int) -> Iterator[pl.DataFrame]:
    """The blocks, with the users that are done as progress."""
    from topshelf.progress import progress_bar

    with progress_bar(False, terminal.TextColumn("{task.completed:,.0f}/{task.total:,.0f} users")) as progress:
        task = progress.add_task("writing lists", total=n_users, shown="")
        for block in blocks:
            yield block
            progress.advance(task, block[block.columns[0]].n_unique())


def give(
    table: pl.DataFrame, out: Path | None, *, recommender: Recommender | None = None, as_json: bool = False
) -> None:
    """Print the lists, or write them in the format of the file's ending. A recommender knows the titles of reasons."""
    if as_json:
        from topshelf.list_files import by_owner

        typer.echo(terminal.as_json(list(by_owner(table))))
    elif out is not None:
        from topshelf.list_files import write_lists

        terminal.say(f"{write_lists(out, [table]):,} rows written to {out}")
    else:
        _print(table, recommender)


def _print(table: pl.DataFrame, recommender: Recommender | None) -> None:
    import polars as pl

    shown = table.head(SHOWN).with_columns(pl.col("score").map_elements("{:.4f}".format, pl.String))
    if "because" in shown.columns and recommender is not None:
        ids, titles = recommender.artifact.items, recommender.artifact.titles
        texts = [
            "; ".join(map(str, own if titles is None else [titles[place] for place in ids.index(own)]))
            for own in shown["because"].to_list()
        ]
        shown = shown.with_columns(pl.Series("because you have", texts, dtype=pl.String)).drop("because")
    terminal.print_table(shown.columns, shown.iter_rows())
    if table.height > SHOWN:
        terminal.say(f"the first {SHOWN} of {table.height:,} rows; --out FILE writes them all")
