"""Lambda losses: pairs of a positive and a negative, weighted by the ranks of the two.

The exact forms need the whole catalogue as negatives. The -S forms (``n_items``) rank a sample and scale the ranks up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf.errors import at_least, one_of
from topshelf.losses.base import FOR_DOT_PRODUCTS, Defaults, Loss, Reduction, counted, margins
from topshelf.losses.ranks import ranks

LambdaForm = Literal["paper", "released"]
SAMPLED = Defaults(score="dot", negatives="per_query")  # of the -S forms


def lambda_weights(rank_i: Tensor, rank_j: Tensor, *, k: int | None = None, form: LambdaForm = "paper") -> Tensor:
    r"""Weights μ of LambdaLoss@K over pairs of ranks, which broadcast; without ``k`` those of LambdaLoss, η.

    .. math:: \eta = \frac{1}{\log_2(\delta + 1)} - \frac{1}{\log_2(\delta + 2)}, \quad
              \delta = |\pi_i - \pi_j|; \qquad
              \mu = \eta \left(1 - \frac{1}{\log_2(\pi + 1)}\right)^{-1} \text{if } \pi = \max(\pi_i, \pi_j) > K

    ``form="released"`` is the authors' code: 1/log2(δ + 1) for η, and 1 - 1/π in the brackets. Equal ranks count as
    neighbours, δ = 1. ``lambda_weights(r.unsqueeze(1), r, k=5)`` with ranks r from 1 to 20 is the table of
    the paper's figure.
    """
    apart = (rank_i - rank_j).abs().clamp(min=1)
    weights = 1 / torch.log2(apart + 1)
    if form == "paper":
        # Over a common denominator: the difference itself is lost to rounding at ranks of 1e5 in float32.
        weights = weights * torch.log1p(1 / (apart + 1)) / torch.log(apart + 2)
    if k is None:
        return weights
    lower = torch.maximum(rank_i, rank_j)
    # Of two items one is second at best; scaled ranks could be nearer to 1, where the factor has its pole.
    bounded = lower.clamp(min=2)
    discount = torch.log2(bounded + 1) if form == "paper" else bounded
    return torch.where(lower > k, weights / (1 - 1 / discount), weights)


def _swap_weights(rank_i: Tensor, rank_j: Tensor) -> Tensor:
    return (1 / torch.log2(1 + rank_i) - 1 / torch.log2(1 + rank_j)).abs()


def _weighted_pairs(
    weigh: Callable[[Tensor, Tensor], Tensor],
    positive: Tensor,
    negative: Tensor,
    owner: Tensor | None,
    n_items: int | None,
    query: Tensor | None,
    mask: Tensor | None,
    log_q: Tensor | None,
) -> Tensor:
    owner, of_negatives = counted(positive, negative, owner, mask, log_q)
    rank_i, rank_j = ranks(positive, negative, owner, query=query, mask=mask, n_items=n_items)
    with torch.no_grad():
        weights = weigh(rank_i.unsqueeze(1), rank_j[owner]) * of_negatives[owner]
    return (weights * F.softplus(margins(positive, negative, owner))).sum(1)


def lambdarank_loss(
    positive: Tensor,
    negative: Tensor,
    owner: Tensor | None = None,
    *,
    n_items: int | None = None,
    query: Tensor | None = None,
    mask: Tensor | None = None,
    log_q: Tensor | None = None,
) -> Tensor:
    r"""Pairwise logistic loss weighted by how much swapping the pair would change DCG.

    .. math:: \sum_j \left|\frac{1}{\log_2(1 + \pi_i)} - \frac{1}{\log_2(1 + \pi_j)}\right| \log(1 + e^{s_j - s_i})

    Shapes: positive s_i (P,); negative s_j (Q, N), the whole catalogue for exact ranks π; owner (P,), default one
        query per positive; query (Q,), rows of the same query are ranked with each other's positives; mask (Q, N), True
        where a negative does not count, nor in the ranks; log_q (N,) or (Q, N), 0 for a uniform draw, else the sum,
        not the ranks, is weighted by 1/q; returns (P,), unreduced. A positive without negatives costs 0.
    Settings: with ``n_items`` \|I\| the negatives are a uniform sample, and ranks are scaled up to the catalogue
        (``LambdaRankS``); default none, for exact ranks.
    Use when: a classic of learning to rank is needed as a baseline.   Cost: O(PN + QN log N); no gradient of ranks.
    Paper: Burges et al., Learning to rank with nonsmooth cost functions, NIPS 2006. The SL@K authors' code draws one
        negative per positive; here the sum runs over all that are given.
    Relations: N times ``bpr_loss`` if all weights were one.
    """
    return _weighted_pairs(_swap_weights, positive, negative, owner, n_items, query, mask, log_q)


def lambdaloss_loss(
    positive: Tensor,
    negative: Tensor,
    owner: Tensor | None = None,
    *,
    n_items: int | None = None,
    form: LambdaForm = "paper",
    query: Tensor | None = None,
    mask: Tensor | None = None,
    log_q: Tensor | None = None,
) -> Tensor:
    r"""Pairwise logistic loss weighted by how close the ranks of a pair are.

    .. math:: \sum_j \left(\frac{1}{\log_2(\delta_{ij} + 1)} - \frac{1}{\log_2(\delta_{ij} + 2)}\right)
              \log(1 + e^{s_j - s_i}), \qquad \delta_{ij} = \max(1, |\pi_i - \pi_j|)

    Shapes: as ``lambdarank_loss``; π_i (P,) and π_j (Q, N) are the ranks of positive s_i and negative s_j.
    Settings: ``form="released"`` weights by 1/log2(δ + 1), as the SL@K authors' code does (there ties are infinite);
        ``n_items`` as in ``lambdarank_loss`` (``LambdaLossS``).
    Use when: a bound of NDCG over the whole list is needed; the weights of pairs that are far apart vanish.
    Cost: O(PN + QN log N); no gradient of ranks.
    Paper: Wang et al., The LambdaLoss framework for ranking metric optimization, CIKM 2018; SL@K, appendix A.
    Relations: ``lambdaloss_at_k_loss`` with K at least the number of items.
    """
    return _weighted_pairs(partial(lambda_weights, form=form), positive, negative, owner, n_items, query, mask, log_q)


def lambdaloss_at_k_loss(
    positive: Tensor,
    negative: Tensor,
    owner: Tensor | None = None,
    *,
    n_items: int | None = None,
    k: int,
    form: LambdaForm = "paper",
    query: Tensor | None = None,
    mask: Tensor | None = None,
    log_q: Tensor | None = None,
) -> Tensor:
    r"""LambdaLoss with a larger weight for pairs of which one is ranked below the first K places.

    .. math:: \sum_j \mu_{ij} \log(1 + e^{s_j - s_i}), \qquad \mu_{ij} = \begin{cases}
              \eta_{ij} \left(1 - 1/\log_2(\pi_{ij} + 1)\right)^{-1} & \pi_{ij} = \max(\pi_i, \pi_j) > K \\
              \eta_{ij} & \text{otherwise} \end{cases}

    Shapes: as ``lambdarank_loss``; η, the weights of ``lambdaloss_loss``, from the ranks π_i (P,) and π_j (Q, N).
    Settings: ``form="released"``: the SL@K authors' code has 1/(1 - 1/π_ij) for the factor, 1/log2(δ + 1) for η;
        ``n_items`` as in ``lambdarank_loss`` (``LambdaLossAtKS``).
    Use when: the metric is NDCG@K and the catalogue is small; SL@K is meant to replace it.
    Cost: O(PN + QN log N); no gradient of ranks.
    Paper: Jagerman et al., On optimizing top-K metrics for neural ranking models, SIGIR 2022; SL@K, appendix A.
    Relations: ``lambdaloss_loss`` where K is at least the number of items. ``lambda_weights`` has μ alone.
    """
    weigh = partial(lambda_weights, k=k, form=form)
    return _weighted_pairs(weigh, positive, negative, owner, n_items, query, mask, log_q)


class LambdaRank(Loss):
    """Module form of :func:`lambdarank_loss`."""

    formula = staticmethod(lambdarank_loss)
    ranges = FOR_DOT_PRODUCTS
    needs = ("negative", "whole_queries")
    defaults = Defaults(score="dot", negatives="catalogue")
    pair_copies = 20
    n_items: int | None = None

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)


class LambdaLoss(LambdaRank):
    """Module form of :func:`lambdaloss_loss`."""

    formula: ClassVar[Callable[..., Tensor]] = staticmethod(lambdaloss_loss)

    def __init__(self, *, form: LambdaForm = "paper", reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.form: LambdaForm = one_of("form", form, get_args(LambdaForm))


class LambdaLossAtK(LambdaLoss):
    """Module form of :func:`lambdaloss_at_k_loss`."""

    formula = staticmethod(lambdaloss_at_k_loss)

    def __init__(self, k: int = 20, *, form: LambdaForm = "paper", reduction: Reduction = "mean") -> None:
        super().__init__(form=form, reduction=reduction)
        self.k = at_least("k", k, 1)


class LambdaRankS(LambdaRank):
    r"""LambdaRank with the ranks of a sample scaled up to the catalogue (-S).

    .. math:: \sum_j \left|\frac{1}{\log_2(1 + \hat\pi_i)} - \frac{1}{\log_2(1 + \hat\pi_j)}\right|
              \log(1 + e^{s_j - s_i}), \qquad \hat\pi = \pi^* \frac{|I|}{|P_u| + N}

    Shapes: as ``lambdarank_loss``; negative s_j (Q, N), a uniform sample; n_items |I|; π* is the rank among the |P_u|
        positives of the query that are in the batch and its N negatives.
    Use when: the catalogue is too large to rank.   Cost: O(PN + QN log N); no gradient of ranks.
    Paper: SL@K, appendix C.4, after Weston et al., Large scale image annotation, 2010.
    Relations: ``lambdarank_loss`` when the whole catalogue is given; else ranks are off by about |I|/2N.
    """

    defaults = SAMPLED

    def __init__(self, n_items: int, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.n_items = at_least("n_items", n_items, 1)


class LambdaLossS(LambdaLoss):
    r"""LambdaLoss with the ranks of a sample scaled up to the catalogue (-S).

    .. math:: \sum_j \eta(\hat\pi_i, \hat\pi_j) \log(1 + e^{s_j - s_i}), \qquad \hat\pi = \pi^* \frac{|I|}{|P_u| + N}

    Shapes: as :class:`LambdaRankS`; η (P, N), the weights of ``lambdaloss_loss``.
    Settings: ``form`` as in ``lambdaloss_loss``.
    Use when: the catalogue is too large to rank. The largest weights, of near pairs, are what sampling gets wrong.
    Cost: O(PN + QN log N); no gradient of ranks.
    Paper: SL@K, appendix C.4.   Relations: ``lambdaloss_loss`` when the whole catalogue is given.
    """

    defaults = SAMPLED

    def __init__(self, n_items: int, *, form: LambdaForm = "paper", reduction: Reduction = "mean") -> None:
        super().__init__(form=form, reduction=reduction)
        self.n_items = at_least("n_items", n_items, 1)


class LambdaLossAtKS(LambdaLossAtK):
    r"""LambdaLoss@K with the ranks of a sample scaled up to the catalogue (-S).

    .. math:: \sum_j \mu(\hat\pi_i, \hat\pi_j) \log(1 + e^{s_j - s_i}), \qquad \hat\pi = \pi^* \frac{|I|}{|P_u| + N}

    Shapes: as :class:`LambdaRankS`; μ (P, N), the weights of ``lambdaloss_at_k_loss``.
    Settings: ``k`` and ``form`` as in ``lambdaloss_at_k_loss``.
    Use when: the catalogue is too large to rank; the paper measures over 30% less than with the exact form.
    Cost: O(PN + QN log N); no gradient of ranks.
    Paper: SL@K, appendix C.4.   Relations: ``lambdaloss_at_k_loss`` when the whole catalogue is given.
    """

    defaults = SAMPLED

    def __init__(self, n_items: int, k: int = 20, *, form: LambdaForm = "paper", reduction: Reduction = "mean") -> None:
        super().__init__(k, form=form, reduction=reduction)
        self.n_items = at_least("n_items", n_items, 1)
