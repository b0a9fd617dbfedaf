"""Pairwise losses: BPR."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf.errors import ConfigError
from topshelf.losses.base import Loss, Reduction, owners, reduce, widened


def bpr_loss(
    positive: Tensor,
    negative: Tensor,
    owner: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    log_q: Tensor | None = None,
) -> Tensor:
    r"""Bayesian personalised ranking, averaged over the negatives of each positive.

    .. math:: \operatorname{mean}_j \log(1 + \exp(s_j - s_i))

    Shapes: positive s_i (P,); negative s_j (Q, N); owner (P,), default one query a positive; mask (Q, N), True where
        a negative does not count; log_q (N,) or (Q, N), 0 for a uniform draw, else the mean is weighted by 1/q;
        returns (P,), unreduced. A positive without negatives costs 0.
    Use when: a classic baseline is wanted; scores are usually plain dot products.   Cost: O(PN).
    Paper: Rendle et al., BPR, UAI 2009.   Relations: the mean, not the log of a sum, over negatives.
    """
    owner = owners(positive, negative.size(0), owner)
    # F.embedding, not indexing: its backward pass adds in a fixed order.
    margins = F.embedding(owner, widened(negative)) - widened(positive).unsqueeze(1)  # (P, N)
    weights = torch.ones_like(negative, dtype=margins.dtype)
    if log_q is not None:
        weights = weights * torch.exp(-log_q)
    if mask is not None:
        weights = weights.masked_fill(mask, 0.0)
    weights = weights[owner]
    total = weights.sum(1)
    return (F.softplus(margins) * weights).sum(1) / torch.where(total > 0, total, torch.ones_like(total))


class BPR(Loss):
    """Module form of :func:`bpr_loss`."""

    preferred_score = "dot"
    n_negatives = 1

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)

    def forward(
        self,
        positive: Tensor,
        negative: Tensor | None = None,
        owner: Tensor | None = None,
        *,
        query: Tensor | None = None,  # noqa: ARG002  keeps no state of queries
        mask: Tensor | None = None,
        log_q: Tensor | None = None,
        log_partition: Tensor | None = None,
    ) -> Tensor:
        if negative is None or log_partition is not None:
            raise ConfigError("BPR needs the scores of negatives (Q, N); a log_partition does not determine it")
        return reduce(bpr_loss(positive, negative, owner, mask=mask, log_q=log_q), self.reduction)
