"""Do glibc's malloc settings or huge pages make training and evaluation faster?

    python -m benchmarks.speed.allocation [--quick] [--data NAME ...] [--task NAME ...] [--rounds 3] [--json FILE]

Every measurement is a new process that sets the allocator up before torch is imported, as a launcher would; the
settings in turn, round after round, the best round of each. Training is SL@20 in the trainer, batches of 2048 users,
d = 64; after one epoch to warm up, the best epoch counts. Evaluation ranks the catalogue for every user at all cut-offs
(validation part). Faults are the kernel's minor page faults of that epoch or evaluation. With ``--json`` the new
measurements replace those of the same data and task in the file.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.harness import ELECTRONIC, GOWALLA, HEALTH, ROOT, Benchmark, Row, line, table, today

MODULE = "benchmarks.speed.allocation"
# mallopt's parameters, from malloc.h
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, MMAP_MAX = -1, -2, -3, -4
HIGHEST = 2**31 - 1
# What is set by mallopt, and what has to be in the environment.
SETTINGS: dict[str, tuple[dict[int, int], dict[str, str]]] = {
    "as it is": ({}, {}),
    "mmap above 32 MiB, no trim": ({MMAP_THRESHOLD: 32 * 2**20, TRIM_THRESHOLD: HIGHEST}, {}),
    "no mmap, no trim, top pad 64 MiB": ({MMAP_MAX: 0, TRIM_THRESHOLD: HIGHEST, TOP_PAD: 64 * 2**20}, {}),
    "torch's huge pages": ({}, {"THP_MEM_ALLOC_ENABLE": "1"}),
    "no mmap, no trim, torch's huge pages": (
        {MMAP_MAX: 0, TRIM_THRESHOLD: HIGHEST, TOP_PAD: 64 * 2**20},
        {"THP_MEM_ALLOC_ENABLE": "1"},
    ),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "exact catalogue": {},
    "shared 1000": {"negatives": {"kind": "shared", "n": 1000}},
    "1000 per query": {"negatives": {"kind": "per_query", "n": 1000}},
}
TASKS = [*VARIANTS, "evaluation"]
EPOCHS = {HEALTH: 20, ELECTRONIC: 4, GOWALLA: 2}
HEADS = ("data", "task", "allocator", "ms", "of the time as it is", "faults", "peak MiB")


def best_of(run: Callable[[], Any], times: int) -> dict[str, float]:
    """Seconds and minor faults of the quickest of several calls, after one to warm up."""
    calls = []
    for _ in range(times + 1):
        faults, started = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
        run()
        seconds = time.perf_counter() - started
        calls.append((seconds, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults))
    seconds, faults = min(calls[1:])
    return {"seconds": seconds, "faults": faults}


def work(data: str, setting: str, task: str) -> dict[str, float]:
    """One measurement, in this process."""
    libc = ctypes.CDLL(None)
    for parameter, value in SETTINGS[setting][0].items():
        if not libc.mallopt(parameter, value):
            raise OSError(f"mallopt refused {parameter} = {value}")
    # Imported after that: the allocator has to be set before torch is there.
    import torch

    from benchmarks.trained import epoch_of, trainer_of, vectors
    from topshelf.data import load_split
    from topshelf.evaluation import evaluate

    split = load_split(data, seed=0).split
    trained = trainer_of(split, data, "slatk", VARIANTS.get(task, {}))
    train, valid = split.train.ragged(), split.valid.ragged()

    def rank() -> None:
        with torch.no_grad():
            evaluate(*vectors(trained.model), valid, train=train, cutoffs=(5, 10, 20, 50, 75, 100), auc=False)

    quickest = best_of(rank if task == "evaluation" else epoch_of(trained), EPOCHS[data])
    return {**quickest, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def measure(data: str, rounds: int, settings: list[str], tasks: list[str]) -> list[Row]:
    best: dict[tuple[str, str], Row] = {}
    for _ in range(rounds):
        for task in tasks:
            for setting in settings:
                command = [sys.executable, "-m", MODULE, "--data", data, "--worker", setting, task]
                environment = {**os.environ, **SETTINGS[setting][1]}
                done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
                one = json.loads(done.stdout)
                best[task, setting] = min(best.get((task, setting), one), one, key=lambda each: each["seconds"])
    return [
        {"task": task, "setting": setting, **one, "ratio": one["seconds"] / best[task, settings[0]]["seconds"]}
        for (task, setting), one in best.items()
    ]


def main() -> None:
    quick = {"data": [HEALTH], "rounds": 1, "task": TASKS[:1]}
    benchmark = Benchmark(MODULE, __doc__, data=tuple(EPOCHS), known=tuple(EPOCHS), rounds=3, quick=quick)
    benchmark.parser.add_argument("--task", nargs="+", default=TASKS, choices=TASKS)
    benchmark.parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = benchmark.parse()
    if options.worker:
        print(json.dumps(work(options.data[0], *options.worker)))
        return
    settings = list(SETTINGS)[:3:2] if options.quick else list(SETTINGS)
    print(table(HEADS, []))
    results = benchmark.held("results")
    for data in options.data:
        rows = measure(data, options.rounds, settings, options.task)
        for row in rows:
            numbers = [f"{1e3 * row['seconds']:.1f}", f"{row['ratio']:.2f}", f"{row['faults']:,}"]
            print(line([data, row["task"], row["setting"], *numbers, f"{row['peak_mib']:,.0f}"]), flush=True)
        results = [row for row in results if (row["data"], row["task"]) not in {(data, task) for task in options.task}]
        results += [{"data": data, **row, "rounds": options.rounds, "date": today()} for row in rows]
        results.sort(key=lambda row: (list(EPOCHS).index(row["data"]), TASKS.index(row["task"])))
        benchmark.write(results=results)


if __name__ == "__main__":
    main()
