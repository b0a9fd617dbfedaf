"""What was tried on the way to ``models/history.py``: each idea beside it, by validation NDCG@20.

    python benchmarks/backbone_ideas.py [--quick] [--data NAME,...] [--ideas 'LABEL;...'] [--seeds N,...] [--jobs N]
        [--json FILE]

Every idea is a setting of ``History`` (else d 256, drop 0.2), a small model below, or a sum of scores, trained with
SL@20 at the settings that suit ``History`` on the dataset (``BASE``), MF at its own learning rate; each chooses its
epoch by the same score. The classics, which have none to choose, have the shipped l2 of EASE where there is one, else
their defaults: tuned comparisons are those of benchmarks/backbones.py. In a sum, ``History`` first, both scores are
divided by their standard deviation. Splits of seeds 10, 11, 12; the test part is not loaded. One thread a process.
What FILE holds already, of these settings and seeds, is not made again. ``--quick``: two epochs, one seed, MovieLens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import record
import scipy.sparse
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topshelf.config import RunConfig, assemble, merged
from topshelf.evaluation import ndcg
from topshelf.models import EASE, MODELS, Encoded, History, HistoryRows, Model
from topshelf.models.graph import Graph, SparseMatrix
from topshelf.models.history import thinned_at_random
from topshelf.models.item_item import gram_matrix, history_matrix
from topshelf.models.tables import Score, for_score, new_tables
from topshelf.ragged import Ragged
from topshelf.training import load_dataset
from topshelf.training.build import build_model, build_objective, resolve
from topshelf.training.trainer import Trainer

K, OURS = 20, "History"
SEEDS = (10, 11, 12)
SMALL = ("amazon2014-health", "movielens-100k")


class OneTable(History):
    """An item speaks for users with the vector that it is found by."""

    def __init__(self, n_queries: int, n_items: int, *, dim: int = 256, drop: float = 0.2) -> None:
        super().__init__(n_queries, n_items, dim=dim, drop=drop)
        self.item_vectors = self.history_vectors


class OwnVector(History):
    """A user is the sum of its items, and ``own`` times a vector that nobody else has."""

    def __init__(self, n_queries: int, n_items: int, *, dim: int = 256, drop: float = 0.2, own: float = 0.3) -> None:
        super().__init__(n_queries, n_items, dim=dim, drop=drop)
        self.own = own
        self.query_vectors, _ = new_tables(n_queries, 1, dim)

    def encode(self, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        queries = self._summed(self._attached()) + self.own * self.query_vectors
        queries, items = for_score(self.score, queries, self.item_vectors)
        return (queries if rows is None else queries[rows]), items

    def encode_batch(self, query: Tensor, owner: Tensor, item: Tensor) -> Encoded:  # noqa: ARG002
        summed = self._summed(thinned_at_random(self._attached().select(query), self.drop))
        return Encoded(
            *for_score(self.score, summed + self.own * F.embedding(query, self.query_vectors), self.item_vectors)
        )


class RareFirst(History):
    """An item that n users have speaks with a weight of n^-1/2."""

    def attach(self, positives: Ragged) -> None:
        super().attach(positives)
        self._weights = torch.bincount(positives.indices, minlength=self.n_items).clamp(min=1).float().rsqrt()

    def _summed(self, histories: Ragged) -> Tensor:
        shares = histories.counts.clamp(min=1).float().rsqrt()
        return SparseMatrix(histories, shares, self._weights) @ self.history_vectors


class LeftOut(History):
    """The items that a step is to predict are not among those that make the user, as in FISM. For pairs."""

    def encode_batch(self, query: Tensor, owner: Tensor, item: Tensor) -> Encoded:
        histories = self._attached().select(query)
        pairs = histories.owner() * self.n_items + histories.indices
        is_kept = torch.isin(pairs, owner * self.n_items + item, invert=True)
        before = F.pad(is_kept.cumsum(0), (1, 0))
        others = thinned_at_random(Ragged(before[histories.indptr], histories.indices[is_kept]), self.drop)
        return Encoded(*for_score(self.score, self._summed(others), self.item_vectors))


class Smoothed(History):
    """An item is its vector and ``share`` times those of the items two steps away in the graph, as in LightGCN."""

    def __init__(self, n_queries: int, n_items: int, *, dim: int = 256, drop: float = 0.2, share: float = 2.0) -> None:
        super().__init__(n_queries, n_items, dim=dim, drop=drop)
        self.share = share

    def attach(self, positives: Ragged) -> None:
        super().attach(positives)
        self._graph = Graph(positives, self.n_items, like=self.item_vectors)

    def encode(self, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        queries, items = for_score(self.score, self._summed(self._attached()), self._smoothed())
        return (queries if rows is None else queries[rows]), items

    def encode_batch(self, query: Tensor, owner: Tensor, item: Tensor) -> Encoded:  # noqa: ARG002
        histories = thinned_at_random(self._attached().select(query), self.drop)
        return Encoded(*for_score(self.score, self._summed(histories), self._smoothed()))

    def _smoothed(self) -> Tensor:
        graph = self._graph
        return self.item_vectors + self.share * (graph.to_items @ (graph.to_queries @ self.item_vectors))


class Averaged(History):
    """Scores with a moving average of the weights, over all steps at first; it knows all but the last step."""

    def __init__(self, n_queries: int, n_items: int, *, dim: int = 256, drop: float = 0.2, decay: float = 0.95) -> None:
        super().__init__(n_queries, n_items, dim=dim, drop=drop)
        self.decay, self._n_steps = decay, 0
        self.mean = History(n_queries, n_items, dim=dim).requires_grad_(False)

    def attach(self, positives: Ragged) -> None:
        super().attach(positives)
        self.mean.attach(positives)

    def encode(self, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.mean.encode(rows)

    def encode_batch(self, query: Tensor, owner: Tensor, item: Tensor) -> Encoded:
        self._n_steps += 1
        share = max(1 - self.decay, 1 / self._n_steps)
        self.mean.history_vectors.lerp_(self.history_vectors.detach(), share)
        self.mean.item_vectors.lerp_(self.item_vectors.detach(), share)
        return super().encode_batch(query, owner, item)


class FromEASE(History):
    """Begins with the strongest factors of EASE's weights, each item speaking for itself as loud as the loudest."""

    def __init__(self, n_queries: int, n_items: int, *, dim: int = 256, drop: float = 0.2, l2: float = 300.0) -> None:
        super().__init__(n_queries, n_items, dim=dim, drop=drop)
        self.l2 = l2

    def attach(self, positives: Ragged) -> None:
        super().attach(positives)
        weights = ease_weights(positives, self.n_items, self.l2)
        left, values, right = torch.linalg.svd(weights.fill_diagonal_(float(weights.max())))
        dim = self.item_vectors.size(1)
        begin_with(self.history_vectors, left[:, :dim] * values[:dim].sqrt())
        begin_with(self.item_vectors, right[:dim].T * values[:dim].sqrt())


