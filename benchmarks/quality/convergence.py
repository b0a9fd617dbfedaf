"""The same quality: SL@20 by the engine against the textbook's training, each to convergence.

    python -m benchmarks.quality.convergence [--quick] [--data NAME ...] [--variants NAME ...] [--seeds 0 1 2]
        [--json FILE]

``textbook`` is the paper's training with the paper's best settings for MF (learning rate, tau, tau_w, T_beta; N(0, 1)
start, 1024 shuffled pairs, 1000 negatives for each pair, Adam), run by the library's own sampled path: the same step as
the gather of benchmarks/speed/training.py, faster. ``exact`` and ``bfloat16`` are the shipped settings over the whole
catalogue. All validate every 5 epochs and stop after 10 validations without a better NDCG@20; the test part, under the
standard protocol, is measured once for each seed. Gowalla has no textbook row by default: it takes hours here.
``--quick``: Health, one seed, five epochs. Rows measured again replace those of an existing file.
"""

from __future__ import annotations

import statistics

from benchmarks.harness import ELECTRONIC, GOWALLA, HEALTH, Benchmark, Row, mean_and_spread, today
from benchmarks.harness import line as line_of
from benchmarks.harness import table as table_of
from benchmarks.trained import METRIC, PAPER, TEST_AT_20, paper_settings
from topshelf.config import assemble, merged
from topshelf.training import fit

ALL = ["textbook", "exact", "bfloat16"]
VARIANTS = {HEALTH: ALL, ELECTRONIC: ALL, GOWALLA: ALL[1:]}
HEADS = ("data", "training", "NDCG@20", "validation", "best epoch", "seconds")


def settings(data: str, variant: str) -> Row:
    if variant == "textbook":
        return paper_settings(data, "per_query")
    return {"train": {"precision": "bfloat16"}} if variant == "bfloat16" else {}


def measure(data: str, variant: str, seeds: list[int], quick: bool) -> Row:
    more = merged(merged(TEST_AT_20, {"train": {"patience": 10}}), settings(data, variant))
    more = merged(more, {"train": {"epochs": 5}} if quick else {})
    runs = [fit(assemble(data=data, model="mf", loss="slatk", k=20, seed=seed, more=more)) for seed in seeds]
    return {
        "data": data,
        "variant": variant,
        "seeds": seeds,
        "standard": [run.evaluate("standard").mean()[METRIC] for run in runs],
        "valid": [run.valid_score for run in runs],
        "epochs": [run.best_epoch for run in runs],
        "seconds": [run.seconds for run in runs],
        "date": today(),
        "config": runs[-1].config.model_dump(mode="json"),
    }


def cells(row: Row) -> list[str]:
    scores = [mean_and_spread(row[part]) for part in ("standard", "valid")]
    epochs = ", ".join(map(str, row["epochs"]))
    return [row["data"], row["variant"], *scores, epochs, f"{statistics.mean(row['seconds']):.1f}"]


def table(rows: list[Row]) -> str:
    """The table of docs/speed.md; a test keeps it equal to the committed result."""
    return table_of(HEADS, map(cells, rows))


def main() -> None:
    names = tuple(VARIANTS)
    quick = {"data": [HEALTH], "seeds": [0]}
    benchmark = Benchmark(__spec__.name, __doc__, data=names, known=names, seeds=(0, 1, 2), quick=quick)
    benchmark.parser.add_argument("--variants", nargs="+", choices=ALL)
    options = benchmark.parse()
    rows = {(row["data"], row["variant"]): row for row in benchmark.held()}
    print(table([]))
    for data in options.data:
        for variant in options.variants or VARIANTS[data]:
            rows[data, variant] = row = measure(data, variant, options.seeds, options.quick)
            print(line_of(cells(row)), flush=True)
            order = sorted(rows, key=lambda key: (list(PAPER).index(key[0]), key[1]))
            benchmark.write(protocol="standard", rows=[rows[key] for key in order])


if __name__ == "__main__":
    main()
