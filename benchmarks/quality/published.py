"""MF with SL@20, softmax and BPR against EASE and popularity, on the paper's datasets, under both protocols.

    python -m benchmarks.quality.published [--quick] [--searched] [--data NAME ...] [--seeds 0 1 2] [--json FILE]

Shipped settings, means over seeds (another validation split and another start each). No refit: every model learns from
the same 90% of train. ``--searched`` measures SL@20 and softmax with the winners of benchmarks/quality/search.py (16
trials each, test-blind) in place of the shipped settings. ``--quick``: one seed, ten epochs.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.harness import ELECTRONIC, HEALTH, MOVIELENS, RESULTS, Benchmark, Row, held, mean_and_spread
from benchmarks.harness import line as line_of
from benchmarks.harness import table as table_of
from benchmarks.trained import METRIC, TEST_AT_20
from topshelf.config import assemble, merged
from topshelf.training import fit

METHODS = {
    "MF, SL@20": ("mf", "slatk"),
    "MF, softmax": ("mf", "softmax"),
    "MF, BPR": ("mf", "bpr"),
    "EASE": ("ease", "slatk"),
    "Popularity": ("popularity", "slatk"),
}
# NDCG@20 of MF in the paper's tables, under its own protocol.
PUBLISHED = {
    (HEALTH, "MF, SL@20"): 0.1390,
    (HEALTH, "MF, softmax"): 0.1261,
    (HEALTH, "MF, BPR"): 0.1234,
    (ELECTRONIC, "MF, SL@20"): 0.0590,
    (ELECTRONIC, "MF, softmax"): 0.0529,
    (ELECTRONIC, "MF, BPR"): 0.0527,
    (MOVIELENS, "MF, SL@20"): 0.3677,
}
HEADS = ("data", "method", f"{METRIC} standard", f"{METRIC} paper", "published", "seconds")


def winner(data: str, loss: str) -> Row:
    """The settings of the best trial of a committed search; the shipped ones where they won."""
    best = max(held(RESULTS / f"search-{data}-{loss}.json"), key=lambda row: row["valid"])
    return {} if best["settings"] == "shipped" else dict(best["settings"])


def measure(data: str, label: str, seeds: Sequence[int], quick: bool, searched: bool = False) -> Row:
    model, loss = METHODS[label]
    more = merged(TEST_AT_20, winner(data, loss) if searched else {})
    more = merged(more, {"train": {"epochs": 10}} if quick else {})
    row: Row = {"data": data, "method": label, "standard": [], "paper": [], "valid": [], "epochs": []}
    seconds = []
    for seed in seeds:
        fitted = fit(assemble(data=data, model=model, loss=loss, k=20, seed=seed, more=more))
        for protocol in ("standard", "paper"):
            row[protocol].append(fitted.evaluate(protocol).mean()[METRIC])
        row["valid"].append(fitted.evaluate(part="valid").mean()[METRIC])
        row["epochs"].append(fitted.best_epoch)
        seconds.append(fitted.seconds)
    row |= {"seconds": statistics.mean(seconds), "published": PUBLISHED.get((data, label))}
    return {**row, "config": fitted.config.model_dump(mode="json")}


def cells(row: Row) -> list[str]:
    published = f"{row['published']:.4f}" if row["published"] else ""
    scores = [mean_and_spread(row[protocol]) for protocol in ("standard", "paper")]
    return [row["data"], row["method"], *scores, published, f"{row['seconds']:.1f}"]


def table(rows: list[Row]) -> str:
    """The table of the README; a test keeps it equal to the committed result."""
    return table_of(HEADS, map(cells, rows))


def main() -> None:
    quick = {"seeds": [0]}
    benchmark = Benchmark(__spec__.name, __doc__, data=(HEALTH, MOVIELENS), seeds=(0, 1, 2), quick=quick)
    benchmark.parser.add_argument("--searched", action="store_true", help="with the winners of the searches")
    options = benchmark.parse()
    print(table([]))
    rows = []
    for data in options.data:
        for label in list(METHODS)[:2] if options.searched else METHODS:
            rows.append(measure(data, label, options.seeds, options.quick, options.searched))
            print(line_of(cells(rows[-1])), flush=True)
            benchmark.write(protocol=["standard", "paper"], rows=rows)


if __name__ == "__main__":
    main()
