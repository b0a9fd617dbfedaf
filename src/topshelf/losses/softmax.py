"""The softmax family: softmax loss (SL), bilateral softmax loss (BSL), sampled softmax."""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf.errors import ConfigError, one_of, positive
from topshelf.losses.base import (
    FOR_COSINES,
    TEMPERATURES,
    Defaults,
    Loss,
    Reduction,
    owners,
    sampled_log_partition,
    widened,
    zero_unless,
)

Bilateral = Literal["each", "query"]


def softmax_loss(
    positive: Tensor,
    negative: Tensor | None = None,
    owner: Tensor | None = None,
    *,
    tau: float,
    mask: Tensor | None = None,
    log_q: Tensor | None = None,
    log_partition: Tensor | None = None,
) -> Tensor:
    r"""Log-softmax of each positive against its query's negatives.

    .. math:: \log \sum_j \exp((s_j - s_i) / \tau)

    Shapes: positive s_i (P,); negative s_j (Q, N); owner (P,), default one query per positive; mask (Q, N), True where
        a negative does not count; log_q (N,) or (Q, N), 0 for a uniform draw; log_partition (Q,), the log of the sum
        of exp(s_j / tau), in place of negative; returns (P,), unreduced. A positive without negatives costs 0.
    Use when: the whole ranking matters, or as the baseline that SL@K must beat.   Cost: O(QN + P).
    Paper: Wu et al., On the effectiveness of sampled softmax loss for item recommendation, TOIS 2024; the sum runs
        over what is given: negatives alone as in the SL@K paper's algorithm C.1, or all items as in its equation 2.2.
    Relations: ``slatk_loss`` with a constant weight of one.
    """
    partition = partition_of(negative, log_partition, tau, mask, log_q)
    owner = owners(positive, partition.numel(), owner)
    partition = partition.index_select(0, owner)  # (P,); its backward pass adds in a fixed order
    finite = partition.masked_fill(partition == -torch.inf, 0.0)
    return zero_unless(partition != -torch.inf, finite - widened(positive) / tau)


def partition_of(
    negative: Tensor | None,
    log_partition: Tensor | None,
    tau: float,
    mask: Tensor | None,
    log_q: Tensor | None,
) -> Tensor:
    """The log partition as given, or from the negatives, (Q,)."""
    if (negative is None) == (log_partition is None):
        raise ConfigError("pass either negative (Q, N) or log_partition (Q,), not both and not neither")
    if log_partition is not None:
        return widened(log_partition)
    assert negative is not None
    return sampled_log_partition(negative, tau, mask, log_q)


