"""The command line. It must start fast, so commands import torch and the rest of the package when they are run.

Exit codes: 0 success, 1 the reader of the output closed it, 2 invalid input, 3 training failed, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress
from typing import Annotated, TextIO

import typer

from topshelf import terminal
from topshelf.cli import bench, completion, data, workers
from topshelf.cli.auto import auto
from topshelf.cli.bench import compare
from topshelf.cli.blend import blend
from topshelf.cli.commands import demo, evaluate, losses, models, recommend, similar, train
from topshelf.cli.diagnose import diagnose
from topshelf.cli.export import export
from topshelf.cli.links import links
from topshelf.cli.rank import rank
from topshelf.cli.report import report
from topshelf.cli.serve import serve, serve_events, serve_key
from topshelf.cli.tune import tune
from topshelf.cli.versions import changes, forget, update
from topshelf.errors import TopshelfError, TopshelfWarning, TrainingError, WorldError

app = typer.Typer(
    help="Train recommenders for the part of the list that users see: the first K places.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["--help", "-h"]},  # commands inherit it
    epilog="Exit codes: 0 success, 2 invalid input, 3 training failed, 130 interrupted.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata  # slow to import

        typer.echo(metadata.version("topshelf"))
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")
_RUNS = (
    auto,
    train,
    evaluate,
    compare,
    report,
    recommend,
    similar,
    rank,
    links,
    blend,
    export,
    update,
    forget,
    changes,
)
_SERVING = (serve, serve_key, serve_events)
for command in (*_RUNS, *_SERVING, losses, models, demo, diagnose, tune):
    app.command()(command)


def main() -> None:
    """Run a command. Errors that a user can fix are one message without a traceback; warnings are notes."""
    completion.prepare(os.environ)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", TopshelfWarning)
            warnings.showwarning = _note
            code = _run()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader closed our output, as `| head` does
        code = _without_output(1)
    except OSError as error:  # a full disk behind `> file`, or a closed standard output
        code = _without_output(2)
        _say(f"error: cannot write to standard output: {error}")
    workers.end(code)


def _run() -> int:
    try:
        app(prog_name="topshelf")
    except SystemExit as end:  # every command ends this way
        return end.code if isinstance(end.code, int) else 0
    except TrainingError as error:
        from topshelf.training import StoppedEarly

        is_stopped = isinstance(error, StoppedEarly)
        message, code = (str(error), 130) if is_stopped else (f"error: {error}", 3)
        return _told(message, code, is_final=not isinstance(error, WorldError))
    except (TopshelfError, OSError) as error:
        if isinstance(error, OSError) and error.filename is None:  # of a stream: standard output
            raise
        return _told(f"error: {error}", 2)
    except KeyboardInterrupt:
        _say("stopped")
        return 130
    return 0


def _told(message: str, code: int, *, is_final: bool = True) -> int:
    """Say why the command ends, and return its code. One of several processes leaves it to the one that started it."""
    if is_final and workers.passed_on(message, code):
        return 0  # so that it is not started again
    _say(message)
    return code


def _note(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,
) -> None:
    """Our warnings as notes; those of other libraries in their usual form."""
    is_ours = issubclass(category, TopshelfWarning)
    _say(f"note: {message}" if is_ours else warnings.formatwarning(message, category, filename, lineno, line).rstrip())


def _without_output(code: int) -> int:
    """Send standard output to nowhere: the interpreter flushes it once more at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _say(text: str) -> None:
    with suppress(OSError, ValueError):  # standard error may be closed too
        terminal.say(text, stderr=True)
