"""From a file of friendships to the links that are missing, in Python.

python examples/links.py [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl

from topshelf import LinkPredictor


def write_files(folder: Path) -> None:
    """An edge list with ids of any kind, and a table of features with the same ids. Yours come from anywhere."""
    random = np.random.default_rng(0)
    group = np.arange(120) // 20  # six groups of friends
    pairs = random.integers(120, size=(6000, 2))
    is_friend = (group[pairs[:, 0]] == group[pairs[:, 1]]) & (pairs[:, 0] < pairs[:, 1])
    names = np.array([f"person-{i}" for i in range(120)])
    pl.DataFrame({"source": names[pairs[is_friend, 0]], "target": names[pairs[is_friend, 1]]}).unique(
        maintain_order=True
    ).write_csv(folder / "friends.csv")
    interests = np.eye(6)[group] + random.normal(0, 0.5, (120, 6))
    columns = {f"interest-{j}": interests[:, j] for j in range(6)}
    pl.DataFrame({"id": names, **columns}).write_parquet(folder / "people.parquet")


def main(folder: Path) -> pl.DataFrame:
    write_files(folder)
    predictor = LinkPredictor(
        k=5,
        model={"name": "gcn", "dim": 32},
        data={"features": str(folder / "people.parquet")},
        train={"epochs": 20, "batch_size": 128},
        evaluate={"n_negatives": 100, "cutoffs": [5, 10]},
    ).fit(folder / "friends.csv")
    print({name: round(value, 4) for name, value in predictor.evaluate().mean().items()})
    print(predictor.score([("person-0", "person-1"), ("person-0", "person-119")]))
    found = predictor.recommend(["person-0"], k=3)
    print(found)
    return found


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
