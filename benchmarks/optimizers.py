"""What an optimizer costs a step, and how soon training with it is good: adam, row_adam, larger batches, scaled rates.

    python benchmarks/optimizers.py [--quick] [--part NAME ...] [--seeds 3] [--json FILE]

``steps``: seconds of the optimizer alone, tables of random numbers at the sizes of the paper's datasets and of a
million users by half a million items, d = 64. A step reads ``batch`` rows of the users' table; its items' gradient is
dense, as that of normalised items is. The gradient of the users' table counts too: a dense one is a table of zeros with
a few rows filled in. All optimizers in turn, round after round, best round. ``SparseAdam`` is torch's (one step count
for all rows), with fused Adam for the items.

The other parts train SL@20 by the trainer itself and look at validation NDCG@20 (never at the test part): the clock
runs in the epochs and stands still in the validations. Rates follow the square root of the batch from the base's;
``spread`` tries each also at a third and three times that, and the best of the three counts: the soonest to reach 99%
of the best NDCG@20 of any run of the part and seed, median over seeds. With ``--json`` the parts named replace those in
the file.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from topshelf.config import assemble
from topshelf.data import Dataset, load_split
from topshelf.evaluation import ndcg
from topshelf.training.build import build_model, build_objective, resolve
from topshelf.training.optim import RowAdam
from topshelf.training.trainer import Trainer

DIM = 64
SIZES = {
    "amazon2014-health": (1974, 1200),
    "amazon2014-electronic": (13455, 8360),
    "gowalla": (29858, 40988),
    "1M x 500k": (1_000_000, 500_000),
}
BATCHES = (256, 1024, 2048, 8192)
# data, what is trained, base batch, base rate, batches, whether to spread the rates, seconds a run, epochs a validation
PARTS: dict[str, tuple[str, dict[str, Any], int, float, tuple[int, ...], bool, float, int]] = {
    "health, exact catalogue": ("amazon2014-health", {}, 512, 0.1, (256, 512, 1024, 2048), True, 4.0, 2),
    "health, shared 1000": (
        "amazon2014-health",
        {"negatives": {"kind": "shared", "n": 1000}, "train": {"order": "pair"}},
        1024,
        0.03,
        BATCHES,
        True,
        6.0,
        1,
    ),
    "health, 1000 per pair": (
        "amazon2014-health",
        {"negatives": {"kind": "per_query", "n": 1000}, "train": {"order": "pair"}},
        1024,
        0.03,
        BATCHES,
        False,
        20.0,
        1,
    ),
    "electronic, exact catalogue": ("amazon2014-electronic", {}, 2048, 0.1, (512, 2048, 8192), False, 25.0, 2),
    "electronic, shared 1000": (
        "amazon2014-electronic",
        {"negatives": {"kind": "shared", "n": 1000}, "train": {"order": "pair"}},
        1024,
        0.03,
        (256, 1024, 8192),
        False,
        25.0,
        1,
    ),
}
PATIENCE = 8  # validations


class Case:
    """Two tables and one way to step them."""

    def __init__(self, kind: str, users: int, items: int, batch: int) -> None:
        self.is_sparse = kind != "adam"
        self.users, self.items = (torch.nn.Parameter(torch.randn(n, DIM)) for n in (users, items))
        self.rows = torch.randperm(users)[:batch]
        self.towards = torch.randn(self.rows.numel(), DIM)
        self.items_gradient = torch.randn(items, DIM)
        self.optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam([self.users, self.items], fused=True)]
        if kind == "row_adam":
            self.optimizers = [RowAdam([self.users, self.items], lr=1e-3)]
        elif kind == "SparseAdam":
            fused = torch.optim.Adam([self.items], fused=True)
            self.optimizers = [torch.optim.SparseAdam([self.users]), fused]

    def step(self) -> tuple[float, float]:
        """Seconds of the users' gradient, and of the update."""
        started = time.perf_counter()
        self.users.grad = None
        F.embedding(self.rows, self.users, sparse=self.is_sparse).backward(self.towards)
        self.items.grad = self.items_gradient
        middle = time.perf_counter()
        for optimizer in self.optimizers:
            optimizer.step()
        return middle - started, time.perf_counter() - middle


