"""What topshelf auto tried for a run: the candidates, why the winner won, and what more time would be spent on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from topshelf import charts
from topshelf.bench.tables import metric_name
from topshelf.errors import CheckpointError
from topshelf.files import read_json
from topshelf.page import Cell, Page
from topshelf.report.shown import Shown

FILE = "auto.json"  # in the run's folder


@dataclass(frozen=True)
class Search:
    """The content of ``auto.json``, checked."""

    metric: str
    budget: float
    spent: float
    rows: list[tuple[str | Cell, ...]]
    history: list[tuple[float, float]]
    said: list[str]

    @classmethod
    def read(cls, path: Path) -> Search:
        content = read_json(path)
        try:
            history = [(_number(seconds), _number(score)) for seconds, score in content["history"]]
            rows = [_row(one) for one in sorted(content["tried"], key=_score, reverse=True)]
            metric, said = content["metric"], content.get("said", [])  # earlier versions have no sentences
            if not all(isinstance(text, str) for text in (metric, *said)):
                raise TypeError("metric and said must be texts")
            return cls(
                _titled(metric), _number(content["budget"]), _number(content["spent"]), rows, history, list(said)
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{path} is damaged or of another version of topshelf: {error}") from None


def tried_section(page: Page, runs: Sequence[Shown]) -> None:
    """A section for each run that topshelf auto made."""
    for run in runs:
        path = run.folder.path / FILE
        if not path.exists():
            continue
        page.heading("What was tried" if len(runs) == 1 else f"What was tried for {run.name}")
        try:
            _search(page, Search.read(path))
        except CheckpointError as error:
            page.paragraph(f"Not shown: {error}", note=True)


def _search(page: Page, search: Search) -> None:
    page.paragraph(
        f"topshelf auto had {_time(search.budget)} and took {_time(search.spent)}. Every candidate was tried once, the "
        "better ones were tuned, and sums of the best were tried. All of it was chosen on the validation part."
    )
    for line in search.said:
        page.paragraph(line)
    header = ("candidate", search.metric, "trials", "seconds", "weight in the result", "note")
    with page.beside():
        page.table(header, search.rows, caption="Candidates, the best first")
        if len(search.history) > 1 and charts.can_plot():
            from topshelf.report import plots

            drawing = plots.over_seconds(search.history, f"best {search.metric} so far")
            page.drawing(drawing, f"the best {search.metric} of a single candidate, over the seconds of the search")


def _time(seconds: float) -> str:
    """As topshelf auto says it, whose module needs Optuna; a page does not."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


def _titled(metric: str) -> str:
    """As the other sections write it: "validation ndcg@20" becomes "validation NDCG@20"."""
    part, _, name = metric.rpartition(" ")
    return f"{part} {metric_name(name)}".strip()


def _row(one: Mapping[str, Any]) -> tuple[str | Cell, ...]:
    name, note, score, weight = one["name"], one.get("note", ""), one["score"], _number(one.get("weight", 0.0))
    if not isinstance(name, str) or not isinstance(note, str):
        raise TypeError("name and note of a candidate must be texts")
    trials, seconds = _number(one["trials"]), _number(one["seconds"])
    return (
        Cell(name, is_best=weight > 0),
        "" if score is None else f"{_number(score):.4f}",
        f"{trials:.0f}" if trials else "",
        f"{seconds:.1f}" if trials else "",
        f"{weight:.2f}" if weight else "",
        note,
    )


def _score(one: Mapping[str, Any]) -> float:
    return -1.0 if one["score"] is None else _number(one["score"])


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise TypeError(f"a number was expected, got {value!r}")
    return float(value)
