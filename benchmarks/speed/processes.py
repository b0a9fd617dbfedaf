"""What several processes cost: bytes per step against the formula, and time per step with 1, 2 and 4 of them.

    python -m benchmarks.speed.processes [--quick] [--rounds 3] [--steps 8] [--page] [--json FILE]

SL@20 over the exact catalogue, MF with d = 64, batches of 2048 users, generated data. Every process has one thread,
pinned to a core of its own as far as there are cores. One, two and four processes are started in turn, as often as
--rounds says; the best step counts. A step is timed in three parts: the head's own work (divided among the processes),
the exchange with the others, and the rest (the same on every process: the way through the model, the optimizer, making
the batch). The model of docs/scale-out.md predicts the step of W processes from the parts of one process and from the
speed of a plain all-reduce of the same size:

    t(W) = rest + head / min(W, cores) * max(1, W / cores) + exchange(bytes, W)

where more processes than cores take turns, and the rest is multiplied by W / cores too. The bytes that a process gives
to the collective operations must be those of the formula, or the script ends with an error. ``--page`` measures
nothing: it writes the table of FILE into docs/scale-out.md.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Benchmark, Row, table

SIZE = {"users": 20_000, "items": 20_000, "per_user": 20, "dim": 64, "batch": 2048}
QUICK = {"users": 2_000, "items": 1_000, "per_user": 10, "dim": 32, "batch": 512}
LAYOUTS = {"all items": False, "sliced": True}
WORLDS = (1, 2, 4)
BEGIN, END = "<!-- measured: benchmarks/speed/processes.py --page -->", "<!-- end of speed -->"


def predicted_bytes(layout: str, queries: int, positives: int, items: int, dim: int, k: int) -> int:
    """What a process gives to the collective operations in a step of SL@K by MF, thresholds read in it."""
    decided = 16  # whether to save, whether to stop
    if layout == "all items":
        return 4 * dim * (items + queries) + 16 + decided
    partition = 4 * queries + 4 * (queries + positives)  # MAX and SUM
    back = 4 * (queries + positives) + 4 * queries * dim
    return partition + 4 * queries * k + back + 8 + 8 + decided


def started(n: int, words: list[str]) -> Row:
    """What the main one of ``n`` processes measured."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.speed.processes", "--worker", *words]
    processes = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **shared, "RANK": str(rank)},
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            text=True,
        )
        for rank in range(n)
    ]
    said = processes[0].communicate()[0]
    if any(process.wait() for process in processes):
        raise SystemExit(f"{n} processes failed")
    row: Row = json.loads(said.splitlines()[-1])
    return row


def worker(layout: str, size: Row, n_steps: int) -> None:
    """One of several processes: the parts of its best step, and the bytes of it."""
    from topshelf.world import joined

    pinned = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {pinned[int(os.environ["RANK"]) % len(pinned)]})
    with joined() as world:
        row = measured(layout, size, n_steps)
        if world.is_main:
            print(json.dumps({**row, "processes": world.size}), flush=True)
    os._exit(0)


def measured(layout: str, size: Row, n_steps: int) -> Row:
    from topshelf.callbacks import Callbacks
    from topshelf.config import assemble
    from topshelf.data import Dataset, generate, make_split
    from topshelf.training import run
    from topshelf.training.batches import stream
    from topshelf.training.build import resolve
    from topshelf.world import current

    made = generate(size["users"], size["items"], interactions_per_user=size["per_user"])
    data = Dataset("generated", make_split(made, seed=0))
    more = {
        "model": {"dim": size["dim"]},
        "train": {"batch_size": size["batch"], "shard_items": LAYOUTS[layout]},
        "threshold": {"every": 1},
    }
    config = resolve(assemble(loss="slatk", k=20, more=more))
    trainer = run._phases(config, data, True, Callbacks())._first_trainer
    clock, world = Clock(trainer), current()
    trainer.objective.hooks[0].begin_epoch(1, trainer.model, stream(0, 2, 1), is_resumed=False)
    rows: list[Row] = []
    for step, batch in zip(range(n_steps + 2), trainer.batches.epoch(stream(0, 0, 1)), strict=False):
        world.barrier()
        clock.take()
        sent, began = world.sent, time.perf_counter()
        trainer._step(batch, 1, step)
        world.any(False, False)
        total = time.perf_counter() - began
        known = {"queries": batch.query.numel(), "positives": batch.item.numel(), "bytes": world.sent - sent}
        rows.append({**known, "total": total, **clock.take()})
    best = min(rows[2:], key=lambda row: row["total"])
    best["rest"] = best["total"] - best["head"] - best["exchange"]
    return {**best, "items": data.split.n_items, "plain": plain_all_reduce(best["bytes"])}


