"""How fast a large file becomes Interactions: CSV and Parquet, integer and text ids.

python -m benchmarks.speed.reading [--quick] [--rows 10000000] [--json FILE]
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.harness import Benchmark, Row, line, seconds_of, table
from topshelf.data import read_interactions


def events(rows: int) -> pl.DataFrame:
    generator = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "user": generator.integers(rows // 50, size=rows),
            "item": (generator.zipf(1.3, size=rows) - 1) % 100_000,
            "rating": generator.integers(1, 6, size=rows),
            "timestamp": generator.integers(1_600_000_000, 1_700_000_000, size=rows),
        }
    )


def measure(rows: int) -> Iterator[Row]:
    frame = events(rows)
    named = frame.with_columns(pl.format("u{}", "user").alias("user"), pl.format("i{}", "item").alias("item"))
    with tempfile.TemporaryDirectory() as folder:
        for label, content in (("integer ids", frame), ("text ids", named)):
            csv, parquet = Path(folder) / "data.csv", Path(folder) / "data.parquet"
            content.write_csv(csv)
            content.write_parquet(parquet)
            for path in (csv, parquet):
                seconds = seconds_of(lambda path=path: read_interactions(path))
                megabytes = path.stat().st_size / 1e6
                yield {"format": path.suffix[1:], "ids": label, "megabytes": megabytes, "seconds": seconds}


def main() -> None:
    benchmark = Benchmark(__spec__.name, __doc__, quick={"rows": 100_000})
    benchmark.parser.add_argument("--rows", type=int, default=10_000_000, help="default: 10,000,000")
    options = benchmark.parse()
    results = []
    print(table(("format", "ids", "MB", "seconds"), []))
    for row in measure(options.rows):
        results.append(row)
        print(line([row["format"], row["ids"], f"{row['megabytes']:.0f}", f"{row['seconds']:.1f}"]), flush=True)
    benchmark.write(rows=options.rows, results=results)


if __name__ == "__main__":
    main()
