"""What SL@K costs over the softmax loss, by threshold estimator.

    python -m benchmarks.speed.overhead [--quick] [--cpu] [--data NAME ...] [--rounds 5] [--json FILE]

Five epochs at a time (one threshold refresh with T_beta = 5), exact catalogue, d = 64; all variants in turn, round
after round, the best round of each; the figure is the ratio to the softmax loss in the same process. "no refresh" is
SL@K with thresholds that are never updated: the cost of the loss without any estimator. ``--cpu`` takes the CPU time of
one thread in place of the wall clock: for a machine with other work.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from benchmarks.harness import ELECTRONIC, HEALTH, Benchmark, Row, best, interleaved, line, table
from benchmarks.trained import epoch_of, trainer_of
from topshelf.data import load_split
from topshelf.training.thresholding import ESTIMATORS

EPOCHS = 5
HEADS = ("data", "thresholds", "seconds per epoch", "over softmax")


def measure(data: str, rounds: int, clock: Callable[[], float]) -> Row:
    split = load_split(data, seed=0).split
    settings = {"no refresh": {"estimator": "sampled", "every": 10**9}}
    settings |= {name: {"estimator": name, "every": EPOCHS} for name in ESTIMATORS}
    trainers = {"softmax": trainer_of(split, data, "softmax", {})}
    trainers |= {label: trainer_of(split, data, "slatk", {"threshold": own}) for label, own in settings.items()}

    def epochs_of(label: str) -> Callable[[], None]:
        epoch = epoch_of(trainers[label])

        def run() -> None:
            for _ in range(EPOCHS):
                epoch()

        return run

    seconds = best(interleaved({label: epochs_of(label) for label in trainers}, rounds, clock))
    seconds = {label: value / EPOCHS for label, value in seconds.items()}
    return {
        "data": data,
        "seconds": seconds,
        "ratio": {label: seconds[label] / seconds["softmax"] for label in seconds},
    }


def main() -> None:
    benchmark = Benchmark(
        __spec__.name, __doc__, data=(HEALTH, ELECTRONIC), rounds=5, quick={"data": [HEALTH], "rounds": 1}
    )
    benchmark.parser.add_argument("--cpu", action="store_true", help="one thread, CPU time")
    options = benchmark.parse()
    if options.cpu:
        torch.set_num_threads(1)
    results = []
    print(table(HEADS, []))
    for data in options.data:
        results.append(measure(data, options.rounds, time.process_time if options.cpu else time.perf_counter))
        for label, seconds in results[-1]["seconds"].items():
            ratio = results[-1]["ratio"][label]
            print(line([data, label, f"{seconds:.4f}", f"{ratio - 1:+.1%}"]), flush=True)
        benchmark.write(results=results)


if __name__ == "__main__":
    main()
