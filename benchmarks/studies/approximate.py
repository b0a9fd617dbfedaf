"""Negatives that are drawn instead of the exact catalogue: what they cost in NDCG@20, and what a step costs.

    python -m benchmarks.studies.approximate [--quick] [--data NAME ...] [--seeds 0 1 2] [--rates 1 0.3] [--json FILE]
    python -m benchmarks.studies.approximate --cost [--items N ...] [--dim 16] [--steps 12] [--json FILE]
    python -m benchmarks.studies.approximate --page --json FILE

Quality: MF with SL and SL@20 at the settings shipped for SL@20, over the exact catalogue (``adam``) and by rows
(``row_adam``) with each source of negatives; 100 draws on Health (1,200 items), 1,000 on Electronic (8,360), and 100
there too. The sum over a draw is scaled to the same ``effective_n`` as that over the catalogue, so all minimise
estimates of one loss; SL@20 by rows follows its thresholds with ``incremental``, from as many draws. Every method has
each learning rate (a multiple of the shipped one); the best epoch and rate are those of the best validation NDCG@20;
the test NDCG@20 is that model's. Rows that FILE holds are not made again. ``--quick``: MovieLens-100K, two epochs.

How many of the items an average batch holds is measured too (``--coverage`` does that alone): where it is most of them,
``in batch`` is nearly the exact catalogue and shows nothing about a large one, and hard negatives are left out, since
less than twice ``n_hard`` of their pool are not in the batch, so that hardly any would be chosen.

Cost: SL@20, batches of 512 users with 10 random items each of 20,000 users; each size in a new process with one thread.
The time is processor time, the median of the steps after two. FILE has what was resident before these steps (library,
data, tables, moments, and buffers that the first two steps left) and the peak above that; the table has their sum.
``--page`` writes the tables into docs/scaling.md.
"""

from __future__ import annotations

import math
import statistics
import time
from pathlib import Path

import torch

from benchmarks.harness import ELECTRONIC, GIB, HEALTH, MOVIELENS, Benchmark, Memory, Row, apart, table, write_page
from benchmarks.trained import METRIC, TEST_AT_20, trainer
from topshelf.config import assemble, merged
from topshelf.data import load_split
from topshelf.ragged import Ragged
from topshelf.training import fit
from topshelf.training.batches import Batches, stream
from topshelf.training.build import resolve

LOSSES = {"SL": "softmax", "SL@20": "slatk"}
EXACT = "exact catalogue"
DRAWS = {HEALTH: (100,), ELECTRONIC: (1000, 100), MOVIELENS: (100,)}
SHIPPED = {  # those of SL@20 on Health and Electronic, for both losses
    "model": {"dim": 64},
    "loss": {"tau": 0.225},
    "negatives": {"effective_n": 1500},
    "train": {"learning_rate": 0.1, "batch_size": 512},
}
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
LARGEST_EXACT = 1_000_000
BEGIN, END = "<!-- measured: benchmarks/studies/approximate.py --page -->", "<!-- end of approximate -->"


def sources(n: int) -> dict[str, Row]:
    """The sources of negatives by name."""
    return {
        EXACT: {"kind": "catalogue"},
        f"shared, {n} uniform": {"kind": "shared", "n": n},
        f"shared, {n} by popularity": {"kind": "shared", "n": n, "popularity": 0.5},
        "in batch": {"kind": "in_batch"},
        f"in batch + {n} uniform": {"kind": "in_batch", "n_uniform": n},
        f"in batch + 50 hardest of {n}, corrected": {"kind": "mixed", "n_hard": 50, "pool": n, "corrected": True},
    }


def settings_of(negatives: Row, n: int) -> Row:
    if negatives["kind"] == "catalogue":
        return {"negatives": negatives}
    by_rows = {"threshold": {"estimator": "incremental", "n": n}, "train": {"optimizer": "row_adam"}}
    return {"negatives": negatives, **by_rows}


def trained(data: str, seed: int, loss: str, negatives: Row, n: int, rate: float, quick: bool) -> Row:
    """One run at one learning rate: its best validation NDCG@20, and the test NDCG@20 of that epoch."""
    more = merged(SHIPPED, TEST_AT_20)
    more = merged(more, {"train": {"learning_rate": SHIPPED["train"]["learning_rate"] * rate}})
    more = merged(more, settings_of(negatives, n))
    if quick:
        more = merged(more, {"train": {"epochs": 2}})
    started = time.process_time()
    run = fit(
        assemble(data=data, loss=LOSSES[loss], k=20, seed=seed, more=more), load_split(data, seed=seed), quiet=True
    )
    valid = run.evaluate(part="valid").mean()[METRIC]
    spent = round(time.process_time() - started, 1)
    return {
        "rate": rate,
        "valid": valid,
        "test": run.test.mean()[METRIC],
        "epoch": run.best_epoch,
        "processor_s": spent,
    }


