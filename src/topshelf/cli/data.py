"""``topshelf data``: see, fetch and prepare interactions."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from topshelf.data.datasets import DATASETS, fetch, load_split, read_source, source_rows
from topshelf.data.given import SUMMARY, write_split
from topshelf.data.summary import FIRST_ROWS, dataset_table, describe, describe_split
from topshelf.errors import ConfigError
from topshelf.terminal import Table, cell, console, say
from topshelf.terminal import as_json as as_json_text

app = typer.Typer(help="See, fetch and prepare interactions.", no_args_is_help=True)

PERCENTILE_NAMES = {"p0": "min", "p10": "10%", "p50": "median", "p90": "90%", "p99": "99%", "p100": "max"}
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
UserColumn = Annotated[str | None, typer.Option(help="Column of the users; guessed if left out.")]
ItemColumn = Annotated[str | None, typer.Option(help="Column of the items; guessed if left out.")]
RatingColumn = Annotated[str | None, typer.Option(help="Column of the ratings; 'none' to ignore it.")]
TimeColumn = Annotated[str | None, typer.Option(help="Column of the times; 'none' to ignore it.")]
Dates = Annotated[
    str | None, typer.Option(help="Order of dates such as 12/01/2020: day-first or month-first; found if left out.")
]
Separator = Annotated[str | None, typer.Option(help="Between the columns: one character or '::'; found if left out.")]


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the named datasets.

    Example: topshelf data list
    """
    entries = dataset_table()
    if as_json:
        typer.echo(as_json_text(entries))
        return
    table = Table()
    table.add_column("name", no_wrap=True)
    for count in ("users", "items", "interactions"):
        table.add_column(count, justify="right")
    table.add_column("local file")
    for entry in entries:
        counts = (entry[count] for count in ("users", "items", "interactions"))
        shown = ("" if count is None else f"{count:,}" for count in counts)
        table.add_row(cell(entry["name"]), *shown, cell(_short(entry["at_hand"])))
    console().print(table)
    typer.echo("Fetch one: topshelf data get NAME. Recipes, licences and addresses: topshelf data list --json")


@app.command()
def get(name: Annotated[str, typer.Argument(help="Name of a dataset; see `topshelf data list`.")]) -> None:
    """Fetch a named dataset into the cache and verify its checksum.

    Example: topshelf data get movielens-100k
    """
    path = fetch(name)
    known = DATASETS[name].sha256 is not None
    say(f"{name}: {path} ({'checksum verified' if known else 'no checksum is known, so it is unverified'})")


@app.command()
def show(
    source: Annotated[str, typer.Argument(metavar="NAME|PATH", help="A named dataset, a file or a folder.")],
    user_column: UserColumn = None,
    item_column: ItemColumn = None,
    rating_column: RatingColumn = None,
    time_column: TimeColumn = None,
    dates: Dates = None,
    separator: Separator = None,
    as_json: AsJson = False,
) -> None:
    """Show the counts, the density, the ranges and the first rows of a source.

    Example: topshelf data show gowalla

    Example: topshelf data show clicks.csv --user-column visitor
    """
    layout = _layout(user_column, item_column, rating_column, time_column, separator) | {"dates": dates}
    loaded = read_source(source, **layout)
    facts = describe(loaded, source_rows(source, FIRST_ROWS, **layout))
    for line in loaded.notes:
        say(f"note: {line}", stderr=True)
    if as_json:
        typer.echo(as_json_text(facts))
    else:
        _print_facts(facts)


@app.command()
def prepare(
    path: Annotated[str, typer.Argument(help="File of interactions, or the name of a dataset.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    min_rating: Annotated[float | None, typer.Option(help="Keep ratings of at least this.")] = None,
    core: Annotated[int, typer.Option(help="Keep users and items with at least this many interactions.")] = 0,
    split: Annotated[str, typer.Option(help="auto, ratio, last or time.")] = "auto",
    test_fraction: Annotated[float, typer.Option(help="Share of the test part.")] = 0.2,
    valid_fraction: Annotated[float, typer.Option(help="Share of train that becomes validation.")] = 0.1,
    last_n: Annotated[int, typer.Option(help="For the last split: how many of each user's last.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the validation part.")] = 0,
    split_seed: Annotated[int, typer.Option(help="Seed of the test part, for the ratio split.")] = 0,
    user_column: UserColumn = None,
    item_column: ItemColumn = None,
    rating_column: RatingColumn = None,
    time_column: TimeColumn = None,
    dates: Dates = None,
    separator: Separator = None,
) -> None:
    """Clean and split interactions into a folder that `--data` accepts.

    Example: topshelf data prepare ratings.csv --out prepared --min-rating 3 --core 10
    """
    settings: dict[str, Any] = {"min_rating": min_rating, "core": core, "split": split}
    settings |= {"test_fraction": test_fraction, "valid_fraction": valid_fraction, "last_n": last_n}
    settings |= {"seed": seed, "split_seed": split_seed}
    layout = _layout(user_column, item_column, rating_column, time_column, separator) | {"dates": dates}
    dataset = load_split(path, **settings, **layout)
    if not len(dataset.split.test):
        raise ConfigError(
            "--test-fraction must be > 0 here, for a prepared folder holds a test part, got 0. To train without one, "
            "give the file itself: topshelf train --data FILE --set data.test_fraction=0"
        )
    dataset.warn()
    summary = {"source": path, **describe_split(dataset.split), "notes": list(dataset.notes), "settings": settings}
    write_split(dataset.split, out, summary)
    say(_outcome(out, summary))


def _layout(
    user: str | None, item: str | None, rating: str | None, time: str | None, separator: str | None
) -> dict[str, Any]:
    if separator is not None:
        separator = separator.replace("\\t", "\t")  # few shells let one type a tab
    return {"user": user, "item": item, "weight": rating, "timestamp": time, "separator": separator}


def _outcome(out: Path, summary: dict[str, Any]) -> str:
    parts = ", ".join(f"{summary[name]:,} {name}" for name in ("train", "valid", "test"))
    lines = [f"{out}: {parts} ({summary['split']} split). Details: {out / SUMMARY}"]
    for name in ("test", "valid"):
        if dropped := summary.get(f"dropped_{name}"):
            lines.append(f"Dropped from {name}: {dropped:,}, for train does not know their user or item.")
    return "\n".join(lines)


def _short(at_hand: str | None) -> str:
    if at_hand is None:
        return "no"
    return "yes" if at_hand.endswith((".zip", ".whl")) else at_hand


def _print_facts(facts: dict[str, Any]) -> None:
    table = Table(title=cell(facts["name"]), show_header=False)
    for key in ("users", "items", "interactions"):
        table.add_row(key, f"{facts[key]:,}")
    table.add_row("density", f"{facts['density']:.4%}")
    for part, count in facts.get("parts", {}).items():
        table.add_row(part, f"{count:,}")
    for key in ("per_user", "per_item"):
        spread = "  ".join(f"{PERCENTILE_NAMES.get(name, name)} {count:,}" for name, count in facts[key].items())
        table.add_row(key.replace("_", " "), spread)
    table.add_row("ratings", "none" if facts["ratings"] is None else "{} to {}".format(*facts["ratings"]))
    table.add_row("times", "none" if facts["timestamps"] is None else " to ".join(map(_moment, facts["timestamps"])))
    console().print(table)
    rows = Table(*map(cell, facts["first_rows"][0]), title="first rows")
    for row in facts["first_rows"]:
        rows.add_row(*map(cell, row.values()))
    console().print(rows)


def _moment(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):  # not seconds since 1970, so the bare number says more
        return str(seconds)
