"""Losses of graded lists made from NDCG: LambdaRank, LambdaLoss@K, ApproxNDCG, NeuralNDCG.

The gain of a place of relevance y is 2^y - 1, its discount at rank r is 1 / log2(r + 1). Ranks carry no gradient.
Equal scores are ranked with the less relevant first: the worst case, and independent of the order of places.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf.errors import at_least, one_of, positive
from topshelf.losses.base import FOR_DOT_PRODUCTS, Reduction, zero_unless
from topshelf.losses.listwise import Lists, ListwiseLoss, differences, gains_of, lists_of, ordered_pairs, positives_of

ListwiseForm = Literal["original", "paper"]

# Keeps a column without any mass, at extreme scores, from being divided by 0.
_LEAST_MASS = 1e-10


def ranks_of(lists: Lists) -> Tensor:
    """Rank of each place by score, best 1, equal scores the less relevant first, padding last, (Q, L)."""
    scores = lists.scores.detach().masked_fill(~lists.real, -math.inf)
    by_relevance = lists.relevance.argsort(dim=1, stable=True)
    by_score = scores.gather(1, by_relevance).argsort(dim=1, descending=True, stable=True)
    return by_relevance.gather(1, by_score).argsort(dim=1) + 1


def discounts_at(ranks: Tensor, k: int | None) -> Tensor:
    """1 / log2(rank + 1), and 0 after place K."""
    discounts = 1 / torch.log2(ranks + 1)
    return discounts if k is None else discounts.masked_fill(ranks > k, 0.0)


def _places(lists: Lists) -> Tensor:
    return torch.arange(1, lists.scores.size(1) + 1, dtype=lists.scores.dtype, device=lists.scores.device)


def normalised_gains(lists: Lists, k: int | None) -> Tensor:
    """Gains over the DCG@K of the best order, (Q, L); 0 where nothing is relevant."""
    gains = gains_of(lists.relevance)
    ideal = gains.sort(dim=1, descending=True).values @ discounts_at(_places(lists), k)
    return gains / torch.where(ideal > 0, ideal, torch.ones_like(ideal)).unsqueeze(1)


def _weighted_pairs(lists: Lists, pairs: Tensor, weights: Tensor, tau: float) -> Tensor:
    """Sum over a query's pairs of weight times logistic loss, (Q, L, L) to (Q,)."""
    costs = F.softplus(-differences(lists.scores) / tau)
    return (costs * weights.masked_fill(~pairs, 0.0)).sum((1, 2))


def listwise_lambdarank_loss(
    scores: Tensor, relevance: Tensor, mask: Tensor | None = None, *, k: int | None = None, tau: float = 1.0
) -> Tensor:
    r"""Logistic loss of pairs of different relevance, weighted by how much swapping them would change NDCG.

    .. math:: \sum_{i, j:\, y_i > y_j} |G_i - G_j| \cdot \Big|\frac{1}{D(\pi_i)} - \frac{1}{D(\pi_j)}\Big|
              \log(1 + \exp((s_j - s_i) / \tau)), \qquad
              G_i = \frac{2^{y_i} - 1}{\mathrm{maxDCG}}, \quad D(r) = \log_2(r + 1)

    Shapes: scores s (Q, L), whose ranks are π, without gradient; relevance y (Q, L); mask (Q, L), True where a place
        is padding; returns (Q,), unreduced. A query of one relevance throughout costs 0.
    Settings: ``k``, the cut-off of the NDCG: 1/D is 0 after rank K and maxDCG is of K places; default none. ``tau`` τ,
        one over the publication's slope σ.
    Use when: NDCG is the metric and lists are short enough for all pairs.   Cost: O(QL²).
    Paper: Burges et al., Learning to rank with nonsmooth cost functions, NIPS 2006, which defines its gradient alone;
        as a loss: Wang et al., The LambdaLoss framework for ranking metric optimization, CIKM 2018.
    Relations: ``ranknet_loss`` with weights; ``listwise_lambdaloss_at_k_loss`` has the weights of a proven bound.
    """
    lists = lists_of(scores, relevance, mask)
    discounts = discounts_at(ranks_of(lists).to(lists.scores.dtype), k)
    weights = differences(normalised_gains(lists, k)).abs() * differences(discounts).abs()
    return _weighted_pairs(lists, ordered_pairs(lists.relevance, lists.real), weights, tau)


