"""Several models on the same split, and recommendations for users who came after training.

    python examples/any_model.py

On the command line the first is `topshelf train --data clicks.csv --model lightgcn --out runs/lightgcn`.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

import topshelf
from topshelf.catalogue import top_k
from topshelf.config import assemble
from topshelf.data import Dataset, generate, make_split
from topshelf.models import MODELS
from topshelf.queries import QuerySet
from topshelf.ragged import Ragged
from topshelf.training import Fitted

K = 10


def fitted(name: str) -> Fitted:
    # For your own data: assemble(data="clicks.csv", ...) or the name of a dataset, and no Dataset.
    dataset = Dataset("generated", make_split(generate(400, 200, seed=0), kind="ratio", seed=0))
    train = {"epochs": 10, "learning_rate": 0.05}  # models in closed form use neither this nor the loss
    return topshelf.fit(assemble(k=K, model=name, loss="slatk", more={"train": train}), dataset)


def main(names: Iterable[str] = MODELS) -> dict[str, float]:
    scores = {name: fitted(name).evaluate().mean()[f"ndcg@{K}"] for name in names}
    for name, score in scores.items():
        print(f"{name:<12}test NDCG@{K}: {score:.4f}")
    return scores


def for_new_users(run: Fitted, histories: Ragged) -> Tensor:
    """The best items (N, K) of N users who were not in training and have these items.

    With your own ids, and a table as the answer: ``Recommender.of(run).recommend_new([["i5", "i40"], ["i7"]])``.
    """
    queries, items = run.model.encode_queries(QuerySet(history=histories)), run.model.encode_items()
    return top_k(queries, items, K, exclude=histories)[1]


if __name__ == "__main__":
    main()
    print(
        for_new_users(fitted("ease"), Ragged(torch.tensor([0, 2, 3]), torch.tensor([5, 40, 7])))
    )  # two items, and one
