"""Next items: from a file of events to lists for known and new users.

    python examples/sequences.py

The events are made up: people walk through 60 pages, mostly from one to the next, some of them in steps of two.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import polars as pl

from topshelf import Recommender


def walks(n_users: int = 400, n_pages: int = 60, seed: int = 0) -> pl.DataFrame:
    """One row per visit: who, which page, when."""
    draw, rows = random.Random(seed), []
    for user in range(n_users):
        page, step = draw.randrange(n_pages), draw.choice((1, 2))
        for visit in range(draw.randrange(5, 15)):
            rows.append((f"user {user}", f"page {page}", 1_700_000_000 + 60 * visit))
            page = (page + (step if draw.random() < 0.9 else draw.randrange(n_pages))) % n_pages
    return pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")


def main(epochs: int = 25) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "visits.csv"
        walks().write_csv(file)
        train = {"epochs": epochs, "validate_every": 5, "batch_size": 32, "learning_rate": 0.005}
        network = {"name": "sasrec", "dim": 32, "max_length": 10, "dropout": 0.2}
        sasrec = Recommender(task="sequences", k=5, model=network, loss={"name": "slatk", "tau": 0.1}, train=train)
        sasrec.fit(file)
        markov = Recommender(task="sequences", k=5, model="markov").fit(file)
    scores = {"sasrec": sasrec.evaluate().mean()["ndcg@5"], "markov": markov.evaluate().mean()["ndcg@5"]}
    for name, score in scores.items():
        print(f"{name}: NDCG@5 of the next page {score:.4f}")
    print(sasrec.recommend(["user 7"], k=3))
    by_one, by_two = ["page 3", "page 4", "page 5"], ["page 1", "page 3", "page 5"]
    print(sasrec.recommend_new({"by one": by_one, "by two": by_two}, k=3))  # the last page is the same
    return scores


if __name__ == "__main__":
    main()
