"""An item prior in the partition, SL@K's strength, and what both do to the popularity of lists.

    python -m benchmarks.studies.item_prior [--quick] [--data NAME ...] [--seeds 10 11] [--points 12] [--json FILE]

MF with d 64 and the general settings of a dataset nobody tuned to (tau 0.2, learning rate 0.1, batches of 2,048 users),
exact catalogue. Points: the softmax loss and SL@20 with ``tau_weight`` from 2 to 10, each with priors (``POINTS``);
fewer on larger data (``N_POINTS``). At most 200 epochs, fewer on larger data (``EPOCHS``), chosen on validation.
A seed is another validation part and another start. Each row has the validation NDCG@20, its curve (every 5 epochs),
and coverage and popularity lift of the validation lists; the test metrics are computed with each run, but printed only
for what validation has chosen, at the end. What FILE holds already is not made again. ``--quick``: MovieLens-100K, one
seed, 10 epochs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from benchmarks.harness import ELECTRONIC, FOOD, HEALTH, MOVIELENS, Benchmark, Row, each
from benchmarks.harness import table as table_of
from benchmarks.studies.safe_defaults import GENERATED, NAMED, SEQUENCES, load
from benchmarks.trained import METRIC, TEST_AT_20, trainer, validation
from topshelf.config import RunConfig, assemble, merged
from topshelf.data import Split, load_split
from topshelf.training.build import resolve
from topshelf.training.tasks.interactions import InteractionsTask

K = 20
DATA = (MOVIELENS, HEALTH, "movielens-1m", FOOD, ELECTRONIC)
SHIFTED = (
    "movielens-1m-temporal",
    "food-temporal",
    "amazon2014-electronic-temporal",
    "amazon2014-electronic-popularity",
)
KNOWN = (*DATA, "gowalla", *SHIFTED, *SEQUENCES, *GENERATED)
EPOCHS = {MOVIELENS: 200, HEALTH: 200, "movielens-1m": 120, FOOD: 40, "movielens-1m-temporal": 60, "food-temporal": 40}
EPOCHS |= {"generated 4000 x 4000": 60, "generated 20000 x 500": 60, "generated 500 x 8000": 60}
LEAST_EPOCHS = 30
# (tau_weight, prior); tau_weight None: the softmax loss.
POINTS: tuple[tuple[float | None, float], ...] = (
    (None, 0.0),
    (3.0, 0.0),
    (5.0, 0.0),
    (None, -0.25),
    (None, -0.5),
    (2.0, 0.0),
    (10.0, 0.0),
    (3.0, -0.25),
    (3.0, -0.5),
    (None, -0.75),
    (None, 0.25),
    (5.0, -0.25),
)
# How many of them on which data; on all others the first three, SL@K's strength alone.
N_POINTS = {MOVIELENS: 12, HEALTH: 12, "movielens-1m": 5, FOOD: 5, ELECTRONIC: 5}
LEAST_POINTS = 3
RACED = (3.0, 5.0, None)  # the values of the default race
EVERY = 5  # epochs between two validations


class Rule(NamedTuple):
    """The constants of the race: epochs, how far behind after half of them is too far, and what is near at the end."""

    epochs: int = 20
    far_behind: float = 0.85
    near: float = 0.98


RULE = Rule()  # of topshelf.training.race
RULES = [Rule(*some) for some in product((10, 20, 30, 40), (0.75, 0.8, 0.85, 0.9), (1.0, 0.99, 0.98, 0.97, 0.95))]


@dataclass(frozen=True)
class Task:
    data: str
    seed: int
    tau_weight: float | None
    prior: float
    epochs: int


def config(task: Task) -> RunConfig:
    more: Row = {"train": {"epochs": task.epochs}, "negatives": {"prior": task.prior}, **TEST_AT_20}
    if task.tau_weight is not None:
        more = merged(more, {"loss": {"tau_weight": task.tau_weight}})
    loss = "softmax" if task.tau_weight is None else "slatk"
    return resolve(assemble(data="general", model="mf", loss=loss, k=K, seed=task.seed, more=more))


def parts(name: str, seed: int) -> Split:
    """With the test part, where the dataset has one."""
    return load_split(name, seed=seed).split if name in (*NAMED, *SHIFTED) else load(name)


def measure(task: Task) -> Row:
    split, settings = parts(task.data, task.seed), config(task)
    train, valid = split.train.ragged(), split.valid.ragged()
    started = time.process_time()
    trained = trainer(settings, train, split.n_items, validation(train, valid, K))
    trained.run()
    seconds = time.process_time() - started
    row = {**vars(task), "epoch": trained.progress.best_epoch, "seconds": round(seconds, 2)}
    row["curve"] = " ".join(f"{one['valid']:.5f}" for one in trained.progress.history if "valid" in one)
    data = InteractionsTask(split)
    for part in ("valid", "test"):
        if data.has(part):
            found = data.measure(trained.model, part, settings)
            row[part] = {METRIC: found.mean()[METRIC], **found.extras}
    print(*vars(task).values(), f"{row['valid'][METRIC]:.4f}", row["epoch"], f"{seconds:.1f} s", flush=True)
    return row


def tasks(data: Iterable[str], seeds: Sequence[int], rows: list[Row], most: int, n_points: int) -> list[Task]:
    """What is wanted and not among the rows yet; the first points of everything first."""
    done = {(row["data"], row["seed"], row["tau_weight"], row["prior"]) for row in rows}
    wanted = [
        Task(name, seed, *point, min(most, EPOCHS.get(name, LEAST_EPOCHS)))
        for seed in seeds
        for at, point in enumerate(POINTS[:n_points])
        for name in data
        if at < N_POINTS.get(name, LEAST_POINTS)
    ]
    return [task for task in wanted if (task.data, task.seed, task.tau_weight, task.prior) not in done]


def mean(rows: Iterable[Row], part: str, metric: str = METRIC) -> float:
    return statistics.mean(row[part][metric] for row in rows)


def by_point(rows: list[Row], name: str) -> dict[tuple[float | None, float], list[Row]]:
    """The rows of a dataset by point, those seeds alone that every point has."""
    found: dict[tuple[float | None, float], list[Row]] = {}
    for row in rows:
        if row["data"] == name:
            found.setdefault((row["tau_weight"], row["prior"]), []).append(row)
    common = set.intersection(*({row["seed"] for row in some} for some in found.values()))
    return {point: [row for row in some if row["seed"] in common] for point, some in found.items()}


def label(point: tuple[float | None, float]) -> str:
    return "softmax" if point[0] is None else f"SL@{K}, tau_w {point[0]:g}"


def table(rows: list[Row]) -> str:
    """Validation, and what the lists look like: every point of every dataset."""
    lines = []
    for name in dict.fromkeys(row["data"] for row in rows):
        for point, found in sorted(by_point(rows, name).items(), key=lambda one: (one[0][0] or 0.0, one[0][1])):
            cells = [name, label(point), f"{point[1]:g}", len(found), f"{mean(found, 'valid'):.4f}"]
            cells += [f"{mean(found, 'valid', f'{what}@{K}'):.3f}" for what in ("popularity_lift", "coverage")]
            lines.append([*cells, ", ".join(str(row["epoch"]) for row in found)])
    heads = ("data", "loss", "prior", "seeds", f"valid NDCG@{K}", "popularity lift", "coverage", "epochs")
    return table_of(heads, lines)


def chosen_table(rows: list[Row]) -> str:
    """Test metrics of softmax and SL@K without a prior, and with the one that validation chooses."""
    lines = []
    for name in dict.fromkeys(row["data"] for row in rows):
        points = by_point(rows, name)
        if not all("test" in row for found in points.values() for row in found):
            continue
        for label_, kept in (
            ("softmax", [p for p in points if p == (None, 0.0)]),
            ("softmax with a prior", [p for p in points if p[0] is None]),
            (f"SL@{K}, tau_w 3", [p for p in points if p == (3.0, 0.0)]),
            (f"SL@{K}, tau_w chosen", [p for p in points if p[0] is not None and p[1] == 0.0]),
            (f"SL@{K} with a prior", [p for p in points if p[0] is not None]),
        ):
            if kept:
                best = max(kept, key=lambda point: mean(points[point], "valid"))
                found = points[best]
                cells = [name, label_, f"{best[0] or '-'}", f"{best[1]:g}", f"{mean(found, 'test'):.4f}"]
                more = [f"{mean(found, 'test', f'{what}@{K}'):.3f}" for what in ("popularity_lift", "coverage")]
                lines.append([*cells, *more])
    heads = ("data", "loss", "tau_w", "prior", f"test NDCG@{K}", "popularity lift", "coverage")
    return table_of(heads, lines)


def raced(runs: dict[float | None, Row], rule: Rule = RULE) -> tuple[float | None, int]:
    """The tau_weight that the race chooses by a rule, and the epochs of those that lost; None: the softmax loss.

    Replayed on the curves of one seed. The race's weakest value, 500, is the softmax loss but for 0.1% of its gradient.
    """
    half, whole = rule.epochs // 2, rule.epochs
    best = max(up_to(row, half) for row in runs.values())
    left = {tau_weight for tau_weight, row in runs.items() if up_to(row, half) >= rule.far_behind * best}
    most = max(up_to(runs[tau_weight], whole) for tau_weight in left)
    near = [one for one in RACED if one in left and up_to(runs[one], whole) >= rule.near * most]
    chosen = near[-1]
    lost = sum(whole if tau_weight in left else half for tau_weight in runs if tau_weight != chosen)
    return chosen, lost


def up_to(row: Row, epoch: int) -> float:
    """The best validation metric of the first epochs."""
    return max(float(score) for score in row["curve"].split()[: epoch // EVERY])


Runs = dict[tuple[str, int], dict[float | None, Row]]


def default_runs(rows: list[Row]) -> Runs:
    """What the race is replayed on, by data and seed: the runs without a prior, where all of its values are there."""
    runs: Runs = {}
    for row in rows:
        if row["prior"] == 0 and row["tau_weight"] in RACED:
            runs.setdefault((row["data"], row["seed"]), {})[row["tau_weight"]] = row
    return {key: found for key, found in runs.items() if len(found) == len(RACED)}


def race_table(rows: list[Row]) -> str:
    """Default runs: the softmax loss, SL@K as it was, and what the race makes of it."""
    lines = []
    for (name, seed), found in default_runs(rows).items():
        chosen, lost = raced(found)
        softmax, before, now = (found[one]["valid"][METRIC] for one in (None, 3.0, chosen))
        cells = [name, seed, f"{softmax:.4f}", f"{before:.4f}", f"{now:.4f}", f"{now / softmax - 1:+.1%}"]
        n_epochs = len(found[chosen]["curve"].split()) * EVERY
        lines.append([*cells, "softmax" if chosen is None else f"{chosen:g}", f"{lost} of {n_epochs}"])
    heads = ("data", "seed", "softmax", "tau_w 3", "race", "over softmax", "chosen", "epochs of the others")
    return table_of(heads, lines)


def source_of(name: str) -> str:
    """Splits of one dataset are left out together."""
    return name.removesuffix("-temporal").removesuffix("-popularity")


def share_of_best(runs: Runs, rule: Rule) -> tuple[float, float]:
    """Of what the best of the three values has in the end, the mean share of the chosen one; epochs that were lost."""
    shares, lost = [], []
    for found in runs.values():
        chosen, epochs = raced(found, rule)
        shares.append(found[chosen]["valid"][METRIC] / max(row["valid"][METRIC] for row in found.values()))
        lost.append(epochs)
    return statistics.mean(shares), statistics.mean(lost)


def best_rule(runs: Runs) -> Rule:
    """The largest share of the best; of equal ones (to 0.01%) that with the fewest lost epochs, then ours."""

    def worth(rule: Rule) -> tuple[float, float, float]:
        share, lost = share_of_best(runs, rule)
        away = abs(rule.far_behind - RULE.far_behind) + abs(rule.near - RULE.near)
        return round(share, 4), -lost, -away

    return max(RULES, key=worth)


def left_out_table(rows: list[Row]) -> str:
    """Each dataset with the shipped constants, and with those that all other datasets choose from ``RULES``."""
    runs, lines = default_runs(rows), []
    sources = list(dict.fromkeys(source_of(name) for name, _ in runs))
    for source in sources if len(sources) > 1 else []:
        rule = best_rule({key: found for key, found in runs.items() if source_of(key[0]) != source})
        for (name, seed), found in runs.items():
            if source_of(name) == source:
                best = max(row["valid"][METRIC] for row in found.values())
                cells = [name, seed, f"{rule.epochs}, {rule.far_behind:g}, {rule.near:g}"]
                for some in (RULE, rule):
                    value = found[raced(found, some)[0]]["valid"][METRIC]
                    cells += [f"{value / found[None]['valid'][METRIC] - 1:+.1%}", f"{value / best - 1:+.1%}"]
                lines.append(cells)
    heads = ("data", "seed", "chosen by the others", "shipped: over softmax", "shipped: of the best")
    return table_of((*heads, "theirs: over softmax", "theirs: of the best"), lines)


def slack_table(rows: list[Row]) -> str:
    """How much room the constants have: the race with other epochs and other nearness."""
    runs, lines = default_runs(rows), []
    for epochs in dict.fromkeys(rule.epochs for rule in RULES):
        for near in dict.fromkeys(rule.near for rule in RULES):
            rule = Rule(epochs, RULE.far_behind, near)
            share, lost = share_of_best(runs, rule)
            chosen = [(found[raced(found, rule)[0]], found[None]) for found in runs.values()]
            worst = min(one["valid"][METRIC] / softmax["valid"][METRIC] - 1 for one, softmax in chosen)
            lines.append([epochs, f"{near:g}", f"{share - 1:+.2%}", f"{worst:+.1%}", f"{lost:.0f}"])
    heads = ("epochs", "near", "mean, of the best", "worst, over softmax", "epochs of the others")
    return table_of(heads, lines)


def main() -> None:
    quick = {"data": [MOVIELENS], "seeds": [10], "epochs": 10}
    benchmark = Benchmark(__spec__.name, __doc__, data=DATA, known=KNOWN, seeds=(10, 11), jobs=1, quick=quick)
    benchmark.parser.add_argument("--epochs", type=int, default=200, help="at most so many; default: 200")
    benchmark.parser.add_argument("--points", type=int, default=len(POINTS), help="the first so many; default: all")
    options = benchmark.parse()
    rows = benchmark.held()
    wanted = tasks(options.data, options.seeds, rows, options.epochs, options.points)
    for row in each(measure, wanted, options.jobs):
        rows = [*rows, row]
        benchmark.write(metric=METRIC, rows=rows)
    for made in (table, chosen_table, race_table, left_out_table, slack_table):
        print(made(rows), end="\n\n")


if __name__ == "__main__":
    main()
