"""A loss: the squared hinge over drawn negatives."""

from __future__ import annotations

import torch
from torch import Tensor

from topshelf.losses import Loss
from topshelf.losses.base import Reduction, margins, mean_over, negative_weights, owners


def squared_hinge_loss(
    positive: Tensor,
    negative: Tensor,
    owner: Tensor | None = None,
    *,
    margin: float = 0.5,
    mask: Tensor | None = None,
    log_q: Tensor | None = None,
) -> Tensor:
    r"""Squared hinge: a positive must be above each negative by a margin.

    .. math:: \frac{1}{N} \sum_j \max(0, s_j - s_i + m)^2

    Shapes: positive s_i (P,); negative s_j (Q, N); owner (P,); mask (Q, N); log_q (N,) or (Q, N); returns (P,).
    Settings: ``margin`` m, in units of the scores.
    Use when: easy negatives should cost nothing at all.   Cost: O(PN).
    """
    owner = owners(positive, negative.size(0), owner)
    over = (margins(positive, negative, owner) + margin).clamp(min=0)  # (P, N)
    weights = negative_weights(negative, mask, log_q)  # (Q, N): 0 where masked, less where drawn more often
    return mean_over(over.square(), torch.nn.functional.embedding(owner, weights))


class SquaredHinge(Loss):
    """Module form of :func:`squared_hinge_loss`."""

    formula = staticmethod(squared_hinge_loss)

    def __init__(self, *, margin: float = 0.5, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin
