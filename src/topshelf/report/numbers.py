"""How good the runs are: metrics with intervals, paired tests, coverage, and for which users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from topshelf import charts
from topshelf.bench import tables
from topshelf.bench.activity import by_activity, item_range
from topshelf.bench.summary import compared
from topshelf.bench.tables import metric_name
from topshelf.evaluation import conditions
from topshelf.page import Cell, Page
from topshelf.report.overview import NOTHING, best_of
from topshelf.report.shown import Shown, as_results
from topshelf.statistics import holm

_FIRST = ("ndcg", "recall", "hit_rate", "precision", "map", "mrr", "err")  # those that people look at first
_LISTS = ("coverage", "popularity_lift")
_SHOWN = 5  # metrics of the first table


def metrics_section(page: Page, runs: Sequence[Shown]) -> None:
    page.heading("Metrics")
    known = [run for run in runs if run.result is not None]
    if not known:
        page.paragraph("No run has test metrics.")
        return
    first = known[0].result
    assert first is not None
    page.paragraph(
        f"{conditions(first)[0].upper()}{conditions(first)[1:]}. {first['n_evaluated']:,} {first['units']}. "
        "Small numbers: 95% intervals, by bootstrap."
    )
    if len(known) == 1:
        _by_cutoff(page, known[0])
        return
    _by_run(page, known)
    with page.details("All metrics"):
        names = [name for name in _all_names(known) if any(run.mean(name) is not None for run in known)]
        rows: list[Sequence[str | Cell]] = [(metric_name(name), *_row(known, name)) for name in names]
        page.table(("metric", *(run.name for run in known)), rows, caption="Every metric; the best is bold")
    _means(page, known)
    _tests(page, known)


def _by_cutoff(page: Page, run: Shown) -> None:
    """Metrics of one run: a row per metric, a column per length of the list."""
    lengths, all_names = sorted({*run.config.cutoffs, run.config.k}), _all_names([run])
    lengths = [k for k in lengths if run.mean(f"ndcg@{k}") is not None]
    bases = dict.fromkeys(name.partition("@")[0] for name in all_names if "@" in name)
    rows: list[Sequence[str | Cell]] = []
    for base in bases:
        rows.append((metric_name(base), *(_value(run, f"{base}@{k}") for k in lengths)))
    page.table(("metric", *(f"@{k}" for k in lengths)), rows, caption="Metrics by the length of the list")
    if single := [name for name in all_names if "@" not in name and run.mean(name) is not None]:
        page.tiles([(metric_name(name), _value(run, name)) for name in single])


def _by_run(page: Page, runs: Sequence[Shown]) -> None:
    """The metrics at the runs' K, a row per run."""
    k = runs[0].config.k
    names = [f"{base}@{k}" for base in _FIRST] + ["mrr", "auc"]
    names = [name for name in names if any(run.mean(name) is not None for run in runs)][:_SHOWN]
    columns = [_row(runs, name) for name in names]
    rows: list[Sequence[str | Cell]] = []
    for at, run in enumerate(runs):
        seconds = f"{run.fitted.seconds:,.1f}"
        rows.append((Cell(run.name, run.label), *(column[at] for column in columns), seconds))
    header = ("run", *map(metric_name, names), "training, s")
    page.table(header, rows, caption=f"Metrics at K = {k}; the best of each column is bold")


def _all_names(runs: Sequence[Shown]) -> list[str]:
    """All metrics at the lengths that the runs' settings name."""
    lengths = {k for run in runs for k in (*run.config.cutoffs, run.config.k)}
    names = dict.fromkeys(name for run in runs for name in (run.result or {"mean": {}})["mean"])
    return [name for name in names if "@" not in name or int(name.rpartition("@")[2]) in lengths]


def _row(runs: Sequence[Shown], name: str) -> list[Cell]:
    best = best_of([run.mean(name) for run in runs])
    return [_value(run, name, best) for run in runs]


