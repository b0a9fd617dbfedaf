"""Losses made for cosines: cosine contrastive (CCL), and alignment with uniformity (DirectAU)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf.errors import at_least, at_most
from topshelf.losses.base import (
    FOR_COSINES,
    Defaults,
    Loss,
    Reduction,
    counted,
    mean_over,
    owners,
    widened,
    zero_unless,
)

_BLOCK = 2**21  # pairs per block: 8 MiB of float32, about the size of a processor's cache


def ccl_loss(
    positive: Tensor,
    negative: Tensor,
    owner: Tensor | None = None,
    *,
    margin: float,
    weight: float,
    mask: Tensor | None = None,
    log_q: Tensor | None = None,
) -> Tensor:
    r"""Cosine contrastive loss: positives up to a cosine of one, negatives down to a margin and no further.

    .. math:: (1 - s_i) + w \operatorname{mean}_j \max(0, s_j - m)

    Shapes: positive s_i (P,), cosines; negative s_j (Q, N), cosines; owner (P,), default one query per positive; mask
        (Q, N), True where a negative does not count; log_q (N,) or (Q, N), 0 for a uniform draw, else the mean is
        weighted by 1/q; returns (P,), unreduced. A positive without negatives costs 0, its own term included.
    Settings: ``margin`` m, below which a negative has no gradient; ``weight`` w of the negatives, large where most of
        them are below the margin.
    Use when: most negatives are easy and only those close to the query should be pushed.   Cost: O(QN + P).
    Paper: Mao et al., SimpleX: a simple and strong baseline for collaborative filtering, CIKM 2021. The ranges here
        are ours, around the settings that are in use.
    Relations: linear where ``softmax_loss`` is exponential; the margin has the role of the temperature.
    """
    owner, weights = counted(positive, negative, owner, mask, log_q)
    pushed = weight * mean_over(F.relu(widened(negative) - margin), weights)  # (Q,)
    losses = 1 - widened(positive) + pushed.index_select(0, owner)
    return zero_unless((weights > 0).any(-1)[owner], losses)


class CCL(Loss):
    """Module form of :func:`ccl_loss`."""

    formula = staticmethod(ccl_loss)
    ranges = FOR_COSINES | {"loss.margin": (0.0, 0.2, 0.4, 0.6, 0.8), "loss.weight": (1.0, 10.0, 50.0, 150.0, 500.0)}

    def __init__(self, *, margin: float = 0.4, weight: float = 10.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.margin = at_most("margin", at_least("margin", margin, -1.0), 1.0)
        self.weight = at_least("weight", weight, 0.0)


def directau_loss(
    positive: Tensor,
    owner: Tensor | None = None,
    *,
    query_vector: Tensor,
    item_vector: Tensor,
    gamma: float,
    query: Tensor | None = None,
) -> Tensor:
    r"""Alignment of each query with its positives, and uniformity of queries and of items; no negatives.

    .. math:: \lVert q - v_i \rVert^2 + \frac{\gamma}{2} \bigl( u(\{q\}) + u(\{v\}) \bigr), \qquad
              u(X) = \log \operatorname{mean}_{x, y \in X} e^{-2 \lVert x - y \rVert^2}

    Shapes: positive s_i (P,), cosines: the first term is 2 - 2 s_i; owner (P,), default one query per positive;
        query_vector q (Q, d) and item_vector v (P, d), normalised here; query (Q,), index of each query,
        default all different; returns (P,), unreduced, each with the batch's uniformity in it, so that their mean
        is the loss. Masks and corrections of negatives do not apply.
    Settings: ``gamma`` γ, the weight of uniformity: a larger one spreads the vectors further apart. Of 0.2,
        0.5, 1 and 5 the default was best on the validation part of MovieLens-100K.
    Use when: no negatives are to be drawn; needs batches of some thousand pairs.
    Cost: O((Q² + D²) d) for D different items, in blocks of 8 MiB; the batch cannot be cut
        into parts.
    Paper: Wang et al., Towards representation alignment and uniformity in collaborative filtering, KDD 2022.
    Relations: ``softmax_loss`` in the limit of many negatives pulls and spreads too. A query counts once for each of
        its positives, as in a batch of pairs, but is never compared with itself: all its positives may be in one batch,
        and the mean would be full of ones. Items that occur twice are compared, as in the paper.
    """
    owner = owners(positive, query_vector.size(0), owner)
    counts = torch.bincount(owner, minlength=query_vector.size(0))
    query = torch.arange(counts.numel(), device=owner.device) if query is None else query
    spread = uniformity_between(query_vector, query, counts) + uniformity(item_vector)
    return 2 - 2 * widened(positive) + gamma / 2 * spread


def uniformity(vectors: Tensor) -> Tensor:
    r"""Log of the mean of :math:`e^{-2 \lVert x - y \rVert^2}` over all pairs of rows (R, d), a number; 0 without any.

    The vectors may have any length. Equal rows, such as those of one item, are merged first and cost nothing.
    """
    unit = F.normalize(widened(vectors), dim=-1)
    rows, place, counts = _different_rows(unit.detach())
    weights = counts.to(unit.dtype)
    total, gradient = _kernel_sum(rows, torch.arange(rows.size(0), device=rows.device), weights)
    # Pairs of equal rows. Their gradient is along the rows, and normalisation removes it.
    total = total + weights @ (weights - 1)
    mass = unit.new_tensor(unit.size(0) * (unit.size(0) - 1))
    return _log_mean(unit, total, (gradient / weights.unsqueeze(1))[place], mass)


def uniformity_between(vectors: Tensor, identity: Tensor, weights: Tensor) -> Tensor:
    """The same over pairs of rows of different identity (R,), each row counted ``weights`` (R,) times."""
    unit, weights = F.normalize(widened(vectors), dim=-1), weights.to(widened(vectors).dtype)
    total, gradient = _kernel_sum(unit.detach(), identity, weights)
    return _log_mean(unit, total, gradient, weights @ (weights.sum() - _of_same(identity, weights)))


def _log_mean(unit: Tensor, total: Tensor, gradient: Tensor, mass: Tensor) -> Tensor:
    total = total + ((unit - unit.detach()) * gradient).sum()  # adds 0, and the gradient
    has_pairs, one = mass > 0, torch.ones_like(total)
    return torch.where(has_pairs, total, one).log() - torch.where(has_pairs, mass, one).log()


def _different_rows(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The different rows (U, d), the place of each row among them (R,), and how often each occurs (U,)."""
    if torch.compiler.is_compiling():  # a compiled graph has no sizes that depend on values
        each = torch.arange(rows.size(0), device=rows.device)
        return rows, each, torch.ones_like(each)
    return torch.unique(rows, dim=0, return_inverse=True, return_counts=True)  # type: ignore[no-any-return]


