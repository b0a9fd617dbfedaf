"""SL@K for users who are too many for a table: thresholds of the batch, and a loss without state.

    python examples/many_users.py

The model has no table of users either: a user's vector is made of the items they have. Each batch scores its users
against a sample of the catalogue, and ``weighted_thresholds`` estimates from that sample where each user's top K of the
whole catalogue begins. Nothing is kept between two batches, so any number of users may pass.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topshelf.data import generate, make_split
from topshelf.evaluation import ndcg
from topshelf.losses import SLatK
from topshelf.ragged import Ragged
from topshelf.thresholds import weighted_thresholds

K, N_SAMPLED = 10, 100


class FromHistory(nn.Module):
    """Stands for your model: users by what they have, items by a table."""

    def __init__(self, n_items: int, dim: int = 32) -> None:
        super().__init__()
        self.read, self.item = nn.EmbeddingBag(n_items, dim, mode="sum"), nn.Embedding(n_items, dim)

    def users(self, histories: Ragged) -> Tensor:
        return F.normalize(self.read(histories.indices, histories.indptr[:-1]), dim=1)

    def items(self) -> Tensor:
        return F.normalize(self.item.weight, dim=1)


def halves(lists: Ragged) -> tuple[Ragged, Ragged]:
    """Each user's items in two at random: those that describe the user, and those to be ranked."""
    owner, is_read = lists.owner(), torch.rand(len(lists.indices)) < 0.5
    parts = []
    for kept in (is_read, ~is_read):
        counts = torch.bincount(owner[kept], minlength=len(lists))
        parts.append(Ragged(F.pad(counts.cumsum(0), (1, 0)), lists.indices[kept]))
    return parts[0], parts[1]


def main(epochs: int = 15) -> tuple[float, float]:
    torch.manual_seed(0)
    split = make_split(generate(400, 200, seed=0), kind="ratio", seed=0)
    train = split.train.ragged()
    model = FromHistory(split.n_items)
    loss = SLatK(k=K, tau=0.2, tau_weight=1.0)  # no n_queries: no table
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    @torch.no_grad()
    def evaluate() -> float:
        return ndcg(model.users(train), model.items(), split.valid.ragged(), train, K)

    before = evaluate()
    for _ in range(epochs):
        for rows in torch.randperm(len(train)).split(100):
            lists = train.select(rows)  # of users whom nobody needs to have seen before
            history, wanted = halves(lists)
            owner = wanted.owner()
            sampled = torch.randperm(split.n_items)[:N_SAMPLED]
            is_positive = torch.zeros(len(rows), split.n_items, dtype=torch.bool)
            is_positive[lists.owner(), lists.indices] = True
            mask = is_positive[:, sampled]

            users, items = model.users(history), model.items()
            positive, negative = (users[owner] * items[wanted.indices]).sum(1), users @ items[sampled].T
            threshold = weighted_thresholds(  # of this batch
                positive, negative, owner, K, n_negatives=split.n_items - lists.counts, mask=mask
            )
            value = loss(positive, negative, owner, mask=mask, threshold=threshold)

            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    after = evaluate()

    print(f"validation NDCG@{K}: {before:.4f} before training, {after:.4f} after")
    assert after > 3 * before, "it learned nothing"
    return before, after


if __name__ == "__main__":
    main()
