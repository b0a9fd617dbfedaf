"""MF with SL@20, softmax and BPR beside EASE and popularity, on the paper's datasets, under both protocols.

    python benchmarks/published.py [--quick] [--searched] [--data NAME ...] [--json FILE]

Shipped settings, seeds 0, 1, 2 (another validation split and another start each), means over seeds. No refit: every
model learns from the same 90% of train. ``--quick`` runs one seed and ten epochs, to see that it works.
``--searched`` measures SL@20 and softmax with the winners of benchmarks/search.py (16 trials each, test-blind) in place
of the shipped settings.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import record

from topshelf.config import assemble, merged
from topshelf.training import fit

METHODS = {
    "MF, SL@20": ("mf", "slatk"),
    "MF, softmax": ("mf", "softmax"),
    "MF, BPR": ("mf", "bpr"),
    "EASE": ("ease", "slatk"),
    "Popularity": ("popularity", "slatk"),
}
# NDCG@20 of MF in the paper's tables; under its own protocol.
PUBLISHED = {
    ("amazon2014-health", "MF, SL@20"): 0.1390,
    ("amazon2014-health", "MF, softmax"): 0.1261,
    ("amazon2014-health", "MF, BPR"): 0.1234,
    ("amazon2014-electronic", "MF, SL@20"): 0.0590,
    ("amazon2014-electronic", "MF, softmax"): 0.0529,
    ("amazon2014-electronic", "MF, BPR"): 0.0527,
    ("movielens-100k", "MF, SL@20"): 0.3677,
}
METRIC = "ndcg@20"


def winner(data: str, loss: str) -> dict[str, Any]:
    """The settings of the best trial of a committed search; the shipped ones where they won."""
    file = Path(__file__).parent / "results" / f"search-{data}-{loss}.json"
    best = max(json.loads(file.read_text(encoding="utf-8"))["rows"], key=lambda row: row["valid"])
    return {} if best["settings"] == "shipped" else dict(best["settings"])


def measure(data: str, label: str, seeds: range, quick: bool, searched: bool = False) -> dict[str, Any]:
    model, loss = METHODS[label]
    more: dict[str, Any] = {"evaluate": {"auc": False, "cutoffs": [20]}}
    if searched:
        more = merged(more, winner(data, loss))
    if quick:
        more["train"] = {"epochs": 10}
    row: dict[str, Any] = {"data": data, "method": label, "standard": [], "paper": [], "valid": [], "epochs": []}
    seconds = []
    for seed in seeds:
        fitted = fit(assemble(data=data, model=model, loss=loss, k=20, seed=seed, more=more))
        for protocol in ("standard", "paper"):
            row[protocol].append(fitted.evaluate(protocol).mean()[METRIC])
        row["valid"].append(fitted.evaluate(part="valid").mean()[METRIC])
        row["epochs"].append(fitted.best_epoch)
        seconds.append(fitted.seconds)
    row |= {"seconds": statistics.mean(seconds), "published": PUBLISHED.get((data, label))}
    row["config"] = fitted.config.model_dump(mode="json")
    return row


HEAD = f"| data | method | {METRIC} standard | {METRIC} paper | published | seconds |\n|---|---|---|---|---|---|"


def table(rows: list[dict[str, Any]]) -> str:
    """The table of the README; a test keeps it equal to the committed result."""
    return "\n".join([HEAD, *map(line, rows)])


def line(row: dict[str, Any]) -> str:
    def cell(values: list[float]) -> str:
        spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
        return f"{statistics.mean(values):.4f}{spread}"

    published = f"{row['published']:.4f}" if row["published"] else ""
    return (
        f"| {row['data']} | {row['method']} | {cell(row['standard'])} | {cell(row['paper'])} | {published} "
        f"| {row['seconds']:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--searched", action="store_true")
    parser.add_argument("--data", nargs="+", default=["amazon2014-health", "movielens-100k"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seeds = range(1 if options.quick else 3)
    print(HEAD)
    rows = []
    for data in options.data:
        for label in list(METHODS)[:2] if options.searched else METHODS:
            rows.append(measure(data, label, seeds, options.quick, options.searched))
            print(line(rows[-1]), flush=True)
    searched = "--searched " if options.searched else ""
    command = f"python benchmarks/published.py {searched}--data {' '.join(options.data)}"
    record.write(options.json, command, seeds=list(seeds), rows=rows)


if __name__ == "__main__":
    main()
