r"""The top-K threshold :math:`\beta_u^K`, a query's K-th best score: exact, sampled, by regression, incremental.

All functions are pure: they take scores (and the thresholds so far) and return thresholds. The thresholds themselves
live in a table of the loss (:class:`topshelf.losses.SLatK`). No gradient flows through any of them.

Relations: ``exact`` is the definition (paper eq. 3.1). ``sampled`` is the paper's Monte Carlo estimate with the
negative-sampling trick; it is never above the exact threshold, and far below it where the top K holds negatives of
which few were drawn (docs/losses/slatk.md). ``weighted`` is the trick with every drawn negative counted as the many
that it stands for; about unbiased. ``iid`` is Monte Carlo without the trick, about unbiased but coarse when
K/|I| < 1/N. ``regression`` descends the quantile loss (paper appendix C.3). ``incremental`` follows the quantile at
every step.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from topshelf.errors import at_least, at_most, positive
from topshelf.ranking import QueryVectors, top_k


@torch.no_grad()
def exact_thresholds(queries: QueryVectors, items: Tensor, k: int) -> Tensor:
    """K-th best score of every query over the whole catalogue, (Q,). Cost: one product and a partial sort."""
    return top_k(queries, items, k)[0][:, -1]


@torch.no_grad()
def sampled_thresholds(
    positive_scores: Tensor, negative_scores: Tensor, owner: Tensor, k: int, *, mask: Tensor | None = None
) -> Tensor:
    """K-th best score among a query's positives and its sampled negatives: the paper's estimate.

    Shapes: positive_scores (P,); negative_scores (Q, N); owner (P,); mask (Q, N), True where a negative does not
    count; returns (Q,). A query with fewer than K scores in all gets its lowest one.
    """
    at_least("k", k, 1)
    n_queries = negative_scores.size(0)
    positives = _padded(positive_scores, owner, n_queries)
    negatives = negative_scores if mask is None else negative_scores.masked_fill(mask, -math.inf)
    scores = torch.cat([positives, negatives.to(positives.dtype)], dim=1)
    best = scores.topk(min(k, scores.size(1)), dim=1).values  # (Q, K), descending
    last = (best > -math.inf).sum(1, keepdim=True).clamp(min=1) - 1
    return best.gather(1, last).squeeze(1)


@torch.no_grad()
def weighted_thresholds(
    positive_scores: Tensor,
    negative_scores: Tensor,
    owner: Tensor,
    k: int,
    n_negatives: Tensor,
    *,
    n_drawn: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    r"""The highest score at which positives, and negatives weighted by their share in the sample, reach K.

    .. math:: \hat\beta = \max\{s : |\{i \in P : s_i \ge s\}| + \tfrac{|N|}{n}\,|\{j \in \hat N : s_j \ge s\}| \ge K\}

    Shapes: positive_scores (P,); negative_scores (Q, N), a uniform sample of each query's negatives without repeats;
        owner (P,); n_negatives, the number of negatives per query (Q,); n_drawn, how many were drawn where
        ``negative_scores`` holds only the best of them (Q,); mask (Q, N), True where a negative does not count;
        returns (Q,). A query with scores for fewer than K gets its lowest one.
    Relations: with all negatives drawn the exact threshold; with ``n_negatives`` = ``n_drawn`` the paper's
        ``sampled_thresholds``, which it is never below.
    """
    at_least("k", k, 1)
    positives = _padded(positive_scores, owner, negative_scores.size(0))
    negatives = negative_scores if mask is None else negative_scores.masked_fill(mask, -math.inf)
    drawn = (negatives > -math.inf).sum(1) if n_drawn is None else n_drawn
    scores, order = torch.cat([positives, negatives.to(positives.dtype)], dim=1).sort(dim=1, descending=True)
    # Whole numbers: a positive counts n_drawn, a negative n_negatives, and K is reached at K n_drawn.
    each = torch.where(order < positives.size(1), drawn.unsqueeze(1), n_negatives.unsqueeze(1))
    each = each.masked_fill(scores == -math.inf, 0)
    missing = (each.cumsum(1) < k * drawn.unsqueeze(1)).sum(1, keepdim=True)
    last = (scores > -math.inf).sum(1, keepdim=True).clamp(min=1) - 1
    return scores.gather(1, missing.minimum(last)).squeeze(1)


@torch.no_grad()
def iid_thresholds(scores: Tensor, k: int, n_items: int) -> Tensor:
    r"""Empirical quantile of a uniform sample of the catalogue (paper theorem 3.1): ``scores (Q, N)`` to (Q,).

    .. math:: \hat\theta^p = \inf\{s : \hat F(s) \ge p\}, \quad p = 1 - K / |I|
    """
    return scores.topk(iid_place(scores.size(1), k, n_items), dim=1).values[:, -1]


def iid_place(n: int, k: int, n_items: int) -> int:
    """Which of ``n`` uniform draws, counted from the best, is the empirical quantile."""
    at_most("k", at_least("k", k, 1), n_items, "the number of items")
    # Integers, because ceil((1 - K/I) N) in floats is off by one on round numbers.
    return n - max(1, -(-(n_items - k) * n // n_items)) + 1


@torch.no_grad()
def regression_step(threshold: Tensor, scores: Tensor, k: int, n_items: int, *, rate: float = 0.1) -> Tensor:
    r"""One step down the quantile regression loss on a uniform sample of the catalogue.

    .. math:: \beta \leftarrow \beta - \eta\,(\operatorname{mean}_j 1[s_j \le \beta] - p), \quad p = 1 - K / |I|

    Shapes: threshold (Q,); scores (Q, N); returns (Q,).
    """
    positive("rate", rate)
    below = (scores <= threshold.unsqueeze(1)).to(threshold.dtype).mean(1)
    return threshold - rate * (below - (1 - k / n_items))


@torch.no_grad()
def incremental_step(
    threshold: Tensor,
    positive_scores: Tensor,
    negative_scores: Tensor,
    owner: Tensor,
    k: int,
    n_negatives: Tensor,
    *,
    mask: Tensor | None = None,
    rate: float = 0.5,
) -> Tensor:
    r"""Move each threshold towards the K-th best score, from the scores of one training step.

    The number of items above a level falls about exponentially along the upper tail, :math:`c(\beta) \propto
    e^{-\beta / b}` with :math:`b` the mean excess over the level. A Newton step on the logarithm of the count is

    .. math:: \beta \leftarrow \beta + \eta\, b \log(c / K)

    with c counted exactly over the positives and extrapolated from the sample over the negatives. The trainer counts
    over the whole catalogue instead where a step scores it anyway (:func:`counted_step`).

    Shapes: threshold (Q,); positive_scores (P,); negative_scores (Q, N), a uniform sample of each query's negatives;
        owner (P,); n_negatives, the number of negatives per query (Q,); mask (Q, N), True where a negative does not
        count; returns (Q,).
    Cost: O(P + QN) additions; no sort.
    """
    counted = torch.ones_like(negative_scores) if mask is None else (~mask).to(negative_scores.dtype)
    n = counted.sum(1).clamp(min=1)
    each = n_negatives / n  # how many negatives one sampled negative stands for
    over_negative = (negative_scores - threshold.unsqueeze(1)).clamp_(min=0).mul_(counted)
    over_positive = (positive_scores - threshold[owner]).clamp(min=0)
    count, excess = (over_negative > 0).sum(1) * each, over_negative.sum(1) * each
    count = count.index_add(0, owner, (over_positive > 0).to(count.dtype))
    excess = excess.index_add(0, owner, over_positive.to(excess.dtype))
    mean = (negative_scores * counted).sum(1) / n
    spread = ((negative_scores - mean.unsqueeze(1)).square() * counted).sum(1).div(n).sqrt()
    return counted_step(threshold, count, excess, spread, k, each=each, rate=rate)


@torch.no_grad()
def counted_step(
    threshold: Tensor,
    count: Tensor,
    excess: Tensor,
    spread: Tensor | float,
    k: int,
    *,
    each: Tensor | float = 1.0,
    rate: float = 0.5,
) -> Tensor:
    """:func:`incremental_step` from given counts, over a sample or over the whole catalogue.

    Shapes: threshold (Q,); count and excess (Q,), how many items are above the threshold and by how much in all;
        spread (Q,) or a number, a guess of the mean excess; each (Q,) or a number, how many negatives one counted
        negative stands for; returns (Q,).
    """
    positive("rate", rate)
    # The guess, weighted as one item, stabilises the scale where few or no scores are above the level; half an item
    # keeps the logarithm finite; three scales bound a step from a poor first guess.
    scale = (excess + each * spread) / (count + each)
    step = torch.log((count + 0.5 * each) / (k + 0.5 * each)).clamp_(-3, 3)
    return threshold + rate * scale * step


def _padded(scores: Tensor, owner: Tensor, n_queries: int) -> Tensor:
    """Ragged scores as (Q, longest), the rest -inf. ``owner`` may be in any order."""
    order = torch.argsort(owner, stable=True)
    counts = torch.bincount(owner, minlength=n_queries)
    first = counts.cumsum(0) - counts
    place = torch.arange(owner.numel(), device=owner.device) - first[owner[order]]
    width = int(counts.max()) if n_queries else 0
    table = scores.new_full((n_queries, width), -math.inf)
    table[owner[order], place] = scores[order]
    return table