def share_in_batch(data: str) -> float:
    """The share of all items that are positives in an average batch."""
    split = load_split(data, seed=0).split
    size = SHIPPED["train"]["batch_size"]
    batches = Batches(split.train.ragged(), split.n_items, order="query", size=size).epoch(stream(0))
    found = [batch.item.unique().numel() for batch in batches if batch.query.numel() == size]
    return statistics.mean(found) / split.n_items


def cover(benchmark: Benchmark) -> dict[str, float]:
    shares = dict(benchmark.held("coverage")) | {data: share_in_batch(data) for data in benchmark.options.data}
    benchmark.write(coverage=shares)
    return shares


def chooses(negatives: Row, share: float) -> bool:
    """Whether hard negatives are chosen from more than are taken."""
    return "pool" not in negatives or negatives["pool"] * (1 - share) >= 2 * negatives["n_hard"]


def quality(benchmark: Benchmark) -> None:
    options, rows, shares = benchmark.options, benchmark.held("quality"), cover(benchmark)
    for data in options.data:
        named = {name: (one, n) for n in DRAWS[data] for name, one in sources(n).items() if chooses(one, shares[data])}
        for seed in options.seeds:
            for loss in LOSSES:
                for name, (negatives, n) in named.items():
                    key = {"data": data, "seed": seed, "loss": loss, "negatives": name}
                    held = next((row for row in rows if key.items() <= row.items()), None)
                    done = {one["rate"] for one in held["runs"]} if held else set()
                    runs = [
                        trained(data, seed, loss, negatives, n, rate, options.quick)
                        for rate in options.rates
                        if rate not in done
                    ]
                    if held:
                        held["runs"] += runs
                    else:
                        rows.append(key | {"runs": runs})
                    best = chosen(rows[-1] if held is None else held)
                    print(data, seed, loss, name, f"{best['valid']:.4f} {best['test']:.4f}", flush=True)
                    benchmark.write(quality=rows)


def chosen(row: Row) -> Row:
    """The run that validation chooses."""
    return max(row["runs"], key=lambda run: run["valid"])


def quality_table(rows: list[Row]) -> str:
    lines = []
    for data in dict.fromkeys(row["data"] for row in rows):
        for name in dict.fromkeys(row["negatives"] for row in rows if row["data"] == data):
            cells: list[object] = [data, name]
            for loss in LOSSES:
                some = [row for row in rows if (row["data"], row["negatives"], row["loss"]) == (data, name, loss)]
                exact = {
                    row["seed"]: chosen(row)["test"]
                    for row in rows
                    if (row["data"], row["negatives"], row["loss"]) == (data, EXACT, loss)
                }
                if not some:
                    cells += ["-", "-"]
                    continue
                mean = statistics.mean(chosen(row)["test"] for row in some)
                against = [chosen(row)["test"] / exact[row["seed"]] - 1 for row in some if row["seed"] in exact]
                is_exact = name == EXACT or not against
                cells += [f"{mean:.4f}", "" if is_exact else f"{100 * statistics.mean(against):+.1f}%"]
            cells.append(len({row["seed"] for row in rows if row["data"] == data and row["negatives"] == name}))
            lines.append(cells)
    heads = ["data", "negatives"]
    for loss in LOSSES:
        heads += [f"{loss}: test NDCG@20", "against exact"]
    return table([*heads, "seeds"], lines)