class ListwiseLambdaRank(ListwiseLoss):
    """Module form of :func:`listwise_lambdarank_loss`."""

    formula = staticmethod(listwise_lambdarank_loss)

    def __init__(self, k: int | None = None, *, tau: float = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.k = None if k is None else at_least("k", k, 1)
        self.tau = positive("tau", tau)


def _lambda_weights(ranks: Tensor, k: int | None) -> Tensor:
    """μ of every pair of ranks, (Q, L) to (Q, L, L); 0 of a place with itself."""
    apart = differences(ranks).abs()
    known = apart.clamp(min=1)  # a place with itself is no pair; 1 keeps it finite
    weights = discounts_at(known, None) - discounts_at(known + 1, None)
    if k is not None:
        lower = torch.maximum(ranks.unsqueeze(2), ranks.unsqueeze(1))  # (Q, L, L), the worse rank of the two
        # No pair's worse rank is 1, where 1 - 1/D is 0.
        scale = 1 / (1 - discounts_at(lower.clamp(min=2), None))
        weights = torch.where(lower > k, weights * scale, weights)
    return weights.masked_fill(apart == 0, 0.0)


def listwise_lambdaloss_at_k_loss(
    scores: Tensor,
    relevance: Tensor,
    mask: Tensor | None = None,
    *,
    k: int | None = 5,
    tau: float = 1.0,
    form: ListwiseForm = "original",
    positive_from: float | None = None,
) -> Tensor:
    r"""Logistic loss of pairs, weighted so that it bounds NDCG@K, or NDCG without a K.

    .. math:: \sum_{i, j:\, y_i > y_j} |G_i - G_j|\, \mu_{ij} \log(1 + \exp((s_j - s_i) / \tau)), \quad
              \mu_{ij} = \begin{cases} \delta_{ij} (1 - 1 / D(\pi_{ij}))^{-1} & \pi_{ij} > K \\
              \delta_{ij} & \text{otherwise} \end{cases}, \quad \pi_{ij} = \max(\pi_i, \pi_j)

    .. math:: \delta_{ij} = \frac{1}{D(|\pi_i - \pi_j|)} - \frac{1}{D(|\pi_i - \pi_j| + 1)}, \quad
              G_i = \frac{2^{y_i} - 1}{\mathrm{maxDCG@}K}, \quad D(r) = \log_2(r + 1)

    Shapes: scores s (Q, L), whose ranks are π, without gradient; relevance y (Q, L); mask (Q, L), True where a place
        is padding; returns (Q,), unreduced. A query of one relevance throughout costs 0.
    Settings: ``k`` K (default 5; None: LambdaLoss, every μ = δ). ``form``: "original", the formula above, of all pairs
        of different relevance; "paper", the SL@K paper's: pairs of a positive and a negative, all of gain difference
        1 and without maxDCG, for binary relevance. The two have the same μ; for binary relevance they differ by the
        factor maxDCG@K of the query. ``positive_from``, the least relevance of a positive with form "paper", default
        any above 0. ``tau`` τ, one over the slope σ. The logarithm is natural; one to base 2 is a constant factor.
    Use when: NDCG@K is the metric and lists are short enough for all pairs.   Cost: O(QL²).
    Paper: Jagerman et al., On optimizing top-k metrics for neural ranking models, SIGIR 2022; form "paper": Yang
        et al., SL@K, KDD 2025, appendix A.
    Relations: K of the list's length or more gives LambdaLoss (NDCG-Loss2 of Wang et al., CIKM 2018).
    """
    lists = lists_of(scores, relevance, mask)
    weights = _lambda_weights(ranks_of(lists).to(lists.scores.dtype), k)
    if form == "original":
        pairs = ordered_pairs(lists.relevance, lists.real)
        return _weighted_pairs(lists, pairs, weights * differences(normalised_gains(lists, k)).abs(), tau)
    is_positive = positives_of(lists.relevance, lists.real, positive_from)
    pairs = is_positive.unsqueeze(2) & (lists.real & ~is_positive).unsqueeze(1)
    return _weighted_pairs(lists, pairs, weights, tau)


class ListwiseLambdaLossAtK(ListwiseLoss):
    """Module form of :func:`listwise_lambdaloss_at_k_loss`."""

    formula = staticmethod(listwise_lambdaloss_at_k_loss)

    def __init__(
        self,
        k: int | None = 5,
        *,
        tau: float = 1.0,
        form: ListwiseForm = "original",
        positive_from: float | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        self.k = None if k is None else at_least("k", k, 1)
        self.tau = positive("tau", tau)
        self.form: ListwiseForm = one_of("form", form, get_args(ListwiseForm))
        self.positive_from = None if positive_from is None else positive("positive_from", positive_from)


def approx_ndcg_loss(scores: Tensor, relevance: Tensor, mask: Tensor | None = None, *, tau: float = 0.1) -> Tensor:
    r"""One minus NDCG with every rank replaced by a smooth count of the places above.

    .. math:: 1 - \sum_i \frac{G_i}{\log_2(1 + \hat\pi_i)}, \qquad
              \hat\pi_i = 1 + \sum_{j \ne i} \frac{1}{1 + \exp((s_i - s_j) / \tau)}, \quad
              G_i = \frac{2^{y_i} - 1}{\mathrm{maxDCG}}

    Shapes: scores s (Q, L); relevance y (Q, L); mask (Q, L), True where a place is padding; returns (Q,), unreduced.
        A query of one relevance throughout costs 0.
    Settings: ``tau`` τ, one over the publication's α: the smaller, the closer to NDCG and the flatter (0.1 is α = 10).
    Use when: a loss on the scale of the metric is needed; it is not convex, so start it from a fitted model or try
        several temperatures.   Cost: O(QL²).
    Paper: Qin et al., A general approximation framework for direct optimization of IR measures, Information Retrieval
        2010.   Relations: one minus NDCG as τ goes to 0, when no scores are equal.
    """
    lists = lists_of(scores, relevance, mask)
    above = torch.sigmoid(-differences(lists.scores) / tau)  # (Q, L, L), how much j is above i
    itself = torch.eye(lists.scores.size(1), dtype=torch.bool, device=scores.device)
    ranks = 1 + above.masked_fill(itself | ~lists.real.unsqueeze(1), 0.0).sum(2)
    ndcg = (normalised_gains(lists, None) * discounts_at(ranks, None)).sum(1)
    return zero_unless(lists.varied, 1 - ndcg)


class ApproxNDCG(ListwiseLoss):
    """Module form of :func:`approx_ndcg_loss`."""

    formula = staticmethod(approx_ndcg_loss)
    ranges = FOR_DOT_PRODUCTS | {"loss.tau": (0.01, 0.1, 1.0)}

    def __init__(self, *, tau: float = 0.1, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.tau = positive("tau", tau)


def soft_permutation(lists: Lists, tau: float) -> Tensor:
    """NeuralSort: row r says where in the list the place of rank r is, (Q, L, L); rows after a list's end are 0."""
    n = lists.real.sum(1, keepdim=True)  # (Q, 1), places of each list
    rank = _places(lists)
    both = lists.real.unsqueeze(2) & lists.real.unsqueeze(1)
    spread = differences(lists.scores).abs().masked_fill(~both, 0.0).sum(2)  # (Q, L)
    tilt = (n + 1 - 2 * rank).unsqueeze(2)  # (Q, L, 1)
    logits = (tilt * lists.scores.unsqueeze(1) - spread.unsqueeze(1)) / tau
    # Not -inf: a list of only padding must have a finite gradient.
    logits = logits.masked_fill(~lists.real.unsqueeze(1), torch.finfo(logits.dtype).min)
    inside = (rank <= n).unsqueeze(2) & lists.real.unsqueeze(1)
    return logits.softmax(2).masked_fill(~inside, 0.0)


def _sinkhorn(matrix: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Scales of rows and columns (Q, L) with which all sums are nearer to 1; columns first in each step."""
    # Two vectors in place of a scaled matrix a step: the backward pass keeps one (Q, L, L), not 2 * steps.
    rows = torch.ones_like(matrix[:, :, 0])
    columns = torch.ones_like(rows)
    for _ in range(steps):
        columns = 1 / (rows.unsqueeze(1) @ matrix).squeeze(1).clamp(min=_LEAST_MASS)
        rows = 1 / (matrix @ columns.unsqueeze(2)).squeeze(2).clamp(min=_LEAST_MASS)
    return rows, columns


def neural_ndcg_loss(
    scores: Tensor,
    relevance: Tensor,
    mask: Tensor | None = None,
    *,
    k: int | None = None,
    tau: float = 1.0,
    steps: int = 50,
) -> Tensor:
    r"""One minus NDCG@K with sorting replaced by NeuralSort's soft permutation.

    .. math:: 1 - \sum_{r \le K} \frac{1}{\log_2(r + 1)} \sum_i \tilde P_{ri} G_i, \qquad
              P_{r \cdot} = \operatorname{softmax}\Big(\frac{(n + 1 - 2r)\, s - A 1}{\tau}\Big), \quad
              A_{ij} = |s_i - s_j|, \quad G_i = \frac{2^{y_i} - 1}{\mathrm{maxDCG@}K}

    Shapes: scores s (Q, L); relevance y (Q, L); mask (Q, L), True where a place is padding, so that n is the number
        of a list's places; returns (Q,), unreduced. A query of one relevance throughout costs 0.
    Settings: ``k`` K, default none; ``tau`` τ, the smaller, the closer to NDCG and the flatter; ``steps`` of Sinkhorn's
        scaling, which make the sums of P's columns, and then of its rows, 1: P becomes P̃ (0: P as it is).
    Use when: a loss on the scale of the metric is needed and L² times ``steps`` is affordable.   Cost: O(QL² steps).
    Paper: Pobrotyn and Białobrzeski, NeuralNDCG, arXiv 2102.07831, 2021 (without its noise; its transposed variant is
        the same sum in another order); Grover et al., Stochastic optimization of sorting networks via continuous
        relaxations, ICLR 2019.
    Relations: one minus NDCG@K as τ goes to 0, when no scores are equal.
    """
    lists = lists_of(scores, relevance, mask)
    matrix = soft_permutation(lists, tau)
    rows, columns = _sinkhorn(matrix, steps)
    gains = columns * normalised_gains(lists, k)
    worth = rows * (matrix @ gains.unsqueeze(2)).squeeze(2)  # (Q, L), the gain at each rank
    return zero_unless(lists.varied, 1 - worth @ discounts_at(_places(lists), k))


class NeuralNDCG(ListwiseLoss):
    """Module form of :func:`neural_ndcg_loss`."""

    formula = staticmethod(neural_ndcg_loss)
    ranges = FOR_DOT_PRODUCTS | {"loss.tau": (0.01, 0.1, 1.0)}

    def __init__(
        self, k: int | None = None, *, tau: float = 1.0, steps: int = 50, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction)
        self.k = None if k is None else at_least("k", k, 1)
        self.tau = positive("tau", tau)
        self.steps = at_least("steps", steps, 0)
