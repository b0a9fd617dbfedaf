"""Rank documents: a file of queries with features and grades becomes a model that scores new queries.

    python examples/ranking.py

The data are made here; with your own file, `Ranker(...).fit("queries.txt")` is all. The Transformer sees the documents
of a query together, which these data need. On most tables of features try `model="lambdamart"` first (`pip install
'topshelf[ranking]'`).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from topshelf import Ranker, compare


def write_queries(path: Path, n_queries: int, seed: int) -> None:
    """SVMlight text: `grade qid:N 1:value 2:value ...`. What counts is how a document compares with its rivals."""
    rng = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8") as file:
        for query in range(n_queries):
            features = rng.normal(size=(rng.integers(5, 15), 6)) + 2 * rng.normal(size=6)
            odd = np.abs(features[:, 0] - features[:, 0].mean())  # how unlike its rivals a document is
            signal = features[:, 1] - features[:, 1].mean() + 2 * (odd - odd.mean())
            grades = np.clip(signal.round(), 0, 3).astype(int)
            for grade, row in zip(grades, features, strict=True):
                values = " ".join(f"{place + 1}:{value:.4f}" for place, value in enumerate(row))
                file.write(f"{grade} qid:{query} {values}\n")


def main(epochs: int = 25) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        queries, new = Path(folder) / "queries.txt", Path(folder) / "new.txt"
        write_queries(queries, 150, seed=0)
        write_queries(new, 3, seed=1)
        train = {"epochs": epochs, "learning_rate": 0.005}
        ranker = Ranker(k=5, model={"name": "transformer", "dim": 32, "hidden": 64}, loss="slatk", train=train)
        ranker.fit(queries, out=Path(folder) / "run")

        again = Ranker.load(Path(folder) / "run")  # needs no training data
        print(again.rank(new, k=3))

        evaluation = ranker.evaluate()
        linear = Ranker(k=5, model="linear_ranker", loss="softmax", train=train).fit(queries)
        found, other = evaluation.mean()["ndcg@5"], linear.evaluate().mean()["ndcg@5"]
        print(f"NDCG@5 on test queries: Transformer with SL@5 {found:.3f}, linear with softmax {other:.3f}")
        result = compare(evaluation, linear.evaluate(), "ndcg@5")
        print(f"difference {result.difference:+.3f}, p = {result.p_value:.3f}, {result.n} queries")
    return found, other


if __name__ == "__main__":
    main()
