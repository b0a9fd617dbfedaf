"""topshelf bench: plans of many runs, and reports on them. topshelf compare: the same tables for any runs."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from topshelf.cli import completion, pages
from topshelf.cli.options import Allow, Quiet, WithReport, argument, option, search_here
from topshelf.errors import ConfigError, TrainingError, one_of
from topshelf.terminal import print_table, say

if TYPE_CHECKING:
    from topshelf.bench import Plan, Report

app = typer.Typer(
    help="Run and report comparisons: the paper's tables and figures, and your own.", no_args_is_help=True
)

PlanName = Annotated[str, argument("PLAN", "A plan of topshelf bench list, or a TOML file.", tab=completion.plans)]
Out = Annotated[Path, option("Folder of the bench; several plans and processes may share it.", "--out")]
Data = Annotated[list[str] | None, option("Only these datasets, by their labels. Repeatable.")]
Groups = Annotated[list[str] | None, option("Only these groups. Repeatable.", "--group")]
Methods = Annotated[list[str] | None, option("Only these methods. Repeatable.", "--method")]
Seeds = Annotated[list[int] | None, option("Only these seeds. Repeatable.", "--seed")]
Choose = Annotated[
    str | None,
    option(
        "Where settings come from: published, shipped or tuned; default: the plan's.",
        tab=completion.choice("published", "shipped", "tuned"),
    ),
]
Storage = Annotated[str | None, option("Database url that machines without a common folder share.")]
_OUT = Path("runs") / "bench"


@app.command("list")
def list_() -> None:
    """List the plans that come with topshelf."""
    from topshelf.bench.cells import data_here
    from topshelf.bench.plan import cases, read_plan, shipped_plans

    rows = []
    for name in shipped_plans():
        plan = read_plan(name)[1]
        here, n_cells = data_here(plan), sum(1 for _ in cases(plan)) * len(plan.seeds)
        absent = [label for label, is_here in here.items() if not is_here]
        note = "" if not absent else "no data here" if len(absent) == len(here) else f"no {', '.join(absent)} here"
        rows.append((name, plan.title, n_cells, note))
    print_table(("plan", "what it compares", "cells", ""), rows, left=2)
    say("Run one: topshelf bench run PLAN. A plan of your own is a TOML file; see docs/bench.md.")


@app.command()
def show(plan: PlanName) -> None:
    """Show the cases of a plan: the settings that it gives them, and what was published.

    Example: topshelf bench show table2-health
    """
    from topshelf.bench.plan import cases, known, metrics_of
    from topshelf.bench.tables import metric_name, shown

    _, found = _plan(plan)
    rows = []
    for case in cases(found):
        published = known(found, case)
        optimum = zip(case.method.hyperparameters, published.optimum, strict=False)
        values = [
            f"{metric_name(name)} {published.values[name]:.4f}"
            for name in metrics_of(found, case)
            if name in published.values
        ]
        rows.append((case.name, ", ".join(f"{name} {shown(value)}" for name, value in optimum), ", ".join(values)))
    print_table(("case", "published settings", "published figures"), rows, title=found.title)
    say(f"{len(rows)} cases, seeds {', '.join(map(str, found.seeds))}; settings: {found.choose}")


@app.command()
def run(
    plan: PlanName,
    out: Out = _OUT,
    data: Data = None,
    group: Groups = None,
    method: Methods = None,
    seed: Seeds = None,
    choose: Choose = None,
    trials: Annotated[int | None, option("With tuned settings: trials per method.")] = None,
    minutes: Annotated[float | None, option("Time for one cell; default: the plan's, 60.")] = None,
    jobs: Annotated[int | None, option("Cells at a time; default: one per core while memory allows.")] = None,
    threads: Annotated[int, option("Threads of a cell; their number can change the last digits.")] = 1,
    retry: Annotated[bool, option("Run cells again that failed before.", "--retry")] = False,
    storage: Storage = None,
    allow: Allow = None,  # noqa: ARG001
    with_report: WithReport = None,
    quiet: Quiet = False,
) -> None:
    """Run the cells of a plan that have no result yet, then print its tables.

    Every cell is a run folder in OUT/cells. Give the same command again to go on after a stop or a kill, or in other
    processes to share the work; finished cells are never run twice.

    Examples:

      topshelf bench run quick

      topshelf bench run table2-health --group MF --seed 0

      topshelf bench run my-plan.toml --out runs/mine --choose tuned --trials 20
    """
    from topshelf.bench import run as run_plan

    name, found = _plan(plan, data, group, method, seed, choose, trials, minutes)
    how: dict[str, Any] = {"jobs": jobs, "threads": threads, "storage": storage, "retry": retry, "quiet": quiet}
    started = time.monotonic()
    summary = run_plan(found, out, **how)
    for reason in summary.reasons:
        say(f"no result: {reason}", stderr=True)
    say(
        f"{summary.done} cells run, {summary.known} known before, {summary.failed} failed, {summary.absent} without "
        f"data, {summary.elsewhere} running elsewhere"
    )
    if summary.done or summary.known:
        made, seconds = _report(name, found, out, storage), time.monotonic() - started
        _print(made)
        again = shlex.join(["topshelf", "bench", "report", plan, "--out", str(out)])
        pages.written(lambda: made.write(out / "reports" / name) / "report.html", again, seconds, with_report)
    if summary.failed:
        raise TrainingError(f"{summary.failed} of the cells failed; --retry runs failed cells again")
    if summary.absent and not (summary.done or summary.known or summary.elsewhere):
        raise ConfigError("no cell has data here, so nothing was run")


@app.command()
def status(
    plan: PlanName,
    out: Out = _OUT,
    data: Data = None,
    group: Groups = None,
    method: Methods = None,
    choose: Choose = None,
    storage: Storage = None,
) -> None:
    """Count the cells of a plan that are done, running, waiting, failed or without data.

    Example: topshelf bench status table2-health
    """
    from topshelf.bench import status as states

    found = _plan(plan, data, group, method, None, choose)[1]
    names = ("done", "running", "waiting", "failed", "no data")
    counts: dict[str, dict[str, int]] = {}
    for cell, state in states(found, out, storage):
        row = counts.setdefault(f"{cell.case.data.label}{f', {cell.case.group.label}' if cell.case.group else ''}", {})
        row[state] = row.get(state, 0) + 1
    rows = [(label, *(row.get(name, 0) for name in names)) for label, row in counts.items()]
    total = [sum(row.get(name, 0) for row in counts.values()) for name in names]
    print_table(("cells of", *names), [*rows, ("all", *total)], title=found.title, left=1)


@app.command()
def report(
    plan: PlanName,
    out: Out = _OUT,
    to: Annotated[Path | None, option("Folder of the report; default: OUT/reports/PLAN.")] = None,
    data: Data = None,
    group: Groups = None,
    method: Methods = None,
    seed: Seeds = None,
    choose: Choose = None,
    storage: Storage = None,
) -> None:
    """Write the tables and figures of a plan: Markdown, LaTeX, HTML, CSV and Parquet, SVG.

    Example: topshelf bench report table2-health --to docs/results/table2-health
    """
    name, found = _plan(plan, data, group, method, seed, choose)
    made = _report(name, found, out, storage)
    _print(made)
    say(f"report: {made.write(to or out / 'reports' / name) / 'report.html'}")


def compare(
    runs: Annotated[list[Path], argument("RUN...", "Run folders on the same data.", tab=completion.runs)],
    ours: Annotated[str | None, option("The method that is tested against the best of the others.")] = None,
    protocol: Annotated[list[str] | None, option("standard, paper; default: as the runs say. Repeatable.")] = None,
    to: Annotated[Path | None, option("Also write the report into this folder.")] = None,
    allow: Allow = None,  # noqa: ARG001
) -> None:
    """Compare finished runs in one table: means over seeds, intervals, paired tests.

    Runs that differ in the seed alone are one method.

    Examples:

      topshelf compare runs/a runs/b runs/c

      topshelf compare runs/*-seed* --ours "mf, slatk" --to runs/compared
    """
    from topshelf.bench.compared import of_runs
    from topshelf.bench.report import Report

    made = Report.of(of_runs(runs, protocols=tuple(protocol or ()), ours=ours))
    _print(made)
    if to is not None:
        say(f"report: {made.write(to) / 'report.html'}")


def _plan(
    plan: str,
    data: list[str] | None = None,
    group: list[str] | None = None,
    method: list[str] | None = None,
    seed: list[int] | None = None,
    choose: str | None = None,
    trials: int | None = None,
    minutes: float | None = None,
) -> tuple[str, Plan]:
    from topshelf.bench import narrowed, read_plan

    search_here()  # a plan may name classes of the user's own
    name, found = read_plan(plan)
    if choose is not None:
        one_of("--choose", choose, ("published", "shipped", "tuned"))
    for option_, value in (("--trials", trials), ("--minutes", minutes)):
        if value is not None and value <= 0:
            raise ConfigError(f"{option_} must be above 0, got {value}")
    limits: Any = {"choose": choose, "trials": trials, "minutes": minutes}
    return name, narrowed(found, data=data or (), groups=group or (), methods=method or (), seeds=seed or (), **limits)


def _report(name: str, plan: Plan, out: Path, storage: str | None) -> Report:
    from topshelf.bench import Report, of_plan
    from topshelf.bench.folder import BenchFolder
    from topshelf.bench.worker import open_ledger

    return Report.of(of_plan(name, plan, open_ledger(BenchFolder.open(out), storage)))


def _print(made: Report) -> None:
    from topshelf.bench import tables

    for grid in made.grids():
        shown = [at for at, name in enumerate(grid.header) if name != "p"]  # the corrected one is enough for a terminal
        styles = ["bold" if at == grid.best else "" for at in range(len(grid.rows))]
        rows = [[row[at] for at in shown] for row in grid.rows]
        print_table([grid.header[at] for at in shown], rows, title=grid.title, styles=styles)
    for line in tables.gain_lines(made.results, made.gains):
        say(line)
    if made.results.note:
        say(made.results.note)
