"""`topshelf auto` within its budget, beside `topshelf train` without flags and the best model that was tuned for hours.

    python -m benchmarks.quality.auto --json benchmarks/results/auto.json [--data NAME ...] [--seeds N ...] [--quick]

Test NDCG@20, protocol `standard`, of the models that learned from train and validation. The budget is 5 minutes on
Health and MovieLens-100K, 15 on Electronic and Food (``--minutes`` for another). "tuned" is the best single model of
docs/results/best, mean over its seeds. The aim is that value less 1%. ``UNSEEN`` are datasets that auto was never tried
on while it was made; they have no tuned models, and the aim is `topshelf train`. Rows that the file has are not made
again.
A busy machine tries less within the same budget: run it alone. ``--table`` prints the rows of the file and makes none.
``--quick``: MovieLens-100K, half a minute, seed 0, no default run.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

from benchmarks.harness import ELECTRONIC, FOOD, HEALTH, MOVIELENS, ROOT, Benchmark, Row, today
from benchmarks.harness import table as table_of
from topshelf.auto import auto
from topshelf.bench import read_report
from topshelf.config import assemble
from topshelf.training import fit

K, METRIC, MARGIN = 20, "ndcg@20", 0.01
MINUTES = {HEALTH: 5.0, MOVIELENS: 5.0, ELECTRONIC: 15.0, FOOD: 15.0}
LABELS = {HEALTH: "Health", MOVIELENS: "MovieLens", ELECTRONIC: "Electronic", FOOD: "Food"}
SEEDS = (0, 1, 2)
UNSEEN = {"movielens-1m": 5.0, "movielens-1m-temporal": 5.0, "amazon2014-electronic-temporal": 5.0, "gowalla": 10.0}


def tuned(data: str) -> tuple[str, float]:
    """The best single model of the committed results, and its test NDCG@20."""
    scores: dict[str, list[float]] = {}
    for run in read_report(ROOT / "docs" / "results" / "best").results.runs:
        if run.place.data == LABELS[data]:
            scores.setdefault(f"{run.place.group} {run.place.method}", []).append(run.metrics["standard"][METRIC])
    best = max(scores, key=lambda name: statistics.fmean(scores[name]))
    return best.removeprefix("classics "), statistics.fmean(scores[best])


def measure(data: str, seed: int, minutes: float) -> Row:
    """One call of auto: its test scores, its parts, and what was tried."""
    load, started = os.getloadavg()[0], time.perf_counter()
    found = auto(data, k=K, budget=60 * minutes, seed=seed, quiet=False)
    seconds = time.perf_counter() - started
    mean = found.fitted.test_json()["mean"]
    said: Row = {"data": data, "seed": seed, "minutes": minutes, "method": "auto", "test": mean[METRIC]}
    said |= {"recall@20": mean["recall@20"], "valid": found.fitted.valid_score, "seconds": round(seconds, 1)}
    tried = [[one.name, one.score, one.trials, round(one.seconds, 1), one.weight, one.note] for one in found.tried]
    return {**said, "load": round(load, 1), "date": today(), "tried": tried}


def measure_default(data: str, seed: int) -> Row:
    """`topshelf train` without flags."""
    fitted = fit(assemble(data=data, k=K, seed=seed))
    row: Row = {"data": data, "seed": seed, "method": "train", "test": fitted.test_json()["mean"][METRIC]}
    return {**row, "seconds": round(fitted.seconds, 1), "date": today()}


def table(rows: list[Row]) -> str:
    """A line per dataset: means over seeds, and whether the aim is met."""
    lines = []
    for data in dict.fromkeys(row["data"] for row in rows):
        own = {method: [row for row in rows if row["data"] == data and row["method"] == method] for method in METHODS}
        if not own["auto"] or data not in LABELS:
            continue
        mean = {method: statistics.fmean(row["test"] for row in some) for method, some in own.items() if some}
        name, best = tuned(data)
        cells: list[Any] = [data, f"{own['auto'][0]['minutes']:g} min", len(own["auto"]), f"{mean['auto']:.4f}"]
        cells += [f"{mean['train']:.4f}" if "train" in mean else "", f"{best:.4f} ({name})"]
        is_met = mean["auto"] >= best * (1 - MARGIN)
        lines.append([*cells, f"{mean['auto'] / best - 1:+.1%}", "yes" if is_met else "no"])
    heads = ("data", "budget", "seeds", "auto", "train, no flags", "tuned for hours", "auto against it", "aim met")
    return table_of(heads, lines)


def unseen_table(rows: list[Row]) -> str:
    """A line per dataset without tuned models: auto against `topshelf train`."""
    lines = []
    for data in UNSEEN:
        own = {method: [row for row in rows if row["data"] == data and row["method"] == method] for method in METHODS}
        if not own["auto"]:
            continue
        mean = {method: statistics.fmean(row["test"] for row in some) for method, some in own.items() if some}
        seconds = statistics.fmean(row["seconds"] for row in own["auto"])
        cells: list[Any] = [data, f"{own['auto'][0]['minutes']:g} min", f"{seconds:.0f}", len(own["auto"])]
        cells += [f"{mean['auto']:.4f}", f"{mean['train']:.4f}" if "train" in mean else ""]
        lines.append([*cells, f"{mean['auto'] / mean['train'] - 1:+.1%}" if "train" in mean else ""])
    heads = ("data", "budget", "seconds", "seeds", "auto", "train, no flags", "auto against it")
    return table_of(heads, lines)


METHODS = ("auto", "train")


def main() -> None:
    bench = Benchmark(
        "benchmarks.quality.auto", __doc__, data=tuple(MINUTES), known=(*MINUTES, *UNSEEN), seeds=SEEDS,
        quick={"data": [MOVIELENS], "seeds": [0], "minutes": 0.5},
    )  # fmt: skip
    bench.parser.add_argument("--minutes", type=float, help="the budget for all data, in place of their own")
    bench.parser.add_argument("--table", action="store_true", help="print the table of the file")
    options = bench.parse()
    rows = bench.held()
    done = {(row["data"], row["seed"], row["method"], row.get("minutes")) for row in rows}
    for seed in [] if options.table else options.seeds:
        for data in options.data:
            minutes = options.minutes or (MINUTES | UNSEEN)[data]
            if (data, seed, "auto", minutes) not in done:
                rows.append(measure(data, seed, minutes))
                bench.write(rows=rows)
            if (data, seed, "train", None) not in done and not options.quick:
                rows.append(measure_default(data, seed))
                bench.write(rows=rows)
    print(table(rows), unseen_table(rows), sep="\n\n")


if __name__ == "__main__":
    main()
