"""NDCG@20 against wall-clock: topshelf's SL@20 against iALS, EASE and a plain SL@20, from the same 90% of train.

    python -m benchmarks.speed.quality_time [--quick] [--data NAME ...] [--methods NAME ...] [--seeds 0 1 2]
        [--search] [--json FILE] [--plot DIR]

Every run has a new process. The clock starts when the data are in memory and the libraries imported; it runs while
anything is built, compiled or trained, and stops while quality is measured, validation included. NDCG@20 is that of the
``standard`` protocol on the test part. "Reached" is the first measured point at or above the published figure; the
point to keep is chosen on validation. Nothing is refitted.

    topshelf         MF, SL@20, exact catalogue, the settings shipped for the dataset, early stopping as shipped
    ials             implicit's AlternatingLeastSquares with 64 factors, all cores, 30 iterations
    ials256          the same with 256 factors and the settings chosen for 64
    ease             topshelf's closed form
    plain            SL@20 as the paper trains it, and its settings: 1024 shuffled pairs, 1000 uniform negatives per
                     pair, a (1024, 1000, 64) gather, autograd, dense Adam, exact thresholds every T epochs; stopped
                     at a cap

``--search`` chooses the settings of iALS and EASE on validation instead (splits of seeds 10, 11, ...; test-blind), and
keeps the trials in the JSON; runs take the winners from benchmarks/results/quality_time.json. A file given to
``--json`` is updated: only what was run is replaced. ``--methods`` without a name runs nothing: table and plot show
the content of the file. ``--quick``: Health, one seed, a few epochs.
"""

from __future__ import annotations

import os
import statistics
import sys
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import ELECTRONIC, GOWALLA, HEALTH, Benchmark, Row, apart, mean_and_spread, today
from benchmarks.harness import line as line_of
from benchmarks.harness import table as table_of
from benchmarks.speed.quality_time_methods import METHODS, search
from topshelf import charts
from topshelf.files import write_bytes

# NDCG@20 of MF with SL@20 in the paper's tables.
PUBLISHED = {HEALTH: 0.1390, ELECTRONIC: 0.0590, GOWALLA: 0.1709}
LABELS = {
    "topshelf": "topshelf SL@20, d = 64",
    "ials": "iALS, d = 64",
    "ials256": "iALS, d = 256",
    "ease": "EASE",
    "plain": "plain SL@20, d = 64",
}
HEADS = (
    *("data", "method", "seconds to the published", "test NDCG@20", "its seconds", "all seconds", "epochs", "seeds"),
    "date",
)


def best_point(run: Row) -> Row:
    """The point that validation chooses, the first of equals."""
    return max((point for point in run["curve"] if "valid" in point), key=lambda point: point["valid"])


def seconds_to(run: Row, target: float) -> float | None:
    """Seconds at the first measured point that is at or above the target."""
    return next((point["seconds"] for point in run["curve"] if point["test"] >= target), None)


def table(results: Row) -> str:
    """The table of docs/quality-time.md; a test keeps it equal to the committed result."""
    places = [(data, method) for data in PUBLISHED for method in LABELS if method in results.get(data, {})]
    return table_of(HEADS, [cells(data, method, results[data][method]) for data, method in places])


def cells(data: str, method: str, entry: Row) -> list[str]:
    runs, date = entry["runs"], entry["date"]
    if "refused" in runs[0]:
        return [data, LABELS[method], f"does not fit: {runs[0]['refused'].split(';')[0]}", *[""] * 5, date]
    chosen = [best_point(run) for run in runs]
    return [
        data,
        LABELS[method],
        reached(runs, PUBLISHED[data]),
        mean_and_spread([point["test"] for point in chosen]),
        brief(statistics.mean(point["seconds"] for point in chosen)),
        brief(statistics.mean(run["seconds"] for run in runs)),
        f"{statistics.mean(run['curve'][-1]['epoch'] for run in runs):.3g}",
        str(len(runs)),
        date,
    ]


def reached(runs: list[Row], target: float) -> str:
    """Mean seconds over the seeds; never extrapolated."""
    times = [seconds for run in runs if (seconds := seconds_to(run, target)) is not None]
    if not times:
        epochs = max(run["curve"][-1]["epoch"] for run in runs)
        after = f" ({epochs:.3g} epochs)" if len(runs[0]["curve"]) > 1 else ""  # a closed form has none
        return f"not reached in {brief(max(run['seconds'] for run in runs))} s{after}"
    seeds = "" if len(times) == len(runs) else f" ({len(times)} of {len(runs)} seeds)"
    return brief(statistics.mean(times)) + seeds


