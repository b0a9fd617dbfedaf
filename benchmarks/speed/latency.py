"""How long one answer takes: one known user, one new user by history or by id and history, similar items of one item.

    python -m benchmarks.speed.latency [--quick] [--source PATH/src] [--label NAME] [--models NAME ...] [--json FILE]

Random data of 100,000 users, 50,000 items and 2 million interactions; MF, LightGCN and History with d = 64, hardly
trained, since quality does not matter here: one epoch of large batches with 100 shared negatives. Each run folder is
made by one process and read by another, which has answered nothing before: it takes the time of ``Recommender.load``,
of the first answer of each kind, and then p50 and p99 of as many answers as ``--calls`` says, each for another user or
item, at most ``--seconds`` of them. New users have 20 items, in a list, or in a mapping with an id that the data do not
have; MF and LightGCN refuse users without training, so that part is History's alone. Only the public
``Recommender`` is used, so ``--source`` may be another tree. With ``--json``, results of other labels stay in the file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from benchmarks.harness import ROOT, Benchmark, Row, check_tree, in_tree, line, table, today

MODULE = "benchmarks.speed.latency"
SIZES = {"users": 100_000, "items": 50_000, "interactions": 2_000_000}
QUICK_SIZES = {"users": 2_000, "items": 1_000, "interactions": 20_000}
MODELS = ("mf", "lightgcn", "history")
FOR_NEW_USERS = ("history",)
KNOWN, NEW, BY_ID, SIMILAR = "one known user", "one new user", "one new user, by id", "similar items"
DIM, K, HISTORY = 64, 20, 20
GOAL = {"load": 1.0, "p50": 0.005}  # seconds, of issue 14
HEADS = ("tree", "model", "load, s", "call", "first, ms", "p50, ms", "p99, ms", "calls")


def interactions(sizes: dict[str, int]) -> scipy.sparse.csr_matrix:
    """Distinct pairs; few items have most of them, and every user has one at least."""
    generator = np.random.default_rng(0)
    n_users, n_items, n = sizes.values()
    item_share = np.arange(1, n_items + 1) ** -0.7
    pairs = np.arange(n_users) * n_items + generator.integers(n_items, size=n_users)
    while len(pairs) < n:
        users = generator.integers(n_users, size=n)
        items = generator.choice(n_items, size=n, p=item_share / item_share.sum())
        pairs = np.union1d(pairs, generator.permutation(users * n_items + items)[: 2 * (n - len(pairs))])
    extra = generator.permutation(
        np.setdiff1d(np.arange(len(pairs)), np.unique(pairs // n_items, return_index=True)[1])
    )
    pairs = np.delete(pairs, extra[: len(pairs) - n])
    return scipy.sparse.csr_matrix(
        (np.ones(n, dtype=np.float32), (pairs // n_items, pairs % n_items)), shape=(n_users, n_items)
    )


def make(folder: Path, model: str, sizes: dict[str, int]) -> None:
    """A run folder."""
    from topshelf import Recommender

    recommender = Recommender(
        k=K,
        model={"name": model, "dim": DIM},
        loss="softmax",
        negatives={"kind": "shared", "n": 100},
        train={"epochs": 1, "batch_size": 16_384},
        evaluate={"auc": False, "cutoffs": [K]},
    )
    recommender.fit(interactions(sizes), out=folder)


def measure(folder: Path, model: str, sizes: dict[str, int], calls: int, limit: float) -> Row:
    """Loading and answers, in this process."""
    from topshelf import Recommender

    started = time.perf_counter()
    recommender = Recommender.load(folder)
    load = time.perf_counter() - started
    generator = np.random.default_rng(1)
    users, items = (generator.integers(sizes[key], size=calls + 1).tolist() for key in ("users", "items"))
    histories = generator.integers(sizes["items"], size=(calls + 1, HISTORY)).tolist()
    answers: dict[str, Callable[[int], Any]] = {
        KNOWN: lambda at: recommender.recommend([users[at]], k=K),
        NEW: lambda at: recommender.recommend_new([histories[at]], k=K),
        BY_ID: lambda at: recommender.recommend_new({sizes["users"] + at: histories[at]}, k=K),
        SIMILAR: lambda at: recommender.similar_items([items[at]], k=K),
    }
    if model not in FOR_NEW_USERS:
        del answers[NEW], answers[BY_ID]
    return {"load": load, "calls": {label: percentiles(answer, calls, limit) for label, answer in answers.items()}}


def percentiles(answer: Callable[[int], Any], calls: int, limit: float) -> Row:
    """Seconds of the first call, and of the others."""
    seconds: list[float] = []
    for at in range(calls + 1):
        started = time.perf_counter()
        height = answer(at).height
        seconds.append(time.perf_counter() - started)
        if height != K:
            raise SystemExit(f"an answer must have {K} rows, got {height}")
        if sum(seconds) > limit and at:
            break
    p50, p99 = np.percentile(seconds[1:], [50, 99]).tolist()
    return {"first": seconds[0], "p50": p50, "p99": p99, "calls": len(seconds) - 1}


def lines(label: str, model: str, result: Row) -> list[list[str]]:
    rows = []
    for call, times_of_call in result["calls"].items():
        times = [f"{1e3 * times_of_call[key]:.2f}" for key in ("first", "p50", "p99")]
        rows.append([label, model, f"{result['load']:.2f}", call, *times, str(times_of_call["calls"])])
    return rows


def page_table(results: dict[str, Row]) -> str:
    """All trees of a result file."""
    rows = [
        row
        for label, result in results.items()
        for model, answers in result["models"].items()
        for row in lines(label, model, answers)
    ]
    return table(HEADS, rows)


def worker(words: list[str]) -> None:
    kind, source, folder, model, sizes, *numbers = words
    check_tree(Path(source))
    answers, sys.stdout = sys.stdout, sys.stderr
    if kind == "make":
        make(Path(folder), model, json.loads(sizes))
    else:
        calls, limit = numbers
        print(json.dumps(measure(Path(folder), model, json.loads(sizes), int(calls), float(limit))), file=answers)


def asked(source: Path, *words: str) -> str:
    process = in_tree(MODULE, source, "--worker", words[0], str(source.resolve()), *words[1:])
    answer, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"the worker ended with code {process.returncode}")
    return answer


def main() -> None:
    quick = {"sizes": QUICK_SIZES, "calls": 5}
    benchmark = Benchmark(MODULE, __doc__, quick=quick)
    benchmark.parser.set_defaults(sizes=SIZES)
    add = benchmark.parser.add_argument
    add("--source", type=Path, default=ROOT / "src", metavar="SRC", help="the source folder to measure; default: ours")
    add("--label", default="after", help="its name in the result; default: after")
    add("--models", nargs="+", default=list(MODELS), choices=MODELS)
    add("--calls", type=int, default=200, help="answers of each kind; default: 200")
    add("--seconds", type=float, default=60.0, help="most seconds for each kind; default: 60")
    add("--worker", nargs="+", help=argparse.SUPPRESS)
    options = benchmark.parse()
    if options.worker:
        worker(options.worker)
        return
    print(table(HEADS, []), flush=True)
    models = {}
    for model in options.models:
        with tempfile.TemporaryDirectory() as folder:
            words = [str(Path(folder) / "run"), model, json.dumps(options.sizes)]
            asked(options.source, "make", *words)
            answer = asked(options.source, "measure", *words, str(options.calls), str(options.seconds))
        models[model] = json.loads(answer)
        print("\n".join(map(line, lines(options.label, model, models[model]))), flush=True)
    results = dict(benchmark.held("results"))
    results[options.label] = {"date": today(), **options.sizes, "dim": DIM, "k": K, "models": models}
    benchmark.write(goal=GOAL, results=results)


if __name__ == "__main__":
    main()
