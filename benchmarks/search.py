"""Random search on validation, as the shipped settings of MF were chosen.

    python benchmarks/search.py --data NAME [--loss slatk] [--trials 20] [--seeds 10 11 12] [--json FILE]
    python benchmarks/search.py --data NAME --try "loss.tau=0.1 loss.tau_weight=1" --try ... [--json FILE]

Validation NDCG@20, mean over the validation splits of seeds 10, 11, 12 (the reported seeds are 0, 1, 2). The first
trial is what ships now; the others are drawn at random, or are those of ``--try``, where an epoch takes seconds and
there is time for a few. ``--set`` holds for every trial. With a FILE that exists, its rows are kept and added to. The
test part is never looked at.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import record

from topshelf.config import assemble, merged, overrides
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


def score(data: str, loss: str, change: dict[str, Any], seeds: Sequence[int]) -> float:
    found = []
    for seed in seeds:
        more = merged({"evaluate": {"auc": False, "cutoffs": [20]}}, change)
        fitted = fit(assemble(data=data, model="mf", loss=loss, k=20, seed=seed, more=more))
        assert fitted.valid_score is not None
        found.append(fitted.valid_score)
    return statistics.mean(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--loss", default="slatk")
    parser.add_argument("--quick", action="store_true", help="two trials of five epochs on one seed")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--try", dest="tries", action="append", metavar="SETTINGS", help="settings of one trial")
    parser.add_argument("--set", dest="always", default="", metavar="SETTINGS", help="settings of every trial")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    always, seeds, trials = overrides(options.always.split()), options.seeds, options.trials
    if options.quick:
        always, seeds, trials = merged(always, {"train": {"epochs": 5}}), seeds[:1], 2
    generator = random.Random(0)
    drawn = [draw(generator, options.loss) for _ in range(trials - 1)]
    changes = [overrides(text.split()) for text in options.tries] if options.tries else [{}, *drawn]
    rows = record.held(options.json)
    for change in changes:
        valid = score(options.data, options.loss, merged(always, change), seeds)
        rows.append({"settings": merged(always, change) or "shipped", "seeds": list(seeds), "valid": valid})
        print(f"{valid:.4f} {rows[-1]['settings']}", flush=True)
        rows.sort(key=lambda row: -row["valid"])
        command = f"python benchmarks/search.py --data {options.data} --loss {options.loss}"
        record.write(options.json, command, rows=rows)


if __name__ == "__main__":
    main()
