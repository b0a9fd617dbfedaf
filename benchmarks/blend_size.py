"""How many models to blend? Weights found with one half of the validation users, measured with the other.

    python benchmarks/blend_size.py [--quick] [--data NAME,...] [--rows FILE] [--jobs N] [--json FILE]

The models are those of benchmarks/backbones.py --plan best (``--rows``), each with the settings that were chosen for
it, trained on train alone, on validation splits that were not tuned on. One half of the users chooses which come first
and their weights, as ``topshelf blend`` does; NDCG@20 is of the other half; then the halves change places. Beside it,
the same models with the weight 1 each. The test part is not looked at. ``--quick``: one split, four epochs.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import record
import torch
from backbones import BEST_EPOCHS, DATA, MOVIELENS, PLANS, RESULTS, SMALL, Task, by_section, config, ranked
from torch import Tensor

from topshelf.blending import WeightSearch
from topshelf.config import merged
from topshelf.training import fit

SEEDS = (20, 21, 22, 23)
MOST = 5
RULES = ("chosen", "all 1")


def measure(data: str, seed: int, rows: list[dict[str, Any]], epochs: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    methods = {method.label: method for method in PLANS["best"].methods}
    task = Task("best", data, methods[rows[0]["method"]], 0, epochs, (seed,))
    runs = []
    for row in rows:
        settings = merged(by_section(row["settings"]), {"train": {"refit": False}})
        runs.append(fit(config(replace(task, method=methods[row["method"]]), seed, settings)))
    search = WeightSearch(runs)
    halves = search.users[::2], search.users[1::2]
    found: dict[str, list[list[float]]] = {rule: [] for rule in RULES}
    for chooses, judges in (halves, halves[::-1]):
        of_each = by_size(search, chooses, judges)
        for rule in RULES:
            found[rule].append(of_each[rule])
    means = {rule: [statistics.mean(of_size) for of_size in zip(*found[rule], strict=True)] for rule in RULES}
    print(data, seed, *(f"{rule}: " + " ".join(f"{score:.4f}" for score in means[rule]) for rule in RULES), flush=True)
    return {"data": data, "seed": seed, "methods": [row["method"] for row in rows], **means}


def by_size(search: WeightSearch, chooses: Tensor, judges: Tensor) -> dict[str, list[float]]:
    """NDCG@20 of the users who judge: of the best model alone, of the best two, and so on, up to ``MOST``."""
    n_parts = len(search.encoded)
    alone = [some(search, [part], chooses).valid_score([1.0]) for part in range(n_parts)]
    order = sorted(range(n_parts), key=lambda part: -alone[part])
    found: dict[str, list[float]] = {rule: [] for rule in RULES}
    for size in range(1, min(MOST, n_parts) + 1):
        first = order[:size]
        weights = some(search, first, chooses).weights()[0] if size > 1 else [1.0]
        judge = some(search, first, judges)
        found["chosen"].append(judge.valid_score(weights))
        found["all 1"].append(judge.valid_score([1.0] * size))
    return found


def some(search: WeightSearch, parts: Sequence[int], users: Tensor) -> WeightSearch:
    """The search, of some models and some users."""
    smaller = copy.copy(search)
    smaller.encoded = [search.encoded[part] for part in parts]
    smaller.scales = [search.scales[part] for part in parts]
    smaller.users = users
    return smaller


def table(rows: list[dict[str, Any]]) -> str:
    """A line a dataset and rule: the mean over splits for each number of models."""
    sizes = range(1, len(rows[0][RULES[0]]) + 1)
    lines = [f"| data | weights | {' | '.join(map(str, sizes))} |", "|---" * (len(sizes) + 2) + "|"]
    for data in (name for name in DATA if any(row["data"] == name for row in rows)):
        for rule in RULES:
            splits = [row[rule] for row in rows if row["data"] == data]
            means = [statistics.mean(of_size) for of_size in zip(*splits, strict=True)]
            lines.append(f"| {data} | {rule} | {' | '.join(f'{mean:.4f}' for mean in means)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=",".join(DATA), help="names, with commas between")
    parser.add_argument(
        "--rows", type=Path, default=RESULTS / "backbones_best.json", help="of backbones.py --plan best"
    )
    parser.add_argument("--jobs", type=int, default=2, help="splits at once, one thread each")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    data = [MOVIELENS] if options.quick else options.data.split(",")
    record.check_names(parser, "--data", data, DATA)
    record.check_quick(parser, options)
    rows = record.held(options.json)
    done = {(row["data"], row["seed"]) for row in rows}
    asked = [
        (name, seed, ranked(options.rows, name), 4 if options.quick else BEST_EPOCHS[name])
        for name in data
        for seed in (SEEDS if name in SMALL and not options.quick else SEEDS[:1])
        if (name, seed) not in done
    ]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for row in pool.map(measure, *zip(*asked, strict=True)) if asked else ():
            rows.append(row)
            command = f"python benchmarks/blend_size.py{' --quick' if options.quick else ''}"
            record.write(options.json, command, metric="validation ndcg@20", rows=rows)
    print(table(rows))


if __name__ == "__main__":
    main()
