"""Progress of long work: a bar on a terminal and in a notebook, else a line on standard error now and then."""

from __future__ import annotations

import importlib.util
import sys
import time
from typing import Any

from topshelf.terminal import (
    BarColumn,
    Console,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    printable,
)

LINE_SECONDS = 30.0  # between two lines where there is no bar


def progress_bar(quiet: bool, *counted: ProgressColumn) -> Progress:
    """The progress of one job, removed at the end: its name, ``counted``, the text ``shown``, and the time left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=10),
        *counted,
        TextColumn("{task.fields[shown]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    console = Console(stderr=True)
    if quiet or has_bars(console):
        return Progress(*columns, console=console, transient=True, disable=quiet)
    return ProgressLines(console)


def has_bars(console: Console) -> bool:
    """Whether something that moves can be shown: on a terminal, or in a notebook with widgets."""
    if console.is_jupyter:
        return importlib.util.find_spec("ipywidgets") is not None
    return sys.stderr.isatty()


class ProgressLines(Progress):
    """The same calls where nothing can move: a line every half minute, and one at the end of work with such lines."""

    def __init__(self, console: Console, seconds: float = LINE_SECONDS) -> None:
        super().__init__(console=console, disable=True)
        self._seconds, self._started = seconds, time.monotonic()
        self._said = self._started
        self._last: TaskID | None = None
        self._has_spoken = False

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._say_if_due(task_id)

    def update(self, task_id: TaskID, **fields: Any) -> None:
        super().update(task_id, **fields)
        self._say_if_due(task_id)

    def stop(self) -> None:
        super().stop()
        if self._has_spoken and self._last is not None:
            self._say(self._last)
        self._has_spoken = False

    def _say_if_due(self, task_id: TaskID) -> None:
        self._last = task_id
        if time.monotonic() - self._said >= self._seconds:
            self._say(task_id)

    def _say(self, task_id: TaskID) -> None:
        task = self._tasks[task_id]
        share = f"{task.completed / task.total:.0%}" if task.total else f"{task.completed:,.0f}"
        passed = time.monotonic() - self._started
        shown = f"  {task.fields['shown']}" if task.fields.get("shown") else ""
        line = printable(f"{task.description}  {share}{shown}  {passed:,.0f} s")
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._said, self._has_spoken = time.monotonic(), True
