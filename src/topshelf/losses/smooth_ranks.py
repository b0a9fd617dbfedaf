"""The smooth rank of SONG: how far a query's items are above a positive, squared and summed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf.losses.base import counted, margins, mean_over


def smooth_rank(
    positive: Tensor,
    negative: Tensor,
    owner: Tensor | None = None,
    *,
    n_items: int,
    query: Tensor | None = None,
    mask: Tensor | None = None,
    log_q: Tensor | None = None,
) -> Tensor:
    r"""Differentiable surrogate of the rank of every positive among all items, from a sample of negatives.

    .. math:: \hat g_i = \sum_p \max(0, s_p - s_i + 1)^2 + (|I| - P_u) \operatorname{mean}_j \max(0, s_j - s_i + 1)^2

    Shapes: positive s_i, s_p (P,): the sum is over the P_u positives of the same query, i with its 1 among them;
        negative s_j (Q, N), standing for all other items; owner (P,); n_items |I|; query (Q,): rows of the same query
        share their positives; mask (Q, N); log_q (N,) or (Q, N), the mean is weighted by 1/q; returns (P,), at least 1.
    Cost: O(PN + P log P); no pair of positives is compared.
    """
    owner, weights = counted(positive, negative, owner, mask, log_q)
    above, n_positives = positives_above(positive, owner if query is None else query[owner])
    over = (margins(positive, negative, owner) + 1).clamp(min=0)
    rest = mean_over(over.square(), weights[owner])
    return above.to(rest.dtype) + (n_items - n_positives).clamp(min=0) * rest


def positives_above(positive: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    r"""Sum of :math:`\max(0, s_p - s_i + 1)^2` over the positives p of i's group, in float64, and their number, (P,).

    A group is ordered from its best score down, as t = s - (its best). Those with t_p > t_i - 1 come first in it, and
    the sums up to there of 1, t and t² make Σ(t_p + c)² with c = 1 - t_i. The best alone adds c², and no t_p is larger
    than c, so no digits that matter cancel, however far apart the scores are.

    Shapes: positive (P,); group (P,), integers.   Cost: O(P log P).
    """
    scores, n = positive.to(torch.float64), positive.numel()
    place = torch.arange(n, device=positive.device)
    # The key of the r-th best of all is group * (n + 1) + r: it sorts by group and, within it, by score.
    falling, order = (-scores.detach()).sort(stable=True)
    keys, within = (group[order] * (n + 1) + place).sort()
    order = order[within]
    base = group[order] * (n + 1)
    begin, end = torch.searchsorted(keys, base), torch.searchsorted(keys, base + n)
    ordered = scores.index_select(0, order)
    best = ordered.detach()[begin]
    reach = torch.searchsorted(keys, base + torch.searchsorted(falling, 1 - ordered.detach()))
    last = torch.maximum(reach - 1, place)  # of those that count; i itself always does
    t = ordered - best
    sums = F.embedding(last, _sums_within(torch.stack([torch.ones_like(t), t, t.square()], 1), begin))
    c = 1 - t
    above = sums[:, 2] + 2 * c * sums[:, 1] + c.square() * sums[:, 0]
    back = torch.argsort(order)
    return above.index_select(0, back), (end - begin)[back]


def _sums_within(values: Tensor, begin: Tensor) -> Tensor:
    """Cumulative sums of ``values (n, m)`` from each one's ``begin (n,)`` on: earlier values add no rounding to them.

    In log2(n) rounds, each of which doubles how far back a sum reaches.
    """
    place, step = torch.arange(begin.numel(), device=begin.device), 1
    while step < begin.numel():
        earlier = F.pad(values[:-step], (0, 0, step, 0))
        values = values + torch.where((place - step >= begin).unsqueeze(1), earlier, 0.0)
        step *= 2
    return values
