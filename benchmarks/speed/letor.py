"""How fast SVMlight text becomes documents: parsed and cached, then read from the cache; and the peak of memory.

    python -m benchmarks.speed.letor [--quick] [--megabytes 400] [--json FILE]

The text has 136 features a line with values as in MSLR-WEB (whole numbers, zeros and decimals). Rates are by the clock
and by the CPU time of the process, which a busy machine changes less. The compiler's work is done before. Memory is the
peak of the process above what it had before, beside the size of the result.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.harness import GIB, Benchmark, Memory, Row, table
from topshelf.data import letor
from topshelf.data.letor import Text, read_letor

FEATURES = 136


def write_text(path: Path, megabytes: float) -> None:
    """Queries of 120 documents, the same hundred queries again and again under new numbers."""
    rng = np.random.default_rng(0)
    values = np.where(rng.random((12_000, FEATURES)) < 0.4, 0, rng.lognormal(1, 2, (12_000, FEATURES)))
    decimals = rng.random(FEATURES) < 0.5
    bodies = [
        " ".join(
            f"{j + 1}:{value:.6f}" if decimals[j] and value else f"{j + 1}:{value:.0f}" for j, value in enumerate(row)
        )
        for row in values
    ]
    query = 0
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < megabytes * 1e6:
            for place, body in enumerate(bodies):
                query += place % 120 == 0
                file.write(f"{place % 5} qid:{query} {body}\n")


def measure(path: Path) -> list[Row]:
    megabytes, rows = path.stat().st_size / 1e6, []
    for label in ("parsed and cached", "from the cache"):
        memory, before, started, cpu = Memory(), _resident(), time.perf_counter(), time.process_time()
        with memory.phase(label):
            documents = read_letor(Text(path))
        seconds, busy = time.perf_counter() - started, time.process_time() - cpu
        result = documents.features.nbytes / GIB
        rows.append(
            {
                "what": label,
                "megabytes": megabytes,
                "seconds": seconds,
                "cpu_seconds": busy,
                "mb_per_second": megabytes / seconds,
                "mb_per_cpu_second": megabytes / busy,
                "peak_gib": memory.peak[label] - before,
                "result_gib": result,
                "documents": documents.n_documents,
            }
        )
        del documents
    return rows


def _resident() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) for row in lines if row.startswith("VmRSS")) * 1024 / GIB


def main() -> None:
    benchmark = Benchmark(__spec__.name, __doc__, quick={"megabytes": 20.0})
    benchmark.parser.add_argument("--megabytes", type=float, default=400.0, help="default: 400")
    options = benchmark.parse()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TOPSHELF_CACHE"] = str(Path(folder) / "cache")
        small, path = Path(folder) / "small.txt", Path(folder) / "lists.txt"
        small.write_text("1 qid:1 1:0.5 2:3\n0 qid:2 1:1 2:1e3\n", encoding="utf-8")
        read_letor(Text(small))
        write_text(path, options.megabytes)
        assert path.stat().st_size >= letor.CACHED_FROM
        rows = measure(path)
    heads = ("what", "MB", "seconds", "MB/s", "MB per CPU second", "peak GiB", "result GiB")
    names = ("megabytes", "seconds", "mb_per_second", "mb_per_cpu_second")
    cells = [
        [
            row["what"],
            *(f"{row[name]:.1f}" for name in names),
            *(f"{row[name]:.2f}" for name in ("peak_gib", "result_gib")),
        ]
        for row in rows
    ]
    print(table(heads, cells))
    benchmark.write(results=rows)


if __name__ == "__main__":
    main()
