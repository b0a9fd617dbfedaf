"""Formulas on ranked gains: what a list of K places is worth to one query.

``gains (B, K)`` is what the item at each place is worth, best place first, >= 0, any dtype; 0 where the place is empty.
Binary relevance is the special case of 0 and 1. ``n_relevant (B,)`` is how many items with a gain > 0 the query has in
all. NDCG looks at the gains themselves. Every other metric asks only whether a gain is > 0, which is a hit.

Every metric returns float64 (B,), and 0 for a query with nothing to find; whether such queries count is the evaluator's
choice, and named by it. Ties and masks are settled by the ranking, so a metric never sees a score.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from topshelf.errors import DataError

Metric = Callable[[Tensor, Tensor], Tensor]


def exponential_gain(grades: Tensor) -> Tensor:
    """Gain 2^y - 1 of a grade y >= 0: what learning to rank reports. Float64, same shape."""
    return torch.exp2(grades.double()) - 1


def linear_gain(grades: Tensor) -> Tensor:
    """Gain y of a grade y >= 0: scikit-learn's and trec_eval's choice. Float64, same shape."""
    return grades.double()


GAINS: dict[str, Callable[[Tensor], Tensor]] = {"exponential": exponential_gain, "linear": linear_gain}


def ndcg_at_k(gains: Tensor, ideal: Tensor) -> Tensor:
    r"""Gain with a discount by place, over that of the best possible list of K places.

    .. math:: \sum_{r \le K} \frac{gain_r}{\log_2(r + 1)} \Big/ \sum_{r \le K} \frac{ideal_r}{\log_2(r + 1)}

    Shapes: gains (B, K); ideal (B, L): the query's highest gains, best first, 0 after the last, of which the first K
        count; for gains of 0 and 1 it may be n_relevant (B,), so many ones; returns (B,).
    Graded relevance: make both of grades by one of ``GAINS``; the two agree where grades are 0 and 1.
    """
    discount = 1 / torch.log2(torch.arange(2, gains.size(-1) + 2, dtype=torch.float64, device=gains.device))  # (K,)
    if ideal.dim() == 1:
        return gains.double() @ discount / discount.cumsum(0)[ideal.clamp(1, gains.size(-1)) - 1]
    best = ideal[:, : gains.size(-1)].double()
    most = best @ discount[: best.size(-1)]  # (B,)
    return torch.where(most > 0, gains.double() @ discount / most, 0.0)


def _on_hits(formula: Metric) -> Metric:
    """A metric of gains, whichever their dtype, from a formula on hits (0 and 1 in float64)."""

    @functools.wraps(formula)
    def metric(gains: Tensor, n_relevant: Tensor) -> Tensor:
        return formula(_hits(gains), n_relevant)

    return metric


def _hits(gains: Tensor) -> Tensor:
    return (gains > 0).double()


@_on_hits
def recall_at_k(hits: Tensor, n_relevant: Tensor) -> Tensor:
    """Hits over relevant items, ``n_hits / n_relevant``: the denominator is not capped at K.

    Shapes: gains (B, K), a hit where > 0; n_relevant (B,); returns (B,).
    """
    return hits.sum(-1) / n_relevant.clamp(min=1)


@_on_hits
def precision_at_k(hits: Tensor, n_relevant: Tensor) -> Tensor:  # noqa: ARG001 - one signature for all metrics
    """Hits over places, ``n_hits / K``: divided by K even when fewer than K items could be listed.

    Shapes: gains (B, K), a hit where > 0; n_relevant (B,), not used; returns (B,).
    """
    return hits.mean(-1)


@_on_hits
def hit_rate_at_k(hits: Tensor, n_relevant: Tensor) -> Tensor:  # noqa: ARG001 - one signature for all metrics
    """1 when at least one of the K places is a hit, else 0.

    Shapes: gains (B, K), a hit where > 0; n_relevant (B,), not used; returns (B,).
    """
    return (hits.sum(-1) > 0).double()


@_on_hits
def mrr_at_k(hits: Tensor, n_relevant: Tensor) -> Tensor:  # noqa: ARG001 - one signature for all metrics
    """Reciprocal of the place of the first hit; 0 when none of the K places is a hit.

    Shapes: gains (B, K), a hit where > 0; n_relevant (B,), not used; returns (B,).
    """
    return (hits / _places(hits)).amax(-1)


@_on_hits
def map_at_k(hits: Tensor, n_relevant: Tensor) -> Tensor:
    r"""Average precision: the precision at each hit, summed, over the most hits that K places allow.

    .. math:: \frac{1}{\min(K, n)} \sum_{r \le K} hit_r \cdot \frac{1}{r} \sum_{q \le r} hit_q

    Shapes: gains (B, K), a hit where > 0; n_relevant n (B,); returns (B,).
    Relations: trec_eval's ``map_cut`` divides by n instead.
    """
    return (hits * hits.cumsum(-1) / _places(hits)).sum(-1) / n_relevant.clamp(1, hits.size(-1))


@_on_hits
def f1_at_k(hits: Tensor, n_relevant: Tensor) -> Tensor:
    r"""Harmonic mean of precision and recall, :math:`2 n_{hits} / (K + n)`; 0 when both are 0.

    Shapes: gains (B, K), a hit where > 0; n_relevant n (B,); returns (B,). The mean over queries is of each query's F1.
    """
    return 2 * hits.sum(-1) / (hits.size(-1) + n_relevant)


def err_at_k(grades: Tensor, highest: float) -> Tensor:
    r"""Expected reciprocal rank: a reader goes down the list and stops at place r with chance R_r.

    .. math:: \sum_{r \le K} \frac{R_r}{r} \prod_{q < r} (1 - R_q), \qquad R_r = \frac{2^{y_r} - 1}{2^{y_{max}}}

    Shapes: grades y (B, K) of the ranked documents, best place first, 0 where a place is empty; returns (B,).
    Settings: ``highest`` y_max, the highest grade of the scale (4 for MSLR-WEB), not of one list.
    Paper: Chapelle et al., Expected reciprocal rank for graded relevance, CIKM 2009.
    """
    stops = (torch.exp2(grades.double()) - 1) / 2.0**highest  # (B, K)
    goes_on = torch.cat([torch.ones_like(stops[:, :1]), (1 - stops).cumprod(-1)[:, :-1]], -1)
    chances: Tensor = stops * goes_on / _places(stops)
    return chances.sum(-1)


def _places(hits: Tensor) -> Tensor:
    return torch.arange(1, hits.size(-1) + 1, dtype=torch.float64, device=hits.device)


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
    """How often each item is in the lists (B, K), empty places (-1) ignored; returns (n_items,) int64.

    Exposures of parts of the lists add up to the exposure of the whole.
    """
    return torch.bincount(indices.flatten() + 1, minlength=n_items + 1)[1:]


def catalogue_coverage(exposure: Tensor) -> float:
    """Share of the catalogue that is in at least one list; ``exposure`` as from :func:`item_exposure`."""
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


def every_metric(
    gains: Tensor, n_relevant: Tensor, cutoffs: Sequence[int], ideal: Tensor | None = None
) -> dict[str, Tensor]:
    """All of ``METRICS`` at all cut-offs, "ndcg@10" -> (B,), with the hits computed once.

    Shapes: gains (B, K), float64, K >= the largest cut-off; n_relevant (B,); ideal (B, K), as of :func:`ndcg_at_k`.
        Without ``ideal`` the gains must be 0 and 1.
    """
    hits = gains if ideal is None else _hits(gains)
    values = {f"ndcg@{k}": ndcg_at_k(gains[:, :k], n_relevant if ideal is None else ideal[:, :k]) for k in cutoffs}
    for name, metric in METRICS.items():
        if metric is not ndcg_at_k:
            formula: Metric = inspect.unwrap(metric)  # on hits
            values |= {f"{name}@{k}": formula(hits[:, :k], n_relevant) for k in cutoffs}
    return values
