"""From a table of clicks to recommendations, in Python.

python examples/in_python.py
"""

from __future__ import annotations

import polars as pl

from topshelf import Recommender


def main() -> pl.DataFrame:
    # Or any polars or pandas frame, CSV, Parquet or SciPy matrix; ids may be strings.
    clicks = pl.DataFrame(
        {
            "user": [f"user-{u}" for u in range(200) for _ in range(6)],
            "item": [f"item-{u % 10 * 10 + (u // 10 * 3 + i * 7) % 10}" for u in range(200) for i in range(6)],
        }
    )
    recommender = Recommender(k=5, seed=0, train={"epochs": 30}, evaluate={"cutoffs": [5]}).fit(clicks)
    print(recommender.recommend(["user-0", "user-1"], k=3))
    print(recommender.similar_items(["item-0"], k=3))
    print({name: round(value, 4) for name, value in recommender.evaluate().mean().items()})
    return recommender.recommend(["user-0"], k=3)


if __name__ == "__main__":
    main()
