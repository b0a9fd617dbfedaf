"""Formulas on ranked hits: what a list of K places is worth to one query.

``hits (B, K)`` says for each place, best first, whether the item there is relevant (0/1, any dtype).
``n_relevant (B,)`` is how many relevant items the query has in all. Every metric returns float64 (B,), and 0
for a query without relevant items; whether such queries count is the evaluator's decision.
Ties and masks are settled by the ranking, so a metric never sees a score.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from topshelf.errors import DataError

Metric = Callable[[Tensor, Tensor], Tensor]


def ndcg_at_k(hits: Tensor, n_relevant: Tensor) -> Tensor:
    r"""Gain with a discount by place, over that of the best possible list of K places.

    .. math:: \sum_{r \le K} \frac{hit_r}{\log_2(r + 1)} \Big/ \sum_{r \le \min(K, n)} \frac{1}{\log_2(r + 1)}

    Shapes: hits (B, K); n_relevant n (B,); returns (B,).
    """
    places = torch.arange(2, hits.size(-1) + 2, dtype=torch.float64, device=hits.device)
    discount = 1 / torch.log2(places)  # (K,)
    ideal = discount.cumsum(0)[n_relevant.clamp(1, hits.size(-1)) - 1]  # (B,)
    return hits.double() @ discount / ideal


def recall_at_k(hits: Tensor, n_relevant: Tensor) -> Tensor:
    """Hits over relevant items, ``n_hits / n_relevant``: the denominator is not capped at K.

    Shapes: hits (B, K); n_relevant (B,); returns (B,).
    """
    return hits.double().sum(-1) / n_relevant.clamp(min=1)


def precision_at_k(hits: Tensor, n_relevant: Tensor) -> Tensor:  # noqa: ARG001 - one signature for all metrics
    """Hits over places, ``n_hits / K``: divided by K even when fewer than K items could be listed.

    Shapes: hits (B, K); n_relevant (B,), not used; returns (B,).
    """
    return hits.double().mean(-1)


def hit_rate_at_k(hits: Tensor, n_relevant: Tensor) -> Tensor:  # noqa: ARG001 - one signature for all metrics
    """1 when at least one of the K places is a hit, else 0.

    Shapes: hits (B, K); n_relevant (B,), not used; returns (B,).
    """
    return (hits > 0).any(-1).double()


def mrr_at_k(hits: Tensor, n_relevant: Tensor) -> Tensor:  # noqa: ARG001 - one signature for all metrics
    """Reciprocal of the place of the first hit; 0 when none of the K places is a hit.

    Shapes: hits (B, K); n_relevant (B,), not used; returns (B,).
    """
    place = torch.arange(1, hits.size(-1) + 1, dtype=torch.float64, device=hits.device)
    return (hits.double() / place).amax(-1)


def map_at_k(hits: Tensor, n_relevant: Tensor) -> Tensor:
    r"""Average precision: the precision at each hit, summed, over the most hits that K places allow.

    .. math:: \frac{1}{\min(K, n)} \sum_{r \le K} hit_r \cdot \frac{1}{r} \sum_{q \le r} hit_q

    Shapes: hits (B, K); n_relevant n (B,); returns (B,).
    Relations: trec_eval's ``map_cut`` divides by n instead.
    """
    flags = hits.double()
    place = torch.arange(1, hits.size(-1) + 1, dtype=torch.float64, device=hits.device)
    return (flags * flags.cumsum(-1) / place).sum(-1) / n_relevant.clamp(1, hits.size(-1))


def f1_at_k(hits: Tensor, n_relevant: Tensor) -> Tensor:
    r"""Harmonic mean of precision and recall, :math:`2 n_{hits} / (K + n)`; 0 when both are 0.

    Shapes: hits (B, K); n_relevant n (B,); returns (B,). The mean over queries is of each query's F1.
    """
    return 2 * hits.double().sum(-1) / (hits.size(-1) + n_relevant)


def auc(above: Tensor, equal: Tensor, n_relevant: Tensor, n_candidates: Tensor) -> Tensor:
    r"""Share of (relevant, irrelevant) pairs in the right order; a tie is half right.

    .. math:: 1 - \frac{\sum_i (above_i + equal_i / 2) - n (n - 1) / 2}{n (c - n)}

    Shapes: above, equal (B,): summed over the query's relevant items i, how many candidates score above i,
        and as much as i, other relevant items included but not i itself; n_relevant n (B,);
        n_candidates c (B,): how many items are not masked; returns (B,).
    Each pair of relevant items adds exactly 1 to the sum, whatever its order; that is the n(n-1)/2 taken off.
    NaN where there is no pair: no relevant item, or no irrelevant one.
    """
    n = n_relevant.double()
    wrong = above + equal / 2 - n * (n - 1) / 2
    n_pairs = n * (n_candidates - n)
    return torch.where(n_pairs > 0, 1 - wrong / n_pairs.clamp(min=1), torch.nan)


def item_exposure(indices: Tensor, n_items: int) -> Tensor:
    """How often each item stands in the lists (B, K), empty places (-1) ignored; returns (n_items,) int64.

    Exposures of parts of the lists add up to the exposure of the whole.
    """
    return torch.bincount(indices.flatten() + 1, minlength=n_items + 1)[1:]


def catalogue_coverage(exposure: Tensor) -> float:
    """Share of the catalogue that stands in at least one list; ``exposure`` as from :func:`item_exposure`."""
    return float((exposure > 0).double().mean())


def popularity_lift(exposure: Tensor, item_counts: Tensor) -> float:
    """Mean training count of a recommended item over the mean training count of an item.

    Shapes: exposure (I,); item_counts (I,). An item in ten lists counts ten times. 1: as popular as the
    catalogue on average; above 1: leans to popular items.
    NaN when nothing was recommended or nothing counted.
    """
    if exposure.numel() != item_counts.numel():
        raise DataError(f"item_counts must hold {exposure.numel()} items, got {item_counts.numel()}")
    counts = item_counts.double()
    recommended = (exposure.double() * counts).sum() / exposure.sum()
    return float(recommended / counts.mean())


METRICS: dict[str, Metric] = {
    "ndcg": ndcg_at_k,
    "recall": recall_at_k,
    "precision": precision_at_k,
    "hit_rate": hit_rate_at_k,
    "mrr": mrr_at_k,
    "map": map_at_k,
    "f1": f1_at_k,
}
