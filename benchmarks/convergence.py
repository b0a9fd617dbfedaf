"""The same quality: SL@20 by the engine against the textbook's way of training, each to convergence.

    python benchmarks/convergence.py [--quick] [--data NAME ...] [--variants NAME ...] [--seeds 0 1 2] [--json FILE]

``textbook`` is the paper's training with the paper's best settings for MF (learning rate, tau, tau_w, T_beta; N(0, 1)
start, 1024 shuffled pairs, 1000 negatives for each pair, Adam), run by the library's own sampled path: the same step as
the gather of benchmarks/training.py, faster. ``exact`` and ``bfloat16`` are the shipped settings over the whole
catalogue. All validate every 5 epochs and stop after 10 validations without a better NDCG@20; the test part, under the
standard protocol, is looked at once for each seed. Gowalla has no textbook row by default: it takes hours here.
"""

from __future__ import annotations

import argparse
import statistics
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import record

from topshelf.config import assemble, merged
from topshelf.training import fit

METRIC = "ndcg@20"
# learning rate, tau, tau_w, T_beta: the paper's tables of optimal hyperparameters, MF.
PAPER = {
    "amazon2014-health": (0.1, 0.2, 2.5, 5),
    "amazon2014-electronic": (0.01, 0.2, 2.25, 20),
    "gowalla": (0.01, 0.1, 1.0, 20),
}
VARIANTS = {
    "amazon2014-health": ["textbook", "exact", "bfloat16"],
    "amazon2014-electronic": ["textbook", "exact", "bfloat16"],
    "gowalla": ["exact", "bfloat16"],
}


def settings(data: str, variant: str) -> dict[str, Any]:
    if variant == "exact":
        return {}
    if variant == "bfloat16":
        return {"train": {"precision": "bfloat16"}}
    rate, tau, tau_weight, every = PAPER[data]
    return {
        "model": {"dim": 64, "init": "normal"},
        "loss": {"tau": tau, "tau_weight": tau_weight},
        "negatives": {"kind": "per_query", "n": 1000, "effective_n": None},
        "threshold": {"estimator": "sampled", "every": every, "n": 1000},
        "train": {"order": "pair", "batch_size": 1024, "learning_rate": rate},
    }


def measure(data: str, variant: str, seeds: list[int], quick: bool) -> dict[str, Any]:
    more = merged({"evaluate": {"auc": False, "cutoffs": [20]}, "train": {"patience": 10}}, settings(data, variant))
    if quick:
        more = merged(more, {"train": {"epochs": 5}})
    row: dict[str, Any] = {"data": data, "variant": variant, "seeds": seeds, "standard": [], "valid": [], "epochs": []}
    seconds = []
    for seed in seeds:
        fitted = fit(assemble(data=data, model="mf", loss="slatk", k=20, seed=seed, more=more))
        row["standard"].append(fitted.evaluate("standard").mean()[METRIC])
        row["valid"].append(fitted.valid_score)
        row["epochs"].append(fitted.best_epoch)
        seconds.append(fitted.seconds)
    row |= {"seconds": seconds, "date": datetime.now(UTC).date().isoformat()}
    row["config"] = fitted.config.model_dump(mode="json")
    return row


HEAD = "| data | training | NDCG@20 | validation | best epoch | seconds |\n|---|---|---|---|---|---|"


def line(row: dict[str, Any]) -> str:
    def cell(values: list[float], digits: int = 4) -> str:
        spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
        return f"{statistics.mean(values):.{digits}f}{spread}"

    epochs = ", ".join(map(str, row["epochs"]))
    return (
        f"| {row['data']} | {row['variant']} | {cell(row['standard'])} | {cell(row['valid'])} | {epochs} "
        f"| {statistics.mean(row['seconds']):.1f} |"
    )


def table(rows: list[dict[str, Any]]) -> str:
    """The table of docs/speed.md; a test keeps it equal to the committed result."""
    return "\n".join([HEAD, *map(line, rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="Health, one seed, five epochs")
    parser.add_argument("--data", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--variants", nargs="+", choices=["textbook", "exact", "bfloat16"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path, help="rows measured anew replace those of an existing file")
    options = parser.parse_args()
    names, seeds = (["amazon2014-health"], [0]) if options.quick else (options.data, options.seeds)
    rows = {(row["data"], row["variant"]): row for row in record.held(options.json)}
    print(HEAD)
    for data in names:
        for variant in options.variants or VARIANTS[data]:
            rows[data, variant] = row = measure(data, variant, seeds, options.quick)
            print(line(row), flush=True)
            order = [rows[key] for key in sorted(rows, key=lambda key: (list(PAPER).index(key[0]), key[1]))]
            record.write(options.json, "python benchmarks/convergence.py", rows=order)


if __name__ == "__main__":
    main()
