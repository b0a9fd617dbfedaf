"""Advice: what was measured, the rule it breaks, and what to set."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from topshelf.diagnose.measures import ESTIMATES, Weights
from topshelf.training.examination import Advice

if TYPE_CHECKING:
    from topshelf.diagnose.run import Diagnosis

__all__ = ["Advice", "advise"]

SATURATED = 0.5  # share of weights under 0.05 or over 0.95
FLAT = 0.02  # range of the weights between the 5th and 95th percentile
WEIGHT_SHIFT = 0.05  # mean change of a weight by wrong thresholds
LARGE_K = 0.1  # of the catalogue
FEW_HITS = 0.5  # share of users with H > 1
CONCENTRATED = 0.5  # share of the gradient held by the top 5% of positives
PUSHED = 0.35  # of the cosine: how far the mean threshold may lie under the softmax loss's
_EDGE = math.log(19)  # a sigmoid is 0.95 there


class Weighted(Protocol):
    """A diagnosis of a loss that may have weights."""

    @property
    def weights(self) -> Weights | None: ...


def advise(diagnosis: Diagnosis) -> list[Advice]:
    """Advice for every rule that the diagnosis breaks; none for a healthy run."""
    rules: tuple[Callable[[Any], Advice | None], ...] = (
        saturated_weights,
        flat_weights,
        large_k,
        stale_thresholds,
        poor_estimator,
        large_effective_n,
        few_hits,
        concentrated_gradient,
    )
    return [advice for rule in rules if (advice := rule(diagnosis)) is not None]


def saturated_weights(diagnosis: Weighted) -> Advice | None:
    weights = diagnosis.weights
    if weights is None or weights.low + weights.high <= SATURATED:
        return None
    fitting = float(np.quantile(np.abs(weights.distance), 0.9)) / _EDGE
    return Advice(
        "weights saturated",
        f"{weights.low:.0%} of the weights are under 0.05 and {weights.high:.0%} over 0.95 (loss.tau_weight = "
        f"{weights.tau_weight:g}).",
        f"With more than {SATURATED:.0%} saturated, most positives are either ignored or plain softmax terms.",
        f"Raise loss.tau_weight: at {fitting:.2g}, 90% of the weights would lie between.",
    )


def flat_weights(diagnosis: Weighted) -> Advice | None:
    weights = diagnosis.weights
    if weights is None or weights.range >= FLAT:
        return None
    spread = float(np.subtract(*np.quantile(weights.distance, (0.95, 0.05))))
    return Advice(
        "weights flat",
        f"90% of the weights lie within {weights.range:.3f} of each other (loss.tau_weight = {weights.tau_weight:g}).",
        f"Under {FLAT:g} the loss no longer separates the top K from the rest.",
        f"Lower loss.tau_weight: scores spread over {spread:.2g} around the thresholds, so try {spread:.2g} to "
        f"{4 * spread:.2g}.",
    )


def large_k(diagnosis: Diagnosis) -> Advice | None:
    share = diagnosis.k / diagnosis.n_items
    if share <= LARGE_K:
        return None
    return Advice(
        "K is large",
        f"K = {diagnosis.k} is {share:.0%} of the {diagnosis.n_items:,} items.",
        f"Over {LARGE_K:.0%}, most items are in the list, and a top-K loss has little to select.",
        f"Set k to the length of the list that users see (under {max(1, math.floor(LARGE_K * diagnosis.n_items)):,}), "
        'or use loss.name = "softmax".',
    )


def stale_thresholds(diagnosis: Diagnosis) -> Advice | None:
    held = diagnosis.held
    if held is None or held.weight_shift is None or held.weight_shift <= WEIGHT_SHIFT:
        return None
    return Advice(
        "thresholds stale",
        f"The loss's thresholds are {np.abs(held.error).mean():.3f} from the exact ones on average, which changes its "
        f"weights by {held.weight_shift:.2f}.",
        f"Over {WEIGHT_SHIFT:g}, the weights do not belong to the current scores.",
        'Set threshold.every lower, or threshold.estimator to "exact" or "incremental"; the first threshold '
        "update is in epoch threshold.every.",
    )


def poor_estimator(diagnosis: Diagnosis) -> Advice | None:
    used = ESTIMATES.get(diagnosis.estimator)
    estimate = next((estimate for estimate in diagnosis.estimates if estimate.name == used), None)
    if estimate is None or estimate.weight_shift is None or estimate.weight_shift <= WEIGHT_SHIFT:
        return None
    better = [f'"{name}"' for name in ("exact", "weighted") if name != diagnosis.estimator]
    return Advice(
        "thresholds misestimated",
        f"The {diagnosis.estimator} estimate of {estimate.n:,} items is off by {estimate.error.mean():+.3f} ± "
        f"{estimate.error.std():.3f}, which changes the weights by {estimate.weight_shift:.2f}.",
        f"Over {WEIGHT_SHIFT:g}, the weights are those of another K.",
        f"Raise threshold.n, or set threshold.estimator to {' or '.join(better)}.",
    )


def large_effective_n(diagnosis: Diagnosis) -> Advice | None:
    """SL@K's weight pushes low-ranked positives down, more strongly with a larger partition."""
    if diagnosis.weights is None or not diagnosis.is_cosine or "softmax" not in diagnosis.mean_thresholds:
        return None
    mine, theirs = diagnosis.mean_thresholds[diagnosis.label], diagnosis.mean_thresholds["softmax"]
    if mine >= theirs - PUSHED:
        return None
    return Advice(
        "effective N too large",
        f"The mean threshold is {mine:.2f} after {diagnosis.epochs} epochs, and {theirs:.2f} with the softmax loss "
        f"(negatives.effective_n = {diagnosis.effective_n}).",
        f"More than {PUSHED:g} under it, the gradient through the weights pushes positives down harder than the "
        "softmax term pulls them up.",
        f"Lower negatives.effective_n, to {max(1, (diagnosis.effective_n or 1000) // 3)} first, or set "
        "loss.detach_weight = true (docs/losses/slatk.md, the size of the partition).",
    )


def few_hits(diagnosis: Diagnosis) -> Advice | None:
    last = diagnosis.bound
    if last.more_hits >= FEW_HITS:
        return None
    share = diagnosis.two_positives
    remedy = (
        f"Only {share:.0%} of users have two training positives at all: for the others the bound is half as tight with "
        "any settings."
        if share < FEW_HITS
        else "Train longer, or raise loss.tau or train.learning_rate if the share has stopped growing."
    )
    return Advice(
        "few users with two hits",
        f"{last.more_hits:.0%} of users have two or more training positives in their top {diagnosis.k}; "
        f"{last.no_hit:.0%} have none.",
        f"Theorem 3.2 bounds -log DCG@K only for users with two hits; under {FEW_HITS:.0%} the loss says little about "
        "the metric.",
        remedy,
    )


def concentrated_gradient(diagnosis: Diagnosis) -> Advice | None:
    mine = diagnosis.own_gradients
    if mine is None or mine.by_positive.top["5%"] <= CONCENTRATED:
        return None
    return Advice(
        "gradient concentrated",
        f"The top 5% of positives hold {mine.by_positive.top['5%']:.0%} of {mine.label}'s gradient.",
        f"Over {CONCENTRATED:.0%}, most of the data contributes little, and single positives can dominate a step.",
        'Use loss.name = "slatk" or "softmax", or a higher loss.tau where the loss has one; a lower '
        "train.learning_rate makes the steps smaller.",
    )
