"""The memory of a training with tables of float32 and of bfloat16 (``model.tables``), and the time of its steps.

    python -m benchmarks.speed.table_memory [--quick] [--steps 10] [--json FILE] [--page]

MF with SL@20 by rows: ``row_adam``, batches of 2048 users, the batch's items and 1,000 uniform draws as negatives, d =
64; 4 million users, 1 million items, 5 generated interactions per user. Each type in a new process with one thread. The
peak is of the process: library, data, tables, moments, the steps, then a validation of 2,000 users with the copy of the
best weights that it keeps. Times are processor times, the median of the steps after two. ``--page`` writes the table of
FILE into docs/scaling.md.
"""

from __future__ import annotations

import copy
import statistics
import time
from itertools import count

import torch

from benchmarks.harness import Benchmark, Memory, Row, apart, table, write_page
from benchmarks.trained import Trainer, trainer
from topshelf.config import assemble
from topshelf.data import generate
from topshelf.drawing import draw_negatives
from topshelf.evaluation import ndcg
from topshelf.models import EncodedRows
from topshelf.queries import QuerySet
from topshelf.ragged import Ragged
from topshelf.training.batches import stream
from topshelf.training.build import resolve

TYPES = ("float32", "bfloat16")
SIZES = {"users": 4_000_000, "items": 1_000_000}
PER_USER, DIM, BATCH, K, N_DRAWN, MEASURED = 5, 64, 2048, 20, 1000, 2000
BEGIN, END = "<!-- measured: benchmarks/speed/table_memory.py --page -->", "<!-- end of table memory -->"


def settings(tables: str) -> Row:
    return {
        "model": {"dim": DIM, "tables": tables},
        "negatives": {"kind": "in_batch", "n_uniform": N_DRAWN},
        "threshold": {"estimator": "incremental", "n": N_DRAWN},
        "train": {"optimizer": "row_adam", "batch_size": BATCH},
    }


def measure(tables: str, sizes: Row, n_steps: int) -> Row:
    torch.set_num_threads(1)
    memory = Memory()
    with memory.phase("library"):
        resolve(assemble(loss="slatk", k=K, more=settings(tables)))
    with memory.phase("data"):
        positives = generate(sizes["users"], sizes["items"], interactions_per_user=PER_USER).ragged()
    with memory.phase("tables"):
        run = trainer(resolve(assemble(loss="slatk", k=K, more=settings(tables))), positives, sizes["items"])
    with memory.phase("steps"):
        seconds = stepped(run, n_steps)
    with memory.phase("validation"):
        validated(run, positives)
        best = copy.deepcopy(run.model.state_dict())
    moments = [kept[name] for kept in run.optimizer.state.values() for name in ("mean", "square")]
    held = {"weights": best.values(), "moments": moments}
    sizes_of = {name: sum(one.numel() * one.element_size() for one in some) for name, some in held.items()}
    row = {"tables": tables, **sizes, "dim": DIM, "interactions": positives.indices.numel(), "bytes": sizes_of}
    return {**row, "step_ms": 1000 * statistics.median(seconds[2:]), "peak_gib": memory.peak}


def stepped(run: Trainer, n_steps: int) -> list[float]:
    """Processor seconds of steps."""
    seconds: list[float] = []
    for epoch in count(1):
        for step, batch in enumerate(run.batches.epoch(stream(0, epoch))):
            started = time.process_time()
            run._step(batch, epoch, step)
            seconds.append(time.process_time() - started)
            if len(seconds) == n_steps + 2:
                return seconds
    raise AssertionError


@torch.no_grad()
def validated(run: Trainer, positives: Ragged) -> float:
    """NDCG@20 of some users, as a run validates."""
    model = run.model
    some = torch.randperm(len(positives), generator=stream(1))[:MEASURED].sort().values
    known = positives.select(some)
    wanted = draw_negatives(known, 1, model.n_items, stream(2)).squeeze(1)
    relevant = Ragged(torch.arange(len(some) + 1), wanted)
    return ndcg(EncodedRows(model, QuerySet(rows=some)), model.encode_items(), relevant, known, K)


def shown(rows: list[Row]) -> str:
    heads = ("tables", "weights, GiB", "moments, GiB", "peak of the steps", "peak of the validation", "ms per step")
    cells = [
        (
            row["tables"],
            *(f"{row['bytes'][name] / 2**30:.2f}" for name in ("weights", "moments")),
            *(f"{row['peak_gib'][name]:.2f}" for name in ("steps", "validation")),
            f"{row['step_ms']:.0f}",
        )
        for row in rows
    ]
    return table(heads, cells)


def main() -> None:
    benchmark = Benchmark(__spec__.name, __doc__, quick={"steps": 3})
    benchmark.parser.add_argument("--steps", type=int, default=10, help="timed steps; default: 10")
    benchmark.parser.add_argument("--page", action="store_true", help="write the table of FILE into docs/scaling.md")
    options = benchmark.parse()
    if options.page:
        write_page("scaling.md", BEGIN, END, shown(benchmark.held()))
        return
    sizes = {name: n // 100 for name, n in SIZES.items()} if options.quick else SIZES
    rows = []
    for tables in TYPES:
        rows.append(apart(measure, tables, sizes, options.steps))
        print(shown(rows[-1:]).splitlines()[-1], flush=True)
        benchmark.write(rows=rows)
    print(shown(rows))


if __name__ == "__main__":
    main()
