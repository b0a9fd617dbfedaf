"""Every model with its general settings on every dataset at hand, and iALS's two ratios by a grid.

    python -m benchmarks.studies.safe_defaults [--quick] [--data NAME ...] [--models NAME ...] [--jobs 2] [--json FILE]

Validation NDCG@20 of one split (seed 10); no test part is loaded. General settings are those of a dataset without
shipped settings: the constructor's, and for the trained model the general file's. Datasets: ``recommendation``,
``shifted`` and ``sequences`` under ``TOPSHELF_DATA`` (sequences as sets of items, a fifth held out at random), and
generated ones of other sizes and densities. "before": iALS with the alpha 0.1 and the l2 0.03 that were general for
every dataset. A grid (``GRIDS``) has 8 iterations of iALS instead of 16. Not fitted: item-item models on ``LARGE``,
whose tables would take 7 GB or more; MF on ``shifted``, whose train parts are those of others cut elsewhere. MF has at
most 60 epochs, 30 on ``LARGE``. What FILE holds already is not made again. ``--quick``: MovieLens-100K, classics
only, no grid.
"""

from __future__ import annotations

import gzip
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.harness import Benchmark, Row, each
from benchmarks.harness import table as table_of
from benchmarks.trained import fitted, validation
from topshelf.config import RunConfig, assemble
from topshelf.data import IdMap, Interactions, Split, generate, load_split, split_interactions
from topshelf.errors import ConfigError
from topshelf.training.build import resolve

K, SEED = 20, 10
NAMED = ("amazon2014-health", "movielens-100k", "amazon2014-electronic", "food", "movielens-1m", "gowalla")
GIVEN = {
    "gowalla-lightgcn": "recommendation",
    "amazon2014-electronic-popularity": "shifted",
    "amazon2014-electronic-temporal": "shifted",
    "food-temporal": "shifted",
    "movielens-1m-temporal": "shifted",
    "gowalla-popularity": "shifted",
}
SEQUENCES = ("beauty", "games")
# Users, items, interactions of a user, blocks of taste. The second has the size of the one in issue 13.
GENERATED = {
    "generated 4000 x 4000": (4_000, 4_000, 10, 40),
    "generated 12784 x 13874": (12_784, 13_874, 15, 100),
    "generated 20000 x 500": (20_000, 500, 8, 10),
    "generated 500 x 8000": (500, 8_000, 150, 20),
}
LARGE = ("gowalla", "gowalla-lightgcn", "gowalla-popularity")
DATA = (*[name for name in (*NAMED, *SEQUENCES, *GIVEN) if name not in LARGE], *GENERATED, *LARGE)
ITEM_ITEM = ("itemknn", "rp3beta", "slim", "ease")
MODELS = ("popularity", *ITEM_ITEM, "ials", "mf")
BEFORE = {"alpha": 0.1, "l2": 0.03}  # iALS's, for every dataset
ALPHA_RATIOS, L2_RATIOS = (3.0, 10.0, 30.0), (0.4, 0.6, 0.85)
GRIDS: dict[str, list[Row]] = {
    "ials": [{"alpha_ratio": alpha, "l2_ratio": l2, "iterations": 8} for alpha, l2 in product(ALPHA_RATIOS, L2_RATIOS)],
    "ease": [{"l2": l2} for l2 in (100.0, 1000.0)],
    "itemknn": [{"shrink": shrink} for shrink in (0.0, 100.0)],
    "rp3beta": [{"beta": beta} for beta in (0.2, 0.6)],
}
LARGE_GRID = [point for point in GRIDS["ials"] if point["alpha_ratio"] == 10.0]
MOST_ITEMS = 4_500  # for EASE's grid: an inverse takes minutes
DANGER = 0.5  # of EASE


@dataclass(frozen=True)
class Task:
    """One model on one dataset, with several settings one after the other."""

    data: str
    model: str
    kind: str  # "general", "before" or "grid"
    points: tuple[Row, ...]


