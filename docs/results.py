"""Write the committed results: a folder per plan that has finished cells, the index, and the tables of other pages.

python docs/results.py BENCH      reports of the plans in a bench folder; its finished cells into benchmarks/bench; then
                                  all below
python docs/results.py            the index, every page again from its report.json, and the tables between marks

A mark is ``<!-- results: PLAN; option = value, value; ... -->``; what is between it and ``<!-- end of results -->`` is
written from docs/results/PLAN/report.json. Options: ``data``, ``groups``, ``methods``, ``metrics``, ``protocols`` (the
part that is shown, by label), ``columns`` (``methods`` or ``data``: one metric, a column for each), ``over`` (with
methods as columns: how far the plan's own method is above this one), ``also`` (of the runs:
``runs``, ``seconds``, ``seconds per epoch``, ``epochs``, ``memory``, ``validation``).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from topshelf.bench import Report, of_plan, read_plan, read_report
from topshelf.bench.cells import cells
from topshelf.bench.folder import BenchFolder
from topshelf.bench.plan import metrics_of, shipped_plans
from topshelf.bench.results import Place, Results
from topshelf.bench.summary import scores
from topshelf.bench.tables import NOT_RUN, Grid, Scores, epoch_seconds, markdown, metric_name, shown, table_lines
from topshelf.bench.worker import ACTIVITY
from topshelf.data.interaction_datasets import DATASETS
from topshelf.files import write_text

DOCS = Path(__file__).parent
RESULTS = DOCS / "results"
KEPT = DOCS.parent / "benchmarks" / "bench"
END = "<!-- end of results -->"
MARK = re.compile(rf"(?P<mark><!-- results: (?P<words>[^>]+?) -->\n).*?(?P<end>{END})", re.DOTALL)
# What ``also`` may name, and the head of its column.
FACTS = {
    "runs": "runs",
    "seconds": "seconds",
    "seconds per epoch": "seconds per epoch",
    "epochs": "best epochs",
    "memory": "peak MiB",
    "validation": "validation",
}
OPTIONS = ("data", "groups", "methods", "metrics", "protocols", "columns", "over", "also")
# Users, items, interactions and density of the paper's tables 1 and 9.
PAPER = {
    "amazon2014-health": ("Health", 1_974, 1_200, 48_189, "0.02034"),
    "amazon2014-electronic": ("Electronic", 13_455, 8_360, 234_521, "0.00208"),
    "gowalla": ("Gowalla", 29_858, 40_988, 1_027_464, "0.00084"),
    "amazon2014-book": ("Book", 135_109, 115_172, 4_042_382, "0.00026"),
    "movielens-100k": ("MovieLens", 939, 1_016, 80_393, "0.08427"),
    "food": ("Food", 5_875, 9_852, 233_038, "0.00403"),
}
INTRODUCTION = """# Results

Tables and figures, of the SL@K paper and others, measured with `topshelf bench` ([how](../bench.md)) under the
protocols `paper` and `standard`. Every page is made of its folder's `report.json` by `python docs/results.py`; the
tests hold them to it. A cell that was not run is a dash, and the page says so. To make a row again:
`topshelf bench run PLAN --method LABEL`.
"""


def pages() -> list[Path]:
    """The folders of committed reports."""
    return sorted(path.parent for path in RESULTS.glob("*/report.json"))


def page(folder: Path) -> str:
    """The page of a committed report."""
    drawings = [path.stem for path in sorted(folder.glob("*.svg"))]
    return read_report(folder).markdown(drawings)


def index() -> str:
    """All reports with how far they are, and the statistics of the data."""
    rows = []
    for folder in pages():
        results = read_report(folder).results
        last = max(str(run.facts.get("date")) for run in results.runs)
        done = f"{len(results.runs)} of {results.n_wanted}"
        rows.append((f"[{folder.name}]({folder.name}/report.md)", results.title, done, last))
    plans = markdown(Grid("Plans", ("plan", "what it compares", "cells", "last run"), tuple(rows)))
    return f"{INTRODUCTION}\n{plans}\n\n{markdown(statistics())}\n"


def statistics() -> Grid:
    """The data beside the paper's tables 1 and 9; counts are compared with the files whenever they are read."""
    rows = []
    for name, (label, users, items, interactions, density) in PAPER.items():
        info = DATASETS[name]
        ours = f"{(info.interactions or 0) / (info.users * info.items):.5f}"
        counts = [f"{value:,}" for value in (info.users, info.items, info.interactions or 0)]
        same = (info.users, info.items, info.interactions, ours) == (users, items, interactions, density)
        rows.append(
            (label, *counts, ours, "the same" if same else f"{users:,} / {items:,} / {interactions:,} / {density}")
        )
    heads = ("data", "users", "items", "interactions", "density", "the paper's tables 1 and 9")
    return Grid("Statistics of the data", heads, tuple(rows))


