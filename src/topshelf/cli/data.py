"""topshelf data: the named datasets; show, download and prepare interactions."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from topshelf.cli import completion
from topshelf.cli.options import AsJson, TableOptions, argument, expanded, option
from topshelf.cli.source import datasets, tasks
from topshelf.errors import one_of
from topshelf.terminal import Column, Table, cell, console, print_table, say
from topshelf.terminal import as_json as json_text

app = typer.Typer(help="List named datasets; show, download and prepare interactions.", no_args_is_help=True)

PERCENTILE_NAMES = {"p0": "min", "p10": "10%", "p50": "median", "p90": "90%", "p99": "99%", "p100": "max"}


@app.command("list")
def list_(
    task: Annotated[str | None, option("Only the datasets of this task.", tab=tasks)] = None,
    as_json: AsJson = False,
) -> None:
    """List the named datasets of every task: counts, licence, source, and whether the file is here.

    Examples:

      topshelf data list

      topshelf data list --task sequences
    """
    from topshelf.data import summary

    entries = summary.dataset_table()
    if task is not None:
        one_of("--task", task, summary.COUNTED)
        entries = [entry for entry in entries if entry["task"] == task]
    if as_json:
        typer.echo(json_text(entries))
        return
    for name, counted in summary.COUNTED.items():
        if own := [entry for entry in entries if entry["task"] == name]:
            _print_datasets(name, own, counted)
    say("Download one of task interactions: topshelf data get NAME. topshelf cannot download those of other tasks;")
    say(
        "topshelf data get NAME then says where to get the file and where to put it. Recipes: topshelf data list --json"
    )


def _print_datasets(task: str, entries: list[dict[str, Any]], counted: tuple[str, ...]) -> None:
    """A table of counts, and below it the names with the same licence and source."""
    title = f"topshelf train {'' if task == 'interactions' else f'--task {task} '}--data NAME"
    numbers = [Column(name, justify="right") for name in counted]
    table = Table(Column("name", no_wrap=True), *numbers, "file here", title=title, title_justify="left")
    origins: dict[str, list[str]] = {}
    for entry in entries:
        shown = ("" if entry[name] is None else f"{entry[name]:,}" for name in counted)
        table.add_row(cell(entry["name"]), *shown, cell(_short(entry["local_file"])))
        source = "" if entry["address"] is None else f"; from {_repository(entry['address'])}"
        origins.setdefault(f"{entry['licence']}{source}", []).append(entry["name"])
    console().print(table)
    for origin, names in origins.items():
        say(f"{', '.join(names)}: {origin}")
    say("")


def _repository(address: str) -> str:
    """The page of the repository that a raw file of GitHub is in."""
    raw = "https://raw.githubusercontent.com/"
    return "/".join(["https://github.com", *address.removeprefix(raw).split("/")[:2]]) if raw in address else address


@app.command()
def get(
    name: Annotated[str, argument("NAME", "Dataset name; see topshelf data list.", tab=completion.listed(datasets))],
) -> None:
    """Download a named dataset and verify its checksum; or say where to get it, and where its file must be.

    Example: topshelf data get movielens-100k
    """
    from topshelf.data.datasets import fetch
    from topshelf.data.local_datasets import LocalDataset
    from topshelf.data.named import NAMED

    info = next((known[name] for known in NAMED.values() if name in known), None)
    path = info.locate() if isinstance(info, LocalDataset) else fetch(name)
    is_verified = info is not None and info.sha256 is not None and not path.is_dir()
    say(f"{name}: {path} ({'checksum verified' if is_verified else 'not verified: no checksum is known'})")


@app.command()
@expanded
def show(
    source: Annotated[str, argument("NAME|PATH", "Dataset name, file or folder.", tab=completion.data)],
    options: TableOptions,
    as_json: AsJson = False,
) -> None:
    """Show counts, density, ranges and the first rows of a source.

    Example: topshelf data show gowalla

    Example: topshelf data show clicks.csv --user-column visitor
    """
    from topshelf.data.datasets import read_source, source_rows
    from topshelf.data.summary import FIRST_ROWS, describe

    layout = options.reading()
    loaded = read_source(source, **layout)
    facts = describe(loaded, source_rows(source, FIRST_ROWS, **layout))
    for line in loaded.notes:
        say(f"note: {line}", stderr=True)
    if as_json:
        typer.echo(json_text(facts))
    else:
        _print_facts(facts)


@app.command()
@expanded
def prepare(
    path: Annotated[str, argument("NAME|PATH", "Dataset name or file.", tab=completion.data)],
    out: Annotated[Path, option("Folder to write.")],
    options: TableOptions,
    core: Annotated[int, option("Keep users and items with at least this many interactions.")] = 0,
    split: Annotated[
        str, option("auto, ratio, last or time.", tab=completion.choice("auto", "ratio", "last", "time"))
    ] = "auto",
    test_fraction: Annotated[float, option("Share of the test part.")] = 0.2,
    valid_fraction: Annotated[float, option("Share of train held out for validation.")] = 0.1,
    last_n: Annotated[int, option("Split last: held-out interactions per user.")] = 1,
    seed: Annotated[int, option("Seed of the validation part.")] = 0,
    split_seed: Annotated[int, option("Split ratio: seed of the test part.")] = 0,
    mapped: Annotated[bool, option("Write arrays that are mapped into memory, for data larger than it.")] = False,
) -> None:
    """Clean and split interactions into a folder that --data accepts.

    Example: topshelf data prepare ratings.csv --out prepared --min-rating 3 --core 10

    Example: topshelf data prepare clicks.parquet --out prepared --mapped
    """
    from topshelf.data.prepared import prepare_folder

    fractions = {"test_fraction": test_fraction, "valid_fraction": valid_fraction}
    settings: dict[str, Any] = {"core": core, "split": split, **fractions, "last_n": last_n}
    settings |= {"seed": seed, "split_seed": split_seed, "mapped": mapped}
    say(_outcome(out, prepare_folder(path, out, **settings, **options.reading())))


@app.command()
def expand(
    source: Annotated[str, argument("NAME|PATH", "Dataset name, file or folder.", tab=completion.data)],
    out: Annotated[Path, option("Folder to write.")],
    users: Annotated[int, option("How many users.")],
    items: Annotated[int, option("How many items.")],
    interactions: Annotated[int, option("About how many interactions.")],
    seed: Annotated[int, option("Seed of all draws.")] = 0,
) -> None:
    """Write a larger dataset with the structure of a real one, as Parquet parts; to try out large data.

    Example: topshelf data expand movielens-100k --users 100000 --items 20000 --interactions 2000000 --out big
    """
    from topshelf.data.expand import expand as write_expansion

    made = write_expansion(source, out, users=users, items=items, interactions=interactions, seed=seed)
    say(f"{out}: {made['users']:,} users, {made['items']:,} items, {made['interactions']:,} interactions.")
    say(f"Prepare it: topshelf data prepare {out} --mapped --out FOLDER")


def _outcome(out: Path, summary: dict[str, Any]) -> str:
    from topshelf.data.given import SUMMARY

    parts = ", ".join(f"{summary[name]:,} {name}" for name in ("train", "valid", "test"))
    lines = [f"{out}: {parts} ({summary['split']} split). Details: {out / SUMMARY}"]
    for name in ("test", "valid"):
        if dropped := summary.get(f"dropped_{name}"):
            lines.append(f"Dropped from {name}: {dropped:,} interactions whose user or item is not in train.")
    return "\n".join(lines)


def _short(local_file: str | None) -> str:
    if local_file is None:
        return "no"
    return "yes" if local_file.endswith((".zip", ".whl", ".gz", ".txt")) else local_file


def _print_facts(facts: dict[str, Any]) -> None:
    table = Table(title=cell(facts["name"]), show_header=False)
    if facts["guessed"]:
        table.add_row(
            "columns found", "  ".join(f"{role} {cell(repr(name))}" for role, name in facts["guessed"].items())
        )
    for key in ("users", "items", "interactions"):
        table.add_row(key, f"{facts[key]:,}")
    if facts["events"] is not None:
        table.add_row("events", f"{facts['events']:,} (repeats included)")
    table.add_row("density", f"{facts['density']:.4%}")
    for part, count in facts.get("parts", {}).items():
        table.add_row(part, f"{count:,}")
    for key in ("per_user", "per_item"):
        spread = "  ".join(f"{PERCENTILE_NAMES.get(name, name)} {count:,}" for name, count in facts[key].items())
        table.add_row(key.replace("_", " "), spread)
    table.add_row("ratings", "none" if facts["ratings"] is None else "{} to {}".format(*facts["ratings"]))
    table.add_row("times", "none" if facts["timestamps"] is None else " to ".join(map(_moment, facts["timestamps"])))
    console().print(table)
    print_table(list(facts["first_rows"][0]), [row.values() for row in facts["first_rows"]], title="first rows")


def _moment(number: float) -> str:
    """A time as a date: numbers may be seconds since 1970, or thousandths of them and so on."""
    from topshelf.data.times import seconds_since_1970

    seconds = seconds_since_1970(number)
    return str(number) if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"
