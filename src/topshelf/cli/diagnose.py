"""topshelf diagnose: a few lines over one library call, and its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from topshelf.charts import NO_PLOTS, can_plot
from topshelf.config import RunConfig, assemble, overrides
from topshelf.diagnose import Diagnosis, plan, tables
from topshelf.diagnose.files import check_folder, write
from topshelf.diagnose.run import EPOCHS, USERS
from topshelf.errors import ConfigError
from topshelf.terminal import Table, cell, console, say
from topshelf.terminal import as_json as terminal_json


def diagnose(
    target: Annotated[Path | None, typer.Argument(help="A run folder, or a TOML file with a run's settings.")] = None,
    data: Annotated[str | None, typer.Option(help="A file, a folder, or the name of a dataset.")] = None,
    model: Annotated[str | None, typer.Option(help="mf (the default).")] = None,
    loss: Annotated[str | None, typer.Option(help="The loss to diagnose; slatk.")] = None,
    k: Annotated[int | None, typer.Option(help="Length of the list that people see; 20.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Any setting: section.key=value.")] = None,
    losses: Annotated[
        str | None, typer.Option(help="Losses to compare with: names or TOML files, by commas; softmax,slatk.")
    ] = None,
    users: Annotated[int, typer.Option(help="How many users to look at.")] = USERS,
    epochs: Annotated[int, typer.Option(help="Epochs that every loss is trained for here.")] = EPOCHS,
    seed: Annotated[int | None, typer.Option(help="Another seed than the run's.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the page, the plots and the numbers.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """See what a loss does on your data: gradients, thresholds, weights, hits, times, and what to change.

    Examples:

      topshelf diagnose runs/clicks --out runs/clicks-diagnosis

      topshelf diagnose my-run.toml --losses softmax,bpr --epochs 10 --out diagnosis

      topshelf diagnose --data clicks.csv --k 10 --out diagnosis
    """
    chosen: Path | RunConfig
    if target is not None:
        if any(value is not None for value in (data, model, loss, k, set_)):
            raise ConfigError(
                "a run folder or a TOML file has its settings; leave --data, --model, --loss, --k and --set out"
            )
        chosen = target
    elif data is not None:
        chosen = assemble(data=data, model=model, loss=loss, k=k, seed=seed, more=overrides(set_ or []))
    else:
        raise ConfigError("give a run folder, a TOML file, or --data PATH|NAME; see topshelf diagnose --help")
    if out is None:
        raise ConfigError("give --out FOLDER: where the page and the plots are kept")
    planned = plan(
        chosen,
        losses=None if losses is None else [name.strip() for name in losses.split(",") if name.strip()],
        users=users,
        epochs=epochs,
        seed=seed,
    )
    check_folder(out)
    found = planned.run(lambda text: say(text, stderr=True, style="dim"))
    write(found, out)
    if as_json:
        typer.echo(terminal_json(found.to_json(), indent=1))
    else:
        _show(found, out)


def _show(found: Diagnosis, out: Path) -> None:
    say(tables.caption(found))
    for section in tables.sections(found):
        say(f"\n{section.title}", style="bold")
        say(section.text)
        if section.rows:
            console().print(_table(section))
    say("\nAdvice", style="bold")
    for text in tables.advice_lines(found):
        say(f"- {text}")
    say(f"\npage: {out / 'diagnose.html'}" if can_plot() else f"\n{NO_PLOTS}\npage: {out / 'diagnose.html'}")


def _table(section: tables.Section) -> Table:
    table = Table()
    for place, name in enumerate(section.header):
        is_text = any(not row[place].lstrip("+-").replace(".", "", 1).isdigit() for row in section.rows)
        table.add_column(cell(name), justify="left" if is_text and place == 0 else "right")
    for row in section.rows:
        table.add_row(*map(cell, row))
    return table