def load(name: str) -> Split:
    """Train and validation; the test part is empty or not read."""
    if name in NAMED:
        return load_split(name, seed=SEED, test=False).split
    if name in GENERATED:
        n_users, n_items, of_each, blocks = GENERATED[name]
        generated = generate(n_users, n_items, interactions_per_user=of_each, blocks=blocks)
        return split_interactions(generated, name=name, split="ratio", seed=SEED).split
    if (folder := os.environ.get("TOPSHELF_DATA")) is None:
        raise ConfigError(f"TOPSHELF_DATA must name the folder that {name} is read from, and is not set")
    if name in SEQUENCES:
        events = sequences(Path(folder) / "sequences" / f"{name}-5core.txt.gz")
        return split_interactions(events, name=name, split="ratio", seed=SEED).split
    return load_split(str(Path(folder) / GIVEN[name] / f"{name}.zip"), seed=SEED, test=False).split


def sequences(file: Path) -> Interactions:
    """One user per line: its number, then its items, both from 1."""
    with gzip.open(file, "rt", encoding="ascii") as lines:
        lists = [np.unique(np.array(line.split()[1:], dtype=np.int64)) - 1 for line in lines]
    indptr = np.concatenate([[0], np.cumsum([len(items) for items in lists])])
    indices = np.concatenate(lists)
    return Interactions(indptr, indices, IdMap.range(len(lists)), IdMap.range(int(indices.max()) + 1))


def config(model: str, settings: Row, epochs: int) -> RunConfig:
    more = {"model": {"name": model, **settings}, "train": {"epochs": epochs}}
    return resolve(assemble(data="general", model=model, loss="slatk", k=K, seed=SEED, more=more))


def measure(task: Task) -> list[Row]:
    split = load(task.data)
    train, valid = split.train.ragged(), split.valid.ragged()
    sizes = {"users": split.n_users, "items": split.n_items, "interactions": train.indices.numel()}
    rows = []
    for point in task.points:
        started = time.perf_counter()
        model, _ = fitted(config(task.model, point, 30 if task.data in LARGE else 60), split)
        seconds = round(time.perf_counter() - started, 1)
        score = validation(train, valid, K)(model)
        row = {"data": task.data, **sizes, "model": task.model, "kind": task.kind, "settings": point}
        rows.append({**row, "valid": score, "derived": model.derived(), "seconds": seconds})
        print(task.data, task.model, task.kind, point, f"{score:.4f}", f"{seconds} s", flush=True)
    return rows


def tasks(data: Sequence[str], models: Sequence[str], rows: list[Row], grid: bool) -> list[Task]:
    """What is wanted and not among the rows yet: general settings everywhere first."""
    done = {(row["data"], row["model"], row["kind"]) for row in rows}
    wanted = []
    for name, model in product(data, models):
        if is_left_out(name, model):
            continue
        wanted.append(Task(name, model, "general", ({},)))
        if model == "ials":
            wanted.append(Task(name, model, "before", (BEFORE,)))
    for name, model in product(data, [model for model in models if grid and model in GRIDS]):
        points = LARGE_GRID if name in LARGE and model == "ials" else GRIDS[model]
        if is_left_out(name, model) or (model == "ease" and size(name, rows) > MOST_ITEMS):
            continue
        wanted.append(Task(name, model, "grid", tuple(points)))
    return [task for task in wanted if (task.data, task.model, task.kind) not in done]


def is_left_out(name: str, model: str) -> bool:
    return model in ITEM_ITEM if name in LARGE else model == "mf" and GIVEN.get(name) == "shifted"


def size(name: str, rows: list[Row]) -> int:
    return next((row["items"] for row in rows if row["data"] == name), 0)


def scores(rows: list[Row], kind: str) -> dict[tuple[str, str], float]:
    """The score of each (dataset, model); the best, where there are several."""
    best: dict[tuple[str, str], float] = {}
    for row in rows:
        if row["kind"] == kind:
            key = row["data"], row["model"]
            best[key] = max(row["valid"], best.get(key, 0.0))
    return best


