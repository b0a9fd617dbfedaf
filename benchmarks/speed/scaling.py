"""Seconds per step and peak memory as users, items, interactions and d grow, up to 1M users, 500k items and 50M pairs.

    python -m benchmarks.speed.scaling [--quick] [--steps 5] [--json FILE] [--page docs/scaling.md]

SL@20 over the exact catalogue, batches of 2048 users, generated data. One axis is varied at a time around a base; every
size runs in a fresh process, so its peak memory is its own, generating the data included. After a warm-up the best of a
few steps counts. Matrix products of d = 64 are timed between the steps: a step is also a multiple of the product
before and after it (the median of those is taken), so that a busy machine does not bend the exponents, and from that
comes the share of the machine's product rate that its three products reach. Exponents are least squares on logs; memory
is counted above the library's own. The largest size runs with both optimizers and must stay under 12 GiB. Needs Linux,
for the peak of each phase.
"""

from __future__ import annotations

import operator
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls

from benchmarks.harness import GIB, Benchmark, Memory, apart, seconds_of
from benchmarks.harness import line as line_of
from benchmarks.harness import table as table_of
from benchmarks.speed.training import products
from benchmarks.trained import begin_refreshing, trainer, vectors
from topshelf.config import TrainSettings, assemble
from topshelf.data import generate
from topshelf.drawing import draw_negatives
from topshelf.evaluation import evaluate
from topshelf.files import write_text
from topshelf.queries import Batch
from topshelf.ragged import Ragged
from topshelf.ranking import top_k
from topshelf.training.batches import stream
from topshelf.training.build import resolve
from topshelf.training.trainer import Trainer

Size = dict[str, Any]

BASE: Size = {"users": 100_000, "items": 50_000, "interactions": 2_000_000, "dim": 64, "optimizer": "adam"}
AXES = {
    "users": (25_000, 200_000, 400_000),
    "items": (12_500, 100_000, 200_000),
    "interactions": (500_000, 4_000_000, 8_000_000),
    "dim": (16, 32, 128),
}
LARGEST: Size = {**BASE, "users": 1_000_000, "items": 500_000, "interactions": 50_000_000}
QUICK_BASE: Size = {**BASE, "users": 10_000, "items": 5_000, "interactions": 200_000}
QUICK_AXES = {"users": (40_000,), "items": (20_000,), "interactions": (800_000,), "dim": (16,)}
QUICK_LARGEST: Size = {**BASE, "users": 50_000, "items": 20_000, "interactions": 1_000_000}
REHEARSAL: Size = {**BASE, "users": 200, "items": 100}
LEAST_SECONDS = 0.5  # for each step asked for: short steps are repeated more often
LIMIT = 12.0  # GiB, of issue 3
BATCH, K, SAMPLE = 2048, 20, 2048
WORKSPACE = TrainSettings().workspace_mib * 2**20


