"""The page that a command ends with."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from topshelf.errors import TopshelfError
from topshelf.terminal import say

WORTH = 10.0  # seconds of work from which a page, which takes two or three, is written without being asked for


def of_run(run: Path, seconds: float, wanted: bool | None) -> None:
    """The page of a run that has just ended, in its folder."""
    from topshelf.report import write_report

    page = run / "report.html"
    again = shlex.join(["topshelf", "report", str(run), "-o", str(page)])
    written(lambda: write_report([run], page), again, seconds, wanted)


def written(write: Callable[[], Path], command: str, seconds: float, wanted: bool | None) -> None:
    """Write a page after so many seconds of work, or say by which command: see the option --report.

    The work is done and kept by then, so a page that cannot be written is said, not raised.
    """
    from topshelf.charts import can_plot

    if wanted is False:
        return
    if wanted is None and (seconds < WORTH or not can_plot()):
        say(f"write its page: {command}")
        return
    try:
        say(f"page: {write()}")
    except TopshelfError as error:
        say(f"no page: {error}", stderr=True)
        say(f"write its page: {command}")