class Clock:
    """Seconds of the head's own work and of the exchange with the other processes."""

    def __init__(self, trainer: Any) -> None:
        from topshelf.world import current

        self.head = self.exchange = 0.0
        objective, world = trainer.objective, current()
        backward, do = objective.head.backward, world._do

        def timed_backward(*given: Any) -> float:
            began, before = time.perf_counter(), self.exchange
            number: float = backward(*given)
            self.head += time.perf_counter() - began - (self.exchange - before)
            return number

        def timed_do(*given: Any) -> None:
            began = time.perf_counter()
            do(*given)
            self.exchange += time.perf_counter() - began

        objective.head.backward, world._do = timed_backward, timed_do

    def take(self) -> Row:
        found = {"head": self.head, "exchange": self.exchange}
        self.head = self.exchange = 0.0
        return found


def plain_all_reduce(n_bytes: int) -> float:
    """Seconds of one all-reduce of so many bytes, the best of some."""
    import torch

    from topshelf.world import current

    world, best = current(), float("inf")
    tensor = torch.zeros(max(1, n_bytes // 4))
    for _ in range(10):
        world.barrier()
        began = time.perf_counter()
        world.all_reduce(tensor)
        best = min(best, time.perf_counter() - began)
    return best


def predicted(alone: Row, row: Row, cores: int) -> float:
    """The step of W processes, from the parts of one."""
    turns = max(1.0, row["processes"] / cores)
    return (alone["rest"] + alone["head"] / row["processes"]) * turns + row["plain"]


def shown(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        parts = [f"{1000 * row[part]:.0f}" for part in ("head", "exchange", "rest", "total", "predicted")]
        lines.append([row["layout"], row["processes"], f"{row['bytes'] / 1e6:.2f}", *parts])
    heads = ("items", "processes", "MB per step", "head, ms", "exchange, ms", "rest, ms", "step, ms", "model, ms")
    return table(heads, lines)


def write_page(file: Path) -> None:
    """The table of FILE in docs/scale-out.md."""
    from topshelf.files import write_text

    content, page = json.loads(file.read_text(encoding="utf-8")), ROOT / "docs" / "scale-out.md"
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    size = content["size"]
    about = (
        f"`{content['command']}`, {content['date']}: {size['users']:,} users, {size['items']:,} items, "
        f"d = {size['dim']}, batches of {size['batch']} users, {content['cores']} cores."
    )
    write_text(page, f"{before}{BEGIN}\n\n{about}\n\n{shown(content['rows'])}\n\n{END}{rest.split(END)[1]}")


def main() -> None:
    if "--worker" in sys.argv:
        layout, size, n_steps = sys.argv[2:]
        worker(layout, json.loads(size), int(n_steps))
    benchmark = Benchmark("benchmarks.speed.processes", __doc__, rounds=3, quick={"rounds": 1, "steps": 1})
    benchmark.parser.add_argument("--steps", type=int, default=8)
    benchmark.parser.add_argument("--page", action="store_true", help="write the table of FILE into docs/scale-out.md")
    options = benchmark.parse()
    if options.page:
        write_page(options.json)
        return
    size, cores = QUICK if options.quick else SIZE, len(os.sched_getaffinity(0))
    found: dict[tuple[str, int], Row] = {}
    for _ in range(options.rounds):
        for layout in LAYOUTS:
            for n in WORLDS:
                row = started(n, [layout, json.dumps(size), str(options.steps)])
                older = found.get((layout, n))
                found[layout, n] = row if older is None or row["total"] < older["total"] else older
    rows = []
    for (layout, n), row in found.items():
        formula = 0
        if n > 1:
            formula = predicted_bytes(layout, row["queries"], row["positives"], row["items"], size["dim"], 20)
        if row["bytes"] != formula:
            raise SystemExit(f"{layout}, {n} processes: {row['bytes']} bytes per step, and the formula has {formula}")
        expected = predicted(found[layout, 1], row, cores)
        rows.append({"layout": layout, **row, "predicted": expected})
    print(shown(rows))
    benchmark.write(rows=rows, size=size, cores=cores)


if __name__ == "__main__":
    main()
