"""What a terminal shows. Ids, titles and paths are not ours and may hold anything: none of it moves the cursor."""

from __future__ import annotations

import json
import random
import re
from typing import Any

# rich draws from `random` when it is imported, and we must not move the stream of whoever imports us. So the library
# takes from here what it needs of rich.
_random_state = random.getstate()
from rich.console import Console  # noqa: E402
from rich.markup import escape  # noqa: E402
from rich.progress import (  # noqa: E402
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table  # noqa: E402

random.setstate(_random_state)

__all__ = [
    "BarColumn",
    "Console",
    "DownloadColumn",
    "Progress",
    "Table",
    "TaskID",
    "TextColumn",
    "TimeRemainingColumn",
    "TransferSpeedColumn",
    "as_json",
    "cell",
    "console",
    "escape",
    "printable",
    "say",
]


def console(*, stderr: bool = False) -> Console:
    """Where people read. An id such as urn:book:7 is shown as it is, not with a picture of a book."""
    return Console(stderr=stderr, emoji=False)


def say(text: str, *, stderr: bool = False, style: str | None = None) -> None:
    """A line for people, as it is: without markup, and with control characters escaped."""
    console(stderr=stderr).print(printable(text), markup=False, highlight=False, soft_wrap=True, style=style)


def cell(value: object) -> str:
    """A value as the text of a table's cell or title, by the same rule."""
    return "" if value is None else escape(printable(str(value)))


def printable(text: str) -> str:
    """The text with control and invisible characters written as escapes; line breaks stay."""
    return text if text.isprintable() else "".join(map(_shown, text))


def as_json(value: Any, indent: int = 2) -> str:
    """JSON in readable letters; what a terminal would obey is escaped, as JSON allows."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return re.sub(r"[^\n -~]", lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text)


def _shown(character: str) -> str:
    if character.isprintable() or character == "\n":
        return character
    return character.encode("unicode_escape").decode("ascii")
