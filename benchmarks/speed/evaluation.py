"""What a full-ranking evaluation costs: against the bare matrix product, and against a loop over users.

    python -m benchmarks.speed.evaluation [--quick] [--data NAME ...] [--rounds 5] [--json FILE]

Test part, ``standard`` protocol, every metric at cut-offs 5, 10, 20, 50, 75, 100; matrix factorisation with d = 64
after two epochs of SL. All variants in turn, round after round; the best round counts. The floor is the matrix product
of the scores alone, for the same users, into one buffer by tiles: the best of three tile sizes. The loop is plain
NumPy, one user at a time (scores, mask, argpartition, sort, NDCG, recall and precision), timed on 500 users and
extrapolated. Memory is the peak during one call above what was resident before it, in a fresh process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import (
    ELECTRONIC,
    GOWALLA,
    HEALTH,
    Benchmark,
    Memory,
    Row,
    apart,
    best,
    interleaved,
    line,
    table,
)
from benchmarks.trained import epoch_of, trainer_of, vectors
from topshelf.data import load_split
from topshelf.evaluation import Evaluation, evaluate
from topshelf.ragged import Ragged, merge

CUTOFFS = (5, 10, 20, 50, 75, 100)
TILES = ((512, 4096), (1024, 2048), (512, 1 << 16))  # (users, items)
LOOP, PLAIN, WITH_AUC = "a loop over users", "evaluate", "evaluate, with AUC"
SAMPLE = 500
HEADS = ("data", "variant", "seconds", "over the bare product", "peak memory, MiB")


@dataclass(frozen=True, eq=False)
class Problem:
    queries: Tensor
    items: Tensor
    train: Ragged
    valid: Ragged
    test: Ragged
    users: Tensor  # those with test items

    def evaluate(self, *, auc: bool) -> Evaluation:
        return evaluate(
            self.queries, self.items, self.test, train=self.train, valid=self.valid, cutoffs=CUTOFFS, auc=auc
        )


def problem(data: str) -> Problem:
    split = load_split(data, seed=0).split
    trained = trainer_of(split, data, "softmax", {})
    for _ in range(2):
        epoch_of(trained)()
    queries, items = (table.clone() for table in vectors(trained.model))
    train, valid, test = (part.ragged() for part in (split.train, split.valid, split.test))
    return Problem(queries, items, train, valid, test, (test.counts > 0).nonzero().squeeze(1))


def bare_product(given: Problem, n_rows: int, width: int) -> Callable[[], None]:
    queries, items = given.queries[given.users], given.items
    width = min(width, items.size(0))
    stride = -(-width // 16) * 16  # rows of whole cache lines
    buffer = torch.empty(n_rows, stride)

    def run() -> None:
        for some in torch.split(queries, n_rows):
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
        metrics = []
        for k in CUTOFFS:
            metrics.append(hits[:k] @ discount[:k] / best_possible[min(k, len(wanted)) - 1])
            metrics.extend([hits[:k].sum() / len(wanted), hits[:k].mean()])
        return metrics

    return lambda: np.array([of_user(user) for user in chosen])


def measure(data: str, rounds: int, sample: int) -> Row:
    given = problem(data)
    n_users = given.users.numel()
    sample = min(sample, n_users)
    runs: dict[str, Callable[[], object]] = {
        f"product {rows} x {width}": bare_product(given, rows, width) for rows, width in TILES
    }
    runs |= {PLAIN: lambda: given.evaluate(auc=False), WITH_AUC: lambda: given.evaluate(auc=True)}
    seconds = best(interleaved(runs | {LOOP: loop(given, sample)}, rounds))
    seconds[LOOP] *= n_users / sample
    floor = min(seconds.pop(label) for label in list(seconds) if label.startswith("product"))
    return {
        "data": data,
        "users": n_users,
        "items": given.items.size(0),
        "seconds": {"bare product": floor, **seconds},
        "over_product": {label: value / floor for label, value in seconds.items()},
        "product_gflops": 2 * n_users * given.items.numel() / floor / 1e9,
        "users_in_loop": sample,
        "peak_mib": {label: apart(peak_mib, data, label == WITH_AUC) for label in (PLAIN, WITH_AUC)},
    }


def peak_mib(data: str, auc: bool) -> float:
    """Of one call above what was resident before, in this process."""
    given, memory = problem(data), Memory()
    with memory.phase("before"):
        pass
    with memory.phase("call"):
        given.evaluate(auc=auc)
    return 1024 * (memory.peak["call"] - memory.peak["before"])


def lines(row: Row) -> str:
    shown = []
    for label, seconds in row["seconds"].items():
        ratio = f"{row['over_product'][label]:.2f}x" if label in row["over_product"] else ""
        memory = f"{row['peak_mib'][label]:.0f}" if label in row["peak_mib"] else ""
        shown.append(line([row["data"], label, f"{seconds:.3f}", ratio, memory]))
    return "\n".join(shown)


def main() -> None:
    benchmark = Benchmark(
        __spec__.name, __doc__, data=(HEALTH, ELECTRONIC, GOWALLA), rounds=5, quick={"data": [HEALTH], "rounds": 1}
    )
    options = benchmark.parse()
    results = []
    print(table(HEADS, []))
    for data in options.data:
        results.append(measure(data, options.rounds, 50 if options.quick else SAMPLE))
        print(lines(results[-1]), flush=True)
        benchmark.write(protocol="standard", results=results)


if __name__ == "__main__":
    main()
