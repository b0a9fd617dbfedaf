"""When does SL@K's weight pay? From the softmax loss, whose weight is constant, to a sharp weight, by validation.

    python -m benchmarks.studies.weighting [--quick] [--data NAME ...] [--seeds 10 11 12 13] [--jobs 2] [--json FILE]

MF, d 64, the whole catalogue, the best of 120 epochs, with one learning rate, batch size and tau for all. SL@20 with
several tau_w, with the gradient through the weight (for several N, which scale the sum over the catalogue and with it
that gradient) and without it (``detach_weight``). As tau_w grows, the weight becomes constant and the loss half of the
softmax loss. Means over four validation splits; nothing is measured on test. ``--quick``: two epochs, one split,
MovieLens-100K.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.harness import HEALTH, MOVIELENS, Benchmark, Row, each
from benchmarks.harness import table as table_of
from topshelf.config import assemble, merged
from topshelf.training import fit

K = 20
SEEDS = (10, 11, 12, 13)
DATA = (HEALTH, MOVIELENS)
SHARPNESS = (0.5, 1.5, 2.5, 4.0)
SIZES = (50, 1000)
SETTINGS = {
    "model": {"dim": 64},
    "loss": {"tau": 0.2},
    "train": {"epochs": 120, "patience": 0, "batch_size": 512, "learning_rate": 0.03, "weight_decay": 0.0},
}


def losses() -> dict[tuple[str, float], Row]:
    """Settings by row and column of the table."""
    settings: dict[tuple[str, float], Row] = {("SL", 0.0): {"loss": {"name": "softmax"}}}
    for tau_weight in SHARPNESS:
        weighted = {"loss": {"name": "slatk", "tau_weight": tau_weight}, "threshold": {"every": 5}}
        settings["no gradient through it", tau_weight] = merged(weighted, {"loss": {"detach_weight": True}})
        for size in SIZES:
            settings[f"N = {size}", tau_weight] = merged(weighted, {"negatives": {"effective_n": size}})
    return settings


def measure(task: tuple[str, tuple[str, float], Sequence[int], int]) -> Row:
    data, place, seeds, epochs = task
    more = merged(merged(SETTINGS, losses()[place]), {"train": {"epochs": epochs}})
    runs = [fit(assemble(data=data, model="mf", k=K, seed=seed, more=more)) for seed in seeds]
    scores = [run.valid_score for run in runs if run.valid_score is not None]
    print(data, *place, f"{statistics.mean(scores):.4f}", flush=True)
    return {"data": data, "weight": place[0], "tau_weight": place[1], "valid": scores}


def table(rows: list[Row]) -> str:
    """The mean of the softmax loss on each dataset, and the difference of each weight from it."""
    means = {(row["data"], row["weight"], row["tau_weight"]): statistics.mean(row["valid"]) for row in rows}
    lines = []
    for data in dict.fromkeys(row["data"] for row in rows):
        base = means[data, "SL", 0.0]
        for weight in (*(f"N = {size}" for size in SIZES), "no gradient through it"):
            cells = [f"{means[data, weight, value] / base - 1:+.1%}" for value in SHARPNESS]
            lines.append([data, f"{base:.4f}", weight, *cells])
    return table_of(("data", "SL", f"weight of SL@{K}", *(f"tau_w {value:g}" for value in SHARPNESS)), lines)


def main() -> None:
    quick = {"data": [MOVIELENS], "seeds": SEEDS[:1]}
    benchmark = Benchmark(__spec__.name, __doc__, data=DATA, seeds=SEEDS, jobs=2, quick=quick)
    options = benchmark.parse()
    epochs, places = 2 if options.quick else 120, list(losses())
    tasks = [(data, place, options.seeds, epochs) for data in options.data for place in places]
    rows = list(each(measure, tasks, options.jobs))
    rows.sort(key=lambda row: (options.data.index(row["data"]), places.index((row["weight"], row["tau_weight"]))))
    benchmark.write(metric=f"validation ndcg@{K}", rows=rows)
    print(table(rows))


if __name__ == "__main__":
    main()
