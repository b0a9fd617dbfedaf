"""Do glibc's malloc settings or huge pages make training and evaluation faster?

    python benchmarks/allocation.py [--quick] [--data NAME ...] [--task NAME ...] [--rounds 3] [--json FILE]

Every measurement is a process of its own that sets the allocator up before torch is imported, as a launcher would; the
settings in turn, round after round, the best round of each. Training is SL@20 in the trainer, batches of 2048 users,
d = 64; after one epoch to warm up, the best epoch counts. Evaluation ranks the catalogue for every user at all cut-offs
(validation part). Faults are the kernel's minor page faults of that epoch or evaluation. With ``--json`` the
measurements made replace those in the file.
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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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
EPOCHS = {"amazon2014-health": 20, "amazon2014-electronic": 4, "gowalla": 2}


def best_of(run: Callable[[], Any], times: int) -> dict[str, float]:
    """Seconds and minor faults of the quickest of several calls, after one to warm up."""
    found = []
    for _ in range(times + 1):
        faults, started = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
        run()
        seconds = time.perf_counter() - started
        found.append((seconds, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults))
    seconds, faults = min(found[1:])
    return {"seconds": seconds, "faults": faults}


def work(data: str, setting: str, task: str) -> dict[str, float]:
    """One measurement, in this process."""
    libc = ctypes.CDLL(None)
    for parameter, value in SETTINGS[setting][0].items():
        if not libc.mallopt(parameter, value):
            raise OSError(f"mallopt refused {parameter} = {value}")
    # Only now: what is under test has to be there before torch is.
    import torch

    from topshelf.config import assemble
    from topshelf.data import load_split
    from topshelf.evaluation import evaluate
    from topshelf.training.build import build_model, build_objective, resolve
    from topshelf.training.trainer import Trainer

    dataset = load_split(data, seed=0)
    split, more = dataset.split, {"train": {"batch_size": 2048}, **VARIANTS.get(task, {})}
    config = resolve(assemble(data=data, loss="slatk", more=more))
    torch.manual_seed(0)
    model = build_model(config, split.n_users, split.n_items)
    train, valid = split.train.ragged(), split.valid.ragged()
    trained = Trainer(build_objective(config, model, train), train, config.train, threshold=config.threshold, seed=0)

    def rank() -> None:
        with torch.no_grad():
            evaluate(*model.encode(), valid, train=train, cutoffs=(5, 10, 20, 50, 75, 100), auc=False)

    found = best_of(rank if task == "evaluation" else lambda: trained._epoch(None), EPOCHS[data])
    return {**found, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def measure(data: str, rounds: int, settings: list[str], tasks: list[str]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], dict[str, float]] = {}
    for _ in range(rounds):
        for task in tasks:
            for setting in settings:
                environment = {**os.environ, **SETTINGS[setting][1]}
                command = [sys.executable, __file__, "--data", data, "--worker", setting, task]
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                one = json.loads(done.stdout)
                found[task, setting] = min(found.get((task, setting), one), one, key=lambda each: each["seconds"])
    return [
        {"task": task, "setting": setting, **one, "ratio": one["seconds"] / found[task, settings[0]]["seconds"]}
        for (task, setting), one in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, Health, the exact catalogue, two settings")
    parser.add_argument("--data", nargs="+", default=list(EPOCHS), choices=list(EPOCHS))
    parser.add_argument("--task", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(work(options.data[0], *options.worker)))
        return
    settings, tasks = list(SETTINGS), options.task
    if options.quick:
        options.data, options.rounds, settings, tasks = options.data[:1], 1, settings[:3:2], tasks[:1]
    print("| data | task | allocator | ms | of the time as it is | faults | peak MiB |\n|---|---|---|---|---|---|---|")
    for data in options.data:
        rows = measure(data, options.rounds, settings, tasks)
        for row in rows:
            print(
                f"| {data} | {row['task']} | {row['setting']} | {1e3 * row['seconds']:.1f} | {row['ratio']:.2f} | "
                f"{row['faults']:,} | {row['peak_mib']:,.0f} |",
                flush=True,
            )
        if options.json:
            keep(options.json, data, rows, options.rounds)


def keep(file: Path, data: str, rows: list[dict[str, Any]], rounds: int) -> None:
    command, today = "python benchmarks/allocation.py", datetime.now(UTC).date().isoformat()
    results = json.loads(file.read_text(encoding="utf-8"))["results"] if file.exists() else []
    made = {row["task"] for row in rows}
    results = [row for row in results if row["data"] != data or row["task"] not in made]
    results += [{"data": data, **row, "rounds": rounds, "date": today} for row in rows]
    results.sort(key=lambda row: (list(EPOCHS).index(row["data"]), TASKS.index(row["task"])))
    found = {"command": command, "date": today, "results": results}
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