class Excerpt(NamedTuple):
    """The part of a plan's results that a mark names."""

    plan: str
    options: dict[str, list[str]]

    @classmethod
    def of(cls, words: str) -> Excerpt:
        plan, *parts = (part.strip() for part in words.split(";"))
        options = {}
        for part in parts:
            name, _, values = (piece.strip() for piece in part.partition("="))
            if name not in OPTIONS:
                raise SystemExit(
                    f"an option of <!-- results: {words} --> must be one of {', '.join(OPTIONS)}, got {name}"
                )
            options[name] = [value.strip() for value in values.split(",")]
        if unknown := [value for value in options.get("also", []) if value not in FACTS]:
            raise SystemExit(f"also of <!-- results: {words} --> must be of: {', '.join(FACTS)}, got {unknown[0]}")
        if plan not in shipped_plans():
            raise SystemExit(f"<!-- results: {words} --> must name a plan of topshelf bench list, got {plan}")
        return cls(plan, options)

    def kept(self, name: str, there: Iterable[str]) -> list[str]:
        """What an option leaves of the labels that are there, in the order of the option."""
        there = list(dict.fromkeys(there))
        wanted = self.options.get(name, there)
        if unknown := [value for value in wanted if value not in there]:
            raise SystemExit(f"{name} of {self.plan} must be of: {', '.join(there)}, got {unknown[0]}")
        return wanted

    def places(self, results: Results) -> list[Place]:
        places = results.places
        for name, field in (("data", "data"), ("groups", "group"), ("methods", "method")):
            wanted = self.kept(name, (getattr(place, field) for place in results.places))
            places = [place for place in places if getattr(place, field) in wanted]
        return places


def marked_pages() -> list[Path]:
    """README and the pages of docs that have tables between marks."""
    pages = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]
    return [page for page in pages if MARK.search(page.read_text(encoding="utf-8"))]


def filled(page: Path) -> str:
    """A page with every table between marks as its results say."""

    def table(match: re.Match[str]) -> str:
        return f"{match['mark']}{excerpt(Excerpt.of(match['words']), page)}\n{match['end']}"

    return MARK.sub(table, page.read_text(encoding="utf-8"))


def excerpt(wanted: Excerpt, page: Path) -> str:
    """The table of a mark, with when and how it was made."""
    folder, command = RESULTS / wanted.plan, f"`topshelf bench run {wanted.plan}`"
    results = read_report(folder).results if (folder / "report.json").exists() else None
    places = wanted.places(results) if results else []
    runs = [run for run in results.runs if run.place in places] if results else []
    if results is None or not runs:
        return f"Not run yet: {command}."
    days = sorted({str(run.facts.get("date")) for run in runs})
    seeds, protocols = sorted({run.seed for run in runs}), wanted.kept("protocols", results.protocols)
    said = [
        f"{len(runs)} run{'s' if len(runs) > 1 else ''}",
        _named("seed", seeds),
        _named("protocol", protocols),
        " to ".join(days[:: len(days) - 1 or 1]),
    ]
    link = Path(os.path.relpath(folder / "report.md", page.parent)).as_posix()
    note = ", with a note on how these were made" if results.note else ""
    table = pivot(wanted, results) if "columns" in wanted.options else rows(wanted, results)
    return f"{table}\n\n{', '.join(said)}; {command}; [all of it]({link}){note}."


def _named(what: str, values: Sequence[object]) -> str:
    return f"{what}{'s' if len(values) > 1 else ''} {', '.join(map(str, values))}"


def rows(wanted: Excerpt, results: Results) -> str:
    """A row per place: means ± deviations over seeds by metric and protocol, and published figures."""
    table, places = scores(results), wanted.places(results)
    protocols = wanted.kept("protocols", results.protocols)
    columns = _heads(results, places, ("data", "group", "method", "x"))
    for metric in wanted.kept("metrics", results.metrics):
        for protocol in protocols:
            name = metric_name(metric) + (f", {protocol}" if len(protocols) > 1 else "")
            columns[name] = [_mean(table, place, protocol, metric) for place in places]
        known = [results.published.get((place, metric)) for place in places]
        if any(known):
            columns[f"published {metric_name(metric)}"] = ["" if one is None else f"{one:.4f}" for one in known]
    for name in wanted.options.get("also", []):
        columns[FACTS[name]] = [_fact(results, place, name) for place in places]
    return table_lines(tuple(columns), tuple(zip(*columns.values(), strict=True)))


