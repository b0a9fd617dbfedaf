"""What was tried on the way to ``models/history.py``: each idea against it, by validation NDCG@20.

    python -m benchmarks.studies.backbone_ideas [--quick] [--data NAME ...] [--ideas LABEL ...] [--seeds 10 11 12]
        [--jobs 2] [--json FILE]

Every idea is a setting of ``History`` (else d 256, drop 0.2), a model of ``history_variants.py``, or a sum of scores,
trained with SL@20 at the settings that suit ``History`` on the dataset (``BASE``), MF at its own learning rate; each
chooses its epoch by the same score. The classics, which have none to choose, have the shipped l2 of EASE where there is
one, else their defaults: tuned comparisons are those of the plan ``best``. In a sum, ``History`` first,
both scores are divided by their standard deviation. The test part is not loaded. What FILE holds already, with these
settings and seeds, is not made again. ``--quick``: two epochs, one seed, MovieLens-100K, two ideas.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from benchmarks.harness import ELECTRONIC, FOOD, HEALTH, MOVIELENS, Benchmark, Row, each
from benchmarks.harness import table as table_of
from benchmarks.studies.history_variants import registered
from benchmarks.trained import fitted, validation, vectors
from topshelf.config import assemble, merged
from topshelf.evaluation import ndcg
from topshelf.models import MODELS, HistoryRows, Model
from topshelf.training import load_dataset
from topshelf.training.build import resolve

K, OURS = 20, "History"
SEEDS = (10, 11, 12)
SMALL = (HEALTH, MOVIELENS)


def base(tau: float, tau_weight: float, effective_n: int, **train: float) -> Row:
    return {
        "loss": {"tau": tau, "tau_weight": tau_weight},
        "negatives": {"effective_n": effective_n},
        "threshold": {"every": 5},
        "train": {"learning_rate": 0.01, "batch_size": 512, "epochs": 200, "patience": 10, **train},
    }


# The settings of every training on a dataset; then MF's learning rate and EASE's penalty.
BASE: dict[str, Row] = {
    HEALTH: base(0.225, 3.0, 1500),
    MOVIELENS: base(0.2, 3.5, 200, learning_rate=0.003, batch_size=256),
    ELECTRONIC: base(0.225, 3.0, 1500, epochs=60, patience=3),
    FOOD: base(0.2, 2.5, 3000, epochs=60, patience=3),
}
MF_RATE = {HEALTH: 0.1, MOVIELENS: 0.01, ELECTRONIC: 0.1, FOOD: 0.1}
EASE_L2 = {HEALTH: 200.0, MOVIELENS: 300.0, ELECTRONIC: 200.0, FOOD: 300.0}
WEIGHTS = (0.1, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Run:
    """A model with its own settings, which override the dataset's; classics do not have those."""

    model: str
    own: Row = field(default_factory=dict)

    def settings(self, data: str, epochs: int | None) -> Row:
        if self.model in MODELS and MODELS[self.model].is_closed_form:
            return {"model": {"name": self.model, **self.own}}
        settings = merged(BASE[data], merged(self.own, {"model": {"name": self.model}}))
        return settings if epochs is None else merged(settings, {"train": {"epochs": epochs}})


@dataclass(frozen=True)
class Idea:
    """A run, or the sum of two runs' scores, the second with a weight."""

    run: Run
    beside: Run | None = None
    weight: float = 0.0

    def settings(self, data: str, epochs: int | None) -> Row:
        own = self.run.settings(data, epochs)
        if self.beside is None:
            return own
        return {"first": own, "second": self.beside.settings(data, epochs), "weight": self.weight}


def ideas(data: str) -> dict[str, Idea]:
    """All of them by label, with the settings of a dataset."""
    l2 = EASE_L2[data]
    ours, ease, slim = of_history(), Run("ease", {"l2": l2}), Run("slim")
    ials = Run("ials", {"dim": 128, "alpha": 0.1, "l2": 0.03})  # its defaults when this was measured
    mf = {dim: Run("mf", {"model": {"dim": dim}, "train": {"learning_rate": MF_RATE[data]}}) for dim in (64, 256)}
    pairs = {"order": "pair", "batch_size": 4096}
    dot: Row = {"loss": {"tau": 0.1, "tau_weight": 0.3}, "train": {"learning_rate": 0.0003}}
    dot["model"] = {"score": "dot", "l2": l2}  # given, or the loss would choose it
    cosine = {"model": {"score": "cosine", "drop": 0.2, "l2": l2}, "train": {"learning_rate": 0.001}}
    runs = {
        "MF, d 64": mf[64],
        "MF, d 256": mf[256],
        OURS: ours,
        **{f"d {dim}": of_history(dim=dim) for dim in (64, 512)},
        **{f"drop {drop:g}": of_history(drop=drop) for drop in (0.0, 0.1, 0.35, 0.5)},
        "one shared table": of_history("one_table"),
        "a vector of the user's own": of_history("own_vector"),
        "items weighted by n^-1/2": of_history("rare_first"),
        "the predicted left out": Run("left_out", {"model": {"dim": 256, "drop": 0.0}, "train": pairs}),
        "items smoothed over the graph": of_history("smoothed"),
        "weights averaged over steps": of_history("averaged"),
        "started from EASE": of_history("from_ease", l2=l2),
        "started from the spectrum": of_history("from_spectrum"),
        "full rank, dot": Run("linear", dot),
        "full rank, dot, no item for itself": Run("linear", merged(dot, {"model": {"for_itself": False}})),
        "full rank, cosine": Run("linear", cosine),
        "EASE": ease,
        "SLIM": slim,
        "iALS, d 128": ials,
    }
    every = {label: Idea(run) for label, run in runs.items()}
    for label, other in {"SLIM": slim, "EASE": ease, "iALS": ials, "MF": mf[256]}.items():
        every |= {f"{OURS} + {weight:g} {label}": Idea(ours, other, weight) for weight in WEIGHTS}
    return every