def measure_steps(rounds: int, sizes: Iterable[str]) -> list[dict[str, Any]]:
    found = []
    for name in sizes:
        users, items = SIZES[name]
        for batch in [b for b in BATCHES if b <= users]:
            cases = {kind: Case(kind, users, items, batch) for kind in ("adam", "row_adam", "SparseAdam")}
            best = dict.fromkeys(cases, (math.inf, math.inf))
            for _ in range(rounds + 1):  # the first warms up
                for kind, case in cases.items():
                    for _ in range(1 if users > 100_000 else 10):
                        best[kind] = min(best[kind], case.step(), key=sum)
            found.append({"tables": name, "batch": batch, "seconds": best})
            del cases
    return found


def trainer(dataset: Dataset, more: dict[str, Any], seed: int, **train: Any) -> Trainer:
    settings = {**more, "train": {**more.get("train", {}), **train}}
    config = resolve(assemble(data=dataset.name, loss="slatk", seed=seed, more=settings))
    torch.manual_seed(seed)
    model = build_model(config, dataset.split.n_users, dataset.split.n_items)
    positives = dataset.split.train.ragged()
    objective = build_objective(config, model, positives)
    return Trainer(objective, positives, config.train, threshold=config.threshold, seed=seed)


def timed(function: Callable[[], Any], into: list[float]) -> Callable[[], Any]:
    def run() -> Any:
        started = time.perf_counter()
        result = function()
        into.append(time.perf_counter() - started)
        return result

    return run


def curve(trained: Trainer, dataset: Dataset, limit: float, every: int) -> dict[str, Any]:
    """Validation NDCG@20 against seconds of training, until it no longer gets better or the time is up."""
    train, valid = dataset.split.train.ragged(), dataset.split.valid.ragged()
    in_optimizer: list[float] = []
    trained.optimizer.step = timed(trained.optimizer.step, in_optimizer)  # type: ignore[method-assign]
    seconds, points, best_at = 0.0, [], 0
    while seconds < limit and len(points) - best_at <= PATIENCE:
        for _ in range(every):
            started = time.perf_counter()
            trained._epoch(None)
            seconds += time.perf_counter() - started
        with torch.no_grad():
            queries, items = trained.model.encode()
            points.append((seconds, ndcg(queries, items, valid, train, 20)))
        best_at = max(range(len(points)), key=lambda i: points[i][1]) + 1
    epochs = trained.progress.epoch
    return {
        "points": points,
        "seconds_an_epoch": seconds / epochs,
        "optimizer_share": sum(in_optimizer) / seconds,
        "steps_an_epoch": len(in_optimizer) // epochs,
    }


def measure_training(part: str, seeds: int, quick: bool) -> list[dict[str, Any]]:
    data, more, base, base_rate, batches, spread, limit, every = PARTS[part]
    factors = (1 / 3, 1.0, 3.0) if spread and not quick else (1.0,)
    runs: dict[tuple[str, int, float], list[dict[str, Any]]] = {}
    trainer(load_split(data, seed=0), more, 0)._epoch(None)  # warm up: kernels are compiled on first use
    for seed in range(seeds):
        dataset = load_split(data, seed=seed)
        for batch in batches[-1:] if quick else batches:
            for optimizer in ("adam", "row_adam"):
                for factor in factors:
                    rate = round(base_rate * math.sqrt(batch / base) * factor, 4)
                    trained = trainer(
                        dataset, more, seed, optimizer=optimizer, batch_size=batch, learning_rate=rate, epochs=10**6
                    )
                    run = curve(trained, dataset, 1.0 if quick else limit, every)
                    runs.setdefault((optimizer, batch, rate), []).append(run)
    return summary(runs, seeds)


