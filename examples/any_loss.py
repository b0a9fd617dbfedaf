"""One PyTorch loop for every loss, also those that have state, parameters of their own, or parts that train in turn.

    python examples/any_loss.py song_at_k

Batches are ragged: some users with all their positives, so a user's negatives are scored once. The lines marked with
"loss:" are all that any loss asks for; one that needs less ignores the rest.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf.data import generate, make_split
from topshelf.evaluation import ndcg
from topshelf.losses import LOSSES, Loss

K = 10


def build(name: str, sizes: dict[str, int], **settings: Any) -> Loss:
    """A loss by name, with the sizes that its constructor asks for: it keeps something of that size."""
    wanted = inspect.signature(LOSSES[name]).parameters
    return LOSSES[name](**{key: size for key, size in sizes.items() if key in wanted}, **settings)


def main(name: str = "advinfonce", epochs: int = 10, **settings: Any) -> float:
    torch.manual_seed(0)
    split = make_split(generate(400, 200, seed=0), kind="ratio", seed=0)
    train = split.train.ragged()
    positives = torch.zeros(split.n_users, split.n_items, dtype=torch.bool)
    positives[train.owner(), train.indices] = True
    users, items = torch.nn.Embedding(split.n_users, 32), torch.nn.Embedding(split.n_items, 32)
    torch.nn.init.normal_(users.weight, std=0.1)
    torch.nn.init.normal_(items.weight, std=0.1)

    sizes = {"n_queries": split.n_users, "n_items": split.n_items, "n_positives": len(train.indices)}
    loss = build(name, sizes, **settings)
    is_cosine = loss.defaults.score == "cosine"

    def vectors(table: Tensor) -> Tensor:
        return F.normalize(table, dim=1) if is_cosine else table

    rate = 0.05
    groups = [{"params": [users.weight, items.weight]}, *loss.parameter_groups(rate)]  # loss: its own parameters
    optimizer = torch.optim.Adam(groups, lr=rate)

    for epoch in range(1, epochs + 1):
        loss.begin_epoch(epoch)  # loss: which of its parts trains
        for query in torch.randperm(split.n_users).split(100):
            batch = train.select(query)
            owner, item = batch.owner(), batch.indices
            drawn = torch.randperm(split.n_items)[:100]
            u, v = vectors(users(query)), vectors(items.weight)
            value = loss(
                (u[owner] * v[item]).sum(1),
                u @ v[drawn].T,
                owner,
                mask=positives[query][:, drawn],  # drawn, but positives of the user
                query=query,  # loss: state of queries
                pair=train.indptr[query][owner] + torch.arange(len(item)) - batch.indptr[owner],  # loss: of positives
                negative_item=drawn,  # loss: state of items
                query_vector=u,
                item_vector=v[item],
            )
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        if loss.keeps_thresholds and epoch % 5 == 0:  # loss: it has thresholds that the loop updates
            with torch.no_grad():
                loss.threshold.copy_((vectors(users.weight) @ vectors(items.weight).T).topk(loss.k).values[:, -1])

    with torch.no_grad():
        score = ndcg(vectors(users.weight), vectors(items.weight), split.valid.ragged(), train, K)
    print(f"{name}: validation NDCG@{K} {score:.4f}")
    return score


if __name__ == "__main__":
    main(*sys.argv[1:2])
