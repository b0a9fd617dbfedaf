"""Helpers of tables: which value of a repeated index is kept, and the share of scores below a threshold."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def first_rows(index: Tensor) -> Tensor:
    """For each place of ``index (n,)``, the first place with the same index, (n,).

    ``table[index] = values[first_rows(index)]`` writes the same value however often an index occurs, so the order
    of the writes does not matter. Cost: O(n log n), and no shape that depends on the values.
    """
    order = torch.argsort(index, stable=True)
    ordered = index[order]
    place = torch.arange(index.numel(), device=index.device)
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    run = torch.where(begins, place, torch.zeros_like(place)).cummax(0).values if index.numel() else place
    return torch.empty_like(place).scatter_(0, order, order[run])


@torch.no_grad()
def share_at_or_below(
    threshold: Tensor,
    positive: Tensor,
    negative: Tensor,
    weights: Tensor,
    owner: Tensor,
    first: Tensor,
    n_items: int,
) -> Tensor:
    r"""The share of the catalogue that is scored at or below each query's threshold, (Q,).

    Each positive counts once; the negatives stand for all the rest. Exact over the whole catalogue.

    Shapes: threshold (Q,); positive (P,); negative and weights (Q, N); owner (P,); first (Q,), of :func:`first_rows`:
        the positives of all rows of a query count for it.
    """
    row = first[owner]
    below = (positive <= threshold[owner]).to(threshold.dtype)
    zero = torch.zeros_like(threshold)
    n_positives = zero.index_add(0, row, torch.ones_like(below))[first]
    n_below = zero.index_add(0, row, below)[first]
    total = weights.sum(1)
    share = ((negative <= threshold.unsqueeze(1)) * weights).sum(1) / torch.where(total > 0, total, 1.0)
    return (n_below + (n_items - n_positives) * share) / n_items
