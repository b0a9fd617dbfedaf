"""The command line. Exit codes: 0 done, 2 something to mend, 3 training had to stop, 130 stopped by you."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Annotated

import typer

from topshelf.cli import data, show
from topshelf.cli.blend import blend
from topshelf.cli.commands import demo, evaluate, losses, models, recommend, train
from topshelf.cli.diagnose import diagnose
from topshelf.cli.tune import tune
from topshelf.errors import TopshelfError, TrainingError
from topshelf.training import StoppedEarly

app = typer.Typer(
    help="Train recommenders for the only thing people see: the first K places of the list.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    epilog="Exit codes: 0 done, 2 something to mend, 3 training had to stop, 130 stopped by you.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(metadata.version("topshelf"))
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


app.add_typer(data.app, name="data")
app.command()(train)
app.command()(evaluate)
app.command()(recommend)
app.command()(blend)
app.command()(losses)
app.command()(models)
app.command()(demo)
app.command()(diagnose)
app.command()(tune)


def main() -> None:
    """The entry point: errors that a user can mend are one message, never a traceback."""
    try:
        app()
    except StoppedEarly as stopped:
        _say(str(stopped))
        sys.exit(130)
    except TopshelfError as error:
        _say(f"error: {error}")
        sys.exit(3 if isinstance(error, TrainingError) else 2)
    except KeyboardInterrupt:
        _say("stopped")
        sys.exit(130)


def _say(text: str) -> None:
    show.console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)
