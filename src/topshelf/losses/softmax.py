"""Softmax loss (SL)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from topshelf.errors import ConfigError
from topshelf.errors import positive as positive_number
from topshelf.losses.base import (
    COSINE_RATES,
    DECAYS,
    TEMPERATURES,
    Extras,
    Loss,
    Ranges,
    Reduction,
    owners,
    sampled_log_partition,
    widened,
    without_rivals_zero,
)


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

    Shapes: positive s_i (P,); negative s_j (Q, N); owner (P,), default one query a positive; mask (Q, N), True where
        a negative does not count; log_q (N,) or (Q, N), 0 for a uniform draw; log_partition (Q,), the log of the sum
        of exp(s_j / tau), in place of negative; returns (P,), unreduced. A positive without negatives costs 0.
    Use when: the whole ranking matters, or as the baseline that SL@K must beat.   Cost: O(QN + P).
    Paper: Wu et al., On the effectiveness of sampled softmax loss for item recommendation, TOIS 2024; the sum runs
        over what is given: negatives alone as in the SL@K paper's algorithm 1, or all items as in its equation 2.3.
    Relations: ``slatk_loss`` with a constant weight of one.
    """
    partition = partition_of(negative, log_partition, tau, mask, log_q)
    owner = owners(positive, partition.numel(), owner)
    partition = partition.index_select(0, owner)  # (P,); its backward pass adds in a fixed order
    finite = partition.masked_fill(partition == -torch.inf, 0.0)
    return without_rivals_zero(finite - widened(positive) / tau, partition)


def partition_of(
    negative: Tensor | None,
    log_partition: Tensor | None,
    tau: float,
    mask: Tensor | None,
    log_q: Tensor | None,
) -> Tensor:
    """The log partition as given, or from the negatives, (Q,)."""
    if (negative is None) == (log_partition is None):
        raise ConfigError("give either negative (Q, N) or log_partition (Q,), not both and not neither")
    if log_partition is not None:
        return widened(log_partition)
    assert negative is not None
    return sampled_log_partition(negative, tau, mask, log_q)


class SoftmaxLoss(Loss):
    """Module form of :func:`softmax_loss`."""

    formula = staticmethod(softmax_loss)
    ranges: ClassVar[Ranges] = {
        "train.learning_rate": COSINE_RATES,
        "train.weight_decay": DECAYS,
        "loss.tau": TEMPERATURES,
    }
    needs = ()
    accepts_partition = True

    def __init__(self, *, tau: float = 0.2, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.tau = positive_number("tau", tau)

    def each(self, positive: Tensor, negative: Tensor | None, owner: Tensor | None, extras: Extras) -> Tensor:
        return softmax_loss(
            positive,
            negative,
            owner,
            tau=self.tau,
            mask=extras.mask,
            log_q=extras.log_q,
            log_partition=extras.log_partition,
        )
