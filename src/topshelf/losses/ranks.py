"""The ranks of positives and negatives among those of their query."""

from __future__ import annotations

import torch
from torch import Tensor

from topshelf.losses.base import widened


@torch.no_grad()
def ranks(
    positive: Tensor,
    negative: Tensor,
    owner: Tensor,
    *,
    query: Tensor | None = None,
    mask: Tensor | None = None,
    n_items: int | None = None,
) -> tuple[Tensor, Tensor]:
    r"""The rank of every positive, (P,), and every negative, (Q, N), among its query's positives and negatives.

    .. math:: \pi_i = \#\{j : s_j \ge s_i\}

    Shapes: positive (P,); negative (Q, N); owner (P,); query (Q,): rows of the same query share their positives;
        mask (Q, N). With ``n_items`` the ranks are scaled up to a catalogue of that many.
    Cost: O(QN (log N + log P) + PN); no pair of negatives is compared.
    """
    group = torch.arange(negative.size(0), device=negative.device) if query is None else query
    positive, negative = widened(positive), widened(negative)
    rows = negative if mask is None else negative.masked_fill(mask, -torch.inf)
    n_rivals = torch.full_like(group, negative.size(1)) if mask is None else (~mask).sum(1)
    n_positives, above_positive, above_negative = _positives_above(positive, rows, owner, group)
    ordered = rows.sort(1).values
    above_negative = above_negative + negative.size(1) - torch.searchsorted(ordered, rows)
    above_positive = above_positive + (rows[owner] >= positive.unsqueeze(1)).sum(1)
    rank_i, rank_j = above_positive.to(positive.dtype), above_negative.to(positive.dtype)
    if n_items is None:
        return rank_i, rank_j
    scale = n_items / (n_positives + n_rivals).clamp(min=1).to(positive.dtype)  # (Q,)
    return (rank_i * scale[owner]).clamp(min=1), (rank_j * scale.unsqueeze(1)).clamp(min=1)


def _positives_above(positive: Tensor, rows: Tensor, owner: Tensor, group: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The number of positives of each row's group (Q,), and of them at or above each positive (P,) and negative (Q, N).

    All positives are sorted once, by value; ``group * (P + 1) + place`` then sorts them by group and, within it, by
    value, and a search for ``group * (P + 1) + (how many in all are below)`` finds how many of the group are below.
    """
    ordered, order = positive.sort(stable=True)
    base = group * (positive.numel() + 1)  # (Q,)
    keys = (base[owner[order]] + torch.arange(positive.numel(), device=positive.device)).sort().values
    end = torch.searchsorted(keys, base + positive.numel())  # above every place of the group
    n_positives = end - torch.searchsorted(keys, base)
    below = torch.searchsorted(ordered, positive) + base[owner]
    below_rows = torch.searchsorted(ordered, rows) + base.unsqueeze(1)
    above_positive = end[owner] - torch.searchsorted(keys, below)
    return n_positives, above_positive, end.unsqueeze(1) - torch.searchsorted(keys, below_rows)