def measure(size: Size, n_steps: int) -> dict[str, Any]:
    """One size, in this process. A rehearsal loads what is loaded on first use; memory is then the library's own."""
    products_of_five = products()

    def product() -> float:
        return seconds_of(products_of_five) / 5

    timed_steps(build(REHEARSAL, generate(200, 100).ragged()), 1, product)
    memory = Memory()
    with memory.phase("library"):
        pass
    with memory.phase("generate"):
        data = generate(size["users"], size["items"], interactions_per_user=size["interactions"] // size["users"])
    with memory.phase("set_up"):
        positives = data.ragged()
        trained = build(size, positives)
    with memory.phase("steps"):
        steps = timed_steps(trained, n_steps, product)
    with memory.phase("top_k"):
        ranked = sampled_lists(trained, positives)
    with memory.phase("evaluate"):
        n_evaluated = sampled_evaluation(trained, positives)
    return {
        **size,
        "interactions": len(data),  # `data` lives until here, as it does in a run
        **steps,
        "top_k_users_per_second": ranked,
        "evaluated_users": n_evaluated,
        "seconds": memory.seconds,
        "peak_gib": memory.peak,
        "peak": max(memory.peak.values()),
    }


def build(size: Size, positives: Ragged) -> Trainer:
    more = {"train": {"batch_size": BATCH, "optimizer": size["optimizer"]}, "model": {"dim": size["dim"]}}
    return trainer(resolve(assemble(loss="slatk", k=K, more=more)), positives, size["items"])


def timed_steps(trained: Trainer, n_steps: int, product: Callable[[], float]) -> dict[str, Any]:
    """Seconds of plain steps, and of steps that refresh their users' thresholds, after one warm-up of each."""
    seconds: dict[str, list[float]] = {"plain": [], "refresh": []}
    around: dict[str, list[float]] = {"plain": [], "refresh": []}  # mean of the product before and after a step
    batches = enumerate(whole_batches(trained))
    for kind, n in (("plain", n_steps), ("refresh", max(1, n_steps // 2))):
        epoch = 1 if kind == "plain" else begin_refreshing(trained)
        trained._step(next(batches)[1], epoch, 0)
        before = product()
        while len(seconds[kind]) < n or sum(seconds[kind]) < n * LEAST_SECONDS:
            step, batch = next(batches)
            seconds[kind].append(seconds_of(partial(trained._step, batch, epoch, step)))
            after = product()
            around[kind].append((before + after) / 2)
            before = after
    best = min(seconds["plain"])
    in_products = statistics.median(map(operator.truediv, seconds["plain"], around["plain"]))
    work = 3 * BATCH * trained.model.n_items * trained.model.get_parameter("item_vectors").size(1)
    return {
        "seconds_a_step": best,
        "median_seconds_a_step": statistics.median(seconds["plain"]),
        "seconds_a_refresh_step": min(seconds["refresh"]),
        "all_steps": seconds,
        "all_products": around,
        "products_a_step": in_products,
        "steps_per_second": 1 / best,
        "steps_an_epoch": len(trained.batches),
        "seconds_an_epoch": best * len(trained.batches),
        "share_of_product_rate": work / (4096 * 4096 * 64) / in_products,
    }


def whole_batches(trained: Trainer) -> Iterator[Batch]:
    """Epoch after epoch, without the shorter last batch of each."""
    size = next(trained.batches.epoch(stream(0))).query.numel()
    for epoch in count(1):
        for batch in trained.batches.epoch(stream(0, 0, epoch)):
            if batch.query.numel() == size:
                yield batch


def sampled_lists(trained: Trainer, positives: Ragged) -> float:
    """Users per second: the top 20 of a sample of users, without their positives."""
    rows = torch.randperm(len(positives), generator=stream(1))[:SAMPLE]
    queries, items = vectors(trained.model)
    ranking = partial(top_k, queries, items, K, exclude=positives, rows=rows)
    return rows.numel() / min(seconds_of(ranking) for _ in range(3))


def sampled_evaluation(trained: Trainer, positives: Ragged) -> int:
    """The library's evaluation, with one item to find for each of a sample of users; returns how many it evaluated."""
    rows = torch.randperm(len(positives), generator=stream(1))[:SAMPLE].sort().values
    wanted = draw_negatives(positives.select(rows), 1, trained.model.n_items, stream(2)).squeeze(1)
    counts = torch.zeros(len(positives), dtype=torch.int64).index_fill_(0, rows, 1)
    relevant = Ragged(torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]), wanted)
    return evaluate(*vectors(trained.model), relevant, train=positives, cutoffs=(5, 10, K), auc=False).users.numel()


def above_library(run: dict[str, Any]) -> float:
    return float(run["peak"] - run["peak_gib"]["library"])


def exponents(runs: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Slopes on logs of time and memory against each axis."""

    def slope(axis: str, values: list[float]) -> float:
        return float(np.polyfit(np.log([run[axis] for run in runs[axis]]), np.log(values), 1)[0])

    return {
        axis: {
            "products_a_step": slope(axis, [run["products_a_step"] for run in some]),
            "memory": slope(axis, [above_library(run) for run in some]),
        }
        for axis, some in runs.items()
    }


def terms(run: dict[str, Any]) -> list[float]:
    """What memory is made of: buffers of a fixed size, two tables of vectors, lists of positives."""
    return [1.0, run["users"] * run["dim"], run["items"] * run["dim"], run["interactions"]]


TERMS = ("always", "users * d", "items * d", "interactions")


def scores_of_a_block(run: dict[str, Any]) -> int:
    """Bytes of the scores that a step holds: a batch over the catalogue, or blocks of it that fit the workspace."""
    row = 4 * run["items"]
    n_blocks = -(-BATCH // (WORKSPACE // row))
    return -(-BATCH // n_blocks) * row


def memory_formula(runs: list[dict[str, Any]], largest: dict[str, Any]) -> dict[str, Any]:
    """Bytes of each term, none negative, by relative least squares on the small sizes; the largest is the check.

    The scores of a block are known; the rest is fitted.
    """
    measured = np.array([above_library(run) * GIB for run in runs])
    known = np.array([scores_of_a_block(run) for run in runs]) / measured
    table = np.array([terms(run) for run in runs]) / measured[:, None]
    scale = table.max(0)
    coefficients = nnls(table / scale, 1 - known)[0] / scale
    foretold = (float(coefficients @ terms(largest)) + scores_of_a_block(largest)) / GIB
    return {
        "bytes": dict(zip(TERMS, coefficients.tolist(), strict=True)),
        "largest_error_of_fit": float(np.abs(table @ coefficients + known - 1).max()),
        "largest_size_foretold_gib": foretold,
        "largest_size_measured_gib": above_library(largest),
    }


HEADER = table_of(
    (
        *("users", "items", "interactions", "d", "optimizer", "seconds per step", "of the product rate"),
        *("refresh step", "minutes per epoch", "generate, s", "set-up, s", "peak, GiB", "top-20 lists per second"),
    ),
    [],
)


def row(run: dict[str, Any]) -> str:
    cells = [
        *(f"{run[name]:,}" for name in ("users", "items", "interactions", "dim")),
        run["optimizer"],
        f"{run['seconds_a_step']:.3f}",
        f"{run['share_of_product_rate']:.0%}",
        f"{run['seconds_a_refresh_step']:.3f}",
        f"{run['seconds_an_epoch'] / 60:.2f}",
        f"{run['seconds']['generate']:.1f}",
        f"{run['seconds']['set_up']:.1f}",
        f"{run['peak']:.2f}",
        f"{run['top_k_users_per_second']:,.0f}",
    ]
    return line_of(cells)


def exponent_table(exponents_by_axis: dict[str, dict[str, float]]) -> str:
    rows = [
        [axis, *(f"{slopes[key]:.2f}" for key in ("products_a_step", "memory"))]
        for axis, slopes in exponents_by_axis.items()
    ]
    return table_of(("axis", "time of a step", "memory above the library's"), rows)


def memory_sentence(formula: dict[str, Any]) -> str:
    always, *factors = formula["bytes"].items()
    parts = " + ".join(f"{value:.0f} {name}" for name, value in factors)
    return (
        f"Peak memory above the library's own, in bytes: {parts} + {always[1] / 2**20:.0f} MiB, and the scores of a "
        f"block: 4 * batch * items, at most {WORKSPACE >> 20} MiB (`train.workspace_mib`). The fit is off by "
        f"at most {formula['largest_error_of_fit']:.0%}; for the largest size, which it has not seen, it gives "
        f"{formula['largest_size_foretold_gib']:.2f} GiB, and {formula['largest_size_measured_gib']:.2f} GiB were "
        "measured."
    )


def largest_lines(runs: list[dict[str, Any]]) -> str:
    """Steps per second and the peak of each phase, one line per optimizer."""
    lines = []
    for run in runs:
        peaks = ", ".join(f"{name.replace('_', ' ')} {peak:.2f}" for name, peak in run["peak_gib"].items())
        lines.append(
            f"- `{run['optimizer']}`: {run['steps_per_second']:.2f} steps per second, {run['steps_an_epoch']} per "
            f"epoch (best step {run['seconds_a_step']:.2f} s, median {run['median_seconds_a_step']:.2f} s); "
            f"peak {run['peak']:.2f} GiB: {peaks}"
        )
    return "\n".join(lines)


def figures(result: dict[str, Any]) -> str:
    """The part of docs/scaling.md that a run decides."""
    results = result["results"]
    parts = [
        f"`{result['command']}`, {result['date']}.",
        "\n".join([HEADER, *map(row, results["runs"])]),
        "The largest size, with the peak of each phase in GiB:",
        largest_lines(results["runs"][-2:]),
        "Exponents, one axis at a time:",
        exponent_table(results["exponents"]),
        memory_sentence(results["memory"]),
    ]
    return "\n\n".join(parts)


MARKS = ("<!-- figures: benchmarks/speed/scaling.py writes them -->", "<!-- end of figures -->")


def write_page(path: Path, result: dict[str, Any]) -> None:
    """Put the figures between the marks of a page."""
    before, rest = path.read_text(encoding="utf-8").split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    write_text(path, f"{before}{MARKS[0]}\n\n{figures(result)}\n\n{MARKS[1]}{after}")


def main() -> None:
    benchmark = Benchmark(__spec__.name, __doc__, quick={"steps": 2})
    benchmark.parser.add_argument("--steps", type=int, default=5, help="timed steps of each size; default: 5")
    benchmark.parser.add_argument("--page", type=Path, help="also put the figures into this page (docs/scaling.md)")
    options = benchmark.parse()
    base, axes, top = (QUICK_BASE, QUICK_AXES, QUICK_LARGEST) if options.quick else (BASE, AXES, LARGEST)
    print(HEADER, flush=True)

    def timed(size: Size) -> dict[str, Any]:
        run = apart(measure, size, options.steps)
        print(row(run), flush=True)
        return run

    middle = timed(base)
    by_axis = {axis: [timed({**base, axis: value}) for value in values] for axis, values in axes.items()}
    largest = [timed({**top, "optimizer": optimizer}) for optimizer in ("adam", "row_adam")]
    runs = [middle, *(run for some in by_axis.values() for run in some)]
    results = {
        "runs": [*runs, *largest],
        "exponents": exponents({axis: [middle, *some] for axis, some in by_axis.items()}),
        "memory": memory_formula(runs, largest[0]),
    }
    benchmark.write(results=results)
    content = {**benchmark.facts(), "results": results}
    print("", *figures(content).split("\n\n")[2:], sep="\n\n")  # the table is above already
    if options.page:
        write_page(options.page, content)
    if (peak := max(run["peak"] for run in largest)) > LIMIT:
        sys.exit(f"the largest size must stay under {LIMIT:g} GiB, got {peak:.2f}")


if __name__ == "__main__":
    main()
