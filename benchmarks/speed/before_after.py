"""Two source trees timed in turn, in one call: training, closed forms and evaluation, after over before.

    python -m benchmarks.speed.before_after --before PATH/src --after PATH/src [--quick] [--data NAME ...]
        [--work LABEL ...] [--starts 5] [--rounds 6] [--limit 1.03] [--json FILE]

Each tree has a worker process with one thread, which imports topshelf from that tree and loads the data once; on Linux
both run on the same core. The figure is the CPU time of the worker, taken around ``topshelf.training.fit`` (a few
epochs with the last one validated) or ``Fitted.evaluate``; only the config level of the package is used, which both
trees have. A call that is shorter than ``--least`` seconds is repeated, as often in both trees.

A round is four turns: before, after, after, before, or the reverse. A machine that gets slower or busier does so for
both trees, and one round gives one ratio. Two processes of the same tree differ by a few percent, because their memory
is laid out differently, so all rounds are repeated ``--starts`` times with new workers. The ratio is the median over
all rounds; its 95% interval is a bootstrap over starts and over the rounds of each. A workload ends after ``--most``
seconds in each start, but not before two rounds. A row is "slower" where the whole interval is above ``--limit``, and
the exit code is then 1; "faster" where all of it is below 1 / limit. Otherwise the difference is within the limit, or
the interval is too wide to tell.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from benchmarks.harness import ELECTRONIC, HEALTH, MOVIELENS, Benchmark, Row, check_tree, in_tree, line, table

MODULE = "benchmarks.speed.before_after"
TREES = ("before", "after")
# Model, loss and settings of each training. Losses that look at pairs have few negatives: their epochs take longest.
TRAINING: dict[str, tuple[str, str, Row]] = {
    "MF, SL@20, exact catalogue": ("mf", "slatk", {}),
    "LightGCN, SL@20, exact catalogue": ("lightgcn", "slatk", {}),
    "MF, BPR, per query": ("mf", "bpr", {"negatives": {"kind": "per_query"}, "train": {"order": "query"}}),
    "MF, PSL, 100 per query": ("mf", "psl", {"negatives": {"kind": "per_query", "n": 100}}),
    "MF, PSL, 1000 per pair": (
        "mf",
        "psl",
        {
            "negatives": {"kind": "per_query", "n": 1000},
            "train": {"order": "pair", "batch_size": 1024, "epoch_steps": 20},
        },
    ),
    "MF, LambdaLoss@20, 100 per query": (
        "mf",
        "lambdaloss_at_k",
        {"negatives": {"kind": "per_query", "n": 100}, "train": {"order": "query"}},
    ),
}
EASE, EVALUATION, WITH_AUC = "EASE, fit", "evaluation", "evaluation, with AUC"
WORK = (*TRAINING, EASE, EVALUATION, WITH_AUC)
EPOCHS = {HEALTH: 5, MOVIELENS: 5, ELECTRONIC: 1}
HEADS = ("data", "work", "before, s", "after, s", "after / before", "95% interval", "")
RESAMPLES = 2000


class Worker:
    """A process with one tree. It answers each request with the CPU seconds of a call."""

    def __init__(self, source: Path) -> None:
        self.process = in_tree(MODULE, source, "--worker", str(source.resolve()), stdin=subprocess.PIPE)
        self.ask({})  # refuses a wrong tree at once

    def ask(self, request: Row) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"the worker of a tree ended with code {self.process.wait()}")
        return float(answer)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def work(source: Path) -> None:
    """The worker: requests from standard input, one per line, answers to standard output."""
    check_tree(source)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # both trees on one core: cores have other neighbours
    answers, sys.stdout = sys.stdout, sys.stderr  # nothing else may be said there
    runs: dict[tuple[str, str], Callable[[], object]] = {}
    for request in map(json.loads, sys.stdin):
        seconds = 0.0
        if request:
            place = request["data"], request["work"]
            if place not in runs:
                runs[place] = prepared(*place)
            seconds = timed(runs[place], request["calls"])
        print(seconds, file=answers, flush=True)


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


def timed(run: Callable[[], object], calls: int) -> float:
    """CPU seconds per call."""
    gc.collect()  # what earlier calls left
    started = time.process_time()
    for _ in range(calls):
        run()
    return (time.process_time() - started) / calls


def measure(workers: Mapping[str, Worker], work: Row, rounds: int, *, least: float, most: float) -> list[Row]:
    """The seconds of each turn of every round, by tree; one call of each tree warms up."""
    started = time.perf_counter()
    warm = min(workers[tree].ask({**work, "calls": 1}) for tree in TREES)
    request = {**work, "calls": math.ceil(least / warm) if least > warm else 1}
    measured: list[Row] = []
    while len(measured) < rounds and (len(measured) < 2 or time.perf_counter() - started < most):
        first, second = TREES if len(measured) % 2 else TREES[::-1]
        seconds: Row = {tree: [] for tree in TREES}
        for tree in (first, second, second, first):
            seconds[tree].append(workers[tree].ask(request))
        measured.append(seconds)
    return measured


def summary(work: Row, starts: list[list[Row]]) -> Row:
    """A row of the result, from the rounds of every start."""
    ratios = [[sum(one["after"]) / sum(one["before"]) for one in rounds] for rounds in starts]
    turns = {tree: [turn for rounds in starts for one in rounds for turn in one[tree]] for tree in TREES}
    return {
        **work,
        "seconds": {tree: statistics.median(turns[tree]) for tree in TREES},
        "ratio": statistics.median(ratio for own in ratios for ratio in own),
        "interval": interval(ratios),
        "ratios": ratios,
    }


def interval(ratios: list[list[float]]) -> list[float]:
    """95% of the medians of resampled ratios: of starts, and of the rounds of each."""
    generator = np.random.default_rng(0)
    medians = []
    for _ in range(RESAMPLES):
        starts = [ratios[at] for at in generator.integers(len(ratios), size=len(ratios))]
        medians.append(np.median(np.concatenate([generator.choice(own, len(own)) for own in starts])))
    low, high = np.quantile(medians, [0.025, 0.975]).tolist()
    return [low, high]


def verdict(row: Row, limit: float) -> str:
    low, high = row["interval"]
    return "slower" if low > limit else "faster" if high < 1 / limit else ""


def cells(row: Row, limit: float) -> list[str]:
    low, high = row["interval"]
    seconds = [f"{row['seconds'][tree]:.4f}" for tree in TREES]
    return [row["data"], row["work"], *seconds, f"{row['ratio']:.3f}", f"{low:.3f} to {high:.3f}", verdict(row, limit)]


def compared(options: argparse.Namespace, data: str) -> Iterator[Row]:
    """The rows of one dataset."""
    starts: dict[str, list[list[Row]]] = {label: [] for label in options.work}
    for _ in range(options.starts):
        workers = {tree: Worker(getattr(options, tree)) for tree in TREES}
        try:
            for label, rounds in starts.items():
                work = {"data": data, "work": label}
                rounds.append(measure(workers, work, options.rounds, least=options.least, most=options.most))
        finally:
            for worker in workers.values():
                worker.end()
    for label, rounds in starts.items():
        yield summary({"data": data, "work": label}, rounds)


def main() -> None:
    quick = {"data": [HEALTH], "rounds": 2, "starts": 1, "work": [next(iter(TRAINING)), EVALUATION], "least": 0.0}
    benchmark = Benchmark(MODULE, __doc__, data=(MOVIELENS, HEALTH, ELECTRONIC), quick=quick)
    add = benchmark.parser.add_argument
    add("--before", type=Path, metavar="SRC", help="the source folder of the tree before")
    add("--after", type=Path, metavar="SRC", help="and after")
    add("--work", nargs="+", default=list(WORK), metavar="LABEL", help=f"of: {'; '.join(WORK)}")
    add("--starts", type=int, default=5, help="pairs of new processes; default: 5")
    add("--rounds", type=int, default=6, help="of four turns, in each start; default: 6")
    add("--least", type=float, default=0.1, help="least seconds of a turn; default: 0.1")
    add("--most", type=float, default=30.0, help="most seconds of a workload in each start; default: 30")
    add("--limit", type=float, default=1.03, help="ratio above which a row is slower; default: 1.03")
    add("--worker", type=Path, help=argparse.SUPPRESS)
    options = benchmark.parse()
    if options.worker:
        work(options.worker)
        return
    if not (options.before and options.after):
        benchmark.parser.error("--before and --after must be given: the src folders of two trees")
    benchmark.check("--work", options.work, WORK)
    os.environ |= {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1", "PYTHONHASHSEED": "0"}  # of the workers
    rows = []
    print(table(HEADS, []), flush=True)
    for data in options.data:
        for row in compared(options, data):
            rows.append(row)
            print(line(cells(row, options.limit)), flush=True)
        benchmark.write(protocol="standard", threads=1, starts=options.starts, limit=options.limit, rows=rows)
    sys.exit(int(any(verdict(row, options.limit) == "slower" for row in rows)))


if __name__ == "__main__":
    main()