def pivot(wanted: Excerpt, results: Results) -> str:
    """One metric, with methods or datasets as columns."""
    table, places = scores(results), wanted.places(results)
    (across,), (metric, *_) = wanted.options["columns"], wanted.kept("metrics", results.metrics)
    field = {"methods": "method", "data": "data"}[across]
    labels = wanted.kept(across, (getattr(place, field) for place in places))
    left = [name for name in ("data", "group", "method") if name != field]
    lines = list(dict.fromkeys(tuple(getattr(place, name) for name in left) for place in places))
    protocols = wanted.kept("protocols", results.protocols)
    made = []
    for line in lines:
        own = {getattr(place, field): place for place in places if tuple(getattr(place, name) for name in left) == line}
        for protocol in protocols:
            means = {
                label: table[own[label], protocol, metric].mean if (own[label], protocol, metric) in table else None
                for label in labels
                if label in own
            }
            cells = ["" if label not in means else _text(means[label]) for label in labels]
            cells += [f"{means[results.ours] / means[other] - 1:+.1%}" for other in wanted.options.get("over", [])]
            made.append((*line, protocol, *cells))
    heads = [*left, "protocol", *labels, *(f"{results.ours} over {other}" for other in wanted.options.get("over", []))]
    kept = [
        at for at, head in enumerate(heads) if head not in (*left, "protocol") or len({row[at] for row in made}) > 1
    ]
    return table_lines([heads[at] for at in kept], [[row[at] for at in kept] for row in made])


def _heads(results: Results, places: Sequence[Place], names: Sequence[str]) -> dict[str, list[str]]:
    """The first columns; one that says the same in every row is left out."""
    columns = {name: [shown(getattr(place, name)) for place in places] for name in names}
    kept = {name: column for name, column in columns.items() if len(set(column)) > 1 or name == "method"}
    return {results.x_label if name == "x" and results.x_label else name: column for name, column in kept.items()}


def _mean(table: Scores, place: Place, protocol: str, metric: str) -> str:
    score = table.get((place, protocol, metric))
    if score is None:
        return NOT_RUN
    return f"{score.mean:.4f}" + ("" if score.deviation != score.deviation else f" ± {score.deviation:.4f}")


def _text(mean: float | None) -> str:
    return NOT_RUN if mean is None else f"{mean:.4f}"


def _fact(results: Results, place: Place, name: str) -> str:
    """A mean of the runs' facts; the best epoch of every run."""
    facts = [run.facts for run in results.runs if run.place == place]
    if name == "seconds per epoch":
        return epoch_seconds(results, place)
    if name == "epochs":
        return ", ".join(str(one["best_epoch"]) for one in facts if one.get("best_epoch"))
    if name == "runs":
        return str(len(facts))
    key, form = {"seconds": ("seconds", ".1f"), "memory": ("peak_mib", ".0f"), "validation": ("valid_score", ".4f")}[
        name
    ]
    known = [one[key] for one in facts if one.get(key) is not None]
    return f"{fmean(known):{form}}" if known else ""


def keep(bench: Path, kept: Path = KEPT) -> int:
    """Copy finished cells of shipped plans into the committed bench; a number says how many are new.

    Of the metrics per user only those that a plan reports are kept: the rest would be most of the repository.
    """
    reported: dict[str, set[str]] = {}
    for name in shipped_plans():
        plan = read_plan(name)[1]
        for cell in cells(plan):
            reported.setdefault(cell.key, set()).update(metrics_of(plan, cell.case))
    source, target = BenchFolder.open(bench), BenchFolder(kept).make()
    there = target.results()
    new = [key for key, result in source.results().items() if key in reported and there.get(key) != result]
    for key in new:
        users = source.per_user(key)
        names = [name for name in users.columns if name == ACTIVITY or name.partition("/")[2] in reported[key]]
        target.copy(source, key, users.select(names))
    return len(new)


def write_reports(bench: Path) -> None:
    """Reports of shipped plans with a tenth or more finished in a bench, unless the page has cells that it lacks."""
    ledger = BenchFolder.open(bench)
    for name in shipped_plans():
        results = of_plan(*read_plan(name), ledger)
        kept = read_report(RESULTS / name).results.runs if (RESULTS / name / "report.json").exists() else []
        lacking = {(run.place, run.draw) for run in kept} - {(run.place, run.draw) for run in results.runs}
        if 10 * len(results.runs) >= results.n_wanted and not lacking:
            folder = Report.of(results).write(RESULTS / name)
            for file in ("report.html", "cells.parquet"):  # for a browser, and the CSV again
                (folder / file).unlink()


def main() -> None:
    if len(sys.argv) > 1:
        write_reports(Path(sys.argv[1]))
        keep(Path(sys.argv[1]))
    for folder in pages():
        write_text(folder / "report.md", page(folder))
    write_text(RESULTS / "README.md", index())
    for page_ in marked_pages():
        write_text(page_, filled(page_))


if __name__ == "__main__":
    main()
