"""Lists for everybody: seconds and peak memory of `topshelf recommend RUN --out LISTS`, from start to end.

    python -m benchmarks.speed.recommend_all [--quick] [--how file parts processes] [--json FILE]

Gowalla (29,858 users, 40,988 items) with K = 100, and generated users, a quarter million and a million, with 10,000
items. MF with d = 64 and its initial vectors: what the lists hold does not change what they cost.
The lists go to one file, to a folder of parts, and to a folder of parts by two processes; what the folders hold is
compared with the file, if that was written too. Each command is a process; its seconds of the processor count those it
started, its peak is that of the largest of them, as the system reports it. The column "table" is what the lists of
everybody would need in memory at once. Needs Linux.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import GIB, GOWALLA, Benchmark, Row, line, table, today
from topshelf.data import load_split

LIMITS = {"seconds": 60.0, "peak": 2.0}  # of Gowalla with K = 100, in issue 17
SIZES = (250_000, 1_000_000)
ITEMS, EACH = 10_000, 10
HOW: dict[str, list[str]] = {"file": [], "parts": [], "processes": ["--processes", "2"]}
WRITTEN = {"file": "a file", "parts": "{} parts", "processes": "{} parts, 2 processes"}
HEADS = (
    "data",
    "written as",
    "users",
    "items",
    "K",
    "rows",
    "seconds",
    "of the processor",
    "peak GiB",
    "table GiB",
    "lines of progress",
    "same rows as the file",
)


# A process that is started has the peak of the one that starts it, here with all the data: so a small one is between.
BETWEEN = """
import json, os, subprocess, sys
process = subprocess.Popen(sys.argv[2:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
process.returncode = os.waitstatus_to_exitcode(status)
with open(sys.argv[1], "w") as file:
    json.dump([process.returncode, usage.ru_utime + usage.ru_stime, usage.ru_maxrss], file)
"""


def command(*words: object) -> tuple[float, float, float, str]:
    """Seconds, those of the processor, peak GiB, and what a topshelf command, as a process, said on standard error."""
    called = [sys.executable, "-m", "topshelf", *map(str, words)]
    with tempfile.TemporaryDirectory() as place:
        told = Path(place) / "usage.json"
        started = time.perf_counter()
        ended = subprocess.run([sys.executable, "-c", BETWEEN, told, *called], stderr=subprocess.PIPE, text=True)
        seconds = time.perf_counter() - started
        code, busy, peak = json.loads(told.read_text()) if told.exists() else (ended.returncode, 0.0, 0)
    if code:
        raise SystemExit(f"{' '.join(called)} ended with {code}: {ended.stderr}")
    return seconds, busy, peak * 1024 / GIB, ended.stderr


def write_run(data: Any, run: Path) -> None:
    """A run of MF with its initial vectors: what the lists hold does not change what they cost."""
    from topshelf.config import assemble
    from topshelf.training import Fitted, save
    from topshelf.training.build import build_model, resolve

    config = resolve(assemble(data=data.name, model="mf", loss="softmax"))
    save(Fitted(config, data, build_model(config, data.split.n_users, data.split.n_items)), run)


def generated(users: int) -> Any:
    """Clicks whose popularity falls as 1 / rank; nothing is held out, so nothing is evaluated."""
    import numpy as np
    import polars as pl

    from topshelf.data import Interactions, split_interactions

    generator = np.random.default_rng(0)
    items = (ITEMS ** generator.random(users * EACH)).astype(np.int64) - 1
    clicks = pl.DataFrame({"user": np.repeat(np.arange(users), EACH), "item": items}).unique(maintain_order=True)
    return split_interactions(Interactions.from_frame(clicks), name="generated", split="ratio", test_fraction=0.0)


def measure(label: str, data: Any, k: int, folder: Path, how: list[str]) -> Iterator[Row]:
    """A row per way of writing the lists; every way must give the same table."""
    import polars as pl

    run = folder / f"run-{label}"
    write_run(data, run)
    del data
    items = pl.scan_parquet(run / "items.parquet").select(pl.len()).collect().item()
    first: Path | None = None
    for name in how:
        out = folder / (f"{name}-{label}" + (".parquet" if name == "file" else ""))
        seconds, busy, peak, said = command("recommend", run, "--k", k, "--out", out, *HOW[name])
        files = [out] if name == "file" else sorted(out.glob("part-*.parquet"))
        rows, users = pl.scan_parquet(files).select(pl.len(), pl.col("user").n_unique().alias("users")).collect().row(0)
        sizes = pl.read_parquet(files[0], n_rows=1_000).estimated_size() / 1_000 * rows / GIB
        lines = sum("writing" in text for text in said.splitlines())
        row = {"data": label, "how": name, "users": users, "items": items, "k": k, "rows": rows, "seconds": seconds,
               "busy": busy, "peak": peak, "table": sizes, "lines": lines, "parts": len(files)}  # fmt: skip
        if first is not None:
            row["same"] = same_rows(first, files)
        first = first or (out if name == "file" else None)
        yield row


def same_rows(whole: Path, parts: list[Path]) -> bool:
    """Whether the parts one after the other are the file, to the last bit."""
    import polars as pl

    start = 0
    for part in parts:
        rows = pl.read_parquet(part)
        if not pl.scan_parquet(whole).slice(start, rows.height).collect().equals(rows):
            return False
        start += rows.height
    return start == pl.scan_parquet(whole).select(pl.len()).collect().item()


def cells(row: Row) -> list[str]:
    return [
        row["data"], WRITTEN[row["how"]].format(row["parts"]),
        f"{row['users']:,}", f"{row['items']:,}", str(row["k"]), f"{row['rows']:,}",
        f"{row['seconds']:.1f}", f"{row['busy']:.1f}", f"{row['peak']:.2f}", f"{row['table']:.2f}", str(row["lines"]),
        str(row.get("same", "")),
    ]  # fmt: skip


def main() -> None:
    benchmark = Benchmark(__spec__.name, __doc__, quick={"sizes": [5_000], "named": []})
    add = benchmark.parser.add_argument
    add("--sizes", nargs="*", type=int, default=list(SIZES), help="numbers of generated users")
    add("--how", nargs="+", choices=list(HOW), default=list(HOW), help=f"default: {' '.join(HOW)}")
    add("--named", nargs="*", default=[GOWALLA], help=f"named datasets, with K = 100; default: {GOWALLA}")
    options = benchmark.parse()
    kept = {(row["data"], row.get("how", "file")): row for row in benchmark.held("results")}
    print(table(HEADS, []))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        todo: list[tuple[str, Any, int]] = [(name, lambda name=name: load_split(name), 100) for name in options.named]
        todo += [(f"{users:,} generated", lambda users=users: generated(users), 20) for users in options.sizes]
        for label, data, k in todo:
            for row in measure(label, data(), k, folder, options.how):
                kept[label, row["how"]] = {**row, "date": today()}
                print(line(cells(row)), flush=True)
                benchmark.write(results=list(kept.values()), limits=LIMITS)


if __name__ == "__main__":
    main()
