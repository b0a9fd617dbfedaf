"""topshelf update, forget and changes: what becomes of a run later."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from topshelf import terminal
from topshelf.cli import completion
from topshelf.cli.options import Allow, AsJson, ColumnOptions, Quiet, RunPath, Titles, argument, expanded, option
from topshelf.errors import ConfigError

if TYPE_CHECKING:
    from topshelf.training import Fitted
    from topshelf.versions import Changes, Forgotten

_LISTED = 5  # items of a person that are printed


@expanded
def update(
    run: RunPath,
    columns: ColumnOptions,
    data: Annotated[Path | None, option("File of new interactions, read like the run's own data.")] = None,
    out: Annotated[Path | None, option("Folder for the updated run; default: the next free name, RUN-2.")] = None,
    replace: Annotated[bool, option("Put the updated run in the place of RUN.", "--replace")] = False,
    titles: Titles = None,
    allow: Allow = None,  # noqa: ARG001
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Update a run with new interactions, users and items, without training from the start.

    Closed-form models are fitted to all data; trained ones are trained for a few more epochs, about a tenth of a full
    training. The updated run has learned from everything, and is a run like any other. First the old model is measured
    on the new interactions of users and items that it knows. RUN stays as it is, unless --replace is given.

    Examples:

      topshelf update runs/clicks --data week.csv

      topshelf update runs/clicks --data week.csv --replace

      topshelf update runs/clicks --data week.parquet --user-column buyer --titles items.csv --out runs/monday
    """
    if data is None:
        raise ConfigError("give --data FILE: the new interactions")
    from topshelf import versions

    place = _place(run, out, replace)
    options: dict[str, Any] = {"columns": columns.reading(), "titles": titles, "quiet": quiet}
    updated = versions.update(run, data, out=None if replace else place, replaced=replace, **options)
    if as_json:
        step, measured = updated.origin.lineage[-1], updated.measured
        typer.echo(terminal.as_json({"run": str(place), **step, "measured": measured and measured["mean"]}))
    else:
        _say_updated(updated, run, place)


