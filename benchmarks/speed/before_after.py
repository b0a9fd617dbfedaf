"""Two source trees timed in turn, in one call: training, closed forms and evaluation, after over before.

    python -m benchmarks.speed.before_after --before PATH/src --after PATH/src [--quick] [--data NAME ...]
        [--work LABEL ...] [--rounds 15] [--threads N] [--limit 1.03] [--json FILE]

Each tree has a worker process, which imports topshelf from that tree and loads the data once. The workers take turns,
round after round, and the tree that goes first changes with every round; only one of them works at a time. The first
round warms up. Times are taken inside the workers, around ``topshelf.training.fit`` (a few epochs with the last one
validated) or ``Fitted.evaluate``; only the config level of the package is used, which both trees have. A call that is
shorter than ``--least`` seconds is repeated within its turn; a workload ends after ``--most`` seconds, but not before
three rounds. On a machine with other jobs, ``--threads 1`` and more rounds are the remedy: two threads wait for each
other, and waiting costs CPU time too.

The ratio is the best time after over the best time before, of the wall clock and of the CPU (all threads): on a machine
with other work the second is the steadier one. The spread is that of the ratios of single rounds: their quartiles.
Rows above ``--limit`` in both ratios are marked, and the exit code is then 1.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import ELECTRONIC, HEALTH, MOVIELENS, Benchmark, Row, check_tree, in_tree, line, table

MODULE = "benchmarks.speed.before_after"
TREES = ("before", "after")
# Model, loss and settings of each training. Losses that look at pairs have few negatives: their epochs take longest.
TRAINING: dict[str, tuple[str, str, Row]] = {
    "MF, SL@20, exact catalogue": ("mf", "slatk", {}),
    "LightGCN, SL@20, exact catalogue": ("lightgcn", "slatk", {}),
    "MF, BPR, per query": ("mf", "bpr", {"negatives": {"kind": "per_query"}, "train": {"order": "query"}}),
    "MF, PSL, 100 per query": ("mf", "psl", {"negatives": {"kind": "per_query", "n": 100}}),
    "MF, LambdaLoss@20, 100 per query": (
        "mf",
        "lambdaloss_at_k",
        {"negatives": {"kind": "per_query", "n": 100}, "train": {"order": "query"}},
    ),
}
EASE, EVALUATION, WITH_AUC = "EASE, fit", "evaluation", "evaluation, with AUC"
WORK = (*TRAINING, EASE, EVALUATION, WITH_AUC)
EPOCHS = {HEALTH: 5, MOVIELENS: 5, ELECTRONIC: 1}
HEADS = (
    "data",
    "work",
    "before, s",
    "after, s",
    "wall, after / before",
    "quartiles",
    "CPU, after / before",
    "quartiles",
)


class Worker:
    """A process with one tree. It answers each request with seconds of the wall clock and of the CPU."""

    def __init__(self, source: Path) -> None:
        self.process = in_tree(MODULE, source, "--worker", str(source.resolve()), stdin=subprocess.PIPE)
        self.ask({})  # refuses a wrong tree at once

    def ask(self, request: Row) -> list[float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"the worker of a tree ended with code {self.process.wait()}")
        seconds: list[float] = json.loads(answer)
        return seconds

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def work(source: Path) -> None:
    """The worker: requests from standard input, one per line, answers to standard output."""
    check_tree(source)
    answers, sys.stdout = sys.stdout, sys.stderr  # nothing else may be said there
    runs: dict[tuple[str, str], Callable[[], object]] = {}
    for request in map(json.loads, sys.stdin):
        seconds = [0.0, 0.0]
        if request:
            place = request["data"], request["work"]
            if place not in runs:
                runs[place] = prepared(*place)
            seconds = timed(runs[place], request["least"])
        print(json.dumps(seconds), file=answers, flush=True)


def prepared(data: str, label: str) -> Callable[[], object]:
    """The call that is timed; data are loaded here, and the model that is evaluated is trained here."""
    from topshelf.config import assemble
    from topshelf.data import load_split
    from topshelf.training import fit

    dataset = load_split(data, seed=0)
    model, loss, more = TRAINING.get(label, ("mf", "softmax", {}))
    if label == EASE:
        model = "ease"
    train = {**more.get("train", {}), "epochs": EPOCHS.get(data, 1), "batch_size": 2048, "patience": 0}
    cutoffs = [5, 10, 20, 50, 75, 100]
    settings = {**more, "train": train, "evaluate": {"auc": label == WITH_AUC, "cutoffs": cutoffs}}
    config = assemble(data=data, model=model, loss=loss, k=20, seed=0, more=settings)
    if label in (EVALUATION, WITH_AUC):
        return fit(config, dataset).evaluate
    return lambda: fit(config, dataset)


def timed(run: Callable[[], object], least: float) -> list[float]:
    """Seconds per call, wall and CPU, of as many calls as fill ``least`` seconds."""
    wall, cpu, n = time.perf_counter(), time.process_time(), 0
    while n == 0 or time.perf_counter() - wall < least:
        run()
        n += 1
    return [(time.perf_counter() - wall) / n, (time.process_time() - cpu) / n]


def measure(workers: dict[str, Worker], request: Row, rounds: int, most: float = math.inf) -> Row:
    """One workload on one dataset: seconds of every round by tree, and the ratios."""
    seconds: dict[str, list[list[float]]] = {tree: [] for tree in TREES}
    started = time.perf_counter()
    for number in range(rounds + 1):
        if number > 3 and time.perf_counter() - started > most:
            break
        for tree in TREES if number % 2 else TREES[::-1]:
            answer = workers[tree].ask(request)
            if number:
                seconds[tree].append(answer)
    row: Row = {"data": request["data"], "work": request["work"], "ratio": {}, "quartiles": {}}
    for place, clock in enumerate(("wall", "cpu")):
        before, after = ([one[place] for one in seconds[tree]] for tree in TREES)
        row[clock] = {"before": before, "after": after}
        row["ratio"][clock] = min(after) / min(before)
        ratios = [b / a for a, b in zip(before, after, strict=True)]
        row["quartiles"][clock] = statistics.quantiles(ratios, n=4)[::2] if len(ratios) > 1 else ratios * 2
    return row


def cells(row: Row, limit: float) -> list[str]:
    shown = [row["data"], row["work"], *(f"{min(row['wall'][tree]):.4f}" for tree in TREES)]
    for clock in ("wall", "cpu"):
        low, high = row["quartiles"][clock]
        shown += [f"{row['ratio'][clock]:.3f}", f"{low:.3f} to {high:.3f}"]
    return [*shown[:-1], f"{shown[-1]}, slower"] if is_slower(row, limit) else shown


def is_slower(row: Row, limit: float) -> bool:
    """By both clocks: one of them alone is disturbed more easily."""
    return bool(min(row["ratio"].values()) > limit)


def main() -> None:
    benchmark = Benchmark(
        MODULE,
        __doc__,
        data=(MOVIELENS, HEALTH, ELECTRONIC),
        rounds=15,
        quick={"data": [HEALTH], "rounds": 1, "work": [next(iter(TRAINING)), EVALUATION], "least": 0.0},
    )
    add = benchmark.parser.add_argument
    add("--before", type=Path, metavar="SRC", help="the source folder of the tree before")
    add("--after", type=Path, metavar="SRC", help="and after")
    add("--work", nargs="+", default=list(WORK), metavar="LABEL", help=f"of: {'; '.join(WORK)}")
    add("--least", type=float, default=0.1, help="least seconds of a turn; default: 0.1")
    add("--most", type=float, default=120.0, help="most seconds of a workload; default: 120")
    add("--threads", type=int, help="of each worker; default: torch's own number")
    add("--limit", type=float, default=1.03, help="ratio above which a row is marked; default: 1.03")
    add("--worker", type=Path, help=argparse.SUPPRESS)
    options = benchmark.parse()
    if options.worker:
        work(options.worker)
        return
    if not (options.before and options.after):
        benchmark.parser.error("--before and --after must be given: the src folders of two trees")
    benchmark.check("--work", options.work, WORK)
    if options.threads:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
    workers = {tree: Worker(getattr(options, tree)) for tree in TREES}
    rows = []
    try:
        print(table(HEADS, []), flush=True)
        for data in options.data:
            for label in options.work:
                request: dict[str, Any] = {"data": data, "work": label, "least": options.least}
                rows.append(measure(workers, request, options.rounds, options.most))
                print(line(cells(rows[-1], options.limit)), flush=True)
                benchmark.write(protocol="standard", threads=options.threads, limit=options.limit, rows=rows)
    finally:
        for worker in workers.values():
            worker.end()
    sys.exit(int(any(is_slower(row, options.limit) for row in rows)))


if __name__ == "__main__":
    main()