def brief(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.3g}"


COLOURS = dict(zip(LABELS, (charts.BLUE, charts.RED, charts.COLOURS[4], charts.GREEN, charts.GREY), strict=True))
DASHES = dict(zip(LABELS, ("-", "--", "-.", "none", ":"), strict=True))  # a closed form is one point
SHORT = {"topshelf": "topshelf", "ials": "iALS 64", "ials256": "iALS 256", "ease": "EASE", "plain": "plain SL@20"}


def draw(results: Row, folder: Path) -> Path:
    """One panel per dataset: the first seed of every method, its end joined to its label."""
    shown = [data for data in PUBLISHED if results.get(data)]
    figure, panels = charts.figure(3.1 * len(shown), 3.2, len(shown))
    for axes, data in zip(panels, shown, strict=True):
        panel(axes, data, results[data])
        axes.tick_params(labelsize=9)
    figure.supxlabel("seconds of training (2 cores)", fontsize=9)
    figure.supylabel("NDCG@20, test", fontsize=9)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "quality_time-curves.svg"
    write_bytes(file, charts.render(figure))
    return file


def panel(axes: Any, data: str, methods: Row) -> None:
    target = PUBLISHED[data]
    axes.set_xscale("log")
    axes.set_title(data.removeprefix("amazon2014-").capitalize(), fontsize=10, loc="left")
    axes.set_title(f"- - published {target:.4f}", fontsize=8, loc="right")
    ends, highest = [], target
    for method in LABELS:
        points = methods[method]["runs"][0]["curve"] if method in methods else []
        if not points:
            continue
        seconds, quality = [p["seconds"] for p in points], [p["test"] for p in points]
        marker = "D" if len(points) == 1 else None
        axes.plot(seconds, quality, color=COLOURS[method], linestyle=DASHES[method], marker=marker, linewidth=1.6)
        ends.append((quality[-1], seconds[-1], method))
        highest = max(highest, *quality)
    axes.set_ylim(0, 1.12 * highest)
    left, right = axes.get_xlim()
    axes.hlines(target, left, right, color="black", linewidth=0.8, linestyle="--")
    axes.set_xlim(left, right * 25)  # room for the labels, one below the other
    level = 1.2 * highest
    for quality, seconds, method in sorted(ends, reverse=True):
        level = min(quality, level - 0.07 * highest)
        axes.plot([seconds, right * 1.2], [quality, level], color=COLOURS[method], linewidth=0.5)
        axes.text(right * 1.4, level, SHORT[method], va="center", fontsize=8, color=COLOURS[method])


def main() -> None:
    names, quick = tuple(PUBLISHED), {"data": [HEALTH], "seeds": [0]}
    benchmark = Benchmark(__spec__.name, __doc__, data=names, known=names, seeds=(0, 1, 2), quick=quick)
    add = benchmark.parser.add_argument
    add("--methods", nargs="*", choices=METHODS, default=list(METHODS))
    add("--search", action="store_true", help="choose settings of iALS and EASE on validation")
    add("--plot", type=Path, metavar="DIR")
    options = benchmark.parse()
    if options.search:
        options.methods = [method for method in options.methods if method in ("ials", "ease")]
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # for the processes of the runs: implicit asks for it
    results, searches = dict(benchmark.held("results")), dict(benchmark.held("searches"))
    for data, method in product(options.data, options.methods):
        note: Row = {"command": benchmark.command, "date": today()}
        note["machine"] = {"cpus": os.cpu_count(), "threads": torch.get_num_threads(), "torch": torch.__version__}
        if options.search:
            searches.setdefault(data, {})[method] = note | apart(search, data, method)
        else:
            runs = [{"seed": seed, **apart(METHODS[method], data, seed, options.quick)} for seed in options.seeds]
            results.setdefault(data, {})[method] = note | {"published": PUBLISHED[data], "runs": runs}
            print(line_of(cells(data, method, results[data][method])), file=sys.stderr, flush=True)
        benchmark.write(protocol="standard", results=results, searches=searches)
    print(table(results))
    if options.plot:
        print(f"\n{draw(results, options.plot)}")


if __name__ == "__main__":
    main()
