"""When does SL@K's weight pay? From the softmax loss, whose weight is constant, to a sharp weight, by validation.

    python benchmarks/weighting.py [--data NAME,...] [--jobs N] [--json FILE] [--quick]

MF, d 64, the whole catalogue, the best of 120 epochs, with one learning rate, batch size and tau for all. SL@20 with
several tau_w, with the gradient through the weight (for several N, which scale the sum over the catalogue and with it
that gradient) and without it (``detach_weight``). As tau_w grows, the weight becomes constant and the loss half of the
softmax loss. Means over four validation splits; nothing is measured on test. ``--quick``: two epochs, one split.
"""

from __future__ import annotations

import argparse
import statistics
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import record
import torch

from topshelf.config import assemble, merged
from topshelf.training import fit

K = 20
SEEDS = (10, 11, 12, 13)
DATA = ("amazon2014-health", "movielens-100k")
SHARPNESS = (0.5, 1.5, 2.5, 4.0)
SIZES = (50, 1000)
SETTINGS = {
    "model": {"dim": 64},
    "loss": {"tau": 0.2},
    "train": {"epochs": 120, "patience": 0, "batch_size": 512, "learning_rate": 0.03, "weight_decay": 0.0},
}


def losses() -> dict[tuple[str, float], dict[str, Any]]:
    """Settings by row and column of the table."""
    found: dict[tuple[str, float], dict[str, Any]] = {("SL", 0.0): {"loss": {"name": "softmax"}}}
    for tau_weight in SHARPNESS:
        weighted = {"loss": {"name": "slatk", "tau_weight": tau_weight}, "threshold": {"every": 5}}
        found["no gradient through it", tau_weight] = merged(weighted, {"loss": {"detach_weight": True}})
        for size in SIZES:
            found[f"N = {size}", tau_weight] = merged(weighted, {"negatives": {"effective_n": size}})
    return found


def measure(data: str, place: tuple[str, float], seeds: tuple[int, ...], epochs: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    more = merged(merged(SETTINGS, losses()[place]), {"train": {"epochs": epochs}})
    fitted = [fit(assemble(data=data, model="mf", k=K, seed=seed, more=more)) for seed in seeds]
    scores = [run.valid_score for run in fitted if run.valid_score is not None]
    row = {"data": data, "weight": place[0], "tau_weight": place[1], "valid": scores}
    print(data, *place, f"{statistics.mean(scores):.4f}", flush=True)
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """The mean of the softmax loss on each dataset, and how far each weight is from it."""
    means = {(row["data"], row["weight"], row["tau_weight"]): statistics.mean(row["valid"]) for row in rows}
    heads = " | ".join(f"tau_w {value:g}" for value in SHARPNESS)
    lines = [f"| data | SL | weight of SL@{K} | {heads} |", "|---" * (3 + len(SHARPNESS)) + "|"]
    for data in dict.fromkeys(row["data"] for row in rows):
        base = means[data, "SL", 0.0]
        for weight in (*(f"N = {size}" for size in SIZES), "no gradient through it"):
            cells = " | ".join(f"{means[data, weight, value] / base - 1:+.1%}" for value in SHARPNESS)
            lines.append(f"| {data} | {base:.4f} | {weight} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=",".join(DATA), help="names, with commas between")
    parser.add_argument("--jobs", type=int, default=2, help="processes, one thread each")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    seeds, epochs = (SEEDS[:1], 2) if options.quick else (SEEDS, 120)
    asked = [(data, place, seeds, epochs) for data in options.data.split(",") for place in losses()]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(measure, *zip(*asked, strict=True)))
    command = f"python benchmarks/weighting.py{' --quick' if options.quick else ''}"
    record.write(options.json, command, metric=f"validation ndcg@{K}", rows=rows)
    print(table(rows))


if __name__ == "__main__":
    main()
