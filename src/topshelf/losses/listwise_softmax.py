"""SL and SL@K of graded lists."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from topshelf.errors import at_least, positive
from topshelf.losses.base import FOR_DOT_PRODUCTS, TEMPERATURES, WEIGHT_TEMPERATURES, Reduction, zero_unless
from topshelf.losses.listwise import Lists, ListwiseLoss, gains_of, lists_of, positives_of, surprise

# The paper names no search space for its ranking task; these are its temperatures for recommendation, and 1.
LIST_TEMPERATURES = (*TEMPERATURES, 1.0)


def _shares(lists: Lists, positive_from: float | None) -> Tensor:
    """Each positive's share of its query's gains, (Q, L); 0 elsewhere."""
    gains = gains_of(lists.relevance).masked_fill(~positives_of(lists.relevance, lists.real, positive_from), 0.0)
    total = gains.sum(1, keepdim=True)
    return gains / torch.where(total > 0, total, torch.ones_like(total))


def listwise_softmax_loss(
    scores: Tensor,
    relevance: Tensor,
    mask: Tensor | None = None,
    *,
    tau: float = 1.0,
    positive_from: float | None = None,
) -> Tensor:
    r"""Softmax loss (SL) of graded lists: each positive against the whole list, by its share of the gains.

    .. math:: \sum_{i \in P} \frac{g_i}{\sum_{p \in P} g_p} \log \sum_j \exp((s_j - s_i) / \tau),
              \qquad g_i = 2^{y_i} - 1

    Shapes: scores s (Q, L); relevance y (Q, L); mask (Q, L), True where a place is padding; returns (Q,), unreduced.
        A query without positives, or of one relevance throughout, costs 0.
    Settings: ``tau`` τ; ``positive_from``, the least relevance of a positive (the set P), default any above 0. Gains
        are those of NDCG, over their sum, so that all queries have the same weight; j runs over all places, also i.
    Use when: the whole ranking of a graded list matters, or as the baseline of SL@K.   Cost: O(QL).
    Paper: Wu et al., TOIS 2024, is of binary relevance; Yang et al., KDD 2025, use it for graded lists without saying
        what a positive is, so both definitions above are this library's.
    Relations: with binary relevance the mean of ``softmax_loss`` over a query's positives, the sum over all items.
    """
    lists = lists_of(scores, relevance, mask)
    losses = (_shares(lists, positive_from) * surprise(lists.scores, lists.real, tau)).sum(1)
    return zero_unless(lists.varied, losses)


class ListwiseSoftmax(ListwiseLoss):
    """Module form of :func:`listwise_softmax_loss`."""

    formula = staticmethod(listwise_softmax_loss)
    ranges = FOR_DOT_PRODUCTS | {"loss.tau": LIST_TEMPERATURES}

    def __init__(self, *, tau: float = 1.0, positive_from: float | None = None, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.tau = positive("tau", tau)
        self.positive_from = None if positive_from is None else positive("positive_from", positive_from)


def list_thresholds(scores: Tensor, real: Tensor, k: int) -> Tensor:
    """Each list's K-th best score, exact and without gradient, (Q, 1); the lowest of a list of fewer than K places."""
    best = scores.detach().masked_fill(~real, -math.inf).sort(dim=1, descending=True).values
    last = real.sum(1, keepdim=True).clamp(1, k) - 1
    threshold = best.gather(1, last)
    return threshold.masked_fill(threshold == -math.inf, 0.0)


def listwise_slatk_loss(
    scores: Tensor,
    relevance: Tensor,
    mask: Tensor | None = None,
    *,
    k: int = 5,
    tau: float = 1.0,
    tau_weight: float = 1.0,
    positive_from: float | None = None,
    detach_weight: bool = False,
) -> Tensor:
    r"""SL@K of graded lists: the softmax loss, weighting each positive by its nearness to the list's top K.

    .. math:: \sum_{i \in P} \frac{g_i}{\sum_{p \in P} g_p}\, \sigma\Big(\frac{s_i - \beta}{\tau_w}\Big)
              \log \sum_j \exp((s_j - s_i) / \tau), \qquad g_i = 2^{y_i} - 1

    Shapes: scores s (Q, L); relevance y (Q, L); mask (Q, L), True where a place is padding; returns (Q,), unreduced.
        A query without positives, or of one relevance throughout, costs 0.
    Settings: ``k`` K (default 5, the cut-off of the paper's ranking task); ``tau`` τ; ``tau_weight`` τ_w;
        ``positive_from``, the least relevance of a positive (the set P), default any above 0; ``detach_weight`` stops
        the gradient through the weight. β, the K-th best score of the list, is exact, without gradient and without
        state: the list is the whole catalogue of the query. A list of fewer than K places has its lowest score.
    Use when: the metric is NDCG@K of graded lists, and K is small against them.   Cost: O(QL log L).
    Paper: Yang et al., Breaking the Top-K Barrier (SL@K), KDD 2025, equation 3.5; what a positive and its gain are is
        not said there and is this library's choice.
    Relations: half of ``listwise_softmax_loss`` as τ_w grows; ``slatk_loss`` is the form for binary relevance.
    """
    lists = lists_of(scores, relevance, mask)
    near = (lists.scores - list_thresholds(lists.scores, lists.real, k)) / tau_weight
    weights = torch.sigmoid(near.detach() if detach_weight else near)
    losses = _shares(lists, positive_from) * weights * surprise(lists.scores, lists.real, tau)
    return zero_unless(lists.varied, losses.sum(1))


class ListwiseSLatK(ListwiseLoss):
    """Module form of :func:`listwise_slatk_loss`."""

    formula = staticmethod(listwise_slatk_loss)
    ranges = FOR_DOT_PRODUCTS | {
        "loss.tau": LIST_TEMPERATURES,
        "loss.tau_weight": WEIGHT_TEMPERATURES,
    }

    def __init__(
        self,
        k: int = 5,
        *,
        tau: float = 1.0,
        tau_weight: float = 1.0,
        positive_from: float | None = None,
        detach_weight: bool = False,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        self.k = at_least("k", k, 1)
        self.tau = positive("tau", tau)
        self.tau_weight = positive("tau_weight", tau_weight)
        self.positive_from = None if positive_from is None else positive("positive_from", positive_from)
        self.detach_weight = detach_weight