def table(rows: list[Row]) -> str:
    """One row per dataset: every model with its general settings; after a bar, the best of its grid if better."""
    general, best = scores(rows, "general"), scores(rows, "grid")
    models = [model for model in MODELS if any(row["model"] == model for row in rows)]
    lines = []
    for name in names_of(rows):
        sizes = next(row for row in rows if row["data"] == name)
        density = sizes["interactions"] / (sizes["users"] * sizes["items"])
        cells = [name, f"{sizes['users']:,}", f"{sizes['items']:,}", f"{density:.3%}"]
        for model in models:
            score = general.get((name, model))
            better = best.get((name, model), 0.0)
            cells.append("" if score is None else f"{score:.4f}" + (f" / {better:.4f}" if better > score else ""))
        lines.append(cells)
    return table_of(("data", "users", "items", "density", *models), lines)


def ratios_table(rows: list[Row]) -> str:
    """iALS before and now, the best of its grid, and the choice of the other datasets."""
    general, before = scores(rows, "general"), scores(rows, "before")
    lines, whole = [], grids(rows)
    for name in names_of(rows):
        if name not in whole or (name, "ials") not in general:
            continue
        now = next(row for row in rows if (row["data"], row["model"], row["kind"]) == (name, "ials", "general"))
        best, score = max(whole[name].values()), general[name, "ials"]
        chosen = left_out(name, whole)
        cells = [name, f"{now['derived']['alpha']:.2g}", f"{now['derived']['l2']:.2g}"]
        cells += [f"{before[name, 'ials']:.4f}", f"{score:.4f}", f"{best:.4f}", f"{score / best:.0%}"]
        at = f" at {chosen[0]:g}, {chosen[1]:g}"
        lines.append([*cells, f"{whole[name][chosen] / best:.0%}{at}" if chosen in whole[name] else ""])
    heads = (
        "data",
        "alpha",
        "l2",
        "before",
        "now",
        "best of the grid",
        "now, of best",
        "chosen by the others, of best",
    )
    return table_of(heads, lines)


def grids(rows: list[Row]) -> dict[str, dict[tuple[float, float], float]]:
    """For each dataset: the score at every (alpha_ratio, l2_ratio) of iALS's grid."""
    by_data: dict[str, dict[tuple[float, float], float]] = {}
    for row in rows:
        if (row["model"], row["kind"]) == ("ials", "grid"):
            settings = row["settings"]
            by_data.setdefault(row["data"], {})[settings["alpha_ratio"], settings["l2_ratio"]] = row["valid"]
    return by_data


def left_out(name: str, whole: dict[str, dict[tuple[float, float], float]]) -> tuple[float, float]:
    """The point that is best on average, as a share of each best, on all other datasets that have the whole grid."""
    others = [grid for other, grid in whole.items() if other != name and len(grid) == len(GRIDS["ials"])]
    points = list(next(iter(others))) if others else list(whole[name])
    return max(points, key=lambda point: statistics.mean([grid[point] / max(grid.values()) for grid in others] or [0]))


def dangers(rows: list[Row]) -> list[str]:
    """Which models have less than half of EASE's score with general settings, popularity aside."""
    general = scores(rows, "general")
    return [
        f"{model} on {name}: {score:.4f}, EASE {general[name, 'ease']:.4f}"
        for (name, model), score in general.items()
        if model != "popularity" and (name, "ease") in general and score < DANGER * general[name, "ease"]
    ]


def names_of(rows: list[Row]) -> list[str]:
    return [name for name in DATA if any(row["data"] == name for row in rows)]


def main() -> None:
    quick = {"data": ["movielens-100k"], "models": MODELS[:-1]}
    benchmark = Benchmark(__spec__.name, __doc__, data=DATA, known=DATA, jobs=2, quick=quick)
    benchmark.parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    options = benchmark.parse()
    rows = benchmark.held()
    for grid in (False,) if options.quick else (False, True):  # the sizes are known when the grids begin
        for more in each(measure, tasks(options.data, options.models, rows, grid), options.jobs):
            rows = [*rows, *more]
            benchmark.write(metric=f"validation ndcg@{K}", seed=SEED, rows=rows)
    for text in (table(rows), ratios_table(rows), "\n".join(dangers(rows)) or "no model below half of EASE"):
        print(text)


if __name__ == "__main__":
    main()
