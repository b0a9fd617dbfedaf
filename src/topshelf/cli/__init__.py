"""The command line. Exit codes: 0 done, 2 an error to put right, 3 training had to stop, 130 stopped by you."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress
from importlib import metadata
from typing import Annotated, TextIO

import typer

from topshelf import terminal
from topshelf.cli import data
from topshelf.cli.blend import blend
from topshelf.cli.commands import demo, evaluate, losses, models, recommend, train
from topshelf.cli.diagnose import diagnose
from topshelf.cli.tune import tune
from topshelf.errors import TopshelfError, TopshelfWarning, TrainingError
from topshelf.training import StoppedEarly

app = typer.Typer(
    help="Train recommenders for the only thing people see: the first K places of the list.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    epilog="Exit codes: 0 done, 2 an error to put right, 3 training had to stop, 130 stopped by you.",
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
    """Run a command: what a user can put right is one message, never a traceback, and warnings are notes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", TopshelfWarning)
            warnings.showwarning = _note
            code = _run()
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has closed it, as `| head` does
        code = _without_output(1)
    except OSError as error:  # a full disk behind `> file`, or a closed standard output
        code = _without_output(2)
        _say(f"error: cannot write to standard output: {error}")
    sys.exit(code)


def _run() -> int:
    try:
        app()
    except SystemExit as end:  # how every command ends
        return end.code if isinstance(end.code, int) else 0
    except StoppedEarly as stopped:
        _say(str(stopped))
        return 130
    except TopshelfError as error:
        _say(f"error: {error}")
        return 3 if isinstance(error, TrainingError) else 2
    except OSError as error:
        if error.filename is None:  # of a stream: standard output
            raise
        _say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        _say("stopped")
        return 130
    return 0


def _note(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,
) -> None:
    """A note for the user; other libraries' warnings have their usual form."""
    is_ours = issubclass(category, TopshelfWarning)
    _say(f"note: {message}" if is_ours else warnings.formatwarning(message, category, filename, lineno, line).rstrip())


def _without_output(code: int) -> int:
    """Nothing more can be printed; the interpreter would try once more when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _say(text: str) -> None:
    with suppress(OSError, ValueError):  # standard error may be closed too
        terminal.say(text, stderr=True)