def of_history(model: str = "history", **own: float) -> Run:
    return Run(model, {"model": {"dim": 256, "drop": 0.2, **own}})


@dataclass(frozen=True)
class Task:
    """Ideas on one dataset: one alone, or the sums, which share the models that they add up."""

    data: str
    labels: tuple[str, ...]
    seeds: tuple[int, ...]
    epochs: int | None  # None: those of the dataset's settings

    def asked(self, label: str) -> Row:
        """What identifies a row; one with the same values is not made again."""
        settings = ideas(self.data)[label].settings(self.data, self.epochs)
        return {"data": self.data, "idea": label, "settings": settings, "seeds": list(self.seeds)}


class Trials:
    """The runs of one split, each made once. The test part is not loaded."""

    def __init__(self, data: str, seed: int, epochs: int | None) -> None:
        self.data, self.seed, self.epochs = data, seed, epochs
        self.split = load_dataset(assemble(data=data, seed=seed), test=False).split
        self.train, self.valid = self.split.train.ragged(), self.split.valid.ragged()
        self._made: dict[str, tuple[Model, int]] = {}

    def score(self, idea: Idea) -> tuple[float, int]:
        """Validation NDCG@20, and the epoch it chose for the first run (0: a classic)."""
        model, epoch = self._fitted(idea.run)
        if idea.beside is None:
            return validation(self.train, self.valid, K)(model), epoch
        scores = spread_scores(model) + idea.weight * spread_scores(self._fitted(idea.beside)[0])
        return ndcg(scores, torch.eye(self.split.n_items), self.valid, self.train, K), epoch

    def _fitted(self, run: Run) -> tuple[Model, int]:
        settings = run.settings(self.data, self.epochs)
        key = json.dumps(settings)
        if key not in self._made:
            config = assemble(data=self.data, loss="slatk", k=K, seed=self.seed, more=settings)
            self._made[key] = fitted(resolve(config), self.split)
        return self._made[key]


@torch.no_grad()
def spread_scores(model: Model) -> Tensor:
    """All scores, (U, I), divided by their standard deviation."""
    queries, items = vectors(model)
    scores = (queries[torch.arange(len(queries))] if isinstance(queries, HistoryRows) else queries) @ items.T
    return scores / scores.std()


def measure(task: Task) -> list[Row]:
    started = time.perf_counter()
    rows = [{**task.asked(label), "valid": [], "epochs": []} for label in task.labels]
    with registered():
        for seed in task.seeds:
            trials = Trials(task.data, seed, task.epochs)
            for row in rows:
                score, epoch = trials.score(ideas(task.data)[row["idea"]])
                row["valid"].append(score)
                row["epochs"].append(epoch)
    seconds = round(time.perf_counter() - started, 1)
    for row in rows:
        row["mean"] = statistics.mean(row["valid"])
        print(task.data, row["idea"], f"{row['mean']:.4f}", row["epochs"], f"{seconds} s", flush=True)
    return rows


def tasks(wanted: Task, rows: list[Row]) -> list[Task]:
    """What is wanted and not among the rows yet; the sums first: they take longest."""
    missing = [label for label in wanted.labels if not any(wanted.asked(label).items() <= row.items() for row in rows)]
    sums = tuple(label for label in missing if ideas(wanted.data)[label].beside is not None)
    groups = [sums] if sums else []
    groups += [(label,) for label in missing if label not in sums]
    return [replace(wanted, labels=group) for group in groups]


def joined(rows: list[Row], more: list[Row]) -> list[Row]:
    """The rows with more, which replace older ones of the same name; in the order of the ideas."""
    new = {(row["data"], row["idea"]) for row in more}
    order = list(ideas(SMALL[0]))
    kept = [row for row in rows if (row["data"], row["idea"]) not in new]
    return sorted([*kept, *more], key=lambda row: (list(BASE).index(row["data"]), order.index(row["idea"])))


def table(rows: list[Row]) -> str:
    """One row per idea: the mean over the splits on each dataset, and its difference from History's."""
    names = [name for name in BASE if any(row["data"] == name for row in rows)]
    means = {(row["data"], row["idea"]): statistics.mean(row["valid"]) for row in rows}
    lines = []
    for label in ideas(SMALL[0]):
        cells = []
        for name in names:
            mean, ours = means.get((name, label)), means.get((name, OURS))
            cells.append("" if mean is None else f"{mean:.4f}")
            cells.append(f"{mean / ours - 1:+.1%}" if mean is not None and ours else "")
        if any(cells):
            lines.append([label, *cells])
    return table_of(("idea", *(head for name in names for head in (name, f"against {OURS}"))), lines)


def main() -> None:
    labels = list(ideas(SMALL[0]))
    quick = {"data": [MOVIELENS], "seeds": SEEDS[:1], "ideas": [OURS, "EASE"]}
    benchmark = Benchmark(__spec__.name, __doc__, data=SMALL, known=tuple(BASE), seeds=SEEDS, jobs=2, quick=quick)
    benchmark.parser.add_argument("--ideas", nargs="+", default=labels, choices=labels, metavar="LABEL")
    options = benchmark.parse()
    rows, epochs = benchmark.held(), 2 if options.quick else None
    wanted = [Task(name, tuple(options.ideas), tuple(options.seeds), epochs) for name in options.data]
    for more in each(measure, [task for one in wanted for task in tasks(one, rows)], options.jobs):
        rows = joined(rows, more)
        benchmark.write(metric=f"validation ndcg@{K}", rows=rows)
    print(table(rows))


if __name__ == "__main__":
    main()
