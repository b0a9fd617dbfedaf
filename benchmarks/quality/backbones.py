"""Backbones, losses and classics compared: each is tuned on validation with the same budget, then measured on test.

    python -m benchmarks.quality.backbones --plan grid [--data NAME ...] [--methods LABEL ...] [--jobs 2] [--json FILE]
    python -m benchmarks.quality.backbones --plan published|best|blend ... [--quick]

``grid``: MF, LightGCN and XSimGCL with BPR, SL, PSL and SL@20, d 64, trained on train alone, as the paper's tables are.
``published``: both graph backbones on Health with the settings of the paper (pairs of 1024, its optima; XSimGCL with
both variants and all its weights), no search; which of them reaches the published figures.
``best``: the classics and our best, every one refitted on train + validation once its settings are chosen; on the small
datasets also ours with the softmax loss.
``blend``: weighted sums (``topshelf blend``) of the four models that validation put first in a file of ``best``
(``--rows``).
Settings are searched by ``topshelf tune`` (TPE) on the validation split of seed 10: the same number of trials for every
method, but for ``TRIALS``; backbone_plans.py has the first trial. The test part is measured once, after that, with the
seeds 0, 1, ...: each has its own validation split, to choose its epoch on, and its own start. Both protocols are in the
file. All losses but BPR use all items. PSL needs every pair of a positive and an item, so a trial
of it takes as long as ten of SL's; BPR and PSL have half the patience of the others. Rows that FILE holds already are
not made again. ``--quick``: two trials of four epochs, one seed, one dataset, two methods.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.harness import MOVIELENS, RESULTS, Benchmark, Row, each, held
from benchmarks.harness import table as table_of
from benchmarks.quality.backbone_plans import (
    BLEND,
    BLENDED,
    CLASSICS,
    DATA,
    FIRST,
    LOSS_NAMES,
    PLANS,
    SMALL,
    TRIALS,
    Method,
    Plan,
)
from benchmarks.trained import METRIC, TEST_AT_20
from topshelf.blending import blend
from topshelf.config import RunConfig, assemble, merged
from topshelf.training import fit
from topshelf.tuning import tune

TUNING_SEED = 10


@dataclass(frozen=True)
class Task:
    """One method on one dataset."""

    plan: str
    data: str
    method: Method
    trials: int
    epochs: int
    seeds: tuple[int, ...]


def config(task: Task, seed: int, more: Row) -> RunConfig:
    method, plan = task.method, PLANS[task.plan]
    patience = plan.patience[task.data]
    if method.loss in ("bpr", "psl"):  # which take ten times as long
        patience = (patience + 1) // 2
    fixed = merged(TEST_AT_20, {"train": {"epochs": task.epochs, "patience": patience, "refit": plan.refit}})
    if task.data == MOVIELENS and method.loss == "slatk":
        fixed["negatives"] = {"effective_n": 200}
    first = merged(method.first, FIRST.get((task.data, method.label), {}))
    values = merged(merged(first, fixed), more)
    return assemble(data=task.data, model=method.model, loss=method.loss, k=20, seed=seed, more=values)


def measure(task: Task) -> Row:
    method, started = task.method, time.perf_counter()
    row: Row = {"data": task.data, "method": method.label, "trials": 0, "settings": {}}
    nested: Row = {}
    if task.trials and method.model != "popularity":  # which has nothing to tune
        study = tune(config(task, TUNING_SEED, {}), trials=task.trials, ranges=method.ranges)
        assert study.best is not None
        row |= {
            "trials": task.trials,
            "settings": study.best.settings,
            "valid": study.best.score,
            "valid_of_first": None if study.default is None else study.default.score,
            "budget": str(study.budget),
        }
        nested = by_section(study.best.settings)
    runs = []
    for seed in task.seeds:
        fitted = fit(config(task, seed, nested))
        protocols = ("standard",) if PLANS[task.plan].refit else ("standard", "paper")
        scores = {protocol: fitted.evaluate(protocol, (20,)).mean()[METRIC] for protocol in protocols}
        chosen: Row = {"epoch": fitted.best_epoch, "valid": fitted.valid_score}
        runs.append({"seed": seed, **chosen, "seconds": round(fitted.seconds, 1), **scores})
    row |= {"runs": runs, "seconds": round(time.perf_counter() - started, 1)}
    print(task.data, method.label, row["settings"], [round(run["standard"], 4) for run in runs], flush=True)
    return row


def by_section(settings: Row) -> Row:
    nested: Row = {}
    for name, value in settings.items():
        section, _, key = name.partition(".")
        nested.setdefault(section, {})[key] = value
    return nested


def measure_blend(task: Task, file: Path) -> Row:
    """The sum of the first rows of ``best``, each with the settings that were chosen for it."""
    parts = ranked(file, task.data)[:BLENDED]
    methods, started, runs = {method.label: method for method in PLANS["best"].methods}, time.perf_counter(), []
    for seed in task.seeds:
        fitted = [
            fit(config(replace(task, method=methods[part["method"]]), seed, by_section(part["settings"])))
            for part in parts
        ]
        blended = blend(fitted)
        score = blended.evaluate("standard", (20,)).mean()[METRIC]  # the paper's protocol is for models not refitted
        weights = blended.config.model.settings["weights"]
        runs.append({"seed": seed, "epoch": 0, "weights": weights, "valid": blended.valid_score, "standard": score})
    names = [part["method"] for part in parts]
    print(task.data, names, [(run["weights"], round(run["standard"], 4)) for run in runs], flush=True)
    seconds = round(time.perf_counter() - started, 1)
    return {"data": task.data, "method": BLEND, "parts": names, "runs": runs, "seconds": seconds}


def table(rows: list[Row], plan: str) -> str:
    """Means over seeds of test NDCG@20: the grid by backbone and loss, the others by method and dataset."""
    by_place = {(row["data"], row["method"]): row for row in rows}
    if plan == "grid":
        return _grid(by_place)
    methods = [method.label for method in PLANS[plan].methods]
    data = [name for name in DATA if any((name, method) in by_place for method in methods)]
    protocols = ("standard",) if plan in ("best", "blend") else ("paper", "standard")
    places = [(name, protocol) for name in data for protocol in protocols]
    lines = [
        [method, *(_cell(by_place.get((name, method)), protocol) for name, protocol in places)]
        for method in (methods[::-1] if plan == "best" else methods)
    ]
    heads = ["method", *(f"{name}, `{protocol}`" for name, protocol in places)]
    return table_of(heads, [cells for cells in lines if any(cells[1:])])


def summary(best: list[Row], blends: list[Row]) -> str:
    """One row per dataset: the classic that *test* puts first, the trained model that validation chooses, the blend."""
    lines = []
    classics = {method.label for method in CLASSICS}
    for row in sorted(blends, key=lambda row: DATA.index(row["data"])):
        own = [other for other in best if other["data"] == row["data"]]
        classic = max((other for other in own if other["method"] in classics), key=_standard)
        trained = max((other for other in own if other["method"] not in classics), key=lambda other: other["valid"])
        shown = [f"{_standard(other):.4f} ({other['method']})" for other in (classic, trained)]
        lines.append([row["data"], *shown, f"{_standard(row):.4f}", f"{_standard(row) / _standard(classic) - 1:+.1%}"])
    trained_head = "the trained model that validation chooses"
    return table_of(("data", "the best classic", trained_head, "the blend", "over the best classic"), lines)


def _standard(row: Row) -> float:
    return mean(row, "standard")


def _grid(by_place: dict[tuple[str, str], Row]) -> str:
    """One row per dataset, protocol and backbone, one column per loss, and the gain of SL@20 over SL."""
    losses = list(LOSS_NAMES.values())
    lines = []
    for data in SMALL:
        for protocol in ("paper", "standard"):
            for backbone in ("MF", "LightGCN", "XSimGCL"):
                own = [by_place.get((data, f"{backbone} {loss}")) for loss in losses]
                if own[1] is None or own[3] is None:
                    continue
                gain = mean(own[3], protocol) / mean(own[1], protocol) - 1
                lines.append([data, protocol, backbone, *(_cell(row, protocol) for row in own), f"{gain:+.1%}"])
    return table_of(("data", "protocol", "backbone", *losses, "SL@20 over SL"), lines)


def _cell(row: Row | None, protocol: str) -> str:
    return "" if row is None else f"{mean(row, protocol):.4f}"


def mean(row: Row, protocol: str) -> float:
    return statistics.mean(run[protocol] for run in row["runs"])


def _trials(plan: Plan, data: str, method: Method) -> int:
    return TRIALS.get((data, method.label), plan.trials[data])


def ranked(file: Path, data: str) -> list[Row]:
    """The rows of a dataset by validation score, best first; one per model, with its better loss."""
    own = [row for row in held(file) if row["data"] == data and "valid" in row]
    wanted = {method.label for method in PLANS["best"].methods if data in method.data}
    missing = wanted - {"popularity"} - {row["method"] for row in own}
    if missing:
        raise SystemExit(f"{file} must hold every method of best on {data}; it lacks {', '.join(sorted(missing))}")
    models = {method.label: method.model for method in PLANS["best"].methods}
    best: dict[str, Row] = {}
    for row in sorted(own, key=lambda row: -row["valid"]):
        best.setdefault(models[row["method"]], row)
    return list(best.values())


def main() -> None:
    benchmark = Benchmark(__spec__.name, __doc__, data=DATA, jobs=2)
    add = benchmark.parser.add_argument
    add("--plan", choices=PLANS, default="grid")
    add("--methods", nargs="+", metavar="LABEL", help="default: all of the plan")
    add("--rows", type=Path, default=RESULTS / "backbones_best.json", help="of best; for blend")
    options = benchmark.parse()
    plan = PLANS[options.plan]
    known = [method.label for method in plan.methods]
    labels = options.methods or (known[:2] if options.quick else known)
    data = plan.data if options.data == list(DATA) else options.data
    benchmark.check("--data", data, plan.data)
    benchmark.check("--methods", labels, known)
    rows = benchmark.held()
    done = {(row["data"], row["method"]) for row in rows}
    tasks = [
        Task(options.plan, name, method, min(2, plan.trials[name]), 4, (0,))
        if options.quick
        else Task(options.plan, name, method, _trials(plan, name, method), plan.epochs[name], plan.seeds[name])
        for name in (plan.data[-1:] if options.quick else data)
        for method in plan.methods
        if method.label in labels and name in method.data and (name, method.label) not in done
    ]
    measured = partial(measure_blend, file=options.rows) if options.plan == "blend" else measure
    for row in each(measured, tasks, options.jobs):
        rows.append(row)
        benchmark.write(protocol=["standard", "paper"], rows=rows)
    print(table(rows, options.plan))


if __name__ == "__main__":
    main()
