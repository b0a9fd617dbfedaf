"""The page of one or several runs."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from topshelf import charts
from topshelf.bench.tables import metric_name
from topshelf.config import CatalogueConfig, RunConfig, allow_options
from topshelf.errors import ConfigError
from topshelf.page import Cell, Page
from topshelf.report.numbers import activity_section, lists_section, metrics_section
from topshelf.report.overview import data_section, runs_section, warn_of_differences
from topshelf.report.people import people_section
from topshelf.report.scores import scores_section
from topshelf.report.shown import Shown, open_runs
from topshelf.report.tried import tried_section


def write_report(
    runs: Sequence[str | Path],
    out: str | Path,
    *,
    titles: Any = None,
    allow: Collection[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write one self-contained page of HTML on run folders of one task and on the same data; returns its path.

    ``titles``: titles of items to show, as in :meth:`topshelf.Recommender.set_titles`. ``allow`` as in
    :func:`topshelf.load`. ``say`` gets progress messages. A file that is there is replaced, as a whole.
    """
    out = Path(out)
    if out.is_dir():
        raise ConfigError(f"--out must be a file such as report.html, and {out} is a folder; name a file in it")
    if not out.resolve().parent.is_dir():  # said before minutes of work
        raise ConfigError(f"--out must be in a folder that is there, got {out}; make {out.parent} first")
    page = report_page(runs, out, titles=titles, allow=allow, say=say)
    page.write(out)
    return out


def report_page(
    runs: Sequence[str | Path],
    out: str | Path = "report.html",
    *,
    titles: Any = None,
    allow: Collection[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Page:
    """The page of :func:`write_report`; ``out`` is named in the command that makes it again."""
    shown = open_runs(runs, allow=allow, say=say)
    say("drawing")
    version = metadata.version("topshelf")
    today = datetime.now(UTC).date().isoformat()
    page = Page(_title(shown), lead=_lead(shown), footer=f"Made by topshelf {version} on {today}.")
    warn_of_differences(page, shown)
    _headline(page, shown)
    add_sections(page, shown, titles)
    page.heading("Make this page again")
    page.command(_command(shown, out, titles))
    return page


def add_sections(page: Page, runs: Sequence[Shown], titles: Any = None) -> None:
    """All sections on runs that are on the same data."""
    tried_section(page, runs)
    metrics_section(page, runs)
    _lengths(page, runs)
    if isinstance(runs[0].config, RunConfig):
        activity_section(page, runs)
    lists_section(page, runs)
    _list_plots(page, runs)
    if isinstance(runs[0].config, CatalogueConfig):
        people_section(page, runs, titles)
    _curves(page, runs)
    scores_section(page, runs)
    data_section(page, runs)
    runs_section(page, runs)


def _title(runs: Sequence[Shown]) -> str:
    first = runs[0]
    return f"{first.label} on {first.fitted.dataset.name}" if len(runs) == 1 else _several(runs)


def _several(runs: Sequence[Shown]) -> str:
    return f"{len(runs)} runs on {runs[0].fitted.dataset.name}"


def _lead(runs: Sequence[Shown]) -> str:
    first = runs[0]
    return f"Task {first.config.task}, K = {first.config.k}. {'; '.join(f'{run.name}: {run.label}' for run in runs)}."


def _headline(page: Page, runs: Sequence[Shown]) -> None:
    """The metric that runs are chosen by, first of all."""
    metric = runs[0].metric
    known = [(run, run.mean(metric), run.interval(metric)) for run in runs]
    found = [(run.name, value, ends or (value, value)) for run, value, ends in known if value is not None]
    if len(found) > 1:
        names, values, ends = zip(*found, strict=True)
        with page.beside():
            page.intervals(names, values, ends, f"{metric_name(metric)} on the test part, with 95% intervals")
            page.tiles(_bests(runs))
    elif found:
        name, value, (low, high) = found[0]
        run = next(run for run in runs if run.name == name)
        facts: list[Any] = [(metric_name(metric), Cell(f"{value:.4f}", f"{low:.4f} to {high:.4f}"))]
        for base in ("recall", "hit_rate", "coverage"):
            if (other := run.mean(f"{base}@{run.config.k}")) is not None:
                facts.append((metric_name(f"{base}@{run.config.k}"), f"{other:.4f}"))
        facts.append(("training", _took(run.fitted.seconds)))
        page.tiles(facts)


def _bests(runs: Sequence[Shown]) -> list[tuple[str, Cell]]:
    """The best run by each of a few measures."""
    facts, k = [], runs[0].config.k
    for metric in dict.fromkeys((runs[0].metric, f"recall@{k}", f"coverage@{k}")):
        known = [(value, run.name) for run in runs if (value := run.mean(metric)) is not None]
        if known:
            value, name = max(known)
            facts.append((f"best {metric_name(metric)}", Cell(f"{value:.4f}", name)))
    quickest = min(runs, key=lambda run: run.fitted.seconds)
    facts.append(("quickest training", Cell(_took(quickest.fitted.seconds), quickest.name)))
    return facts


def _took(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds >= 0.05 else "under 0.1 s"


def _lengths(page: Page, runs: Sequence[Shown]) -> None:
    page.heading("By the length of the list")
    if not charts.can_plot():
        page.paragraph(charts.NO_PLOTS, note=True)
        return
    from topshelf.report import plots

    made = [(plots.over_lengths(runs, base, f"{metric_name(base)}@K"), base) for base in ("ndcg", "recall")]
    page.drawings([(svg, f"{metric_name(base)}@K over K, a line per run") for svg, base in made if svg is not None])


def _list_plots(page: Page, runs: Sequence[Shown]) -> None:
    if not charts.can_plot() or not any(run.result and run.result["extras"] for run in runs):
        return
    from topshelf.report import plots

    named = {"coverage": "coverage@K", "popularity_lift": "popularity lift@K"}
    made = [(plots.over_lengths(runs, base, label), label) for base, label in named.items()]
    page.drawings([(svg, f"{label} over K, a line per run") for svg, label in made if svg is not None])


def _curves(page: Page, runs: Sequence[Shown]) -> None:
    """Learning curves, from the runs' logs."""
    if not any(run.log or run.log_note for run in runs):
        return
    page.heading("Learning curves")
    for run in runs:
        if run.log_note:
            page.paragraph(f"{run.name}: {run.log_note}", note=True)
    if not charts.can_plot():
        page.paragraph(charts.NO_PLOTS, note=True)
        return
    from topshelf.report import plots

    metric = metric_name(runs[0].metric)
    made = [
        (plots.over_epochs(runs, lambda one: one.valid, f"validation {metric}"), f"validation {metric} over epochs"),
        (plots.over_epochs(runs, lambda one: one.loss, "training loss"), "training loss over epochs"),
        (plots.over_epochs(runs, lambda one: one.threshold, "mean threshold"), "mean top-K threshold over epochs"),
    ]
    page.drawings([(svg, alt) for svg, alt in made if svg is not None])
    page.paragraph("A ring marks the epoch that was kept. Values of different losses cannot be compared.", note=True)


def _command(runs: Sequence[Shown], out: str | Path, titles: Any) -> str:
    words = ["topshelf", "report", *(run.path for run in runs), "-o", str(out)]
    words += ["--titles", str(titles)] if isinstance(titles, str | Path) else []
    allowed = dict.fromkeys(word for run in runs for word in allow_options(run.config).split())
    packages = [word for word in allowed if word != "--allow"]
    return shlex.join([*words, *(word for package in packages for word in ("--allow", package))])
