"""A sequence model with SL@K, in which a position is the query: it is asked for the next item.

    python examples/sequence_model.py

A position occurs once and has no index among all queries, so the loss keeps nothing about it: SL@K is made without
``n_queries`` and is given each position's threshold with the call. The catalogue here is small enough to be scored
whole, so the thresholds are exact. For a large catalogue draw negatives, and estimate the thresholds from them as
many_users.py does.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topshelf.losses import SLatK

N_ITEMS, PADDING, K = 100, 100, 5


class NextItem(nn.Module):
    """Stands for your model: a vector per position, made of the items up to it, and a vector per item."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.item = nn.Embedding(N_ITEMS + 1, dim, padding_idx=PADDING)
        self.gru = nn.GRU(dim, dim, batch_first=True)

    def forward(self, items: Tensor) -> Tensor:
        states, _ = self.gru(self.item(items))  # (B, L, d)
        return F.normalize(states, dim=-1)

    def catalogue(self) -> Tensor:
        return F.normalize(self.item.weight[:N_ITEMS], dim=-1)


def sequences(n: int = 400, length: int = 12) -> Tensor:
    """Sequences (n, length) in which an item mostly decides the next one; the shorter ones are padded at the end."""
    successor, rows = torch.randperm(N_ITEMS), [torch.randint(N_ITEMS, (n,))]
    for _ in range(length - 1):
        is_random = torch.rand(n) < 0.2
        rows.append(torch.where(is_random, torch.randint(N_ITEMS, (n,)), successor[rows[-1]]))
    is_over = torch.arange(length) >= torch.randint(4, length + 1, (n, 1))
    return torch.stack(rows, 1).masked_fill(is_over, PADDING)


def main(epochs: int = 20) -> tuple[float, float]:
    torch.manual_seed(0)
    data = sequences()
    train, held_out = data[:300], data[300:]
    model = NextItem()
    loss = SLatK(k=K, tau=0.1, tau_weight=1.0)  # no n_queries: no table
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    @torch.no_grad()
    def hit_rate() -> float:
        """How often the next item is among the first K, in sequences that were not trained on."""
        is_query = held_out[:, 1:] != PADDING
        best = (model(held_out[:, :-1])[is_query] @ model.catalogue().T).topk(K).indices
        return (best == held_out[:, 1:][is_query].unsqueeze(1)).any(1).float().mean().item()

    before = hit_rate()
    for _ in range(epochs):
        for batch in train[torch.randperm(len(train))].split(64):
            is_query = batch[:, 1:] != PADDING  # (B, L - 1): the positions that have a next item
            target = batch[:, 1:][is_query]  # (Q,)
            scores = model(batch[:, :-1])[is_query] @ model.catalogue().T  # (Q, I)
            value = loss(
                scores.gather(1, target.unsqueeze(1)).squeeze(1),
                scores,
                mask=F.one_hot(target, N_ITEMS).bool(),  # the next item is no negative
                threshold=scores.detach().topk(K).values[:, -1],
            )
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    after = hit_rate()

    print(f"held-out hit rate@{K}: {before:.3f} before training, {after:.3f} after")
    assert after > 3 * before, "it learned nothing"
    return before, after


if __name__ == "__main__":
    main()
