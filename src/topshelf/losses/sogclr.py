"""SogCLR and its SL@K form: the softmax loss with a moving average of each query's partition sum."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf.errors import at_least, at_most, positive
from topshelf.losses.base import (
    FOR_COSINES,
    GAMMAS,
    TEMPERATURES,
    WEIGHT_TEMPERATURES,
    Defaults,
    Extras,
    Loss,
    Reduction,
    log_sum_exp,
    negative_weights,
    owners,
    widened,
    zero_unless,
)
from topshelf.losses.softmax import partition_of

_UNSEEN = torch.finfo(torch.float32).min  # log g of a query that was never seen: as low as is finite


def sogclr_loss(
    positive: Tensor,
    negative: Tensor | None = None,
    owner: Tensor | None = None,
    *,
    tau: float,
    gamma: float = 1.0,
    log_average: Tensor | None = None,
    mask: Tensor | None = None,
    log_q: Tensor | None = None,
    log_partition: Tensor | None = None,
) -> Tensor:
    r"""Softmax loss whose partition sum is a moving average over the steps of its query (SogCLR).

    .. math:: \log g_u - s_i / \tau, \quad g_u \leftarrow (1 - \gamma) g_u + \gamma \hat g_u, \quad
              \hat g_u = \operatorname{mean}_j e^{s_j / \tau}, \qquad
              \nabla = \nabla \hat g_u / g_u - \nabla s_i / \tau

    Shapes: positive s_i (P,); negative s_j (Q, N); owner (P,), default one query per positive; log_average, log g_u
        (Q,) before this step, the lowest float32 (or -inf) where there is none yet, default none; mask (Q, N), True
        where a negative does not count; log_q (N,) or (Q, N), 0 for a uniform draw, else the mean is weighted by 1/q;
        log_partition (Q,), log ĝ_u up to a constant, in place of negative; returns (P,), unreduced. A positive
        without negatives costs 0.
    Settings: ``gamma`` is the weight of the new value. The average is updated before it is used, so ĝ/g is at most 1/γ.
    Use when: so few negatives are drawn that the softmax loss is biased; not needed over the whole catalogue.
    Cost: O(QN + P), and one number per query of state.
    Paper: Yuan et al., Provable stochastic optimization for global contrastive learning (SogCLR), ICML 2022. The
        SL@K authors' code has the value ĝ/g - s_i/τ, with the same gradient; here it is a log-likelihood.
    Relations: with γ = 1 ``softmax_loss`` less log N.
    """
    log_g, rivals, _ = _partition(negative, log_partition, tau, mask, log_q, gamma, log_average)
    return _against(log_g, rivals, positive, tau, owner)


def sogslatk_loss(
    positive: Tensor,
    negative: Tensor | None = None,
    owner: Tensor | None = None,
    *,
    threshold: Tensor,
    tau: float,
    tau_weight: float,
    gamma: float = 1.0,
    log_average: Tensor | None = None,
    mask: Tensor | None = None,
    log_q: Tensor | None = None,
    log_partition: Tensor | None = None,
) -> Tensor:
    r"""SogCLR that pulls each positive up by its nearness to its query's top K (SogSL@K).

    .. math:: \log g_u - \frac{w_i}{\operatorname{mean}(w)} \frac{s_i}{\tau}, \qquad
              w_i = \sigma((s_i - \beta) / \tau_w), \qquad
              \nabla = \nabla \hat g_u / g_u - \frac{w_i}{\operatorname{mean}(w)} \nabla s_i / \tau

    Shapes: as ``sogclr_loss``, with g_u and ĝ_u as there; threshold β, each query's K-th best score (Q,). The mean of
        w runs over all positives of the batch that have negatives; no gradient flows through w or its mean.
    Settings: ``tau_weight`` is τ_w; ``gamma`` as in ``sogclr_loss``.
    Use when: SL@K is needed with few negatives per query.
    Cost: O(QN + P), and two numbers per query of state.
    Paper: none; the SL@K authors' code of June 2025 has it, with the value ĝ/g in place of log g.
    Relations: ``sogclr_loss`` where all weights are equal. Unlike ``slatk_loss`` it leaves the push on negatives
        unweighted, and its gradient cannot push a positive down.
    """
    log_g, rivals, _ = _partition(negative, log_partition, tau, mask, log_q, gamma, log_average)
    return _against(log_g, rivals, positive, tau, owner, near=(threshold, tau_weight))


def _partition(
    negative: Tensor | None,
    log_partition: Tensor | None,
    tau: float,
    mask: Tensor | None,
    log_q: Tensor | None,
    gamma: float,
    log_average: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Each query's log g with the gradient of ĝ / g, whether it has negatives, and its updated log g; (Q,) each."""
    estimate = partition_of(negative, log_partition, tau, mask, log_q)
    if negative is not None:
        total = negative_weights(negative, mask, log_q).sum(1)
        estimate = estimate - torch.where(total > 0, total, torch.ones_like(total)).log()
    rivals = estimate != -torch.inf
    estimate = estimate.masked_fill(~rivals, 0.0)
    with torch.no_grad():
        before = torch.full_like(estimate, _UNSEEN) if log_average is None else log_average.to(estimate.dtype)
        is_new = before <= _UNSEEN
        kept = before + (math.log1p(-gamma) if gamma < 1 else -math.inf)
        updated = torch.where(is_new, estimate, torch.logaddexp(kept, estimate + math.log(gamma)))
        ratio = torch.where(is_new, 1.0, 1 / (gamma + torch.exp(kept - estimate)))  # ĝ / g, at most 1/γ
    return updated + ratio * (estimate - estimate.detach()), rivals, torch.where(rivals, updated, before)


