"""What the size of the partition does to SL@K: the exact catalogue scaled to several effective N.

    python -m benchmarks.studies.effective_n [--quick] [--data NAME ...] [--epochs 40] [--json FILE]

SL@20 with MF, seed 0, one setting changed at a time; the softmax loss does not depend on N and is the base.
``--quick``: two epochs, MovieLens-100K.
"""

from __future__ import annotations

from benchmarks.harness import ELECTRONIC, MOVIELENS, Benchmark, Row, line, table
from benchmarks.trained import METRIC, TEST_AT_20, vectors
from topshelf.config import assemble, merged
from topshelf.data import Dataset, load_split
from topshelf.thresholds import exact_thresholds
from topshelf.training import fit

BASE: Row = {
    "loss": {"tau": 0.2, "tau_weight": 2.25},
    "threshold": {"every": 20},
    "train": {"learning_rate": 0.1, "batch_size": 2048},
    **TEST_AT_20,
}
HEADS = ("variant", "ndcg@20 valid", "ndcg@20 test, standard", "mean threshold")


def variants(n_items: int) -> dict[str, tuple[str, Row]]:
    rows: dict[str, tuple[str, Row]] = {
        f"catalogue, effective N = {n}": ("slatk", {"negatives": {"effective_n": n}})
        for n in (100, 300, 1000, 3000, n_items)
    }
    rows["1000 sampled for each query"] = ("slatk", {"negatives": {"kind": "per_query", "n": 1000}})
    rows["catalogue, N = 1000, weight detached"] = (
        "slatk",
        {"negatives": {"effective_n": 1000}, "loss": {"detach_weight": True}},
    )
    rows["softmax loss"] = ("softmax", {})
    return rows


def measure(dataset: Dataset, label: str, epochs: int) -> Row:
    loss, change = variants(dataset.split.n_items)[label]
    more = merged(merged(BASE, {"train": {"epochs": epochs}}), change)
    if loss == "softmax":
        more["loss"] = {"tau": BASE["loss"]["tau"]}
    run = fit(assemble(data=dataset.name, loss=loss, seed=0, more=more), dataset)
    valid, test = run.evaluate(part="valid").mean()[METRIC], run.evaluate().mean()[METRIC]
    threshold = exact_thresholds(*vectors(run.model), 20).mean().item()
    return {"variant": label, "valid": valid, "test": test, "mean_threshold": threshold}


def cells(row: Row) -> list[str]:
    return [row["variant"], f"{row['valid']:.4f}", f"{row['test']:.4f}", f"{row['mean_threshold']:.2f}"]


def main() -> None:
    quick = {"data": [MOVIELENS], "epochs": 2}
    benchmark = Benchmark(__spec__.name, __doc__, data=(ELECTRONIC,), quick=quick)
    benchmark.parser.add_argument("--epochs", type=int, default=40, help="default: 40")
    options = benchmark.parse()
    rows = []
    print(table(HEADS, []))
    for data in options.data:
        dataset = load_split(data, seed=0)
        for label in variants(dataset.split.n_items):
            rows.append({"data": data, **measure(dataset, label, options.epochs)})
            print(line(cells(rows[-1])), flush=True)
    benchmark.write(protocol="standard", base=BASE, rows=rows)


if __name__ == "__main__":
    main()
