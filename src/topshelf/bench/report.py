"""A report in a folder.

REPORT/
  report.md          tables, tests and what is missing
  report.html        the same with figures, in one file
  table.tex          the table of a paper, by protocol
  report.json        all of it as numbers: the report can be made again from it
  cells.csv cells.parquet       a row per run, protocol and metric
  scores.csv         means, deviations, intervals over seeds, published figures
  comparisons.csv    ours against the best of the others
  NAME.svg           figures
"""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Any

from topshelf import charts, files
from topshelf.bench import tables
from topshelf.bench.activity import Activity, activity_grid, by_activity
from topshelf.bench.diagnosed import (
    Diagnosed,
    diagnosed,
    diagnosis_captions,
    diagnosis_figures,
    diagnosis_grids,
    diagnosis_lines,
)
from topshelf.bench.latex import document
from topshelf.bench.plots import figures
from topshelf.bench.results import Measured, Place, Results
from topshelf.bench.summary import (
    Comparison,
    MeanGain,
    comparison_frame,
    comparisons,
    mean_gains,
    score_frame,
)
from topshelf.errors import CheckpointError, ConfigError
from topshelf.page import Page

FORMAT = 1
_PLAIN = (
    *("name", "title", "metrics", "protocols", "ours", "source"),
    *("x_label", "choose", "n_wanted", "times", "views", "note"),
)
_RUN = ("data", "group", "method", "x", "k", "seed", "fold", "metrics", "names", "facts", "fingerprints", "curve")


@dataclass(frozen=True)
class Report:
    """Results with their tests: each is computed once."""

    results: Results
    comparisons: list[Comparison]
    gains: list[MeanGain]
    activity: list[Activity]
    diagnosed: list[Diagnosed] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Report({self.results}, {len(self.comparisons):,} comparisons)"

    @classmethod
    def of(cls, results: Results) -> Report:
        if not results.runs:
            raise ConfigError(f"{results.name} has no finished cell yet; run it: topshelf bench run {results.name}")
        found = comparisons(results)
        activity = by_activity(results) if "activity" in results.views else []
        return cls(results, found, mean_gains(results, found), activity, diagnosed(results))

    def write(self, out: str | Path) -> Path:
        """Write every file; each is replaced as a whole."""
        folder = Path(out)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make the folder {folder}: {files.reason(error)}; choose another --to") from None
        frame, drawings = self.results.frame(), self.figures()
        files.write(folder / "cells.parquet", frame.write_parquet)
        files.write(folder / "cells.csv", frame.write_csv)
        files.write(folder / "scores.csv", score_frame(self.results).write_csv)
        if self.comparisons:
            files.write(folder / "comparisons.csv", comparison_frame(self.comparisons).write_csv)
        for name, drawing in drawings.items():
            files.write_bytes(folder / f"{name}.svg", drawing)
        files.write_sealed(folder / "report.json", _stored(self))
        files.write_text(folder / "table.tex", document(self.results))
        files.write_text(folder / "report.md", self.markdown(list(drawings)))
        self.page(drawings).write(folder / "report.html")
        return folder

    def markdown(self, drawings: list[str]) -> str:
        results = self.results
        title = tables.markdown_text(results.title)
        lines = [f"# {title}", "", *map(tables.markdown_text, self._said()), ""]
        for grid in self.grids():
            lines += [tables.markdown(grid), ""]
        lines += [f"{tables.markdown_text(line)}\n" for line in tables.gain_lines(results, self.gains)]
        captions = {name: tables.markdown_text(text) for name, text in diagnosis_captions(self.diagnosed).items()}
        for name in drawings:
            alt = captions.get(name, title).replace("[", "(").replace("]", ")")  # brackets would end it
            lines.append(f"![{alt}]({name}.svg)\n")
            lines += [f"{captions[name]}\n"] if name in captions else []
        if missing := tables.missing_lines(results):
            lines += ["Not run:", "", *(f"- {tables.markdown_text(line)}" for line in missing), ""]
        return "\n".join(lines).rstrip() + "\n"

    def page(self, drawings: dict[str, bytes]) -> Page:
        results = self.results
        page = Page(results.title)
        for line in self._said():
            page.paragraph(line)
        for grid in self.grids():
            page.heading(grid.title)
            page.table(grid.header, grid.rows, best=grid.best)
        for line in tables.gain_lines(results, self.gains):
            page.paragraph(line)
        captions = diagnosis_captions(self.diagnosed)
        for name, drawing in drawings.items():
            page.drawing(drawing, alt=captions.get(name, results.title))
            if name in captions:
                page.paragraph(captions[name], note=True)
        if not drawings and not charts.can_plot():
            page.paragraph(charts.NO_PLOTS, note=True)
        if missing := tables.missing_lines(results):
            page.heading("Not run")
            for line in missing:
                page.paragraph(line, note=True)
        return page

    def figures(self) -> dict[str, bytes]:
        """SVG drawings by name; none without matplotlib."""
        return {**figures(self.results), **(diagnosis_figures(self.diagnosed) if charts.can_plot() else {})}

    def grids(self) -> list[tables.Grid]:
        grid = tables.comparison_grid(self.results, self.comparisons)
        last = [grid, activity_grid(self.activity)]
        last += diagnosis_grids(self.diagnosed)
        return [*tables.grids(self.results), *(one for one in last if one is not None)]

    def _said(self) -> list[str]:
        results = self.results
        days = sorted({str(run.facts.get("date")) for run in results.runs})
        seeds = sorted({run.seed for run in results.runs})
        chosen = {
            "published": "Settings: the published optimum of each method, where one was printed.",
            "shipped": "Settings: those shipped with topshelf.",
            "tuned": "Settings: tuned on validation, with the same number of trials for every method.",
        }.get(results.choose, "")
        n_wanted = f" of {results.n_wanted}" if results.n_wanted else ""
        when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
        lines = [
            f"{len(results.runs)}{n_wanted} cells, seeds {', '.join(map(str, seeds))}, {when}. {chosen}".strip(),
            "Means over seeds ± their standard deviation (95% interval of the mean, Student's t).",
        ]
        lines += [f"Published figures: {results.source}."] if results.source else []
        lines += [results.note] if results.note else []
        return [*lines, *diagnosis_lines(self.diagnosed)]


