"""SL@K in your own PyTorch loop: one import, your model, your optimizer, your sampler.

    python examples/own_loop.py

The loop is the usual one: (user, item) pairs and sampled negatives. Only the lines marked with SL@K are ours.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from topshelf.data import generate, make_split
from topshelf.evaluation import ndcg
from topshelf.losses import SLatK

K = 10


def main(epochs: int = 10) -> float:
    torch.manual_seed(0)
    split = make_split(generate(400, 200, seed=0), kind="ratio", seed=0)
    train = split.train.ragged()
    users, positives = train.owner(), train.indices
    user_table = torch.nn.Embedding(split.n_users, 32)
    item_table = torch.nn.Embedding(split.n_items, 32)
    for table in (user_table, item_table):
        torch.nn.init.normal_(table.weight, std=0.1)
    optimizer = torch.optim.Adam([*user_table.parameters(), *item_table.parameters()], lr=0.02)

    loss = SLatK(split.n_users, k=K, tau=0.2, tau_weight=1.0)  # SL@K: one threshold per user, in a table

    for epoch in range(1, epochs + 1):
        for batch in torch.randperm(len(users)).split(512):
            user, item = users[batch], positives[batch]
            negatives = torch.randint(split.n_items, (len(batch), 100))
            u = F.normalize(user_table(user), dim=1)
            positive = (u * F.normalize(item_table(item), dim=1)).sum(1)
            negative = torch.einsum("bd,bnd->bn", u, F.normalize(item_table(negatives), dim=2))

            value = loss(positive, negative, query=user)  # SL@K

            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        if epoch % 5 == 0:  # SL@K: the thresholds follow the scores every few epochs (the paper's T_beta)
            with torch.no_grad():
                scores = F.normalize(user_table.weight, dim=1) @ F.normalize(item_table.weight, dim=1).T
                loss.threshold.copy_(scores.topk(K).values[:, -1])

    with torch.no_grad():
        queries, items = F.normalize(user_table.weight, dim=1), F.normalize(item_table.weight, dim=1)
        score = ndcg(queries, items, split.valid.ragged(), train, K)
    print(f"validation NDCG@{K}: {score:.4f}")
    return score


if __name__ == "__main__":
    main()
