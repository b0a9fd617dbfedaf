"""Updates against full refits and against doing nothing, step by step in time: NDCG@20 and seconds.

    python -m benchmarks.quality.update --json benchmarks/results/update.json [--data NAME ...] [--models NAME ...]
        [--seeds 0 1 2] [--quick] [--page]

Data: MovieLens-100K by its times (ratings of at least 3), in steps of a week and of four; generated interactions that
drift (``topshelf.data.drift``), in the same steps; and wide generated ones, 4,000 items in steps of a day.

A model is trained on the first part of the data as ``topshelf train --set train.refit=all`` does, which chooses its
epochs. Then, after every step, three models are measured on what the users known by then do in the next four weeks
(four days in daily steps), items that they have left out, NDCG@20:
- update: the last step's model, updated with the step's interactions (``topshelf update``), one update after another;
- refit: a new model trained on everything so far, with the same settings and epochs;
- nothing: the first model, with all later interactions as ``recommend --new`` takes them.
Every user of every step counts once. Seconds are the processor's, of learning alone, the same for update and refit: no
reading, no measuring, no choosing of epochs; both run in turn in one process. Intervals of the relative difference are
by bootstrap over users. Rows that the file has are not made again. ``--page`` writes the tables of FILE into
docs/update.md.
"""

from __future__ import annotations

import json
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch

from benchmarks.harness import ROOT, Benchmark, Row, table
from topshelf import Recommender, kernels
from topshelf.data import movielens
from topshelf.data.download import cache_folder
from topshelf.data.drift import WEEK, drifting
from topshelf.data.growth import grown
from topshelf.errors import TopshelfWarning
from topshelf.files import write_text
from topshelf.metrics import ndcg_at_k
from topshelf.queries import QuerySet
from topshelf.ragged import ragged_from_pairs
from topshelf.ranking import top_k
from topshelf.training.tasks.interactions import InteractionsTask
from topshelf.versions.learning import again, continued
from topshelf.versions.updating import updated

K, AHEAD, ROUNDS = 20, 4, 2000
PAGE = ROOT / "docs" / "update.md"
MARKS = ("<!-- python -m benchmarks.quality.update --page: the tables -->\n", "<!-- the end of the tables -->\n")
MODELS: dict[str, Row] = {
    "mf, SL@20": {"model": "mf", "loss": "slatk"},
    "history, SL@20": {"model": "history", "loss": "slatk"},
    "lightgcn, SL@20": {"model": "lightgcn", "loss": "slatk"},
    "ease": {"model": "ease"},
    "ials": {"model": "ials"},
    "slim": {"model": "slim"},
    "itemknn": {"model": "itemknn"},
}
IN_CLOSED_FORM = ("ease", "slim", "itemknn")  # they do not depend on the seed
METHODS = ("update", "refit", "nothing")


class Steps(NamedTuple):
    """Data by time: trained on until ``first``, then in steps, all in units of ``unit`` seconds."""

    frame: pl.DataFrame
    unit: int
    first: int
    step: int
    last: int

    def until(self, start: int, stop: int) -> pl.DataFrame:
        times = pl.col("timestamp") - self.frame["timestamp"].min()
        return self.frame.filter((times >= start * self.unit) & (times < stop * self.unit))


