"""Sparse EASE beside EASE: validation NDCG@20 by the number of neighbours, the stated error, time and memory.

    python -m benchmarks.studies.sparse_ease --json benchmarks/results/sparse_ease.json [--data NAME ...] [--quick]

One split (seed 10), no test part is read. Each method has the penalties ``L2`` to choose from, by validation. Every fit
is a process of its own; its peak memory is that of the whole process, ranking included. EASE is left out where its
inverse takes hours or does not fit (more than ``MOST`` items). Rows that the file has are not made again; seconds are
those of a shared machine. ``gowalla-lightgcn`` is a file in TOPSHELF_DATA/recommendation. ``--quick``: Health, 20
neighbours, one penalty.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.harness import ELECTRONIC, FOOD, HEALTH, MOVIELENS, Benchmark, Memory, Row, apart
from benchmarks.harness import table as table_of
from benchmarks.trained import fitted, validation
from topshelf.config import RunConfig, assemble
from topshelf.data import load_split
from topshelf.training.build import resolve

K, SEED, MOST = 20, 10, 12_000
GOWALLA = "gowalla-lightgcn"
DATA = (HEALTH, MOVIELENS, ELECTRONIC, FOOD, GOWALLA)
L2 = (30.0, 100.0, 300.0)
NEIGHBOURS = (50, 100, 200, 400)


def measure(data: str, model: str, settings: Row) -> Row:
    """One fit and its validation score."""
    file = Path(os.environ.get("TOPSHELF_DATA", "")) / "recommendation" / f"{GOWALLA}.zip"
    split = load_split(file if data == GOWALLA else data, seed=SEED, test=False).split
    sizes = {"users": split.n_users, "items": split.n_items}
    row: Row = {"data": data, **sizes, "model": model, "settings": settings}
    if model == "ease" and split.n_items > MOST:
        return {**row, "valid": None}
    config = resolve(assemble(data="general", model=model, k=K, seed=SEED, more={"model": settings}))
    assert isinstance(config, RunConfig)
    memory = Memory()
    with memory.phase("all"):
        started = time.perf_counter()
        made, _ = fitted(config, split)
        seconds = time.perf_counter() - started
        score = validation(split.train.ragged(), split.valid.ragged(), K)(made)
    return {**row, "valid": score, **made.derived(), "seconds": round(seconds, 1), "gib": round(memory.peak["all"], 2)}


def table(rows: list[Row]) -> str:
    """A line per dataset and number of neighbours, with the best penalty."""
    lines = []
    known = [row for row in rows if row["valid"] is not None]
    for data, model, m in dict.fromkeys((r["data"], r["model"], r["settings"].get("neighbours")) for r in known):
        some = [r for r in known if (r["data"], r["model"], r["settings"].get("neighbours")) == (data, model, m)]
        best = max(some, key=lambda row: float(row["valid"]))
        error = f"{best['score_error']:.2f}" if "score_error" in best else ""
        name = "EASE" if m is None else f"sparse, {m} neighbours"
        cells = [data, f"{best['items']:,}", name, f"{best['settings']['l2']:g}", f"{best['valid']:.4f}"]
        lines.append([*cells, error, f"{best['seconds']:.0f}", f"{best['gib']:.1f}"])
    return table_of(("data", "items", "model", "l2", "validation", "stated error", "seconds", "peak GiB"), lines)


def main() -> None:
    bench = Benchmark(
        "benchmarks.studies.sparse_ease", __doc__, data=DATA, known=DATA,
        quick={"data": [HEALTH], "l2": [100.0], "neighbours": [20]},
    )  # fmt: skip
    bench.parser.add_argument("--l2", nargs="+", type=float, default=list(L2))
    bench.parser.add_argument("--neighbours", nargs="+", type=int, default=list(NEIGHBOURS))
    options = bench.parse()
    rows = bench.held()
    done = [(row["data"], row["model"], row["settings"]) for row in rows]
    for data in options.data:
        wanted: list[tuple[str, Row]] = [("ease", {"l2": l2}) for l2 in options.l2]
        wanted += [("sparse_ease", {"l2": l2, "neighbours": m}) for m in options.neighbours for l2 in options.l2]
        for model, settings in wanted:
            if (data, model, settings) not in done:
                rows.append(apart(measure, data, model, settings))
                bench.write(rows=rows)
    print(table(rows))


if __name__ == "__main__":
    main()
