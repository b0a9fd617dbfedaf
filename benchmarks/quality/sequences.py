"""Next items on Amazon Beauty and Games (5-core): SASRec with BCE, SL and SL@20, a better backbone, and baselines.

    python -m benchmarks.quality.sequences [--data beauty games] [--methods LABEL ...] [--seeds 0 1 2] [--json FILE]

Leave-last-out, the whole catalogue ranked, items that a user had before left out of the lists. Epochs are chosen by
validation NDCG@20; settings are those shipped with topshelf (found on the validation part of Beauty), the same for both
datasets. ``published`` are the rows of the SL@K paper's table 6, which names no hyperparameters. The data are the named
datasets of ``topshelf data list --task sequences``, which says where to get them. Rows that FILE holds already are not
made again, so a stopped call goes on. ``--quick``: two epochs of two methods, one seed.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.harness import ROOT, Benchmark, Row, each, mean_and_spread
from benchmarks.harness import table as table_of
from topshelf.config import assemble, merged
from topshelf.files import write_text
from topshelf.training import fit

DATA = ("beauty", "games")
PUBLISHED = {
    ("beauty", "SASRec, BCE"): (0.1130, 0.0484),
    ("beauty", "SASRec, SL"): (0.1578, 0.0766),
    ("beauty", "SASRec, SL@20"): (0.1586, 0.0780),
    ("games", "SASRec, BCE"): (0.1577, 0.0671),
    ("games", "SASRec, SL"): (0.2243, 0.1024),
    ("games", "SASRec, SL@20"): (0.2283, 0.1045),
}
PAGE = ROOT / "docs" / "sequences.md"
BEGIN, END = "<!-- measured: benchmarks/quality/sequences.py --page -->", "<!-- end of measured -->"
HEADS = ("method", "seeds", "Hit@20", "NDCG@20", "NDCG@10", "validation NDCG@20", "paper Hit@20", "paper NDCG@20")
METRICS = ("hit_rate@20", "ndcg@20", "hit_rate@10", "ndcg@10", "mrr@20")


@dataclass(frozen=True)
class Method:
    model: str
    loss: str | None = None
    more: Row | None = None


METHODS: dict[str, Method] = {
    "SASRec, BCE": Method("sasrec", "bce"),
    "SASRec, SL": Method("sasrec", "softmax"),
    "SASRec, SL@20": Method("sasrec", "slatk"),
    "eSASRec, SL@20": Method("esasrec", "slatk"),
    "GRU4Rec, SL@20": Method("gru4rec", "slatk"),
    "SASRec, SL@20, thresholds by user": Method("sasrec", "slatk", {"threshold": {"of": "user"}}),
    "SASRec, SL@20, thresholds of the batch": Method("sasrec", "slatk", {"threshold": {"of": "batch"}}),
    "SASRec, SL@20, gradient through the weight": Method("sasrec", "slatk", {"loss": {"detach_weight": False}}),
    "SASRec, gBCE": Method("sasrec", "gbce"),
    "SASRec, SL, refitted on validation": Method("sasrec", "softmax", {"train": {"refit": True}}),
    "SASRec, SL@20, refitted on validation": Method("sasrec", "slatk", {"train": {"refit": True}}),
    "SASRec, d 128, SL@20, refitted on validation": Method(
        "sasrec", "slatk", {"model": {"dim": 128}, "train": {"refit": True}}
    ),
    "SASRec, d 128, SL, refitted on validation": Method(
        "sasrec", "softmax", {"model": {"dim": 128}, "train": {"refit": True}}
    ),
    "history, SL@20": Method("history", "slatk"),
    "EASE": Method("ease"),
    "item-kNN": Method("itemknn"),
    "item-kNN, latest items first": Method("sequence_knn"),
    "Markov chain": Method("markov"),
    "Markov chain, wider": Method("markov", None, {"model": {"window": 3, "decay": 0.6}}),
    "popularity": Method("popularity"),
}
CLOSED = ("EASE", "item-kNN", "item-kNN, latest items first", "Markov chain", "Markov chain, wider", "popularity")


@dataclass(frozen=True)
class Task:
    data: str
    label: str
    seed: int
    epochs: int | None


def measure(task: Task) -> Row:
    method = METHODS[task.label]
    more = merged(method.more or {}, {"evaluate": {"auc": False}})
    if task.epochs is not None:
        more = merged(more, {"train": {"epochs": task.epochs, "validate_every": 1}})
    named = {"model": method.model, "loss": method.loss}
    fitted = fit(assemble(task="sequences", data=task.data, k=20, seed=task.seed, **named, more=more))
    scores = fitted.evaluate(cutoffs=(10, 20)).mean()
    valid = fitted.valid_score
    if valid is None or not fitted.config.train.refit:
        valid = dict(fitted.evaluate(part="valid", cutoffs=(10, 20)).mean().items())
        valid = {name: valid[name] for name in METRICS}
    row: Row = {"data": task.data, "method": task.label, "seed": task.seed, "epoch": fitted.best_epoch}
    row |= {"seconds": round(fitted.seconds, 1), "valid": valid, **{name: scores[name] for name in METRICS}}
    print(row, flush=True)
    return row


def table(rows: list[Row]) -> str:
    """Means over seeds with their spread, the published figures beside; a table per dataset."""
    texts = []
    for data in DATA:
        lines = []
        for label in METHODS:
            some = [row for row in rows if (row["data"], row["method"]) == (data, label)]
            if not some:
                continue
            cells = [mean_and_spread([row[name] for row in some]) for name in ("hit_rate@20", "ndcg@20", "ndcg@10")]
            valid = [row["valid"] if isinstance(row["valid"], float) else row["valid"]["ndcg@20"] for row in some]
            beside = [f"{value:.4f}" for value in PUBLISHED.get((data, label), ())] or ["", ""]
            lines.append([label, len(some), *cells, mean_and_spread(valid), *beside])
        texts.append(f"**{data.capitalize()}**\n\n{table_of(HEADS, lines)}")
    return "\n\n".join(texts)


def write_page(rows: list[Row]) -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    write_text(PAGE, f"{before}{BEGIN}\n\n{table(rows)}\n\n{END}{rest.partition(END)[2]}")


def main() -> None:
    quick = {"data": ["beauty"], "seeds": [0], "methods": ["SASRec, SL@20", "Markov chain"]}
    benchmark = Benchmark(
        "benchmarks.quality.sequences", __doc__, data=DATA, known=DATA, seeds=(0, 1, 2), jobs=1, quick=quick
    )
    benchmark.parser.add_argument("--methods", nargs="+", default=list(METHODS), metavar="LABEL")
    benchmark.parser.add_argument("--page", action="store_true", help="write the tables of FILE into docs/sequences.md")
    options = benchmark.parse()
    if options.page:
        write_page(benchmark.held())
        return
    benchmark.check("--methods", options.methods, list(METHODS))
    rows: list[Row] = benchmark.held()
    made = {(row["data"], row["method"], row["seed"]) for row in rows}
    epochs = 2 if options.quick else None
    tasks = [
        Task(data, label, seed, epochs)
        for seed in options.seeds  # a first figure of every method, then the others
        for label in options.methods
        for data in options.data
        if (data, label, seed) not in made and (seed == options.seeds[0] or label not in CLOSED)
    ]
    for row in each(measure, tasks, options.jobs):
        rows.append(row)
        benchmark.write(rows=rows, published={" / ".join(key): value for key, value in PUBLISHED.items()})
    print(table(rows))


if __name__ == "__main__":
    main()