def _against(
    log_g: Tensor,
    rivals: Tensor,
    positive: Tensor,
    tau: float,
    owner: Tensor | None,
    near: tuple[Tensor, float] | None = None,
) -> Tensor:
    """log g minus the pull of each positive, (P,), by its nearness where given; 0 for positives without negatives."""
    owner = owners(positive, log_g.numel(), owner)
    has_rivals, pull = rivals[owner], widened(positive)
    if near is not None:
        pull = _shares(pull, has_rivals, near[0][owner], near[1]) * pull
    return zero_unless(has_rivals, log_g.index_select(0, owner) - pull / tau)  # its backward pass adds in a fixed order


@torch.no_grad()
def _shares(positive: Tensor, counts: Tensor, threshold: Tensor, tau_weight: float) -> Tensor:
    """w / mean(w) over the positives that count, (P,)."""
    # In logarithms: far below the thresholds every w is 0 in float32, their ratios are not.
    weights = F.logsigmoid((positive - threshold) / tau_weight).masked_fill(~counts, -torch.inf)
    return zero_unless(counts, torch.exp(weights - log_sum_exp(weights)) * counts.sum())


class SogCLR(Loss):
    """Module form of :func:`sogclr_loss`; it owns the logarithm of every query's moving average.

    ``n_queries`` is the number of all queries (users).
    """

    formula: ClassVar[Callable[..., Tensor]] = staticmethod(sogclr_loss)
    ranges = FOR_COSINES | {"loss.tau": TEMPERATURES, "loss.gamma": GAMMAS}
    needs = ("log_partition", "query")
    defaults = Defaults(effective_n=1000)
    log_g: Tensor  # (n_queries,), a table; the lowest float32 where a query has not been seen yet

    def __init__(self, n_queries: int, *, tau: float = 0.2, gamma: float = 0.9, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.tau = positive("tau", tau)
        self.gamma = at_most("gamma", positive("gamma", gamma), 1.0)
        self.register_table("log_g", n_queries, fill=_UNSEEN)

    def each(self, positive: Tensor, negative: Tensor | None, owner: Tensor | None, extras: Extras) -> Tensor:
        assert extras.query is not None
        average, batch = self.log_g[extras.query], (self.tau, extras.mask, extras.log_q, self.gamma)
        log_g, rivals, updated = _partition(negative, extras.log_partition, *batch, average)
        if self.training:
            self.write("log_g", extras.query, updated)
        return _against(log_g, rivals, positive, self.tau, owner, self.near(extras))

    def near(self, extras: Extras) -> tuple[Tensor, float] | None:  # noqa: ARG002  for those that override it
        """The thresholds of the batch's queries and their temperature, where positives are weighted by them."""
        return None


class SogSLatK(SogCLR):
    """Module form of :func:`sogslatk_loss`; it owns the moving averages and the thresholds of its queries.

    ``n_queries`` is the number of all queries (users). The thresholds start at 0 and the caller updates them: the
    trainer does, and in your own loop ``loss.threshold[query] = sampled_thresholds(...)`` of
    :mod:`topshelf.thresholds`. A call with ``threshold (Q,)`` uses that instead. Weights are divided by their mean over
    the batch, so a batch cannot be cut into parts.
    """

    formula = staticmethod(sogslatk_loss)
    ranges = SogCLR.ranges | {"loss.tau_weight": WEIGHT_TEMPERATURES, "threshold.every": (5, 20)}
    scope = "batch"
    keeps_thresholds = True
    threshold: Tensor  # (n_queries,), a table

    def __init__(
        self,
        n_queries: int,
        k: int = 20,
        *,
        tau: float = 0.2,
        tau_weight: float = 3.0,
        gamma: float = 0.9,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(n_queries, tau=tau, gamma=gamma, reduction=reduction)
        self.k = at_least("k", k, 1)
        self.tau_weight = positive("tau_weight", tau_weight)
        self.register_table("threshold", n_queries)

    def near(self, extras: Extras) -> tuple[Tensor, float]:
        return self.thresholds(extras), self.tau_weight