def summary(runs: dict[tuple[str, int, float], list[dict[str, Any]]], seeds: int) -> list[dict[str, Any]]:
    goals = [0.99 * max(ndcg for run in runs.values() for _, ndcg in run[s]["points"]) for s in range(seeds)]
    found = []
    for (optimizer, batch, rate), of_seeds in runs.items():
        reached = [
            min((seconds for seconds, ndcg in run["points"] if ndcg >= goal), default=math.inf)
            for run, goal in zip(of_seeds, goals, strict=True)
        ]
        middle = statistics.median(reached)
        mean = {
            key: statistics.mean(run[key] for run in of_seeds)
            for key in ("seconds_an_epoch", "optimizer_share", "steps_an_epoch")
        }
        found.append(
            {
                "optimizer": optimizer,
                "batch": batch,
                "rate": rate,
                **mean,
                "best_ndcg": statistics.mean(max(ndcg for _, ndcg in run["points"]) for run in of_seeds),
                "seconds_to_99": None if math.isinf(middle) else middle,
                "seeds_that_reached": sum(map(math.isfinite, reached)),
                "curves": [[(round(s, 3), round(n, 5)) for s, n in run["points"]] for run in of_seeds],
            }
        )
    return found


def show_steps(found: list[dict[str, Any]]) -> None:
    print("\n| tables | batch | adam: gradient + update, ms | row_adam | SparseAdam | adam / row_adam |")
    print("|---|---|---|---|---|---|")
    for row in found:
        texts = [f"{1e3 * grad:.2f} + {1e3 * update:.2f}" for grad, update in row["seconds"].values()]
        ratio = sum(row["seconds"]["adam"]) / sum(row["seconds"]["row_adam"])
        print(f"| {row['tables']} | {row['batch']} | {' | '.join(texts)} | {ratio:.2f} |", flush=True)


def show_training(part: str, found: list[dict[str, Any]]) -> None:
    print(f"\n{part}\n\n| batch | optimizer | rate | ms an epoch | optimizer's share | best NDCG@20 | s to 99% |")
    print("|---|---|---|---|---|---|---|")
    for optimizer, batch in dict.fromkeys((row["optimizer"], row["batch"]) for row in found):
        rows = [row for row in found if (row["optimizer"], row["batch"]) == (optimizer, batch)]
        row = min(rows, key=lambda row: (row["seconds_to_99"] or math.inf, -row["best_ndcg"]))
        reached = "" if row["seconds_to_99"] is None else f"{row['seconds_to_99']:.2f}"
        print(
            f"| {batch} | {optimizer} | {row['rate']:g} | {1e3 * row['seconds_an_epoch']:.1f} | "
            f"{row['optimizer_share']:.1%} | {row['best_ndcg']:.4f} | {reached} |",
            flush=True,
        )


def keep(file: Path, part: str, found: list[dict[str, Any]], seeds: int) -> None:
    command = "python benchmarks/optimizers.py"
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"command": command, "results": {}}
    today = datetime.now(UTC).date().isoformat()
    of_part = {"command": f'{command} --part "{part}" --seeds {seeds}', "date": today, "found": found}
    kept["results"] = {**kept["results"], part: of_part}
    kept = {"command": command, "date": today, "results": kept["results"]}
    file.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="small tables, one seed, one batch, a second a run, Health"
    )
    parser.add_argument("--part", nargs="+", choices=["steps", *PARTS], default=["steps", *PARTS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    parts = [part for part in options.part if not (options.quick and part.startswith("electronic"))]
    seeds = 1 if options.quick else options.seeds
    for part in parts:
        if part == "steps":
            found = measure_steps(2 if options.quick else 8, list(SIZES)[: 1 if options.quick else None])
            show_steps(found)
        else:
            found = measure_training(part, seeds, options.quick)
            show_training(part, found)
        if options.json:
            keep(options.json, part, found, seeds)


if __name__ == "__main__":
    main()
