"""The graph filter's settings on every dataset: a grid on validation, the default rule, and the rule's own choice.

    python -m benchmarks.studies.graph_filter_rule --json benchmarks/results/graph_filter_rule.json [--data NAME ...]

Validation NDCG@20 of one split (seed 10), no test part is read. A dataset is fitted once for each ``user_power``, with
the widest basis. The grid (``DIMS``, ``LOW_PASS``, ``ITEM_POWERS``) needs no more fits: a narrower basis is the first
columns of a wide one, and the other two only scale the two filters. What a fit puts on the diagonal does not count,
because own items are masked. Rows that the file has are not made again. ``--table`` prints the tables of the file and
makes no rows; ``--quick``: MovieLens-100K, one ``user_power``.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import torch

from benchmarks.harness import ELECTRONIC, FOOD, HEALTH, MOVIELENS, Benchmark, Row
from benchmarks.harness import table as table_of
from benchmarks.trained import fitted
from topshelf.config import RunConfig, assemble
from topshelf.data import Split, load_split
from topshelf.evaluation import ndcg
from topshelf.models import GraphFilter
from topshelf.queries import QuerySet
from topshelf.training.build import resolve

K, SEED = 20, 10
LEADERBOARD = "gowalla-lightgcn"  # a file in TOPSHELF_DATA/recommendation
DATA = (MOVIELENS, HEALTH, "movielens-1m", FOOD, ELECTRONIC)
DIMS = (16, 32, 64, 128, 256, 512)
LOW_PASS, ITEM_POWERS, USER_POWERS = (0.0, 0.1, 0.3, 1.0), (0.3, 0.4, 0.5), (0.7,)
MOST_USERS = 3000  # a score is of so many users, drawn at random, with validation items
BEFORE = (64, 0.3, 0.4, 0.7)  # the settings of every dataset before there was a rule
PER_DIRECTION, DENSE_CELLS = 2560, 0.01  # of topshelf.models.graph_filter
PERS = (640, 1280, 2560, 5120, 10240)
Point = tuple[int, float, float, float]  # dim, low_pass, item_power, user_power


def parts(data: str) -> Split:
    file = Path(os.environ.get("TOPSHELF_DATA", "")) / "recommendation" / f"{LEADERBOARD}.zip"
    return load_split(file if data == LEADERBOARD else data, seed=SEED, test=False).split


def widest(split: Split) -> int:
    """Of the dimensions at most half of the smaller side: beyond, there is hardly anything to keep."""
    return max(dim for dim in DIMS if dim <= max(DIMS[0], min(split.n_items, split.n_users) // 2))


def measure(data: str, user_power: float, keep: Callable[[Row], None]) -> None:
    """Every point of the grid with this user_power, as one row."""
    split = parts(data)
    started = time.perf_counter()
    settings = {"dim": widest(split), "user_power": user_power, "item_power": 0.5, "low_pass": 1.0}
    config = resolve(assemble(data="general", model="graph_filter", k=K, seed=SEED, more={"model": settings}))
    assert isinstance(config, RunConfig)
    model, _ = fitted(config, split)
    assert isinstance(model, GraphFilter)
    seconds = time.perf_counter() - started
    score = sampled(split)
    users = torch.bincount(split.train.ragged().indices)
    mean = float(users[users > 0].double().mean())
    found = {" ".join(f"{one:g}" for one in point): round(score(model), 5) for point in pointed(model, mean)}
    sizes = {"users": split.n_users, "items": split.n_items, "interactions": split.train.ragged().indices.numel()}
    row = {"data": data, **sizes, "user_power": user_power, "dim": widest(split), "valid": found}
    keep({**row, "seconds": round(seconds, 1), "all_seconds": round(time.perf_counter() - started, 1)})
    best = max(found, key=lambda name: found[name])
    print(data, user_power, "best", best, found[best], f"{time.perf_counter() - started:.0f} s", flush=True)


def sampled(split: Split) -> Callable[[GraphFilter], float]:
    """NDCG@K on the validation part of at most ``MOST_USERS``, train masked."""
    train, valid = split.train.ragged(), split.valid.ragged()
    users = (valid.counts > 0).nonzero().squeeze(1)
    users = (
        users[torch.randperm(users.numel(), generator=torch.Generator().manual_seed(SEED))[:MOST_USERS]].sort().values
    )
    asked, wanted, masked = QuerySet.known(split.n_users).select(users), valid.select(users), train.select(users)

    def score(model: GraphFilter) -> float:
        with torch.no_grad():
            return ndcg(*model.encode(asked), wanted, masked, K)

    return score


def pointed(model: GraphFilter, mean: float) -> Iterator[tuple[int, float, float]]:
    """The fitted model with each (dim, low_pass, item_power) in turn; ``mean`` users have an item."""
    basis, values = model.basis.clone(), model.values.clone()
    scored = (mean / model.counts).repeat_interleave(model.indptr.diff())
    for item_power in ITEM_POWERS:
        model.values = values * scored ** (item_power - 0.5)
        for dim, low_pass in product([dim for dim in DIMS if dim <= basis.size(1)], LOW_PASS):
            if low_pass > 0 or dim == DIMS[0]:  # without the low-pass filter all are equal
                model.basis, model.low_pass = basis[:, :dim].contiguous(), low_pass
                yield dim, low_pass, item_power


def grids(rows: list[Row]) -> dict[str, dict[Point, float]]:
    """The score of every point, by data."""
    found: dict[str, dict[Point, float]] = {}
    for row in rows:
        for name, score in row["valid"].items():
            dim, low_pass, item_power = (float(word) for word in name.split())
            found.setdefault(row["data"], {})[int(dim), low_pass, item_power, row["user_power"]] = score
    return found


def by_rule(row: Row, per: int = PER_DIRECTION) -> Point:
    """What the rule makes of the data; ``per`` interactions for each direction."""
    n = row["interactions"]
    dim = 2 ** round(math.log2(max(1.0, n / per)))
    is_dense = n / (row["users"] * row["items"]) >= DENSE_CELLS
    return min(row["dim"], max(DIMS[0], dim)), 0.3, 0.5 if is_dense else 0.3, 0.7


def table(rows: list[Row]) -> str:
    """A line per dataset: the fixed settings, the rule, the best of the grid, and what the others choose."""
    found, lines = grids(rows), []
    sizes = {row["data"]: row for row in rows}
    for data, points in found.items():
        row, before, best = sizes[data], points[BEFORE], max(points, key=lambda point: points[point])
        point = by_rule(row)
        per = chosen_by({name: grid for name, grid in found.items() if name != data}, sizes)
        theirs = points[by_rule(row, per)]
        density = row["interactions"] / (row["users"] * row["items"])
        cells = [data, f"{row['items']:,}", f"{row['interactions']:,}", f"{density:.2%}", f"{before:.4f}"]
        cells += [f"{point[0]}, {point[2]:g}", f"{points[point]:.4f}", f"{points[point] / before - 1:+.1%}"]
        cells += [f"{points[best]:.4f} ({', '.join(f'{one:g}' for one in best[:3])})"]
        lines.append([*cells, f"{points[point] / points[best] - 1:+.1%}", f"{per:,}: {theirs / before - 1:+.1%}"])
    heads = ("data", "items", "interactions", "density", "before", "rule: dim, item_power", "validation", "gain")
    return table_of((*heads, "best of the grid", "rule, of best", "chosen by the others: gain"), lines)


def chosen_by(found: dict[str, dict[Point, float]], sizes: dict[str, Row]) -> int:
    """The interactions per direction with the best mean share of the best point."""

    def share(per: int) -> float:
        return statistics.mean(
            points[by_rule(sizes[data], per)] / max(points.values()) for data, points in found.items()
        )

    return max(PERS, key=share) if found else PER_DIRECTION


def main() -> None:
    quick = {"data": [MOVIELENS], "user_powers": [0.7]}
    bench = Benchmark(__spec__.name, __doc__, data=DATA, known=(*DATA, LEADERBOARD), quick=quick)
    bench.parser.add_argument("--user-powers", nargs="+", type=float, default=list(USER_POWERS), metavar="P")
    bench.parser.add_argument("--table", action="store_true", help="print the tables of the file")
    options = bench.parse()
    rows = bench.held()
    done = {(row["data"], row["user_power"]) for row in rows}

    def keep(row: Row) -> None:
        rows.append(row)
        bench.write(metric=f"validation ndcg@{K}", seed=SEED, rows=rows)

    for user_power, data in [] if options.table else product(options.user_powers, options.data):
        if (data, user_power) not in done:
            measure(data, user_power, keep)
    print(table(rows))


if __name__ == "__main__":
    main()
