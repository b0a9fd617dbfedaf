"""What every loss shares: the ragged form, the reduction, and how masked or unevenly drawn negatives count.

A batch holds Q queries and all P positives of those queries; ``owner (P,)`` says whose each positive is. Without
``owner`` the batch is the textbook's: one query a positive, P = Q.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from topshelf.errors import ConfigError, one_of

Reduction = Literal["mean", "sum", "none"]


class Loss(nn.Module):
    """Base of the module forms. A subclass adds checked settings and state to a pure function, nothing else.

    ``accepts_partition`` says that the loss can take ``log_partition (Q,)``, the log of the partition sum of
    ``exp(score / tau)``, in place of the (Q, N) negatives; it then has an attribute ``tau``. ``preferred_score`` is
    what models with a choice of scores use when nobody chose; ``n_negatives`` how many are drawn for each query when
    nobody said and the loss cannot take a log-partition.
    """

    accepts_partition: bool = False
    tau: float
    is_separable: ClassVar[bool] = True
    preferred_score: ClassVar[Literal["cosine", "dot"]] = "cosine"
    n_negatives: ClassVar[int] = 1000

    def __init__(self, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.reduction: Reduction = one_of("reduction", reduction, ("mean", "sum", "none"))

    def forward(
        self,
        positive: Tensor,
        negative: Tensor | None = None,
        owner: Tensor | None = None,
        *,
        query: Tensor | None = None,
        mask: Tensor | None = None,
        log_q: Tensor | None = None,
        log_partition: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch.

        Shapes: positive (P,); negative (Q, N); owner (P,), default one query a positive; query (Q,), the index of
        each query where the loss keeps state of queries; mask (Q, N), True where a negative does not count; log_q
        (N,) or (Q, N), log of how much likelier than under a uniform draw each negative was drawn; log_partition
        (Q,), in place of negative where ``accepts_partition``. Returns a number, or (P,) with reduction "none".
        """
        raise NotImplementedError


def reduce(losses: Tensor, reduction: Reduction) -> Tensor:
    """Mean, sum or nothing over (P,). The mean of no positive at all is 0, so that an empty batch is harmless."""
    if reduction == "none":
        return losses
    total = losses.sum()
    return total if reduction == "sum" else total / max(1, losses.numel())


def owners(positive: Tensor, n_queries: int, owner: Tensor | None) -> Tensor:
    """``owner``, or the textbook's one query a positive."""
    if owner is not None:
        return owner
    if positive.numel() != n_queries:
        raise ConfigError(
            f"without owner there must be one query a positive, got {positive.numel()} positives and {n_queries} "
            "queries; pass owner (P,), the query of each positive"
        )
    return torch.arange(n_queries, device=positive.device)


def widened(scores: Tensor) -> Tensor:
    """Half-precision scores in float32; wider ones as they are."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def sampled_log_partition(negative: Tensor, tau: float, mask: Tensor | None, log_q: Tensor | None) -> Tensor:
    r"""Log of the sum of :math:`e^{s_j/\tau - \log q_j}` over each query's negatives, (Q, N) to (Q,).

    A query without negatives gets -inf.
    """
    logits = widened(negative) / tau
    if log_q is not None:
        logits = logits - log_q
    if mask is not None:
        logits = logits.masked_fill(mask, -math.inf)
    if logits.size(1) == 0:
        return logits.new_full((logits.size(0),), -math.inf)
    # A row of -inf has no gradient; zeros keep its backward pass free of NaN.
    empty = (logits == -math.inf).all(1)
    total = logits.masked_fill(empty.unsqueeze(1), 0.0).logsumexp(1)
    return total.masked_fill(empty, -math.inf)


def without_rivals_zero(losses: Tensor, partition: Tensor) -> Tensor:
    """Zero where the partition (P,) is -inf: a positive with nothing to be ranked against is already in its place."""
    return torch.where(partition == -math.inf, torch.zeros_like(losses), losses)
