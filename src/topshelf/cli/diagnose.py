"""topshelf diagnose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from topshelf.cli import completion
from topshelf.cli.options import Allow, AsJson, RunOptions, argument, expanded, option, search_here
from topshelf.errors import ConfigError
from topshelf.terminal import as_json as json_text
from topshelf.terminal import print_table, say

if TYPE_CHECKING:
    from topshelf.diagnose import Diagnosis, RunDiagnosis


@expanded
def diagnose(
    options: RunOptions,
    target: Annotated[Path | None, argument("RUN|FILE", "Run folder, or TOML file.", tab=completion.runs)] = None,
    losses: Annotated[
        str | None,
        option(
            "Losses to compare with, names or TOML files; default: softmax,slatk; other tasks: none.",
            tab=completion.several_losses,
        ),
    ] = None,
    users: Annotated[int, option("Number of users, queries or edges to sample.")] = 1000,
    epochs: Annotated[int, option("Epochs to train each loss.")] = 20,
    out: Annotated[Path | None, option("Folder for the page, the plots and the numbers.")] = None,
    allow: Allow = None,  # noqa: ARG001
    as_json: AsJson = False,
) -> None:
    """Show what a loss does on your data, and what to change.

    Interactions: it trains the loss, and others to compare with, for a few epochs, and reports gradients, thresholds,
    weights, hits and times. Ranking, sequences and links: it measures the kept model group by group, beside simple
    references, and trains only the losses that --losses names.

    Examples:

      topshelf diagnose runs/clicks --out runs/clicks-diagnosis

      topshelf diagnose my-run.toml --losses softmax,bpr --epochs 10 --out diagnosis

      topshelf diagnose --data clicks.csv --k 10 --out diagnosis
    """
    if target is None and options.data is None:
        raise ConfigError("give a run folder, a TOML file, or --data PATH|NAME; see topshelf diagnose --help")
    if target is not None and replace(options, seed=None).is_given():
        raise ConfigError(
            "a run folder or a TOML file has its settings; leave --data, --model, --loss, --k and --set out, "
            "and the options for reading a data file"
        )
    if out is None:
        raise ConfigError("give --out FOLDER: where the page and the plots are kept")
    from topshelf.config import allow_options, assemble
    from topshelf.diagnose import plan
    from topshelf.diagnose.files import check_folder, write

    is_file = target is not None and target.suffix == ".toml" and target.is_file()
    if (losses is not None and ":" in losses) or (is_file and allow_options(assemble(file=target))):
        search_here()
    names = None if losses is None else [name.strip() for name in losses.split(",") if name.strip()]
    planned = plan(target or options.config(), losses=names, users=users, epochs=epochs, seed=options.seed)
    check_folder(out)
    diagnosis = planned.run(lambda text: say(text, stderr=True, style="dim"))
    write(diagnosis, out)
    if as_json:
        typer.echo(json_text(diagnosis.to_json(), indent=1))
    else:
        _show(diagnosis, out)


def _show(diagnosis: Diagnosis | RunDiagnosis, out: Path) -> None:
    from topshelf.charts import NO_PLOTS, can_plot
    from topshelf.diagnose import tables

    say(diagnosis.caption())
    for section in diagnosis.sections():
        say(f"\n{section.title}", style="bold")
        if section.text:
            say(section.text)
        if section.rows:
            is_number = [cell.lstrip("+-").replace(".", "", 1).isdigit() for cell, *_ in section.rows]
            print_table(section.header, section.rows, left=0 if all(is_number) else 1)
    say("\nAdvice", style="bold")
    for text in tables.advice_lines(diagnosis.advice):
        say(f"- {text}")
    say("" if can_plot() else f"\n{NO_PLOTS}")
    say(f"page: {out / 'diagnose.html'}")
