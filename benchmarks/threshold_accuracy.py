"""How far the threshold estimators that draw items are from the exact thresholds, in scores and in places.

    python benchmarks/threshold_accuracy.py [--quick] [--data NAME ...] [--n N] [--json FILE]
    python benchmarks/threshold_accuracy.py --quality [--quick] [--data NAME ...] [--seeds 0 1 2] [--json FILE]

MF with SL@20, trained once with the shipped settings and once with the paper's (its learning rate, tau, tau_w, N(0, 1)
start and batches of 1024 pairs; its 1000 negatives are shared by a batch here, which is faster). At the start and after
some epochs the thresholds of up to 3000 users are estimated by every estimator, 16 users to a draw, and set against the
exact ones. ``place`` is where the estimate really stands in the user's list of all items, the median over users (the
exact threshold stands at place 20); ``predicted`` is where the paper's estimate should stand: at the first place where
the positives so far and the drawn share n / |N_u| of the negatives so far number K.

``--quality`` asks what the errors do to the model: SL@20, shipped settings, each estimator in turn, early stopping on
validation, whose NDCG@20 is the figure. Its file keeps the rows of other datasets.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import record
import torch
from convergence import PAPER  # the benchmark beside this one
from torch import Tensor

from topshelf.config import assemble
from topshelf.data import Dataset, load_split
from topshelf.ragged import Ragged
from topshelf.thresholds import DRAWN, EVERY_FEW_EPOCHS, exact_thresholds
from topshelf.training import fit
from topshelf.training.batches import stream
from topshelf.training.thresholding import drawn_thresholds
from topshelf.training.trainer import Trainer
from training import trainer  # the benchmark beside this one

DATA = {"amazon2014-health": 1000, "amazon2014-electronic": 1000, "movielens-100k": 200}  # the paper's sample sizes
K, USERS, SHARED_BY = 20, 3000, 16
GROUPS = {"all": (1, 10**9), "under 10": (1, 10), "10 to 19": (10, 20), "20 and more": (20, 10**9)}
EPOCHS = (0, 5, 20, 60)
SHOWN = (0, 5, 60)  # in the page


def trainings(data: str) -> dict[str, dict[str, Any]]:
    made: dict[str, dict[str, Any]] = {"shipped": {}}
    if data in PAPER:
        rate, tau, tau_weight, every = PAPER[data]
        made["paper's"] = {
            "model": {"dim": 64, "init": "normal"},
            "loss": {"tau": tau, "tau_weight": tau_weight},
            "negatives": {"kind": "shared", "n": 1000, "effective_n": None},
            "threshold": {"estimator": "sampled", "every": every, "n": 1000},
            "train": {"order": "pair", "batch_size": 1024, "learning_rate": rate},
        }
    return made


def states(trained: Trainer, epochs: list[int]) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The model's vectors after each of some numbers of epochs."""
    for wanted in epochs:
        while trained.progress.epoch < wanted:
            trained._epoch(None)
        with torch.no_grad():
            queries, items = trained.model.encode()
        assert isinstance(queries, Tensor)
        yield wanted, queries, items


def places(queries: Tensor, items: Tensor, positives: Ragged, n: int, levels: list[Tensor]) -> list[Tensor]:
    """Where each level stands in its user's list of all items, and where the paper's estimate should, (U,) each."""
    found: list[list[Tensor]] = [[] for _ in range(len(levels) + 1)]
    for start in range(0, queries.size(0), 500):
        part = slice(start, min(start + 500, queries.size(0)))
        lists = positives.slice(part.start, part.stop)
        scores = queries[part] @ items.T
        for column, level in enumerate(levels):
            found[column].append((scores > level[part].unsqueeze(1) + 1e-6).sum(1) + 1)
        is_own = torch.zeros_like(scores, dtype=torch.bool)
        is_own[lists.owner(), lists.indices] = True
        own = is_own.gather(1, scores.argsort(1, descending=True)).cumsum(1)
        n_negatives = (items.size(0) - lists.counts).unsqueeze(1)
        others = torch.arange(1, items.size(0) + 1) - own
        seen = own + others * (n / n_negatives).clamp(max=1.0)
        found[-1].append(1 + (seen < K - 1e-9).sum(1))
    return [torch.cat(column) for column in found]


def measure(queries: Tensor, items: Tensor, positives: Ragged, n: int) -> dict[str, Any]:
    """Errors and places of every estimator, by the users' number of positives."""
    exact = exact_thresholds(queries, items, K)
    estimates = [
        drawn_thresholds(name, queries, items, positives, K, n, stream(0, number), block=SHARED_BY)
        for number, name in enumerate(DRAWN)
    ]
    *place, predicted = places(queries, items, positives, n, estimates)
    owner = positives.owner()
    hit = ((queries[owner] * items[positives.indices]).sum(1) >= exact[owner] - 1e-6).long()
    hits, counts = torch.bincount(owner, hit, minlength=queries.size(0)), positives.counts
    groups = {}
    for label, (least, below) in GROUPS.items():
        chosen = (counts >= least) & (counts < below)
        if not bool(chosen.any()):
            continue
        groups[label] = {
            "users": int(chosen.sum()),
            "hits": float(hits[chosen].mean()),
            "predicted": float(predicted[chosen].median()),
            "estimates": {
                name: {**summary((estimate - exact)[chosen]), "place": float(where[chosen].median())}
                for name, estimate, where in zip(DRAWN, estimates, place, strict=True)
            },
        }
    return {"mean_threshold": float(exact.mean()), "groups": groups}