class FromSpectrum(History):
    """Begins with the strongest singular vectors of the normalised histories, in both tables."""

    def attach(self, positives: Ragged) -> None:
        super().attach(positives)
        histories = history_matrix(positives, self.n_items)
        roots = [histories.sum(axis).clip(min=1) ** -0.5 for axis in (1, 0)]
        scaled = scipy.sparse.diags_array(roots[0]) @ histories @ scipy.sparse.diags_array(roots[1])
        values, vectors = torch.linalg.eigh(torch.from_numpy(gram_matrix(scipy.sparse.csr_array(scaled))))
        dim = self.item_vectors.size(1)
        strongest = vectors[:, -dim:] * values[-dim:].clamp(min=0) ** 0.25  # squares of the singular values
        for table in (self.history_vectors, self.item_vectors):
            begin_with(table, strongest)


class Linear(History):
    """A weight for every pair of items, EASE's to begin with; ``for_itself``: of an item and itself too."""

    def __init__(
        self,
        n_queries: int,
        n_items: int,
        *,
        drop: float = 0.0,
        score: Score = "dot",
        l2: float = 300.0,
        for_itself: bool = True,
    ) -> None:
        super().__init__(n_queries, n_items, dim=1, drop=drop, score=score)
        self.l2 = l2
        del self.history_vectors
        self.item_vectors = nn.Parameter(torch.zeros(n_items, n_items))
        if not for_itself:  # Adam leaves alone what never has a gradient
            self.item_vectors.register_hook(lambda gradient: gradient.clone().fill_diagonal_(0.0))

    def attach(self, positives: Ragged) -> None:
        super().attach(positives)
        with torch.no_grad():
            self.item_vectors.copy_(ease_weights(positives, self.n_items, self.l2).T)

    def _summed(self, histories: Ragged) -> Tensor:
        # The step asks for gradients of both tables, though nothing is learned here.
        return HistoryRows(histories, self.n_items)[torch.arange(len(histories))].to_dense().requires_grad_()


