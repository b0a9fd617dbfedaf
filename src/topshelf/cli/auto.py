"""topshelf auto."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from topshelf.cli import completion, pages, show
from topshelf.cli.options import FileOptions, Quiet, WithReport, expanded, option
from topshelf.errors import ConfigError
from topshelf.terminal import print_table, say

if TYPE_CHECKING:
    from topshelf.auto import Auto


@expanded
def auto(
    reading: FileOptions,
    data: Annotated[
        str | None, option("Dataset name, file or folder; see topshelf data list.", tab=completion.data)
    ] = None,
    k: Annotated[int, option("Length of the list.")] = 20,
    budget: Annotated[str, option("Time to spend, such as 90s, 10m or 2h.")] = "10m",
    out: Annotated[Path | None, option("Folder for the run.")] = None,
    seed: Annotated[int, option("Random seed.")] = 0,
    set_: Annotated[
        list[str] | None,
        option("A setting of data, evaluate or train: section.key=value. Repeatable.", "--set", tab=completion.setting),
    ] = None,
    with_report: WithReport = None,
    quiet: Quiet = False,
) -> None:
    """Find the best list for your data in a given time, without choosing a model.

    Tries strong simple models and trained ones, tunes the better ones on validation, blends what helps, and measures
    the test part once. The result has learned from everything; recommend, similar and the other commands take it.
    Ctrl-C ends the search and keeps the best so far. The same command goes on after a kill.

    Examples:

      topshelf auto --data clicks.csv --k 10 --out runs/best

      topshelf auto --data orders.parquet --user-column buyer --budget 30m --out runs/best
    """
    if data is None:
        raise ConfigError("give --data PATH|NAME: what to learn from")
    if out is None:
        raise ConfigError("give --out FOLDER: where the run is kept")
    if find_spec("optuna") is None:
        raise ConfigError("topshelf auto needs Optuna: pip install 'topshelf[tune]'")
    from topshelf.auto import auto as find
    from topshelf.config import merged, overrides

    settings = merged({"data": reading.reading()}, overrides(set_ or []))
    found = find(data, k=k, budget=budget, seed=seed, out=out, settings=settings, quiet=quiet)
    _show(found, out)
    pages.of_run(out, found.spent, with_report)


def _show(found: Auto, out: Path) -> None:
    rows = sorted(found.tried, key=lambda one: -(one.score or -1.0))
    print_table(
        ("tried", found.metric, "trials", "seconds", "weight", "note"),
        [
            (
                one.name,
                "" if one.score is None else f"{one.score:.4f}",
                one.trials or "",
                f"{one.seconds:.1f}" if one.trials else "",
                f"{one.weight:g}" if one.weight else "",
                one.note,
            )
            for one in rows
        ],
        title=f"What was tried in {found.spent:.0f} s, by {found.metric} on validation",
        left=(0, 5),
    )
    for line in (*found.why(), found.more_budget()):
        say(line)
    show.run(found.fitted, out)