def summary(error: Tensor) -> dict[str, float]:
    return {"mean": float(error.mean()), "std": float(error.std()), "absolute": float(error.abs().mean())}


def rows_of(data: str, dataset: Dataset, n: int, epochs: list[int]) -> Iterator[dict[str, Any]]:
    positives = dataset.split.train.ragged()
    eligible = (positives.counts > 0).nonzero().squeeze(1)
    users = eligible[torch.randperm(eligible.numel(), generator=stream(0))[:USERS]]
    lists = positives.select(users)
    for label, more in trainings(data).items():
        for epoch, queries, items in states(trainer(data, dataset, "slatk", more), epochs):
            found = measure(queries[users], items, lists, n)
            yield {"data": data, "items": items.size(0), "n": n, "training": label, "epoch": epoch, **found}


HEAD = (
    "| data | training | epochs | positives | hits | sampled | place | predicted | iid | place | weighted | place |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def table(rows: list[dict[str, Any]]) -> str:
    """Two tables of the page on SL@K: all users of most states, and the last shipped states by number of positives."""
    last = [row for row in rows if row["training"] == "shipped" and row["epoch"] == max(EPOCHS)]
    by_state = "\n".join([HEAD, *(line(row, "all") for row in rows if row["epoch"] in SHOWN)])
    by_group = "\n".join([HEAD, *(line(row, label) for row in last for label in row["groups"] if label != "all")])
    return f"{by_state}\n\n{by_group}"


def line(row: dict[str, Any], label: str) -> str:
    group = row["groups"][label]
    sample = f"{row['data']}, {row['n']:,} of {row['items']:,}"
    cells = [sample, row["training"], row["epoch"], label, f"{group['hits']:.1f}"]
    for name, one in group["estimates"].items():
        cells += [f"{one['mean']:+.3f} ± {one['std']:.3f}, {one['absolute']:.3f}", f"{one['place']:.0f}"]
        cells += [f"{group['predicted']:.0f}"] if name == "sampled" else []
    return f"| {' | '.join(map(str, cells))} |"


QUALITY_HEAD = "| data | seeds | exact | sampled | iid | weighted |\n|---|---|---|---|---|---|"


def quality(data: str, seeds: list[int], quick: bool) -> dict[str, Any]:
    """Validation NDCG@20 by estimator, one value a seed."""
    found: dict[str, list[float]] = {name: [] for name in EVERY_FEW_EPOCHS}
    for seed in seeds:
        dataset = load_split(data, seed=seed)
        for name, values in found.items():
            more: dict[str, Any] = {"threshold": {"estimator": name, "n": DATA[data]}}
            if quick:
                more["train"] = {"epochs": 5}
            fitted = fit(assemble(data=data, loss="slatk", k=K, seed=seed, more=more), dataset)
            values.append(fitted.evaluate(part="valid").mean()["ndcg@20"])
    return {"data": data, "seeds": seeds, "valid": found}


def quality_table(rows: list[dict[str, Any]]) -> str:
    return "\n".join([QUALITY_HEAD, *map(quality_line, rows)])


def quality_line(row: dict[str, Any]) -> str:
    cells = [f"{statistics.mean(values):.4f}" for values in row["valid"].values()]
    if len(row["seeds"]) > 1:
        spread = map(statistics.stdev, row["valid"].values())
        cells = [f"{cell} ± {std:.4f}" for cell, std in zip(cells, spread, strict=True)]
    return f"| {row['data']} | {len(row['seeds'])} | {' | '.join(cells)} |"


def measure_quality(options: argparse.Namespace, names: list[str]) -> None:
    rows = [row for row in record.held(options.json) if row["data"] not in names]
    print(QUALITY_HEAD)
    for data in names:
        row = quality(data, options.seeds[: 1 if options.quick else None], options.quick)
        rows.append(row)
        print(quality_line(row), flush=True)
    command = f"python benchmarks/threshold_accuracy.py --quality --data {' '.join(names)}"
    record.write(options.json, f"{command} --seeds {' '.join(map(str, options.seeds))}", rows=rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="Health alone, at the start and after one epoch")
    parser.add_argument("--data", nargs="+", default=list(DATA))
    parser.add_argument("--n", type=int, help="items drawn; the paper's number by default")
    parser.add_argument("--quality", action="store_true", help="what the estimators do to validation NDCG@20")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="of --quality")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    record.check_names(parser, "--data", options.data, list(DATA))
    record.check_quick(parser, options)
    names, epochs = (options.data[:1], [0, 1]) if options.quick else (options.data, list(EPOCHS))
    if options.quality:
        measure_quality(options, names)
        return
    rows = []
    print(HEAD)
    for data in names:
        for row in rows_of(data, load_split(data, seed=0), options.n or DATA[data], epochs):
            rows.append(row)
            print("\n".join(line(row, label) for label in row["groups"]), flush=True)
    command = f"python benchmarks/threshold_accuracy.py --data {' '.join(names)}"
    command += f" --n {options.n}" if options.n else ""
    record.write(options.json, command, rows=rows)


if __name__ == "__main__":
    main()
