"""What a full-ranking evaluation costs: against the bare matrix product, and against a loop over users.

    python benchmarks/evaluation.py [--quick] [--data NAME ...] [--rounds 5] [--json FILE]

Test part, `standard` protocol, every metric at cut-offs 5, 10, 20, 50, 75, 100; matrix factorisation with d = 64 after
two epochs of SL. All variants in turn, round after round, the best round of each. The floor is the matrix product of
the scores alone, for the same users, into one buffer by tiles: the best of three tile sizes. The loop is plain numpy,
one user at a time (scores, mask, argpartition, sort, NDCG, recall and precision), timed on 500 users and extrapolated.
Memory is the peak of resident memory during one call above what was resident before it, in a fresh process.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import record
import torch
from torch import Tensor

from topshelf.data import load_split
from topshelf.evaluation import Evaluation, evaluate
from topshelf.ragged import Ragged, merge
from training import epoch_of, trainer  # the benchmark beside this one

CUTOFFS = (5, 10, 20, 50, 75, 100)
TILES = ((512, 4096), (1024, 2048), (512, 1 << 16))  # (users, items)
LOOP = "a loop over users"
SAMPLE = 500


@dataclass(frozen=True, eq=False)
class Problem:
    queries: Tensor
    items: Tensor
    train: Ragged
    valid: Ragged
    test: Ragged
    users: Tensor  # those with something to find

    def evaluate(self, *, auc: bool) -> Evaluation:
        return evaluate(
            self.queries, self.items, self.test, train=self.train, valid=self.valid, cutoffs=CUTOFFS, auc=auc
        )


def problem(data: str) -> Problem:
    dataset = load_split(data, seed=0)
    trained = trainer(data, dataset, "softmax", {})
    epoch = epoch_of(trained)
    for _ in range(2):
        epoch()
    with torch.no_grad():
        queries, items = (table.clone() for table in trained.objective.model.encode())
    lists = [part.ragged() for part in (dataset.split.train, dataset.split.valid, dataset.split.test)]
    return Problem(queries, items, *lists, (lists[2].counts > 0).nonzero().squeeze(1))


def bare_product(given: Problem, n_rows: int, width: int) -> Callable[[], object]:
    vectors, items = given.queries[given.users], given.items
    width = min(width, items.size(0))
    stride = -(-width // 16) * 16  # rows of whole cache lines
    buffer = torch.empty(n_rows, stride)

    def run() -> None:
        for some in torch.split(vectors, n_rows):
            for part in torch.split(items, width):
                torch.mm(some, part.T, out=buffer[: some.size(0), : part.size(0)])

    return run


def loop(given: Problem, sample: int) -> Callable[[], object]:
    users, items = given.queries.numpy(), given.items.numpy()
    seen, test = merge(given.train, given.valid), given.test
    chosen = np.random.default_rng(0).permutation(given.users.numpy())[:sample].tolist()
    discount = 1 / np.log2(np.arange(2, CUTOFFS[-1] + 2))
    best_possible = discount.cumsum()

    def of_user(user: int) -> list[float]:
        scores = items @ users[user]
        scores[seen.indices[seen.indptr[user] : seen.indptr[user + 1]].numpy()] = -np.inf
        listed = np.argpartition(-scores, CUTOFFS[-1])[: CUTOFFS[-1]]
        listed = listed[np.argsort(-scores[listed])]
        wanted = set(test.indices[test.indptr[user] : test.indptr[user + 1]].tolist())
        hits = np.array([item in wanted for item in listed.tolist()])
        found = []
        for k in CUTOFFS:
            found.append(hits[:k] @ discount[:k] / best_possible[min(k, len(wanted)) - 1])
            found.extend([hits[:k].sum() / len(wanted), hits[:k].mean()])
        return found

    return lambda: np.array([of_user(user) for user in chosen])


def seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def measure(data: str, rounds: int, sample: int) -> dict[str, Any]:
    given = problem(data)
    sample = min(sample, given.users.numel())
    runs: dict[str, Callable[[], object]] = {
        f"product {rows} x {width}": bare_product(given, rows, width) for rows, width in TILES
    }
    runs |= {"evaluate": lambda: given.evaluate(auc=False), "evaluate, with AUC": lambda: given.evaluate(auc=True)}
    runs[LOOP] = loop(given, sample)
    best = {label: float("inf") for label in runs}
    for run in list(runs.values())[:-1]:
        run()  # warm up: compiled code
    for _ in range(rounds):
        for label, run in runs.items():
            best[label] = min(best[label], seconds(run))
    best[LOOP] *= given.users.numel() / sample
    floor = min(best.pop(label) for label in list(best) if label.startswith("product"))
    return {
        "data": data,
        "users": given.users.numel(),
        "items": given.items.size(0),
        "seconds": {"bare product": floor, **best},
        "over_product": {label: value / floor for label, value in best.items()},
        "product_gflops": 2 * given.users.numel() * given.items.numel() / floor / 1e9,
        "users_in_loop": sample,
        "peak_mib": {label: peak(data, auc) for label, auc in (("evaluate", False), ("evaluate, with AUC", True))},
    }


def peak(data: str, auc: bool) -> float:
    """MiB of one call above what was resident before, in a process of its own."""
    command = [sys.executable, __file__, "--data", data, "--peak", "auc" if auc else "lists"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_peak(data: str, auc: bool) -> None:
    given = problem(data)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from what is resident now
    before = resident("VmRSS")
    given.evaluate(auc=auc)
    print((resident("VmHWM") - before) / 1024)


def resident(field: str) -> int:
    """KiB, from the kernel."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, Health alone")
    parser.add_argument("--data", nargs="+", default=["amazon2014-health", "amazon2014-electronic", "gowalla"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peak", choices=["lists", "auc"], help=argparse.SUPPRESS)  # one call, for its memory
    options = parser.parse_args()
    if options.peak:
        print_peak(options.data[0], options.peak == "auc")
        return
    names = options.data[:1] if options.quick else options.data
    print("| data | variant | seconds | over the bare product | peak memory, MiB |\n|---|---|---|---|---|")
    results = []
    for data in names:
        found = measure(data, 1 if options.quick else options.rounds, 50 if options.quick else SAMPLE)
        results.append(found)
        for label, value in found["seconds"].items():
            ratio = f"{found['over_product'][label]:.2f}x" if label in found["over_product"] else ""
            memory = f"{found['peak_mib'][label]:.0f}" if label in found["peak_mib"] else ""
            print(f"| {data} | {label} | {value:.3f} | {ratio} | {memory} |", flush=True)
    command = f"python benchmarks/evaluation.py --data {' '.join(names)} --rounds {options.rounds}"
    record.write(options.json, command, results=results)


if __name__ == "__main__":
    main()