class SoftmaxLoss(Loss):
    """Module form of :func:`softmax_loss`."""

    formula = staticmethod(softmax_loss)
    ranges = FOR_COSINES | {"loss.tau": TEMPERATURES}
    needs = ("log_partition",)
    defaults = Defaults(effective_n=1000)

    def __init__(self, *, tau: float = 0.2, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.tau = positive("tau", tau)


def bsl_loss(
    positive: Tensor,
    negative: Tensor | None = None,
    owner: Tensor | None = None,
    *,
    tau1: float,
    tau2: float,
    positives: Bilateral = "each",
    mask: Tensor | None = None,
    log_q: Tensor | None = None,
    log_partition: Tensor | None = None,
) -> Tensor:
    r"""Bilateral softmax loss: one temperature for positives, another for negatives.

    .. math:: -\frac{s_i}{\tau_1} + \frac{\tau_2}{\tau_1} \log \sum_j e^{s_j / \tau_2}

    Shapes: positive s_i (P,); negative s_j (Q, N); owner (P,), default one query per positive; mask (Q, N), True where
        a negative does not count; log_q (N,) or (Q, N), 0 for a uniform draw; log_partition (Q,), the log of the sum
        of exp(s_j / tau2), in place of negative; returns (P,), unreduced. A positive without negatives costs 0.
    Settings: ``tau1`` τ_1, ``tau2`` τ_2; ``positives`` "each" is the formula, as the SL@K authors compute it. "query"
        has the log of the mean of exp(s_i / τ_1) over the query's positives in place of s_i / τ_1, the two-sided form
        that gives the loss its name: well-ranked positives count more, doubtful ones less. It needs all positives of a
        query, and each of them then has the query's value.
    Use when: positives are noisy ("query"), or the softmax loss is to be rescaled ("each").   Cost: O(QN + P).
    Paper: Wu et al., BSL: understanding and improving softmax loss for recommendation, ICDE 2024.
    Relations: τ_1 = τ_2 is ``softmax_loss``; with "each" it is always ``softmax_loss`` at τ_2 times τ_2 / τ_1, so
        that τ_1 is a learning rate, without effect under Adam without weight decay.
    """
    given_owner, partition = owner, partition_of(negative, log_partition, tau2, mask, log_q)
    losses = softmax_loss(positive, None, owner, tau=tau2, log_partition=partition) * (tau2 / tau1)
    if positives == "each":
        return losses
    if given_owner is None:
        raise ConfigError('positives = "query" needs all positives of each query: pass owner (P,), got none')
    logits = widened(positive) / tau1
    above = log_mean_exp_of_query(logits, given_owner, partition.numel()) - logits
    return zero_unless((partition != -torch.inf)[given_owner], losses - above)


def log_mean_exp_of_query(logits: Tensor, owner: Tensor, n_queries: int) -> Tensor:
    """For each logit (P,), the log of the mean of exp over the logits of the same owner, (P,)."""
    top = logits.new_full((n_queries,), -torch.inf).scatter_reduce(0, owner, logits.detach(), "amax")[owner]
    total = logits.new_zeros(n_queries).index_add(0, owner, torch.exp(logits - top)).index_select(0, owner)
    counts = torch.bincount(owner, minlength=n_queries)[owner]
    return total.log() + top - counts.to(logits.dtype).log()


class BSL(Loss):
    """Module form of :func:`bsl_loss`."""

    formula = staticmethod(bsl_loss)
    ranges = FOR_COSINES | {"loss.tau1": TEMPERATURES, "loss.tau2": TEMPERATURES}
    needs: tuple[str, ...] = ("log_partition",)
    defaults = Defaults(effective_n=1000)

    def __init__(
        self, *, tau1: float = 0.2, tau2: float = 0.2, positives: Bilateral = "each", reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction)
        self.tau1 = positive("tau1", tau1)
        self.tau2 = self.tau = positive("tau2", tau2)  # tau: the partition's
        self.positives: Bilateral = one_of("positives", positives, get_args(Bilateral))
        if positives == "query":
            self.needs, self.scope = (*self.needs, "whole_queries"), "query"


def sampled_softmax_loss(
    positive: Tensor,
    negative: Tensor | None = None,
    owner: Tensor | None = None,
    *,
    tau: float,
    mask: Tensor | None = None,
    log_q: Tensor | None = None,
    log_partition: Tensor | None = None,
) -> Tensor:
    r"""Cross-entropy of each positive among itself and sampled negatives, corrected for how they were drawn.

    .. math:: \log \Bigl( e^{s_i / \tau} + \sum_j e^{s_j / \tau - \log q_j} \Bigr) - \frac{s_i}{\tau}

    Shapes: positive s_i (P,); negative s_j (Q, N); owner (P,), default one query per positive; mask (Q, N), True where
        a negative does not count; log_q, log of q_j, (N,) or (Q, N), 0 for a uniform draw; log_partition (Q,), the log
        of the sum over j, in place of negative; returns (P,), unreduced. A positive without negatives costs 0.
    Use when: negatives are the batch's other items, drawn as often as they are popular; well-ranked positives should
        get little gradient.   Cost: O(QN + P).
    Paper: Bengio and Senécal, Adaptive importance sampling to accelerate training of a neural probabilistic language
        model, IEEE Trans. Neural Networks 2008; Yi et al., Sampling-bias-corrected neural modeling for large corpus
        item recommendations, RecSys 2019.
    Relations: InfoNCE when log_q is 0; log(1 + e^x) of ``softmax_loss`` x, which leaves the positive out of the sum:
        never negative, and the gradient fades once the positive is above the sum of the negatives.
    """
    partition = partition_of(negative, log_partition, tau, mask, log_q)
    owner = owners(positive, partition.numel(), owner)
    above = softmax_loss(positive, None, owner, tau=tau, log_partition=partition)
    return zero_unless((partition != -torch.inf)[owner], F.softplus(above))


class SampledSoftmax(SoftmaxLoss):
    """Module form of :func:`sampled_softmax_loss`."""

    formula = staticmethod(sampled_softmax_loss)
    # The positive is in the sum, so the sum's size matters, and it is the catalogue's.
    defaults = Defaults(negatives="in_batch", effective_n="catalogue")