def cost(n_items: int, name: str, dim: int, steps: int) -> Row:
    """Processor seconds and peak memory of the steps of one source at one size."""
    torch.set_num_threads(1)
    n_users, length = 20_000, 10
    items = torch.randint(n_items, (n_users, length), generator=stream(1)).sort(1).values
    fresh = torch.cat([torch.ones(n_users, 1, dtype=torch.bool), items[:, 1:] != items[:, :-1]], 1)
    positives = Ragged(torch.cat([torch.zeros(1, dtype=torch.int64), fresh.sum(1).cumsum(0)]), items[fresh])
    more = merged(SHIPPED, settings_of(sources(1000)[name], 1000))
    more = merged(more, {"model": {"dim": dim}, "train": {"optimizer": "row_adam"}})
    run = trainer(resolve(assemble(loss="slatk", k=20, more=more)), positives, n_items)
    memory, seconds = Memory(), []
    for step, batch in enumerate(run.batches.epoch(stream(0))):
        if step == 2:
            before = resident()
        with memory.phase(str(step)):
            started = time.process_time()
            run._step(batch, 1, step)
            seconds.append(time.process_time() - started)
        if step == steps + 1:
            break
    peak = max(memory.peak[str(step)] for step in range(2, steps + 2))
    row = {"items": n_items, "negatives": name, "dim": dim, "ms": 1000 * statistics.median(seconds[2:])}
    return row | {"resident_gib": before, "step_gib": peak - before}


def resident() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) for row in lines if row.startswith("VmRSS")) * 1024 / GIB


def costs(benchmark: Benchmark) -> None:
    options, rows = benchmark.options, benchmark.held("cost")
    for n_items in options.items:
        for name in sources(1000):
            if name == EXACT and n_items > LARGEST_EXACT:
                continue
            row = apart(cost, n_items, name, options.dim, options.steps)
            key = {key: row[key] for key in ("items", "negatives", "dim")}
            rows = [*(one for one in rows if not key.items() <= one.items()), row]
            print(f"{n_items:,} {name}: {row['ms']:.1f} ms, {row['step_gib']:.3f} GiB", flush=True)
            benchmark.write(cost=rows)


def exponent(sizes: list[int], values: list[float]) -> str:
    """The slope of the logarithms."""
    if len(sizes) < 2:
        return "-"
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in values]
    return f"{statistics.linear_regression(x, y).slope:.2f}"


def cost_table(rows: list[Row]) -> str:
    sizes, lines = sorted({row["items"] for row in rows}), []
    for name in dict.fromkeys(row["negatives"] for row in rows):
        found = {row["items"]: row for row in rows if row["negatives"] == name}
        own = sorted(found)
        cells: list[object] = [name]
        cells += [_cost_cell(found[n]) if n in found else "-" for n in sizes]
        lines.append([*cells, exponent(own, [found[n]["ms"] for n in own])])
    return table(["negatives", *(f"{n:,} items" for n in sizes), "exponent of time"], lines)


def _cost_cell(row: Row) -> str:
    return f"{row['ms']:.1f} / {row['resident_gib'] + row['step_gib']:.2f}"


def tables(benchmark: Benchmark) -> str:
    shares = (f"{data} {share:.0%}" for data, share in dict(benchmark.held("coverage")).items())
    covered = f"Share of all items that are in an average batch of 512 users: {', '.join(shares)}."
    costs = "Milliseconds of processor time per step, and the peak memory of the process in GiB:"
    parts = (quality_table(benchmark.held("quality")), covered, costs, cost_table(benchmark.held("cost")))
    return "\n\n".join(parts)


def main() -> None:
    quick = {"data": [MOVIELENS], "seeds": [0], "rates": [1.0], "items": [10_000], "steps": 3}
    benchmark = Benchmark(
        __spec__.name, __doc__, data=(HEALTH, ELECTRONIC), known=tuple(DRAWS), seeds=(0, 1, 2), quick=quick
    )
    add = benchmark.parser.add_argument
    add("--rates", nargs="+", type=float, default=[1.0, 0.3], help="multiples of the shipped learning rate")
    add("--cost", action="store_true", help="time and memory of a step by the number of items")
    add("--items", nargs="+", type=int, default=list(SIZES), help="with --cost: sizes of the catalogue")
    add("--dim", type=int, default=16, help="with --cost: numbers per vector")
    add("--steps", type=int, default=12, help="with --cost: measured steps")
    add("--coverage", action="store_true", help="measure how many of the items a batch holds, and nothing else")
    add("--page", action="store_true", help="write the tables of FILE into docs/scaling.md")
    options = benchmark.parse()
    if options.page:
        write_page("scaling.md", BEGIN, END, tables(benchmark))
    elif options.coverage:
        print(cover(benchmark))
    elif options.cost:
        costs(benchmark)
        print(cost_table(benchmark.held("cost")) if options.json else "")
    else:
        quality(benchmark)


if __name__ == "__main__":
    main()
