"""Pairwise softmax loss (PSL): the softmax loss with another function in place of the exponential."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf.errors import one_of, positive
from topshelf.losses.base import FOR_COSINES, Defaults, Loss, Reduction, log_sum_exp, margins, owners, zero_unless

PairActivation = Literal["tanh", "relu", "atan", "exponential"]
PairMethod = Literal["sum", "batch"]

# The least value of relu and atan, so that their logarithms are finite. With cosines only relu at d = -1 gets there.
SMALLEST_ACTIVATION = 1e-6


def psl_loss(
    positive: Tensor,
    negative: Tensor,
    owner: Tensor | None = None,
    *,
    tau: float,
    activation: PairActivation = "tanh",
    method: PairMethod = "sum",
    mask: Tensor | None = None,
    log_q: Tensor | None = None,
) -> Tensor:
    r"""Softmax loss with a gentler function than the exponential of each pair's difference.

    .. math:: \log \sum_j \sigma(d_{ij})^{1/\tau}, \qquad d_{ij} = (s_j - s_i) / 2, \qquad
              \sigma(d) = \tanh(d) + 1, \ \max(0, d + 1), \ \arctan(d) + 1 \text{ or } e^d

    Shapes: positive s_i (P,), a whole cosine, which is halved here; negative s_j (Q, N); owner (P,), default one query
        per positive; mask (Q, N), True where a negative does not count; log_q (N,) or (Q, N), 0 for a uniform draw;
        returns (P,), unreduced. A positive without negatives costs 0.
    Settings: ``tau`` τ, half of the softmax loss's for the same steepness; ``activation`` σ, "tanh" in the SL@K paper;
        relu and atan are clamped at 1e-6, where the gradient is 0. ``method`` "sum" is the formula; "batch", the
        second method of the released code, is the log of the mean of the sums over the batch's positives, and every
        positive that has negatives then has the batch's value.
    Use when: some negatives may be unobserved positives: they count less than under the exponential.
    Cost: O(PN), for all pairs of a positive and a negative.
    Paper: Yang et al., PSL: rethinking and improving softmax loss from pairwise perspective, NeurIPS 2024.
    Relations: the exponential at τ is ``softmax_loss`` at 2τ; at d = 0 all four have value and slope 1.
    """
    owner = owners(positive, negative.size(0), owner)
    logits = log_activation(margins(positive, negative, owner) / 2, activation) / tau  # (P, N)
    if log_q is not None:
        logits = logits - (log_q if log_q.dim() == 1 else log_q[owner])
    if mask is not None:
        logits = logits.masked_fill(mask[owner], -math.inf)
    each = total = log_sum_exp(logits)  # (P,)
    if method == "batch":
        n_counted = (total > -math.inf).sum().clamp(min=1).to(total.dtype)
        each = (log_sum_exp(total) - n_counted.log()).expand(total.shape)
    return zero_unless(total != -math.inf, each.masked_fill(each == -math.inf, 0.0))


def log_activation(difference: Tensor, activation: PairActivation) -> Tensor:
    """Log of σ(d), of the same shape."""
    if activation == "exponential":
        return difference
    if activation == "tanh":
        return math.log(2) + F.logsigmoid(2 * difference)  # tanh(d) + 1 = 2 sigmoid(2d)
    raised = difference + 1 if activation == "relu" else torch.atan(difference) + 1
    return raised.clamp(min=SMALLEST_ACTIVATION).log()


class PSL(Loss):
    """Module form of :func:`psl_loss`."""

    formula = staticmethod(psl_loss)
    ranges = FOR_COSINES | {"loss.tau": (0.005, 0.025, 0.05, 0.1, 0.25)}
    # A constant in the loss, by either method, so that values compare with the softmax loss's.
    defaults = Defaults(effective_n=1000)

    def __init__(
        self,
        *,
        tau: float = 0.1,
        activation: PairActivation = "tanh",
        method: PairMethod = "sum",
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        self.tau = positive("tau", tau)
        self.activation: PairActivation = one_of("activation", activation, get_args(PairActivation))
        self.method: PairMethod = one_of("method", method, get_args(PairMethod))
        self.scope = "positive" if method == "sum" else "batch"
