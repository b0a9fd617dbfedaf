"""topshelf report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from topshelf.cli import completion
from topshelf.cli.options import Allow, Titles, argument, option
from topshelf.terminal import say


def report(
    runs: Annotated[list[Path], argument("RUN...", "Run folders of one task, on the same data.", tab=completion.runs)],
    out: Annotated[Path, option("File of HTML to write; one that is there is replaced.", "--out", "-o")] = Path(
        "report.html"
    ),
    titles: Titles = None,
    allow: Allow = None,
) -> None:
    """Write one page on one or several runs: metrics, curves, lists of example people, settings.

    The page is one file that asks the network for nothing. The runs must be of one task and on the same data.

    Examples:

      topshelf report runs/clicks -o report.html

      topshelf report runs/slatk runs/softmax runs/ease -o compared.html --titles items.csv
    """
    from topshelf.report import write_report

    made = write_report(
        runs, out, titles=titles, allow=allow or (), say=lambda text: say(text, stderr=True, style="dim")
    )
    say(f"report: {made}")