@expanded
def forget(
    run: RunPath,
    user: Annotated[list[str] | None, option("User id. Repeatable.")] = None,
    users: Annotated[Path | None, option("File of user ids: one per line, or a column of a CSV or Parquet.")] = None,
    out: Annotated[Path | None, option("Folder for the run without them; default: it replaces RUN.")] = None,
    refit: Annotated[bool, option("Also train again, without them, what all users share.", "--refit")] = False,
    allow: Allow = None,  # noqa: ARG001
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Remove users from a run: their ids, interactions, vectors and thresholds.

    Without --out the run is replaced all at once. The files of the new run are searched for the ids. Closed-form
    models are fitted again without these users. In trained models, what all users share (vectors of items) was learned
    with them too; --refit trains it again, now or, without --user and --users, later.

    Examples:

      topshelf forget runs/clicks --user 42

      topshelf forget runs/clicks --users gone.csv --refit --out runs/without

      topshelf forget runs/clicks --refit
    """
    if user is None and users is None and not refit:
        raise ConfigError("give --user ID (may be given again), or --users FILE")
    from topshelf import versions
    from topshelf.versions.searching import read_ids

    wanted = [*(user or []), *(read_ids(users) if users is not None else [])]
    place = _place(run, out or run, out is None)
    gone = versions.forget(run, wanted, out=out, replaced=out is None, refit=refit, quiet=quiet)
    if as_json:
        assert gone.found is not None
        files = {"files_searched": gone.found.files, "bytes_searched": gone.found.size, "found": []}
        counts = {"run": str(place), "users": gone.users, "interactions": gone.interactions}
        typer.echo(terminal.as_json({**counts, "unknown": len(gone.unknown), "owing": gone.owing, **files}))
    else:
        _say_forgotten(gone, run, place)


def changes(
    old: Annotated[Path, argument("OLD", "Run folder of the older version.", tab=completion.runs)],
    new: Annotated[Path, argument("NEW", "Run folder of the newer version.", tab=completion.runs)],
    k: Annotated[int | None, option("Length of the lists; default: the K of OLD.")] = None,
    people: Annotated[int, option("How many of the most changed users to show.")] = 5,
    titles: Titles = None,
    allow: Allow = None,  # noqa: ARG001
    as_json: AsJson = False,
) -> None:
    """Compare the lists of two versions of a run: what changed, and for whom.

    Metrics of several runs on one test part are compared by topshelf compare.

    Example: topshelf changes runs/clicks runs/clicks-2 --k 10 --titles items.csv
    """
    from topshelf.artifact import Artifact
    from topshelf.data.titles import read_titles
    from topshelf.versions import changes as compared

    opened = [Artifact.open(path) for path in (old, new)]
    for version in opened if titles is not None else []:
        version.titles = read_titles(titles, version.items, version.titles)
    found = compared(*opened, k=k, people=people)
    if as_json:
        typer.echo(terminal.as_json({"old": str(old), "new": str(new), **found.to_json()}))
    else:
        _show(found, old, new)


def _place(run: Path, out: Path | None, replace: bool) -> Path:
    """Where the new version goes; a used place is refused before any work."""
    from topshelf.training.folder import RunFolder
    from topshelf.versions import next_name

    if replace:
        if out not in (None, run):
            raise ConfigError("give --out FOLDER or --replace, not both")
        return run
    RunFolder.open(run)
    place = out or next_name(run)
    RunFolder(place).check_new()
    return place


def _say_updated(updated: Fitted, run: Path, place: Path) -> None:
    step, measured = updated.origin.lineage[-1], updated.measured
    counts = ("users", "items", "interactions")
    new = ", ".join(f"{step[what]:,} {what if step[what] != 1 else what[:-1]}" for what in counts)
    terminal.say(f"new: {new} ({step['repeats']:,} known pairs again); learned in {step['seconds']:.1f} s")
    if measured is not None:
        metric = updated.task.metric(updated.config)
        low, high = measured["interval"][metric]
        terminal.say(
            f"the old model on them, before it saw them: {metric} {measured['mean'][metric]:.4f} ({low:.4f} to "
            f"{high:.4f}), {measured['n_evaluated']:,} users"
        )
    split = updated.dataset.split
    terminal.say(f"the updated run knows {split.n_users:,} users and {split.n_items:,} items")
    compare = "" if place == run else f"; what changed: topshelf changes {run} {place}"
    terminal.say(f"kept in {place}; {updated.task.usage(str(place))}{compare}")


def _say_forgotten(gone: Forgotten, run: Path, place: Path) -> None:
    if gone.users:
        terminal.say(f"removed: {_counted(gone.users, 'user')} with {_counted(gone.interactions, 'interaction')}")
    else:
        terminal.say("removed: nobody; what all users share was trained again, without those who were forgotten before")
    if gone.unknown:
        terminal.say(f"{_counted(len(gone.unknown), 'id')} of the given ones are not in the run")
    if gone.found is not None and gone.users:
        terminal.say(
            f"searched {gone.found.files} files of {place} ({gone.found.size:,} bytes) for the ids: nothing left"
        )
    if gone.owing:
        terminal.say(
            f"the shared numbers of {', '.join(gone.owing)} (vectors of items) were learned with them too; train them "
            f"again without them: topshelf forget {place} --refit"
        )
    if place != run:
        terminal.say(f"{run} still holds them: delete it, and its copies")
    terminal.say(f"kept in {place}")


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


_WORDS = {
    "known_users": "users it knows",
    "known_items": "items it knows",
    "listed_items": "different items in the lists",
    "coverage": "coverage: share of the items that are listed",
    "popularity": "popularity: share of items less popular than a listed one",
    "overlap": "overlap: share of a list's items in both versions",
    "unchanged": "users with the same list in the same order",
    "taken": "of the items that left a list, those that the user has got since",
    "fresh": "share of the new lists' places with new items",
    "fresh_items_listed": "share of the new items that are listed",
}


def _show(found: Changes, old: Path, new: Path) -> None:
    whole = ("known_users", "known_items", "listed_items")
    form = {name: "{:,.0f}" if name in whole else "{:.1%}" for name in found.facts}
    rows = [(_WORDS[name], *(form[name].format(one) for one in both)) for name, both in found.facts.items()]
    rows += [(_WORDS[name], "", f"{share:.1%}") for name, share in found.shares.items()]
    title = f"lists of {found.k} items, {_counted(found.users, 'user')} of both versions"
    terminal.print_table(("", str(old), str(new)), rows, title=title, left=1)
    if not len(found.people):
        return
    people = [
        (row["user"], f"{row['overlap']:.0%}", _some(row["came"]), _some(row["left"]))
        for row in found.people.iter_rows(named=True)
    ]
    terminal.print_table(("user", "overlap", "came", "left"), people, title="the most changed lists")


def _some(titles: list[str]) -> str:
    return "; ".join(titles[:_LISTED]) + f"; and {len(titles) - _LISTED} more" * (len(titles) > _LISTED)
