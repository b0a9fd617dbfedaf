"""How fast a large file becomes Interactions. Run: python benchmarks/reading.py [rows]"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

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


def main(rows: int) -> None:
    frame = table(rows)
    named = frame.with_columns(pl.format("u{}", "user").alias("user"), pl.format("i{}", "item").alias("item"))
    with tempfile.TemporaryDirectory() as folder:
        for label, content in (("integer ids", frame), ("text ids", named)):
            csv, parquet = Path(folder) / "data.csv", Path(folder) / "data.parquet"
            content.write_csv(csv)
            content.write_parquet(parquet)
            for path in (csv, parquet):
                start = time.perf_counter()
                read = read_interactions(path)
                seconds = time.perf_counter() - start
                megabytes = path.stat().st_size / 1e6
                print(f"{path.suffix[1:]:8} {label:12} {megabytes:6.0f} MB {seconds:6.1f} s  {read}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000)