def _stored(report: Report) -> dict[str, Any]:
    """A report as plain values: what it was made of, without the values per user."""
    results = report.results
    content: dict[str, Any] = {name: getattr(results, name) for name in _PLAIN}
    content["own_groups"] = sorted(results.own_groups)
    content["places"] = [astuple(place) for place in results.places]
    content["published"] = [[*astuple(place), metric, value] for (place, metric), value in results.published.items()]
    content["missing"] = [[*astuple(place), reason] for place, reason in results.missing.items()]
    content["runs"] = [_stored_run(run) for run in results.runs]
    return {
        "format": FORMAT,
        "results": content,
        "comparisons": [asdict(one) for one in report.comparisons],
        "gains": [asdict(one) for one in report.gains],
        "activity": [asdict(one) for one in report.activity],
    }


def _stored_run(run: Measured) -> dict[str, Any]:
    content = {name: getattr(run, name) for name in _RUN}
    return content if run.diagnosis is None else {**content, "diagnosis": run.diagnosis}


def read_report(folder: str | Path) -> Report:
    """A report from its folder; its tables can be written again, and its tests are those of the day it was made."""
    path = Path(folder) / "report.json"
    content = files.read_sealed(path, is_always_sealed=True)
    try:
        kept = dict(content["results"])
        kept["places"] = [Place(*place) for place in kept["places"]]
        kept["published"] = {(Place(*row[:4]), row[4]): row[5] for row in kept["published"]}
        kept["missing"] = {Place(*row[:4]): row[4] for row in kept["missing"]}
        kept["runs"] = [Measured(**{**run, "names": tuple(run["names"])}) for run in kept["runs"]]
        kept["own_groups"] = frozenset(kept["own_groups"])
        kept |= {name: tuple(kept[name]) for name in ("metrics", "protocols", "views")}
        found = [
            Comparison(
                **{
                    **one,
                    "place": Place(**one["place"]),
                    "other": Place(**one["other"]),
                    "draws": tuple((fold, seed) for fold, seed in one["draws"]),
                }
            )
            for one in content["comparisons"]
        ]
        activity = [Activity(**{**one, "place": Place(**one["place"])}) for one in content["activity"]]
        results = Results(**kept)
        return Report(results, found, [MeanGain(**one) for one in content["gains"]], activity, diagnosed(results))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CheckpointError(f"{path} is not of this version of topshelf: {error}; write the report again") from None