def steps_of(name: str, quick: bool) -> Steps:
    what, _, pace = name.partition(", ")
    if quick:
        return Steps(drifting(150, 80, weeks=8, per_week=2.0), WEEK, 5, 1, 7)
    step = {"weekly": 1, "monthly": 4, "daily": 1}[pace]
    if what == "MovieLens-100K":
        wheel = movielens.fetch_movielens_from_registry(cache_folder())
        frame = movielens.read_ratings(wheel).filter(pl.col("weight") >= 3).select("user", "item", "timestamp")
        return Steps(frame.sort("timestamp", maintain_order=True), WEEK, 16 if step > 1 else 20, step, 28)
    if what == "wide drift":
        return Steps(drifting(1000, 4000, weeks=12, per_week=2.0), WEEK // 7, 70, step, 76)
    return Steps(drifting(2000, 800, weeks=24, per_week=2.0), WEEK, 12 if step > 1 else 14, step, 20)


DATA = ("MovieLens-100K, weekly", "MovieLens-100K, monthly", "drift, weekly", "drift, monthly", "wide drift, daily")


def measured(name: str, label: str, seed: int, quick: bool) -> Row:
    """One model on one set of steps: the mean NDCG@20 and the seconds of each method, and the differences by user."""
    steps = steps_of(name, quick)
    settings: Row = {"k": K, "seed": seed, **MODELS[label], "train": {"refit": "all"}}
    if quick:
        settings["train"] |= {"epochs": 15}
    seconds: dict[str, float] = defaultdict(float)
    with Clock(seconds)("train"):
        first = Recommender(**settings).fit(steps.until(0, steps.first))
    version = first.fitted
    scores: dict[str, dict[Any, list[float]]] = {method: defaultdict(list) for method in METHODS}
    since: dict[Any, list[Any]] = defaultdict(list)
    for now in range(steps.first + steps.step, steps.last + 1, steps.step):
        rows = steps.until(now - steps.step, now)
        growth, older, clock = grown(version.dataset, rows), version, Clock(seconds)
        task = InteractionsTask(growth.split)
        with clock("call"):
            version = updated(older, growth, name="step")
        with clock("update"):
            continued(version.config, older.model, task, older.best_epoch)
        with clock("refit"):
            refit = again(version.config, task, "all", version.best_epoch)
        for user, item in rows.select("user", "item").iter_rows():
            since[user].append(item)
        wanted = Wanted(version, steps.until(now, now + AHEAD))
        models = {"update": version.model, "refit": refit}
        for method, model in models.items():
            model.attach(task.context("all"))
            wanted.add(scores[method], wanted.ranked(model))
        wanted.add(scores["nothing"], wanted.of_lists(first, since))
    row: Row = {"data": name, "model": label, "seed": seed, "epochs": version.best_epoch, "users": len(scores["refit"])}
    row |= {method: float(np.mean([x for some in scores[method].values() for x in some])) for method in METHODS}
    row |= {f"{what}_seconds": round(value, 4) for what, value in seconds.items()}
    return row | {"interval": interval(scores["update"], scores["refit"])}


class Clock:
    """Adds up the processor's seconds of some work, by name: other processes do not change them much."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.process_time()
        yield
        self.seconds[name] += time.process_time() - started


class Wanted:
    """What users do after a step, as far as it can be found: pairs of known users and items that are new to them."""

    def __init__(self, version: Any, later: pl.DataFrame) -> None:
        self.split = version.dataset.split
        users, items = self.split.users.find(later["user"]), self.split.items.find(later["item"])
        known = (users >= 0) & (items >= 0)
        keys = np.unique(users[known] * self.split.n_items + items[known])
        rows, cols = (torch.from_numpy(part) for part in np.divmod(keys, self.split.n_items))
        lists = ragged_from_pairs(rows, cols, self.split.n_users)
        self.seen = self.split.seen("all")
        lists = lists.where(self.seen.find(lists.owner(), lists.indices) < 0)
        self.rows = (lists.counts > 0).nonzero().squeeze(1)
        self.relevant = lists.select(self.rows)
        self.names = self.split.users.ids(self.rows)

    def ranked(self, model: Any) -> torch.Tensor:
        with torch.no_grad():
            queries, items = model.encode(QuerySet(rows=self.rows))
        return top_k(queries, items, K, exclude=self.seen.select(self.rows))[1]

    def of_lists(self, recommender: Recommender, since: dict[Any, list[Any]]) -> torch.Tensor:
        """The lists of an older model from what it has learned and all interactions since."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TopshelfWarning)
            lists = recommender.recommend_new({name: since.get(name, []) for name in self.names}, K)
        places = torch.full((len(self.names), K), -1)
        row = {name: at for at, name in enumerate(self.names)}
        at = torch.tensor([row[name] for name in lists["user"].to_list()])
        found = torch.from_numpy(self.split.items.find(lists["item"].to_list()).copy())
        places[at, torch.from_numpy(lists["rank"].to_numpy().copy()) - 1] = found
        return places

    def add(self, scores: dict[Any, list[float]], places: torch.Tensor) -> None:
        hits = kernels.hits(places.contiguous(), self.relevant.indptr, self.relevant.indices)
        for name, value in zip(self.names, ndcg_at_k(hits, self.relevant.counts).tolist(), strict=True):
            scores[name].append(value)


def interval(one: dict[Any, list[float]], other: dict[Any, list[float]]) -> list[float]:
    """A 95% interval of the relative difference of two means, by bootstrap over users."""
    sums = np.array([[sum(one[name]), sum(other[name])] for name in other])
    generator = np.random.default_rng(0)
    draws = generator.integers(len(sums), size=(ROUNDS, len(sums)))
    totals = sums[draws].sum(1)
    ratios = totals[:, 0] / totals[:, 1] - 1
    return [round(float(end), 5) for end in np.quantile(ratios, (0.025, 0.975))]


def table_of(rows: list[Row], name: str) -> str:
    """The means over seeds of one set of steps, as Markdown."""
    heads = ("model", "update", "full refit", "update against refit", "nothing", "seconds", "of a refit's")
    lines = []
    for label in MODELS:
        some = [row for row in rows if (row["data"], row["model"]) == (name, label)]
        if not some:
            continue
        mean = {key: float(np.mean([row[key] for row in some])) for key in METHODS}
        low, high = (float(np.mean([row["interval"][end] for row in some])) for end in (0, 1))
        seconds = {key: sum(row[f"{key}_seconds"] for row in some) for key in ("update", "refit")}
        change = f"{mean['update'] / mean['refit'] - 1:+.1%} ({low:+.1%} to {high:+.1%})"
        shown = f"{seconds['update'] / len(some):.2f}", f"{seconds['update'] / seconds['refit']:.0%}"
        figures = [f"{mean[key]:.4f}" for key in METHODS]
        lines.append((label, figures[0], figures[1], change, figures[2], *shown))
    return table(heads, lines)


def write_page(result: Row) -> None:
    rows = result["rows"]
    parts = [f"**{name}**\n\n{table_of(rows, name)}\n" for name in dict.fromkeys(row["data"] for row in rows)]
    text = f"Measured on {result['date']} by `{result['command']}`.\n\n" + "\n".join(parts)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARKS[0])
    write_text(PAGE, before + MARKS[0] + "\n" + text + "\n" + MARKS[1] + rest.partition(MARKS[1])[2])


def main() -> None:
    bench = Benchmark("benchmarks.quality.update", __doc__, data=DATA, known=DATA, seeds=range(3), quick={"seeds": [0]})
    bench.parser.add_argument("--models", nargs="+", default=list(MODELS), metavar="NAME")
    bench.parser.add_argument("--page", action="store_true", help="write the tables of FILE into docs/update.md")
    options = bench.parse()
    bench.check("--models", options.models, list(MODELS))
    if options.page:
        write_page(json.loads(options.json.read_text(encoding="utf-8")))
        return
    rows = bench.held()
    done = {(row["data"], row["model"], row["seed"]) for row in rows}
    for name in options.data[: 1 if options.quick else None]:
        for label in options.models:
            for seed in [0] if label in IN_CLOSED_FORM else options.seeds:
                if (name, label, seed) not in done:
                    rows.append(measured(name, label, seed, options.quick))
                    bench.write(rows=rows)
                    print(rows[-1], flush=True)
        print(f"\n{name}\n\n{table_of(rows, name)}\n", flush=True)


if __name__ == "__main__":
    main()