def ease_weights(positives: Ragged, n_items: int, l2: float) -> Tensor:
    """Row i, column j: how item i speaks for j."""
    fitted = EASE(len(positives), n_items, l2=l2)
    fitted.fit(positives)
    return fitted.weights


@torch.no_grad()
def begin_with(table: nn.Parameter, values: Tensor) -> None:
    """These values in the table, as far spread as those it began with."""
    table.copy_(values / values.std() * table.std())


VARIANTS: dict[str, type[Model]] = {
    "one_table": OneTable,
    "own_vector": OwnVector,
    "rare_first": RareFirst,
    "left_out": LeftOut,
    "smoothed": Smoothed,
    "averaged": Averaged,
    "from_ease": FromEASE,
    "from_spectrum": FromSpectrum,
    "linear": Linear,
}


@contextmanager
def registered() -> Iterator[None]:
    """The models above have names as the package's own, for a while."""
    MODELS.update(VARIANTS)
    try:
        yield
    finally:
        for name in VARIANTS:
            del MODELS[name]


def base(tau: float, tau_weight: float, effective_n: int, **train: float) -> dict[str, Any]:
    return {
        "loss": {"tau": tau, "tau_weight": tau_weight},
        "negatives": {"effective_n": effective_n},
        "threshold": {"every": 5},
        "train": {"learning_rate": 0.01, "batch_size": 512, "epochs": 200, "patience": 10, **train},
    }


