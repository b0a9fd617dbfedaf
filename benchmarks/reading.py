"""How fast a large file becomes Interactions: CSV and Parquet, integer and text ids.

python benchmarks/reading.py [--quick] [--rows 10000000] [--json FILE]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import record

from topshelf.data import read_interactions


def table(rows: int) -> pl.DataFrame:
    generator = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "user": generator.integers(rows // 50, size=rows),
            "item": (generator.zipf(1.3, size=rows) - 1) % 100_000,
            "rating": generator.integers(1, 6, size=rows),
            "timestamp": generator.integers(1_600_000_000, 1_700_000_000, size=rows),
        }
    )


def measure(rows: int) -> list[dict[str, Any]]:
    frame, found = table(rows), []
    named = frame.with_columns(pl.format("u{}", "user").alias("user"), pl.format("i{}", "item").alias("item"))
    with tempfile.TemporaryDirectory() as folder:
        for label, content in (("integer ids", frame), ("text ids", named)):
            csv, parquet = Path(folder) / "data.csv", Path(folder) / "data.parquet"
            content.write_csv(csv)
            content.write_parquet(parquet)
            for path in (csv, parquet):
                start = time.perf_counter()
                read = read_interactions(path)
                seconds, megabytes = time.perf_counter() - start, path.stat().st_size / 1e6
                found.append({"format": path.suffix[1:], "ids": label, "megabytes": megabytes, "seconds": seconds})
                print(f"| {path.suffix[1:]} | {label} | {megabytes:.0f} | {seconds:.1f} | {read} |", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a hundred thousand rows")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = 100_000 if options.quick else options.rows
    print("| format | ids | MB | seconds | read |\n|---|---|---|---|---|")
    results = measure(rows)
    record.write(options.json, f"python benchmarks/reading.py --rows {rows}", results=results)


if __name__ == "__main__":
    main()
