"""topshelf tune: a few lines over one library call, and its table."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from topshelf.config import RunConfig, assemble, merged, overrides
from topshelf.errors import ConfigError
from topshelf.models import MODELS
from topshelf.terminal import Table, cell, console, say

if TYPE_CHECKING:
    from topshelf.tuning import Tuned


def tune(
    config: Annotated[Path | None, typer.Argument(help="A TOML file with the run's settings: the defaults.")] = None,
    data: Annotated[str | None, typer.Option(help="A file, a folder, or the name of a dataset.")] = None,
    model: Annotated[str | None, typer.Option(help="The model to tune; mf.")] = None,
    loss: Annotated[str | None, typer.Option(help="The loss to tune; slatk.")] = None,
    k: Annotated[int | None, typer.Option(help="Length of the list that people see; 20.")] = None,
    trials: Annotated[int | None, typer.Option(help="The budget, of all processes together; 30.")] = None,
    sampler: Annotated[str | None, typer.Option(help="tpe (the default) or grid.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Begin no trial after this many seconds.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of splits, initial values, draws and the search; 0.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Fix any setting: section.key=value.")] = None,
    range_: Annotated[
        list[str] | None, typer.Option("--range", help="Search: name=value,value,... or name=low:high[:log].")
    ] = None,
    user_column: Annotated[str | None, typer.Option(help="Column of the users; guessed if left out.")] = None,
    item_column: Annotated[str | None, typer.Option(help="Column of the items; guessed if left out.")] = None,
    rating_column: Annotated[str | None, typer.Option(help="Column of the ratings; 'none' to ignore it.")] = None,
    time_column: Annotated[str | None, typer.Option(help="Column of the times; 'none' to ignore it.")] = None,
    dates: Annotated[
        str | None, typer.Option(help="Order of dates such as 12/01/2020: day-first, month-first.")
    ] = None,
    min_rating: Annotated[float | None, typer.Option(help="Only ratings of at least this are positives.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the study; runs/tune-DATA-MODEL-LOSS.")] = None,
    storage: Annotated[str | None, typer.Option(help="Database url; by default SQLite in the folder.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the study in this folder.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Find the best settings by validation NDCG@K; the test part is never read.

    The shipped or general settings are the first trial; the ranges are those of the loss and the model. Several
    processes share a study: give the same command, or --resume, again.

    Examples:

      topshelf tune --data clicks.csv --out runs/tune-clicks

      topshelf tune --data amazon2014-health --loss slatk --k 20 --trials 30 --out runs/tune-health

      topshelf tune --data clicks.csv --range loss.tau=0.05,0.1,0.2 --range train.learning_rate=1e-3:1e-1:log --out t

      topshelf tune --data clicks.csv --model ease --sampler grid --out runs/tune-ease

      topshelf tune --resume runs/tune-clicks --trials 60
    """
    if find_spec("optuna") is None:
        raise ConfigError("topshelf tune needs Optuna: pip install 'topshelf[tune]'")
    from topshelf import tuning  # half a second that no other command should pay

    columns = {"user": user_column, "item": item_column, "weight": rating_column, "timestamp": time_column}
    columns["dates"] = dates
    given = {key: value for key, value in {**columns, "min_rating": min_rating}.items() if value is not None}
    if resume is not None:
        others = (config, data, model, loss, k, sampler, seed, set_, range_, out)
        if given or any(value is not None for value in others):
            raise ConfigError(
                "--resume continues a study as it was defined; only --trials, --timeout and --storage go with it"
            )
        found = tuning.resume(resume, trials=trials, timeout=timeout, storage=storage, quiet=quiet)
    else:
        if config is None and data is None:
            raise ConfigError("give --data PATH|NAME or a TOML file; see topshelf tune --help")
        more = merged({"data": given}, overrides(set_ or []))
        chosen = assemble(file=config, data=data, model=model, loss=loss, k=k, seed=seed, more=more)
        if loss is not None and chosen.model.name in MODELS and MODELS[chosen.model.name].is_closed_form:
            raise ConfigError(f"--loss does not go with --model {chosen.model.name}, which is fitted in closed form")
        found = tuning.tune(
            chosen,
            trials=trials,
            sampler=sampler or "tpe",
            ranges=_ranges(chosen, set_ or [], range_ or []),
            timeout=timeout,
            out=out or _folder(chosen),
            storage=storage,
            quiet=quiet,
        )
    _show(found)


def _ranges(config: RunConfig, assignments: list[str], ranges: list[str]) -> dict[str, Any]:
    """The ranges given; what was set is not searched, unless a range says so too."""
    from topshelf.tuning.ranges import default_ranges, parse

    fixed = [text.partition("=")[0].strip() for text in assignments]
    searched = default_ranges(config)
    return {**{name: None for name in fixed if name in searched}, **parse(ranges)}


def _folder(config: RunConfig) -> Path:
    names = ["tune", Path(config.data.source).stem, config.model.name]
    if not MODELS[config.model.name].is_closed_form:
        names.append(config.loss.name)
    return Path("runs") / "-".join(names)


def _show(found: Tuned) -> None:
    from topshelf.tuning.page import command, comparison, verdict

    header, rows = comparison(found)
    table = Table(*header, title=cell(f"{found.method} on {found.data}"), title_justify="left")
    for row in rows:
        table.add_row(*map(cell, row))
    console().print(table)
    say(verdict(found))
    say(f"{found.budget} (sampler {found.sampler})")
    if running := found.budget.spent["running"]:
        say("1 trial is still running elsewhere" if running == 1 else f"{running} trials are still running elsewhere")
    if found.folder is not None:
        say(f"page: {found.folder / 'report.html'}")
    if (text := command(found)) is not None:
        say(f"train the best: {text}")
