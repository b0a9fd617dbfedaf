"""What an optimizer costs per step, and how soon training with it is good: adam, row_adam, batch sizes, rates.

    python -m benchmarks.speed.optimizers [--quick] [--part NAME ...] [--seeds 0 1 2] [--json FILE]

``steps``: seconds of the optimizer alone, tables of random numbers at the sizes of the paper's datasets and of a
million users by half a million items, d = 64. A step reads ``batch`` rows of the users' table; its items' gradient is
dense, as that of normalised items is. The gradient of the users' table counts too: a dense one is a table of zeros with
a few rows filled in. All optimizers in turn, round after round, best round. ``SparseAdam`` is torch's (one step count
for all rows), with fused Adam for the items.

The other parts train SL@20 with the trainer itself and measure validation NDCG@20 (never the test part): the clock runs
in the epochs and stops in the validations. Rates follow the square root of the batch from the base's; ``spread`` tries
each also at a third and three times that, and the best of the three counts: the soonest to reach 99% of the best
NDCG@20 of any run of the part and seed, median over seeds. With ``--json`` the parts named replace those in the file.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.harness import ELECTRONIC, GOWALLA, HEALTH, Benchmark, Row, seconds_of, table, today
from benchmarks.trained import epoch_of, trainer, validation
from topshelf.config import assemble, merged
from topshelf.data import Dataset, load_split
from topshelf.training.build import resolve
from topshelf.training.optim import RowAdam
from topshelf.training.trainer import Trainer

DIM = 64
SIZES = {
    HEALTH: (1974, 1200),
    ELECTRONIC: (13455, 8360),
    GOWALLA: (29858, 40988),
    "1M x 500k": (1_000_000, 500_000),
}
BATCHES = (256, 1024, 2048, 8192)
SHARED = {"negatives": {"kind": "shared", "n": 1000}, "train": {"order": "pair"}}
PER_PAIR = {"negatives": {"kind": "per_query", "n": 1000}, "train": {"order": "pair"}}
# Data, settings, base batch, base rate, batches, whether to spread the rates, seconds per run, epochs per validation.
PARTS: dict[str, tuple[str, Row, int, float, tuple[int, ...], bool, float, int]] = {
    "health, exact catalogue": (HEALTH, {}, 512, 0.1, (256, 512, 1024, 2048), True, 4.0, 2),
    "health, shared 1000": (HEALTH, SHARED, 1024, 0.03, BATCHES, True, 6.0, 1),
    "health, 1000 per pair": (HEALTH, PER_PAIR, 1024, 0.03, BATCHES, False, 20.0, 1),
    "electronic, exact catalogue": (ELECTRONIC, {}, 2048, 0.1, (512, 2048, 8192), False, 25.0, 2),
    "electronic, shared 1000": (ELECTRONIC, SHARED, 1024, 0.03, (256, 1024, 8192), False, 25.0, 1),
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


def measure_steps(rounds: int, sizes: Iterable[str]) -> list[Row]:
    rows = []
    for name in sizes:
        users, items = SIZES[name]
        for batch in [b for b in BATCHES if b <= users]:
            cases = {kind: Case(kind, users, items, batch) for kind in ("adam", "row_adam", "SparseAdam")}
            best = dict.fromkeys(cases, (math.inf, math.inf))
            for _ in range(rounds + 1):  # the first warms up
                for kind, case in cases.items():
                    for _ in range(1 if users > 100_000 else 10):
                        best[kind] = min(best[kind], case.step(), key=sum)
            rows.append({"tables": name, "batch": batch, "seconds": best})
            del cases
    return rows


def trainer_for(dataset: Dataset, more: Row, seed: int, **train: Any) -> Trainer:
    config = assemble(data=dataset.name, loss="slatk", seed=seed, more=merged(more, {"train": train}))
    return trainer(resolve(config), dataset.split.train.ragged(), dataset.split.n_items)


def timed(function: Callable[[], Any], into: list[float]) -> Callable[[], None]:
    return lambda: into.append(seconds_of(function))


def curve(trained: Trainer, dataset: Dataset, limit: float, every: int) -> Row:
    """Validation NDCG@20 against seconds of training, until it no longer improves or the time is up."""
    validate = validation(dataset.split.train.ragged(), dataset.split.valid.ragged())
    in_optimizer: list[float] = []
    trained.optimizer.step = timed(trained.optimizer.step, in_optimizer)  # type: ignore[method-assign]
    points: list[tuple[float, float]] = []
    seconds, best_at = 0.0, 0
    while seconds < limit and len(points) - best_at <= PATIENCE:
        seconds += sum(seconds_of(epoch_of(trained)) for _ in range(every))
        points.append((seconds, validate(trained.model)))
        best_at = max(range(len(points)), key=lambda i: points[i][1]) + 1
    epochs = trained.progress.epoch
    return {
        "points": points,
        "seconds_an_epoch": seconds / epochs,
        "optimizer_share": sum(in_optimizer) / seconds,
        "steps_an_epoch": len(in_optimizer) // epochs,
    }


def measure_training(part: str, seeds: list[int], quick: bool) -> list[Row]:
    data, more, base, base_rate, batches, spread, limit, every = PARTS[part]
    factors = (1 / 3, 1.0, 3.0) if spread and not quick else (1.0,)
    runs: dict[tuple[str, int, float], list[Row]] = {}
    epoch_of(trainer_for(load_split(data, seed=0), more, 0))()  # warm up: kernels are compiled on first use
    for seed in seeds:
        dataset = load_split(data, seed=seed)
        for batch in batches[-1:] if quick else batches:
            for optimizer in ("adam", "row_adam"):
                for factor in factors:
                    rate = round(base_rate * math.sqrt(batch / base) * factor, 4)
                    own = {"optimizer": optimizer, "batch_size": batch, "learning_rate": rate, "epochs": 10**6}
                    run = curve(trainer_for(dataset, more, seed, **own), dataset, 1.0 if quick else limit, every)
                    runs.setdefault((optimizer, batch, rate), []).append(run)
    return summary(runs, len(seeds))


def summary(runs: dict[tuple[str, int, float], list[Row]], seeds: int) -> list[Row]:
    goals = [0.99 * max(score for run in runs.values() for _, score in run[s]["points"]) for s in range(seeds)]
    rows = []
    for (optimizer, batch, rate), of_seeds in runs.items():
        reached = [
            min((seconds for seconds, score in run["points"] if score >= goal), default=math.inf)
            for run, goal in zip(of_seeds, goals, strict=True)
        ]
        middle = statistics.median(reached)
        mean = {
            key: statistics.mean(run[key] for run in of_seeds)
            for key in ("seconds_an_epoch", "optimizer_share", "steps_an_epoch")
        }
        rows.append(
            {
                "optimizer": optimizer,
                "batch": batch,
                "rate": rate,
                **mean,
                "best_ndcg": statistics.mean(max(score for _, score in run["points"]) for run in of_seeds),
                "seconds_to_99": None if math.isinf(middle) else middle,
                "seeds_that_reached": sum(map(math.isfinite, reached)),
                "curves": [[(round(s, 3), round(n, 5)) for s, n in run["points"]] for run in of_seeds],
            }
        )
    return rows


def steps_table(rows: list[Row]) -> str:
    heads = ("tables", "batch", "adam: gradient + update, ms", "row_adam", "SparseAdam", "adam / row_adam")
    lines = []
    for row in rows:
        texts = [f"{1e3 * grad:.2f} + {1e3 * update:.2f}" for grad, update in row["seconds"].values()]
        ratio = sum(row["seconds"]["adam"]) / sum(row["seconds"]["row_adam"])
        lines.append([row["tables"], row["batch"], *texts, f"{ratio:.2f}"])
    return table(heads, lines)


def training_table(rows: list[Row]) -> str:
    heads = ("batch", "optimizer", "rate", "ms per epoch", "optimizer's share", "best NDCG@20", "s to 99%")
    lines = []
    for optimizer, batch in dict.fromkeys((row["optimizer"], row["batch"]) for row in rows):
        own = [row for row in rows if (row["optimizer"], row["batch"]) == (optimizer, batch)]
        row = min(own, key=lambda row: (row["seconds_to_99"] or math.inf, -row["best_ndcg"]))
        reached = "" if row["seconds_to_99"] is None else f"{row['seconds_to_99']:.2f}"
        cells = [f"{row['rate']:g}", f"{1e3 * row['seconds_an_epoch']:.1f}", f"{row['optimizer_share']:.1%}"]
        lines.append([batch, optimizer, *cells, f"{row['best_ndcg']:.4f}", reached])
    return table(heads, lines)


def main() -> None:
    parts = ["steps", *PARTS]
    quick = {"seeds": [0], "part": [part for part in parts if not part.startswith("electronic")]}
    benchmark = Benchmark(__spec__.name, __doc__, seeds=(0, 1, 2), quick=quick)
    benchmark.parser.add_argument("--part", nargs="+", choices=parts, default=parts)
    options = benchmark.parse()
    results = dict(benchmark.held("results"))
    for part in options.part:
        if part == "steps":
            rows = measure_steps(2 if options.quick else 8, list(SIZES)[: 1 if options.quick else None])
        else:
            rows = measure_training(part, options.seeds, options.quick)
        print(f"\n{part}\n\n{steps_table(rows) if part == 'steps' else training_table(rows)}", flush=True)
        results[part] = {"command": benchmark.command, "date": today(), "found": rows}
        benchmark.write(results=results)


if __name__ == "__main__":
    main()