def _value(run: Shown, name: str, best: float = float("nan")) -> Cell:
    value, ends = run.mean(name), run.interval(name)
    if value is None:
        return Cell(NOTHING)
    note = "" if ends is None else f"{ends[0]:.4f} to {ends[1]:.4f}"
    return Cell(f"{value:.4f}", note, is_best=round(value, 4) == best)


def _means(page: Page, runs: Sequence[Shown]) -> None:
    """Means over seeds, where a method has several."""
    results = as_results(runs, by_label=True)
    if results is None or len(results.places) == len(results.runs):
        return
    page.subheading("Means over seeds")
    for grid in tables.grids(results):
        page.table(grid.header, grid.rows, best=grid.best, caption=grid.title)


def _tests(page: Page, runs: Sequence[Shown]) -> None:
    """The first run against each of the others, on the users that both have."""
    results = as_results(runs)
    if results is None or len(results.runs) < 2:
        return
    metric, protocol, (first, *others) = results.metrics[0], results.protocols[0], results.places
    # As if all had one seed: runs are paired wherever their test lists are the same.
    results = replace(results, runs=[replace(run, seed=0) for run in results.runs])
    tried = [compared(results, first, other, "", protocol, metric) for other in others]
    made = [one for one in tried if one is not None]
    if not made:
        return
    adjusted = holm([one.p_value for one in made])
    rows = [
        (
            one.other.method,
            f"{one.difference:+.4f} ({one.low:+.4f} to {one.high:+.4f})",
            f"{one.gain:+.1%}",
            tables.p_text(p),
        )
        for one, p in zip(made, adjusted, strict=True)
    ]
    page.subheading(f"{first.method} against the others")
    page.table(
        ("against", f"difference in {metric_name(metric)} (95%)", "gain", "p, Holm"),
        rows,
        caption="Paired over users: bootstrap interval, two-sided sign-flip test",
    )


def activity_section(page: Page, runs: Sequence[Shown]) -> None:
    """Who gains: users by how many items they have in train."""
    results = as_results(runs)
    found = [] if results is None else by_activity(results)
    if not found:
        return
    page.heading("Who gains")
    page.paragraph("Users by how many items they have in train, in groups of about one size.")
    groups = list(dict.fromkeys((one.low, one.high) for one in found))
    names = list(dict.fromkeys(one.place.method for one in found))
    scores = {(one.place.method, one.low, one.high): one for one in found}
    bests = [best_of([scores[name, *group].score for name in names]) for group in groups]
    rows: list[Sequence[str | Cell]] = []
    for name in names:
        values = [scores[name, *group].score for group in groups]
        cells = [Cell(f"{x:.4f}", is_best=round(x, 4) == best) for x, best in zip(values, bests, strict=True)]
        rows.append((name, *cells))
    header = ("run", *(item_range(*group) for group in groups))
    said = f"{metric_name(found[0].metric)} by items in train"
    users = ", ".join(f"{scores[names[0], *group].users:,}" for group in groups)
    with page.beside():
        page.table(header, rows, caption=f"{said}; {users} users")
        if charts.can_plot():
            from topshelf.report import plots

            page.drawing(plots.by_activity(found), f"{said}; the table has the numbers")


def lists_section(page: Page, runs: Sequence[Shown]) -> None:
    """Coverage of the catalogue and popularity of what is listed."""
    known = [run for run in runs if run.result is not None and run.result["extras"]]
    if not known:
        return
    page.heading("Coverage and popularity")
    page.paragraph(
        "Coverage: the share of the catalogue that is in somebody's list. Popularity lift: how often a "
        "listed item is in train, against a mean item; above 1, lists lean to popular items."
    )
    k = known[0].config.k
    rows = [(run.name, *(_share(run, f"{base}@{k}") for base in _LISTS)) for run in known]
    page.table(("run", f"coverage@{k}", f"popularity lift@{k}"), rows, caption=f"Lists of {k} items")


def _share(run: Shown, name: str) -> str:
    value = run.mean(name)
    return NOTHING if value is None else f"{value:.4f}"
