"""Random search on validation: how the shipped settings of MF were chosen.

    python -m benchmarks.quality.search --data NAME [--loss slatk] [--trials 20] [--seeds 10 11 12] [--json FILE]
    python -m benchmarks.quality.search --data NAME --try "loss.tau=0.1 loss.tau_weight=1" --try ... [--json FILE]

Validation NDCG@20, mean over the validation splits of the seeds (the reported seeds are 0, 1, 2). The first trial has
the shipped settings; the others are drawn at random, or are those of ``--try``, where an epoch takes seconds and only a
few trials are possible. ``--set`` holds for every trial. Rows of a FILE that exists are kept. The test part is never
measured. ``--quick``: two trials of five epochs, one seed, MovieLens-100K.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

from benchmarks.harness import MOVIELENS, Benchmark, Row
from benchmarks.trained import TEST_AT_20
from topshelf.config import assemble, merged, overrides
from topshelf.training import fit

SEEDS = (10, 11, 12)


def draw(generator: random.Random, loss: str) -> Row:
    """One point of the space: the paper's ranges, a little wider, and the effective N."""
    chosen: Row = {
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


def score(data: str, loss: str, change: Row, seeds: Sequence[int]) -> float:
    more = merged(TEST_AT_20, change)
    runs = [fit(assemble(data=data, model="mf", loss=loss, k=20, seed=seed, more=more)) for seed in seeds]
    return statistics.mean(run.valid_score for run in runs if run.valid_score is not None)


def main() -> None:
    quick = {"data": [MOVIELENS], "seeds": SEEDS[:1], "trials": 2, "always": "train.epochs=5"}
    benchmark = Benchmark(__spec__.name, __doc__, data=(MOVIELENS,), seeds=SEEDS, quick=quick)
    add = benchmark.parser.add_argument
    add("--loss", default="slatk")
    add("--trials", type=int, default=20)
    add("--try", dest="tries", action="append", metavar="SETTINGS", help="settings of one trial")
    add("--set", dest="always", default="", metavar="SETTINGS", help="settings of every trial")
    options = benchmark.parse()
    if len(options.data) != 1:
        benchmark.parser.error(f"--data must be one name, got {' '.join(options.data)}")
    generator, always = random.Random(0), overrides(options.always.split())
    drawn = [draw(generator, options.loss) for _ in range(options.trials - 1)]
    changes = [overrides(text.split()) for text in options.tries] if options.tries else [{}, *drawn]
    rows = benchmark.held()
    for change in (merged(always, change) for change in changes):
        valid = score(options.data[0], options.loss, change, options.seeds)
        rows.append({"settings": change or "shipped", "seeds": list(options.seeds), "valid": valid})
        print(f"{valid:.4f} {rows[-1]['settings']}", flush=True)
        rows.sort(key=lambda row: -row["valid"])
        benchmark.write(metric="validation ndcg@20", rows=rows)


if __name__ == "__main__":
    main()