def _kernel_sum(unit: Tensor, identity: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of w_r w_s exp(4 x_r·x_s - 4) over rows of different identity, and its gradient (R, d).

    Block by block, each with its gradient, so that nothing of the size of all pairs is kept.
    """
    total, gradients = unit.new_zeros(()), [unit[:0]]
    scaled, weighted = 4 * unit, weights.unsqueeze(1) * unit
    step = max(1, _BLOCK // max(1, unit.size(0)))
    for start in range(0, unit.size(0), step):
        rows = slice(start, start + step)
        kernel = torch.exp_(scaled[rows] @ unit.T).masked_fill_(identity[rows].unsqueeze(1) == identity, 0.0)
        total = total + weights[rows] @ (kernel @ weights)
        gradients.append(weights[rows].unsqueeze(1) * (kernel @ weighted))
    return math.exp(-4) * total, 8 * math.exp(-4) * torch.cat(gradients)


def _of_same(identity: Tensor, weights: Tensor) -> Tensor:
    """The total weight of the rows of each row's identity, (R,)."""
    ordered, order = identity.sort()
    before = F.pad(weights[order].cumsum(0), (1, 0))
    return before[torch.searchsorted(ordered, identity, right=True)] - before[torch.searchsorted(ordered, identity)]


class DirectAU(Loss):
    """Module form of :func:`directau_loss`. The scores must be cosines."""

    formula = staticmethod(directau_loss)
    ranges = FOR_COSINES | {"loss.gamma": (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)}
    needs = ("query_vector", "item_vector")
    scope = "batch"
    defaults = Defaults(negatives="in_batch")

    def __init__(self, *, gamma: float = 0.2, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.gamma = at_least("gamma", gamma, 0.0)
