"""Pointwise losses: each score is classified by itself (BCE, gBCE)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from topshelf.errors import at_least, at_most
from topshelf.losses.base import FOR_DOT_PRODUCTS, Defaults, Loss, Reduction, counted, mean_over, widened, zero_unless


def bce_loss(
    positive: Tensor,
    negative: Tensor,
    owner: Tensor | None = None,
    *,
    balanced: bool = True,
    mask: Tensor | None = None,
    log_q: Tensor | None = None,
) -> Tensor:
    r"""Binary cross-entropy: each positive against the mean of its query's negatives.

    .. math:: -\log \sigma(s_i) - \operatorname{mean}_j \log(1 - \sigma(s_j)), \qquad \sigma(x) = 1 / (1 + e^{-x})

    Shapes: positive s_i (P,); negative s_j (Q, N); owner (P,), default one query per positive; mask (Q, N), True where
        a negative does not count; log_q (N,) or (Q, N), 0 for a uniform draw, else negatives are weighted by 1/q;
        returns (P,), unreduced. A positive without negatives costs 0, as in every loss here, its own term included.
    Settings: ``balanced`` gives the two sides equal weight whatever N is; False takes the sum over negatives, the
        cross-entropy of all N + 1 scores, as in neural collaborative filtering.
    Use when: scores should be logits; for ranking alone most other losses do better.
    Cost: O(QN + P).   Paper: He et al., Neural collaborative filtering, WWW 2017.
    Relations: ``gbce_loss`` with t = 0 is the sum over N + 1; ``bpr_loss`` compares the two instead.
    """
    owner, weights = counted(positive, negative, owner, mask, log_q)
    costs = F.softplus(widened(negative))
    refused = mean_over(costs, weights) if balanced else (costs * weights).sum(-1)  # (Q,)
    losses = F.softplus(-widened(positive)) + refused.index_select(0, owner)
    return zero_unless((weights > 0).any(-1)[owner], losses)


def gbce_loss(
    positive: Tensor,
    negative: Tensor,
    owner: Tensor | None = None,
    *,
    n_items: int,
    t: float = 0.75,
    average: bool = True,
    mask: Tensor | None = None,
    log_q: Tensor | None = None,
) -> Tensor:
    r"""Binary cross-entropy with a smaller weight of the positive, the fewer items are drawn as negatives.

    .. math:: -\frac{1}{N + 1} \Bigl( \beta \log \sigma(s_i) + \sum_j \log(1 - \sigma(s_j)) \Bigr), \qquad
              \beta = \alpha \bigl( t (1 - 1/\alpha) + 1/\alpha \bigr), \quad \alpha = \frac{N}{|I| - 1}

    Shapes: positive s_i (P,); negative s_j (Q, N); owner (P,), default one query per positive; mask (Q, N), True where
        a negative does not count: N is then the number of those that do; log_q (N,) or (Q, N), 0 for a uniform draw,
        else the terms of the sum are weighted by 1/q; returns (P,), unreduced. A positive without negatives costs 0.
    Settings: ``n_items`` \|I\|; ``t`` from 0, plain cross-entropy, to 1, probabilities as if nothing had been
        sampled; ``average`` False leaves out the 1/(N + 1). α is at most 1, also when N exceeds the catalogue.
    Use when: negatives are few and the scores at the top of the list are overconfident.
    Cost: O(QN + P).
    Paper: Petrov and Macdonald, gSASRec: reducing overconfidence in sequential recommendation trained with negative
        sampling, RecSys 2023, with t = 0.75 and N = 256.
    Relations: t = 0, or every other item as a negative, gives ``bce_loss`` with balanced=False over N + 1.
    """
    owner, weights = counted(positive, negative, owner, mask, log_q)
    refused = (F.softplus(widened(negative)) * weights).sum(-1)  # (Q,)
    n_counted = (weights > 0).sum(-1).to(refused.dtype)  # (Q,)
    alpha = (n_counted / (n_items - 1)).clamp(max=1)
    beta = (1 - t * (1 - alpha)).index_select(0, owner)  # the formula without its division by α
    losses = beta * F.softplus(-widened(positive)) + refused.index_select(0, owner)
    if average:
        losses = losses / (n_counted + 1).index_select(0, owner)
    return zero_unless((weights > 0).any(-1)[owner], losses)


class BCE(Loss):
    """Module form of :func:`bce_loss`."""

    formula = staticmethod(bce_loss)
    ranges = FOR_DOT_PRODUCTS
    defaults = Defaults(score="dot", n=4)  # 4 as in the paper's experiments

    def __init__(self, *, balanced: bool = True, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.balanced = balanced


class GBCE(Loss):
    """Module form of :func:`gbce_loss`; ``n_items`` is the size of the catalogue."""

    formula = staticmethod(gbce_loss)
    ranges = FOR_DOT_PRODUCTS | {"loss.t": (0.0, 0.25, 0.5, 0.75, 1.0)}
    defaults = Defaults(score="dot", n=256)

    def __init__(self, n_items: int, *, t: float = 0.75, average: bool = True, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.n_items = at_least("n_items", n_items, 2)
        self.t = at_most("t", at_least("t", t, 0.0), 1.0)
        self.average = average
