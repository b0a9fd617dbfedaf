"""Seconds per epoch and per step: the engine against the textbook gather, at the sizes of the paper's datasets.

    python benchmarks/training.py [--quick] [--data NAME ...] [--rounds 3] [--json FILE]

Every variant trains on the same positives with d = 64. The textbook step is the paper's: 1024 shuffled pairs, 1000
negatives a pair, a (1024, 1000, 64) gather, autograd, dense Adam; a few of its steps are timed and multiplied by the
steps of an epoch. Variants are timed in turn, round after round, and the best round counts, so that a busy moment hits
all alike. The share of the machine's matrix-product rate counts the three products of an epoch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import record
import torch
import torch.nn.functional as F

from topshelf.config import assemble, merged
from topshelf.data import Dataset, load_split
from topshelf.training.batches import stream
from topshelf.training.build import build_model, build_objective, resolve
from topshelf.training.trainer import Trainer

TEXTBOOK = "textbook gather, 1000 per pair"
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "SL, exact catalogue": ("softmax", {}),
    "SL@20, exact catalogue": ("slatk", {}),
    "SL@20, exact catalogue, bfloat16": ("slatk", {"train": {"precision": "bfloat16"}}),
    "SL@20, shared 1000": ("slatk", {"negatives": {"kind": "shared", "n": 1000}}),
    "SL@20, 1000 per query": ("slatk", {"negatives": {"kind": "per_query", "n": 1000}}),
}


def trainer(data: str, dataset: Dataset, loss: str, more: dict[str, Any]) -> Trainer:
    more = merged({"train": {"batch_size": 2048}}, more)
    config = resolve(assemble(data=data, loss=loss, more=more))
    torch.manual_seed(0)
    model = build_model(config, dataset.split.n_users, dataset.split.n_items)
    positives = dataset.split.train.ragged()
    objective = build_objective(config, model, positives)
    return Trainer(objective, positives, config.train, threshold=config.threshold, seed=0)


def epoch_of(trained: Trainer) -> Callable[[], float]:
    """Seconds of one more epoch."""

    def run() -> float:
        started = time.perf_counter()
        trained._epoch(None)
        return time.perf_counter() - started

    return run


def textbook(dataset: Dataset, n_steps: int) -> tuple[Callable[[], float], int]:
    """Seconds of one textbook step, averaged over ``n_steps``; and how many make an epoch."""
    split = dataset.split
    positives = split.train.ragged()
    owner, item = positives.owner(), positives.indices
    users = torch.nn.Parameter(torch.randn(split.n_users, 64))
    items = torch.nn.Parameter(torch.randn(split.n_items, 64))
    optimizer = torch.optim.Adam([users, items], lr=0.01)
    generator = stream(0)

    def run() -> float:
        started = time.perf_counter()
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
        return (time.perf_counter() - started) / n_steps

    return run, -(-len(owner) // 1024)


def product_rate(dim: int = 64, n: int = 4096) -> Callable[[], float]:
    """Seconds of one n x dim by dim x n product into a buffer."""
    a, b, out = torch.randn(n, dim), torch.randn(dim, n), torch.empty(n, n)

    def run() -> float:
        started = time.perf_counter()
        for _ in range(5):
            torch.mm(a, b, out=out)
        return (time.perf_counter() - started) / 5

    return run


def measure(data: str, rounds: int, n_steps: int) -> dict[str, Any]:
    dataset = load_split(data, seed=0)
    split = dataset.split
    timed = {label: epoch_of(trainer(data, dataset, loss, more)) for label, (loss, more) in VARIANTS.items()}
    step, steps = textbook(dataset, n_steps)
    product = product_rate()
    for run in timed.values():
        run()  # warm up: buffers, Adam's state
    best = {label: float("inf") for label in [*timed, TEXTBOOK, "product"]}
    for _ in range(rounds):
        for label, run in timed.items():
            best[label] = min(best[label], run())
            best["product"] = min(best["product"], product())
        best[TEXTBOOK] = min(best[TEXTBOOK], step() * steps)
    gflops = 2 * 4096 * 4096 * 64 / best.pop("product") / 1e9
    work = 3 * 2 * split.n_users * split.n_items * 64 / 1e9
    return {
        "data": data,
        "users": split.n_users,
        "items": split.n_items,
        "positives": len(split.train),
        "seconds": best,
        "textbook_steps": steps,
        "speedup": {label: best[TEXTBOOK] / best[label] for label in timed},
        "product_gflops": gflops,
        "share_of_product_rate": {label: work / best[label] / gflops for label in timed if "catalogue" in label},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, one textbook step, Health alone")
    parser.add_argument("--data", nargs="+", default=["amazon2014-health", "amazon2014-electronic", "gowalla"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names = options.data[:1] if options.quick else options.data
    results = []
    print("| data | variant | seconds an epoch | faster than the textbook | share of product rate |")
    print("|---|---|---|---|---|")
    for data in names:
        found = measure(data, 1 if options.quick else options.rounds, 1 if options.quick else 2)
        results.append(found)
        for label, seconds in found["seconds"].items():
            speedup = f"{found['speedup'][label]:,.0f}x" if label in found["speedup"] else ""
            share = f"{found['share_of_product_rate'][label]:.0%}" if label in found["share_of_product_rate"] else ""
            print(f"| {data} | {label} | {seconds:.3f} | {speedup} | {share} |", flush=True)
    command = f"python benchmarks/training.py --data {' '.join(names)} --rounds {options.rounds}"
    record.write(options.json, command, results=results)


if __name__ == "__main__":
    main()
