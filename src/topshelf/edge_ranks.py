"""The rank of a positive among its negatives, and metrics of ranks where one thing is to be found.

Ties are shared: the rank is the mean of the optimistic and the pessimistic one, 1 + (#above + #not below) / 2, as in
OGB and HeaRT, so it may end in one half. A model that gives every pair the same score has the rank of a coin.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from topshelf.errors import DataError


def edge_ranks(positive: Tensor, negative: Tensor) -> Tensor:
    """Ranks from 1 on, (E,) float64, of positive scores (E,) among those of their negatives (E, N)."""
    if positive.dim() != 1 or negative.dim() != 2 or negative.size(0) != positive.numel():
        raise DataError(
            f"positive must be (E,) and negative (E, N), got {tuple(positive.shape)} and {tuple(negative.shape)}"
        )
    if bool(positive.isnan().any()) or bool(negative.isnan().any()):
        raise DataError("scores must be numbers, got NaN: the model has diverged")
    level = positive.unsqueeze(1)
    above, not_below = (negative > level).sum(1), (negative >= level).sum(1)
    return 1 + (above + not_below).double() / 2


def rank_metrics(ranks: Tensor, cutoffs: Sequence[int]) -> dict[str, Tensor]:
    """MRR, and Hits and NDCG at each cutoff, one value per edge, (E,) float64 each.

    Hits@k is 1 where the rank is at most k. NDCG@k is 1 / log2(1 + rank) there: one thing is to be found.
    """
    metrics = {"mrr": 1 / ranks}
    for k in cutoffs:
        is_hit = (ranks <= k).double()
        metrics[f"hits@{k}"] = is_hit
        metrics[f"ndcg@{k}"] = is_hit / torch.log2(1 + ranks)
    return metrics
