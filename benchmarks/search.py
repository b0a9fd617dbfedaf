"""Random search on validation, as the shipped settings of MF were chosen.

    python benchmarks/search.py --data NAME [--loss slatk] [--trials 20] [--json FILE]

Validation NDCG@20, mean over the validation splits of seeds 10, 11, 12 (the reported seeds are 0, 1, 2). The first
trial is what ships now. The test part is never looked at.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from topshelf.config import assemble, merged
from topshelf.training import fit

SEEDS = (10, 11, 12)


def draw(generator: random.Random, loss: str) -> dict[str, Any]:
    """One point of the space; the paper's ranges, a little wider, and the effective N."""
    chosen: dict[str, Any] = {
        "loss": {"tau": generator.choice([0.15, 0.2, 0.225, 0.25])},
        "train": {
            "learning_rate": generator.choice([0.01, 0.03, 0.1]),
            "batch_size": generator.choice([256, 512, 2048]),
        },
    }
    if loss == "slatk":
        chosen["loss"]["tau_weight"] = generator.choice([2.0, 2.5, 3.0, 3.5, 4.0])
        chosen["negatives"] = {"effective_n": generator.choice([200, 500, 1000, 1500, 2000])}
        chosen["threshold"] = {"every": generator.choice([5, 20])}
    return chosen


def score(data: str, loss: str, change: dict[str, Any]) -> float:
    found = []
    for seed in SEEDS:
        more = merged({"evaluate": {"auc": False, "cutoffs": [20]}}, change)
        fitted = fit(assemble(data=data, model="mf", loss=loss, k=20, seed=seed, more=more))
        assert fitted.valid_score is not None
        found.append(fitted.valid_score)
    return statistics.mean(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--loss", default="slatk")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    generator = random.Random(0)
    changes = [{}, *(draw(generator, options.loss) for _ in range(options.trials - 1))]
    rows = []
    for change in changes:
        rows.append({"settings": change or "shipped", "valid": score(options.data, options.loss, change)})
        print(f"{rows[-1]['valid']:.4f} {rows[-1]['settings']}", flush=True)
    if options.json:
        command = f"python benchmarks/search.py --data {options.data} --loss {options.loss} --trials {options.trials}"
        rows.sort(key=lambda row: -row["valid"])
        result = {"command": command, "date": datetime.now(UTC).date().isoformat(), "seeds": SEEDS, "rows": rows}
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
