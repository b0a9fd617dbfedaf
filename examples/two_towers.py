"""Two towers with in-batch negatives: the mask and the popularity correction from one (B, B) matrix of scores.

    python examples/two_towers.py

A batch is B (user, item) pairs. The two towers give B vectors each, and their product gives all scores at once: the
diagonal holds the positives, and the other items of the batch are each user's negatives. Two things have to be said of
them. Some are positives of the user as well (``mask``). And an item is in the batch as often as it is popular, so it is
seen as a negative as often (``log_q``).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topshelf.data import generate, make_split
from topshelf.evaluation import ndcg
from topshelf.losses import SampledSoftmax

K, BATCH = 10, 256


class Tower(nn.Module):
    """Stands for your tower: anything that turns ids or features into vectors."""

    def __init__(self, n: int, dim: int = 32) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(n, dim), nn.Linear(dim, dim)

    def forward(self, index: Tensor) -> Tensor:
        rows = self.embedding(index)
        return F.normalize(rows + self.layer(rows), dim=1)


def main(epochs: int = 15) -> tuple[float, float]:
    torch.manual_seed(0)
    split = make_split(generate(400, 200, seed=0), kind="ratio", seed=0)
    train = split.train.ragged()
    users, items = train.owner(), train.indices  # the pairs, (P,) each
    is_positive = torch.zeros(split.n_users, split.n_items, dtype=torch.bool)
    is_positive[users, items] = True
    popularity = torch.bincount(items, minlength=split.n_items) / len(items)  # how likely a pair brings the item

    user_tower, item_tower = Tower(split.n_users), Tower(split.n_items)
    loss = SampledSoftmax(tau=0.1)
    optimizer = torch.optim.Adam([*user_tower.parameters(), *item_tower.parameters()], lr=0.01)

    @torch.no_grad()
    def evaluate() -> float:
        queries, catalogue = user_tower(torch.arange(split.n_users)), item_tower(torch.arange(split.n_items))
        return ndcg(queries, catalogue, split.valid.ragged(), train, K)

    before = evaluate()
    for _ in range(epochs):
        for batch in torch.randperm(len(users)).split(BATCH):
            user, item = users[batch], items[batch]
            scores = user_tower(user) @ item_tower(item).T  # (B, B): row = user, column = item
            value = loss(
                scores.diagonal(),
                scores,
                mask=is_positive[user][:, item],  # the diagonal, and other positives of the user
                log_q=torch.log(len(batch) * popularity[item]),  # how often the item is expected in a batch
            )
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    after = evaluate()

    print(f"validation NDCG@{K}: {before:.4f} before training, {after:.4f} after")
    assert after > 3 * before, "it learned nothing"
    return before, after


if __name__ == "__main__":
    main()
