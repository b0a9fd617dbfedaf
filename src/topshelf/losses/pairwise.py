"""Pairwise losses: BPR."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from topshelf.losses.base import FOR_DOT_PRODUCTS, Defaults, Loss, Reduction, counted, margins, mean_over


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

    Shapes: positive s_i (P,); negative s_j (Q, N); owner (P,), default one query per positive; mask (Q, N), True where
        a negative does not count; log_q (N,) or (Q, N), 0 for a uniform draw, else the mean is weighted by 1/q;
        returns (P,), unreduced. A positive without negatives costs 0.
    Use when: a classic baseline is needed; scores are usually plain dot products.   Cost: O(PN).
    Paper: Rendle et al., BPR, UAI 2009, with one negative per positive, which is also the default of a run
        (``negatives.n``). The SL@K paper's appendix D.4 names 1000 negatives (MovieLens: 200) for all losses that
        sample and makes no exception for BPR: ``negatives.n = 1000`` is that reading.
    Relations: ``softmax_loss`` has the log of a sum over negatives where this has a mean.
    """
    owner, weights = counted(positive, negative, owner, mask, log_q)
    return mean_over(F.softplus(margins(positive, negative, owner)), weights[owner])


class BPR(Loss):
    """Module form of :func:`bpr_loss`."""

    formula = staticmethod(bpr_loss)
    ranges = FOR_DOT_PRODUCTS
    defaults = Defaults(score="dot", n=1)

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
