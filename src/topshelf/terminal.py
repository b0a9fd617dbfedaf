"""Output on the terminal. Ids, titles and paths may contain anything, so control characters in them are escaped."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest
from typing import Any

# Importing rich draws from `random`, which importing topshelf must not change. So rich is imported here only, and the
# state is restored.
_random_state = random.getstate()
from rich.console import Console  # noqa: E402
from rich.markup import escape  # noqa: E402
from rich.progress import (  # noqa: E402
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column, Table  # noqa: E402

random.setstate(_random_state)

__all__ = [
    "BarColumn",
    "Column",
    "Console",
    "DownloadColumn",
    "Progress",
    "ProgressColumn",
    "Table",
    "TaskID",
    "TextColumn",
    "TimeRemainingColumn",
    "TransferSpeedColumn",
    "as_json",
    "cell",
    "console",
    "escape",
    "print_table",
    "printable",
    "say",
]


def console(*, stderr: bool = False) -> Console:
    """The terminal, without emoji codes: an id such as urn:book:7 is shown as it is."""
    return Console(stderr=stderr, emoji=False)


def say(text: str, *, stderr: bool = False, style: str | None = None) -> None:
    """Print a line without interpreting markup, with control characters escaped."""
    console(stderr=stderr).print(printable(text), markup=False, highlight=False, soft_wrap=True, style=style)


def cell(value: object) -> str:
    """The same for a table's cell or title."""
    return "" if value is None else escape(printable(str(value)))


def print_table(
    header: Sequence[object],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    left: int | Collection[int] | None = None,
    styles: Iterable[str] = (),
) -> None:
    """Print a table of plain values; only the first ``left`` columns, or those at these places, are set to the left."""
    places = range(len(header)) if left is None else range(left) if isinstance(left, int) else left
    table = Table()
    for place, name in enumerate(header):
        table.add_column(cell(name), justify="left" if place in places else "right")
    for row, style in zip_longest(rows, styles):
        table.add_row(*map(cell, row), style=style)
    if title is not None:
        say(title, style="italic")
    console().print(table)


def printable(text: str) -> str:
    """The text with control and invisible characters written as escapes; line breaks stay."""
    return text if text.isprintable() else "".join(map(_shown, text))


def as_json(value: Any, indent: int = 2) -> str:
    """JSON with readable letters; control characters are escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return re.sub(r"[^\n -~]", lambda match: match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1], text)


def _shown(character: str) -> str:
    if character.isprintable() or character == "\n":
        return character
    return character.encode("unicode_escape").decode("ascii")
