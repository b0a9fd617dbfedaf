"""Seconds per epoch: the engine against the textbook gather, at the sizes of the paper's datasets.

    python -m benchmarks.speed.training [--quick] [--data NAME ...] [--rounds 3] [--json FILE]

Every variant trains on the same positives with d = 64, in batches of 2048 users. The textbook step is the paper's: 1024
shuffled pairs, 1000 negatives per pair, a (1024, 1000, 64) gather, autograd, dense Adam; a few of its steps are timed
and multiplied by the steps of an epoch. All variants in turn, round after round; the best round counts. The share of
the machine's matrix-product rate counts the three products of an epoch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from benchmarks.harness import ELECTRONIC, GOWALLA, HEALTH, Benchmark, Row, best, interleaved, line, table
from benchmarks.trained import epoch_of, trainer_of
from topshelf.data import Split, load_split
from topshelf.training.batches import stream

TEXTBOOK, PRODUCT = "textbook gather, 1000 per pair", "product"
VARIANTS: dict[str, tuple[str, Row]] = {
    "SL, exact catalogue": ("softmax", {}),
    "SL@20, exact catalogue": ("slatk", {}),
    "SL@20, exact catalogue, bfloat16": ("slatk", {"train": {"precision": "bfloat16"}}),
    "SL@20, shared 1000": ("slatk", {"negatives": {"kind": "shared", "n": 1000}}),
    "SL@20, 1000 per query": ("slatk", {"negatives": {"kind": "per_query", "n": 1000}}),
}
HEADS = ("data", "variant", "seconds per epoch", "faster than the textbook", "share of product rate")


def textbook_steps(split: Split, n_steps: int) -> Callable[[], None]:
    positives = split.train.ragged()
    owner, item = positives.owner(), positives.indices
    users, items = (torch.nn.Parameter(torch.randn(n, 64)) for n in (split.n_users, split.n_items))
    optimizer = torch.optim.Adam([users, items], lr=0.01)
    generator = stream(0)

    def run() -> None:
        for _ in range(n_steps):
            pairs = torch.randint(len(owner), (1024,), generator=generator)
            negatives = torch.randint(split.n_items, (1024, 1000), generator=generator)
            u = F.normalize(users[owner[pairs]], dim=1)
            positive = (u * F.normalize(items[item[pairs]], dim=1)).sum(1)
            negative = (u.unsqueeze(1) * F.normalize(items[negatives], dim=2)).sum(2)
            loss = ((negative - positive.unsqueeze(1)) / 0.2).logsumexp(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run


def products(n_times: int = 5, dim: int = 64, n: int = 4096) -> Callable[[], None]:
    """Products of n x dim by dim x n into a buffer."""
    a, b, out = torch.randn(n, dim), torch.randn(dim, n), torch.empty(n, n)

    def run() -> None:
        for _ in range(n_times):
            torch.mm(a, b, out=out)

    return run


def measure(data: str, rounds: int, n_steps: int) -> Row:
    split = load_split(data, seed=0).split
    runs: dict[str, Callable[[], object]] = {
        label: epoch_of(trainer_of(split, data, loss, more)) for label, (loss, more) in VARIANTS.items()
    }
    runs |= {TEXTBOOK: textbook_steps(split, n_steps), PRODUCT: products()}
    seconds = best(interleaved(runs, rounds))
    steps = -(-len(split.train) // 1024)
    seconds[TEXTBOOK] *= steps / n_steps
    gflops = 2 * 4096 * 4096 * 64 / (seconds.pop(PRODUCT) / 5) / 1e9
    work = 3 * 2 * split.n_users * split.n_items * 64 / 1e9
    return {
        "data": data,
        "users": split.n_users,
        "items": split.n_items,
        "positives": len(split.train),
        "seconds": seconds,
        "textbook_steps": steps,
        "speedup": {label: seconds[TEXTBOOK] / seconds[label] for label in VARIANTS},
        "product_gflops": gflops,
        "share_of_product_rate": {label: work / seconds[label] / gflops for label in VARIANTS if "catalogue" in label},
    }


def lines(row: Row) -> str:
    shown = []
    for label, seconds in row["seconds"].items():
        speedup = f"{row['speedup'][label]:,.0f}x" if label in row["speedup"] else ""
        share = f"{row['share_of_product_rate'][label]:.0%}" if label in row["share_of_product_rate"] else ""
        shown.append(line([row["data"], label, f"{seconds:.3f}", speedup, share]))
    return "\n".join(shown)


def main() -> None:
    benchmark = Benchmark(
        __spec__.name, __doc__, data=(HEALTH, ELECTRONIC, GOWALLA), rounds=3, quick={"data": [HEALTH], "rounds": 1}
    )
    options = benchmark.parse()
    results = []
    print(table(HEADS, []))
    for data in options.data:
        results.append(measure(data, options.rounds, 1 if options.quick else 2))
        print(lines(results[-1]), flush=True)
        benchmark.write(results=results)


if __name__ == "__main__":
    main()
