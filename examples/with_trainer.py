"""Our trainer with any loss: by name, with settings, evaluated on the same split.

    python examples/with_trainer.py

On the command line the same is `topshelf train --data clicks.csv --loss psl --set loss.tau=0.1 --out runs/psl`.
"""

from __future__ import annotations

import topshelf
from topshelf.config import assemble
from topshelf.data import Dataset, generate, make_split

K = 10
LOSSES = {
    "SL@K": {"name": "slatk", "tau": 0.2, "tau_weight": 1.0},  # its k is the run's
    "PSL": {"name": "psl", "tau": 0.1, "activation": "tanh"},
    "LLPAUC": {"name": "llpauc", "alpha": 0.7, "beta": 0.1},  # a min-max: the loss has parameters of its own
}


def main(epochs: int = 10) -> dict[str, float]:
    # For your own data: assemble(data="clicks.csv", ...) or the name of a dataset, and no Dataset.
    dataset = Dataset("generated", make_split(generate(400, 200, seed=0), kind="ratio", seed=0))
    train = {"epochs": epochs, "learning_rate": 0.05, "validate_every": 5}
    scores = {}
    for label, loss in LOSSES.items():
        config = assemble(k=K, seed=0, more={"loss": loss, "train": train, "evaluate": {"cutoffs": [K]}})
        fitted = topshelf.fit(config, dataset)  # out="runs/psl" would keep the run in a folder
        scores[label] = fitted.evaluate().mean()[f"ndcg@{K}"]
    popularity = topshelf.fit(assemble(k=K, model="popularity", more={"evaluate": {"cutoffs": [K]}}), dataset)
    scores["popularity"] = popularity.evaluate().mean()[f"ndcg@{K}"]
    for label, score in scores.items():
        print(f"{label:<12}test NDCG@{K}: {score:.4f}")
    return scores


if __name__ == "__main__":
    main()
