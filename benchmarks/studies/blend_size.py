"""How many models to blend? Weights chosen with one half of the validation users, measured with the other.

    python -m benchmarks.studies.blend_size [--quick] [--data NAME ...] [--seeds N ...] [--rows FILE] [--jobs 2]
        [--json FILE]

The models are those of benchmarks/quality/backbones.py --plan best (``--rows``), each with the settings that were
chosen for it, trained on train alone, on validation splits that were not tuned on. One half of the users chooses the
order and the weights, as ``topshelf blend`` does; NDCG@20 is of the other half; then the halves change places. For
comparison, the same models with the weight 1 each. Large datasets have the first seed only. The test part is not
measured. ``--quick``: MovieLens-100K, one split, four epochs.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from benchmarks.harness import MOVIELENS, RESULTS, Benchmark, Row, each
from benchmarks.harness import table as table_of
from benchmarks.quality.backbone_plans import BEST_EPOCHS, DATA, PLANS, SMALL
from benchmarks.quality.backbones import Task, by_section, config, ranked
from topshelf.blending import WeightSearch
from topshelf.config import merged
from topshelf.training import fit

SEEDS = (20, 21, 22, 23)
MOST = 5
RULES = ("chosen", "all 1")


def measure(asked: tuple[str, int, list[Row], int]) -> Row:
    data, seed, rows, epochs = asked
    methods = {method.label: method for method in PLANS["best"].methods}
    task = Task("best", data, methods[rows[0]["method"]], 0, epochs, (seed,))
    runs = []
    for row in rows:
        settings = merged(by_section(row["settings"]), {"train": {"refit": False}})
        runs.append(fit(config(replace(task, method=methods[row["method"]]), seed, settings)))
    search = WeightSearch(runs)
    halves = search.users[::2], search.users[1::2]
    scores = [by_size(search, *both) for both in (halves, halves[::-1])]
    means = {
        rule: [statistics.mean(of_size) for of_size in zip(*(half[rule] for half in scores), strict=True)]
        for rule in RULES
    }
    print(data, seed, *(f"{rule}: " + " ".join(f"{score:.4f}" for score in means[rule]) for rule in RULES), flush=True)
    return {"data": data, "seed": seed, "methods": [row["method"] for row in rows], **means}


def by_size(search: WeightSearch, chooses: Tensor, judges: Tensor) -> dict[str, list[float]]:
    """NDCG@20 of the users who judge: of the best model alone, of the best two, and so on, up to ``MOST``."""
    n_parts = len(search.encoded)
    alone = [some(search, [part], chooses).valid_score([1.0]) for part in range(n_parts)]
    order = sorted(range(n_parts), key=lambda part: -alone[part])
    scores: dict[str, list[float]] = {rule: [] for rule in RULES}
    for size in range(1, min(MOST, n_parts) + 1):
        first = order[:size]
        weights = some(search, first, chooses).weights()[0] if size > 1 else [1.0]
        judge = some(search, first, judges)
        scores["chosen"].append(judge.valid_score(weights))
        scores["all 1"].append(judge.valid_score([1.0] * size))
    return scores


def some(search: WeightSearch, parts: Sequence[int], users: Tensor) -> WeightSearch:
    """The search, of some models and some users."""
    smaller = copy.copy(search)
    smaller.encoded = [search.encoded[part] for part in parts]
    smaller.scales = [search.scales[part] for part in parts]
    smaller.users = users
    return smaller


def table(rows: list[Row]) -> str:
    """One line per dataset and rule: the mean over splits for each number of models."""
    sizes = range(1, len(rows[0][RULES[0]]) + 1)
    lines = []
    for data in (name for name in DATA if any(row["data"] == name for row in rows)):
        for rule in RULES:
            splits = [row[rule] for row in rows if row["data"] == data]
            means = [statistics.mean(of_size) for of_size in zip(*splits, strict=True)]
            lines.append([data, rule, *(f"{mean:.4f}" for mean in means)])
    return table_of(("data", "weights", *map(str, sizes)), lines)


def main() -> None:
    quick = {"data": [MOVIELENS], "seeds": SEEDS[:1]}
    benchmark = Benchmark(__spec__.name, __doc__, data=DATA, known=DATA, seeds=SEEDS, jobs=2, quick=quick)
    benchmark.parser.add_argument(
        "--rows", type=Path, default=RESULTS / "backbones_best.json", help="a result of backbones --plan best"
    )
    options = benchmark.parse()
    rows = benchmark.held()
    done = {(row["data"], row["seed"]) for row in rows}
    tasks = [
        (name, seed, ranked(options.rows, name), 4 if options.quick else BEST_EPOCHS[name])
        for name in options.data
        for seed in (options.seeds if name in SMALL else options.seeds[:1])
        if (name, seed) not in done
    ]
    for row in each(measure, tasks, options.jobs):
        rows.append(row)
        benchmark.write(metric="validation ndcg@20", rows=rows)
    print(table(rows))


if __name__ == "__main__":
    main()
