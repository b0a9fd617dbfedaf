"""What SL@K costs over the softmax loss, by threshold estimator.

    python benchmarks/overhead.py [--quick] [--cpu] [--data NAME ...] [--rounds 5] [--json FILE]

Five epochs at a time (one refresh with T_beta = 5), exact catalogue, d = 64; all variants in turn, round after round,
the best round of each; the figure is the ratio to the softmax loss in the same process. "no refresh" is SL@K with
thresholds that never move: what the loss costs without any estimator. ``--cpu`` takes the CPU's time of one thread in
place of the clock's: for a machine on which other jobs run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import record
import torch

from topshelf.data import load_split
from topshelf.thresholds import ESTIMATORS
from training import epoch_of, trainer  # the benchmark beside this one

EPOCHS = 5


def measure(data: str, rounds: int, clock: Callable[[], float]) -> dict[str, Any]:
    dataset = load_split(data, seed=0)
    never = {"threshold": {"estimator": "sampled", "every": 10**9}}
    runs = {
        "softmax": epoch_of(trainer(data, dataset, "softmax", {})),
        "no refresh": epoch_of(trainer(data, dataset, "slatk", never)),
    }
    for estimator in ESTIMATORS:
        more = {"threshold": {"estimator": estimator, "every": EPOCHS}}
        runs[estimator] = epoch_of(trainer(data, dataset, "slatk", more))
    best = {label: float("inf") for label in runs}
    for run in runs.values():
        run()  # warm up; the next five epochs hold one refresh
    for _ in range(rounds):
        for label, run in runs.items():
            started = clock()
            for _ in range(EPOCHS):
                run()
            best[label] = min(best[label], (clock() - started) / EPOCHS)
    return {"data": data, "seconds": best, "ratio": {label: best[label] / best["softmax"] for label in runs}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, Health alone")
    parser.add_argument("--cpu", action="store_true", help="one thread, CPU time")
    parser.add_argument("--data", nargs="+", default=["amazon2014-health", "amazon2014-electronic"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    clock = time.perf_counter
    if options.cpu:
        torch.set_num_threads(1)
        clock = time.process_time
    names = options.data[:1] if options.quick else options.data
    print("| data | thresholds | seconds an epoch | over softmax |\n|---|---|---|---|")
    results = []
    for data in names:
        found = measure(data, 1 if options.quick else options.rounds, clock)
        results.append(found)
        for label, seconds in found["seconds"].items():
            print(f"| {data} | {label} | {seconds:.4f} | {found['ratio'][label] - 1:+.1%} |", flush=True)
    command = f"python benchmarks/overhead.py{' --cpu' if options.cpu else ''} --data {' '.join(names)}"
    command += f" --rounds {options.rounds}"
    record.write(options.json, command, results=results)


if __name__ == "__main__":
    main()
