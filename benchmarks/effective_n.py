"""What the size of the partition does to SL@K: the exact catalogue scaled to several effective N.

    python benchmarks/effective_n.py [--quick] [--data NAME] [--epochs 40] [--json FILE]

SL@20 with MF, seed 0, one setting changed at a time; the softmax loss does not depend on N and stands as the base.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import record
import torch

from topshelf.config import assemble, merged
from topshelf.data import load_split
from topshelf.thresholds import exact_thresholds
from topshelf.training import fit

BASE: dict[str, Any] = {
    "loss": {"tau": 0.2, "tau_weight": 2.25},
    "threshold": {"every": 20},
    "train": {"learning_rate": 0.1, "batch_size": 2048},
    "evaluate": {"auc": False, "cutoffs": [20]},
}


def variants(n_items: int) -> dict[str, tuple[str, dict[str, Any]]]:
    rows: dict[str, tuple[str, dict[str, Any]]] = {
        f"catalogue, effective N = {n}": ("slatk", {"negatives": {"effective_n": n}})
        for n in (100, 300, 1000, 3000, n_items)
    }
    rows["1000 sampled for each query"] = ("slatk", {"negatives": {"kind": "per_query", "n": 1000}})
    rows["catalogue, N = 1000, weight detached"] = (
        "slatk",
        {"negatives": {"effective_n": 1000}, "loss": {"detach_weight": True}},
    )
    rows["softmax loss"] = ("softmax", {})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--data", default="amazon2014-electronic")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    dataset = load_split(options.data, seed=0)
    rows = []
    print("| variant | ndcg@20 valid | ndcg@20 test, standard | mean threshold |\n|---|---|---|---|")
    for label, (loss, change) in variants(dataset.split.n_items).items():
        more = merged(merged(BASE, {"train": {"epochs": 2 if options.quick else options.epochs}}), change)
        if loss == "softmax":
            more["loss"] = {"tau": BASE["loss"]["tau"]}
        fitted = fit(assemble(data=options.data, loss=loss, seed=0, more=more), dataset)
        with torch.no_grad():
            queries, items = fitted.model.encode()
            threshold = exact_thresholds(queries, items, 20).mean().item()
        valid = fitted.evaluate(part="valid").mean()["ndcg@20"]
        test = fitted.evaluate().mean()["ndcg@20"]
        rows.append({"variant": label, "valid": valid, "test": test, "mean_threshold": threshold})
        print(f"| {label} | {valid:.4f} | {test:.4f} | {threshold:.3f} |", flush=True)
    command = f"python benchmarks/effective_n.py --data {options.data} --epochs {options.epochs}"
    record.write(options.json, command, base=BASE, rows=rows)


if __name__ == "__main__":
    main()