# Of every training on a dataset; then MF's learning rate and EASE's penalty.
BASE: dict[str, dict[str, Any]] = {
    "amazon2014-health": base(0.225, 3.0, 1500),
    "movielens-100k": base(0.2, 3.5, 200, learning_rate=0.003, batch_size=256),
    "amazon2014-electronic": base(0.225, 3.0, 1500, epochs=60, patience=3),
    "food": base(0.2, 2.5, 3000, epochs=60, patience=3),
}
MF_RATE = {"amazon2014-health": 0.1, "movielens-100k": 0.01, "amazon2014-electronic": 0.1, "food": 0.1}
EASE_L2 = {"amazon2014-health": 200.0, "movielens-100k": 300.0, "amazon2014-electronic": 200.0, "food": 300.0}
WEIGHTS = (0.1, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Run:
    """A model with what is set besides the dataset's settings; classics have none of those."""

    model: str
    own: dict[str, Any] = field(default_factory=dict)

    def settings(self, data: str, epochs: int | None) -> dict[str, Any]:
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

    def settings(self, data: str, epochs: int | None) -> dict[str, Any]:
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
    dot: dict[str, Any] = {"loss": {"tau": 0.1, "tau_weight": 0.3}, "train": {"learning_rate": 0.0003}}
    dot["model"] = {"score": "dot", "l2": l2}  # named, or it would be the loss's own choice
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
    found = {label: Idea(run) for label, run in runs.items()}
    for label, other in {"SLIM": slim, "EASE": ease, "iALS": ials, "MF": mf[256]}.items():
        found |= {f"{OURS} + {weight:g} {label}": Idea(ours, other, weight) for weight in WEIGHTS}
    return found


def of_history(model: str = "history", **own: float) -> Run:
    return Run(model, {"model": {"dim": 256, "drop": 0.2, **own}})


@dataclass(frozen=True)
class Task:
    """Ideas on one dataset, in a process of its own: one alone, or the sums, which share what they add up."""

    data: str
    labels: tuple[str, ...]
    seeds: tuple[int, ...]
    epochs: int | None  # None: as many as the dataset's settings say

    def asked(self, label: str) -> dict[str, Any]:
        """What a row is of; one that says the same need not be made again."""
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
        """Validation NDCG@20, and the epoch it chose of the first run (0: a classic)."""
        model, epoch = self._fitted(idea.run)
        if idea.beside is None:
            return self._validate(model), epoch
        scores = spread_scores(model) + idea.weight * spread_scores(self._fitted(idea.beside)[0])
        return ndcg(scores, torch.eye(self.split.n_items), self.valid, self.train, K), epoch

    def _fitted(self, run: Run) -> tuple[Model, int]:
        settings = run.settings(self.data, self.epochs)
        key = json.dumps(settings)
        if key not in self._made:
            config = assemble(data=self.data, loss="slatk", k=K, seed=self.seed, more=settings)
            self._made[key] = self._fit(resolve(config))
        return self._made[key]

    def _fit(self, config: RunConfig) -> tuple[Model, int]:
        model = build_model(config, self.split.n_users, self.split.n_items)
        if model.is_closed_form:
            model.fit(self.train)
            return model, 0
        trainer = Trainer(
            build_objective(config, model, self.train),
            self.train,
            config.train,
            threshold=config.threshold,
            seed=config.seed,
            validate=self._validate,
        )
        trainer.run()
        return model, trainer.progress.best_epoch

    def _validate(self, model: Model) -> float:
        with torch.no_grad():
            return ndcg(*model.encode(), self.valid, self.train, K)


@torch.no_grad()
def spread_scores(model: Model) -> Tensor:
    """All scores, (U, I), divided by their standard deviation."""
    queries, items = model.encode()
    scores = (queries[torch.arange(len(queries))] if isinstance(queries, HistoryRows) else queries) @ items.T
    return scores / scores.std()


def measure(task: Task) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
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


def tasks(wanted: Task, rows: list[dict[str, Any]]) -> list[Task]:
    """What is wanted and not among the rows yet; the sums first, which take longest."""
    missing = [label for label in wanted.labels if not any(wanted.asked(label).items() <= row.items() for row in rows)]
    sums = tuple(label for label in missing if ideas(wanted.data)[label].beside is not None)
    groups = [sums] if sums else []
    groups += [(label,) for label in missing if label not in sums]
    return [replace(wanted, labels=group) for group in groups]


def joined(rows: list[dict[str, Any]], more: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with more, in the place of older ones of the same name; in the order of the ideas."""
    new = {(row["data"], row["idea"]) for row in more}
    order = list(ideas(SMALL[0]))
    kept = [row for row in rows if (row["data"], row["idea"]) not in new]
    return sorted([*kept, *more], key=lambda row: (list(BASE).index(row["data"]), order.index(row["idea"])))


def table(rows: list[dict[str, Any]]) -> str:
    """A row an idea: the mean over the splits on each dataset, and how far that is from History's."""
    names = [name for name in BASE if any(row["data"] == name for row in rows)]
    means = {(row["data"], row["idea"]): statistics.mean(row["valid"]) for row in rows}
    lines = [
        "| idea | " + " | ".join(f"{name} | beside {OURS}" for name in names) + " |",
        "|---|" + "---|---|" * len(names),
    ]
    for label in ideas(SMALL[0]):
        cells = []
        for name in names:
            mean, ours = means.get((name, label)), means.get((name, OURS))
            cells.append("" if mean is None else f"{mean:.4f}")
            cells.append(f"{mean / ours - 1:+.1%}" if mean is not None and ours else "")
        if any(cells):
            lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=",".join(SMALL), help="names, with commas between")
    parser.add_argument("--ideas", help="labels, with semicolons between")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--jobs", type=int, default=2, help="ideas at once, one thread each")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)  # as in the processes, for what is said of the environment
    data, labels = options.data.split(","), list(ideas(SMALL[0]))
    chosen = options.ideas.split(";") if options.ideas else labels
    record.check_names(parser, "--data", data, list(BASE))
    record.check_names(parser, "--ideas", chosen, labels)
    seeds, epochs = tuple(int(seed) for seed in options.seeds.split(",")), None
    if options.quick:
        data, seeds, epochs = ["movielens-100k"], seeds[:1], 2
    command = f"python benchmarks/backbone_ideas.py --data {','.join(data)} --seeds {options.seeds}"
    command += f" --ideas '{options.ideas}'" if options.ideas else ""
    rows = record.held(options.json)
    todo = [task for name in data for task in tasks(Task(name, tuple(chosen), seeds, epochs), rows)]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for waited in as_completed([pool.submit(measure, task) for task in todo]):
            rows = joined(rows, waited.result())
            record.write(options.json, command, metric=f"validation ndcg@{K}", rows=rows)
    print(table(rows))


if __name__ == "__main__":
    main()
