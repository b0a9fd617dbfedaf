"""Plain-language advice: what was seen, the rule it breaks, and what to set."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from topshelf.diagnose.measures import ESTIMATES

if TYPE_CHECKING:
    from topshelf.diagnose.run import Diagnosis

SATURATED = 0.5  # share of weights under 0.05 or over 0.95
FLAT = 0.02  # range of the weights between the 5th and 95th percentile
WEIGHT_SHIFT = 0.05  # mean change of a weight by wrong thresholds
LARGE_K = 0.1  # of the catalogue
FEW_HITS = 0.5  # share of users with H > 1
CONCENTRATED = 0.5  # share of the gradient held by the top 5% of positives
PUSHED = 0.35  # of the cosine: how far the mean threshold may lie under the softmax loss's
_EDGE = math.log(19)  # a sigmoid is 0.95 there


@dataclass(frozen=True)
class Advice:
    """One thing to change."""

    topic: str
    seen: str
    rule: str
    do: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)

    def sentences(self) -> str:
        return f"{self.seen} {self.rule} {self.do}"


def advise(found: Diagnosis) -> list[Advice]:
    """Every rule that the diagnosis breaks; none for a healthy run."""
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
    return [advice for rule in rules if (advice := rule(found)) is not None]


def saturated_weights(found: Diagnosis) -> Advice | None:
    weights = found.weights
    if weights is None or weights.low + weights.high <= SATURATED:
        return None
    fitting = float(np.quantile(np.abs(weights.distance), 0.9)) / _EDGE
    return Advice(
        "weights saturated",
        f"{weights.low:.0%} of the weights are under 0.05 and {weights.high:.0%} over 0.95 (loss.tau_weight = "
        f"{weights.tau_weight:g}).",
        f"Where more than {SATURATED:.0%} are, most positives are either ignored or plain softmax terms.",
        f"Raise loss.tau_weight: at {fitting:.2g} nine in ten would lie between.",
    )


def flat_weights(found: Diagnosis) -> Advice | None:
    weights = found.weights
    if weights is None or weights.range >= FLAT:
        return None
    spread = float(np.subtract(*np.quantile(weights.distance, (0.95, 0.05))))
    return Advice(
        "weights flat",
        f"Nine in ten weights lie within {weights.range:.3f} of each other (loss.tau_weight = {weights.tau_weight:g}).",
        f"Under {FLAT:g} the loss no longer tells the top K from the rest.",
        f"Lower loss.tau_weight: scores reach {spread:.2g} about the thresholds, so try {spread:.2g} to "
        f"{4 * spread:.2g}.",
    )


def large_k(found: Diagnosis) -> Advice | None:
    share = found.k / found.n_items
    if share <= LARGE_K:
        return None
    return Advice(
        "K is large",
        f"K = {found.k} is {share:.0%} of the {found.n_items:,} items.",
        f"Over {LARGE_K:.0%} nearly everything is in the list, and a loss for its first places has little to choose.",
        f"Set k to what people see (under {max(1, math.floor(LARGE_K * found.n_items)):,}), or use loss.name = "
        '"softmax".',
    )


def stale_thresholds(found: Diagnosis) -> Advice | None:
    held = found.held
    if held is None or held.weight_shift is None or held.weight_shift <= WEIGHT_SHIFT:
        return None
    return Advice(
        "thresholds stale",
        f"The loss's thresholds are {np.abs(held.error).mean():.3f} from the exact ones on average, which moves "
        "its weights by "
        f"{held.weight_shift:.2f}.",
        f"Over {WEIGHT_SHIFT:g} the weights are not those of the scores they are multiplied with.",
        'Set threshold.every lower, or threshold.estimator to "exact" or "incremental"; a first refresh comes only in '
        "epoch threshold.every.",
    )


def poor_estimator(found: Diagnosis) -> Advice | None:
    used = ESTIMATES.get(found.estimator)
    estimate = next((estimate for estimate in found.estimates if estimate.name == used), None)
    if estimate is None or estimate.weight_shift is None or estimate.weight_shift <= WEIGHT_SHIFT:
        return None
    better = [f'"{name}"' for name in ("exact", "weighted") if name != found.estimator]
    return Advice(
        "thresholds misestimated",
        f"The {found.estimator} estimate of {estimate.n:,} items is off by {estimate.error.mean():+.3f} ± "
        f"{estimate.error.std():.3f}, which moves the weights by {estimate.weight_shift:.2f}.",
        f"Over {WEIGHT_SHIFT:g} the weights are those of another K.",
        f"Raise threshold.n, or set threshold.estimator to {' or '.join(better)}.",
    )


def large_effective_n(found: Diagnosis) -> Advice | None:
    """SL@K's weight pushes badly ranked positives down, the harder the larger its partition is."""
    if found.weights is None or not found.is_cosine or "softmax" not in found.mean_thresholds:
        return None
    mine, theirs = found.mean_thresholds[found.label], found.mean_thresholds["softmax"]
    if mine >= theirs - PUSHED:
        return None
    return Advice(
        "effective N too large",
        f"The mean threshold is {mine:.2f} after {found.epochs} epochs, and {theirs:.2f} with the softmax loss "
        f"(negatives.effective_n = {found.effective_n}).",
        f"More than {PUSHED:g} under it, the gradient through the weights pushes positives down harder than the "
        "softmax "
        "term pulls them up.",
        f"Lower negatives.effective_n, to {max(1, (found.effective_n or 1000) // 3)} first, or set "
        "loss.detach_weight = true "
        "(docs/losses/slatk.md, the size of the partition).",
    )


def few_hits(found: Diagnosis) -> Advice | None:
    last = found.bound
    if last.more_hits >= FEW_HITS:
        return None
    able = found.two_positives
    why = (
        f"Only {able:.0%} of users have two training positives at all: for the others the bound is half as tight, "
        "whatever is set."
        if able < FEW_HITS
        else "Train longer, or raise loss.tau or train.learning_rate if the share has stopped growing."
    )
    return Advice(
        "few users with two hits",
        f"{last.more_hits:.0%} of users have two or more training positives in their top {found.k}; "
        f"{last.no_hit:.0%} have none.",
        f"Theorem 3.2 bounds -log DCG@K only for those with two; under {FEW_HITS:.0%} the loss says little about "
        "the metric.",
        why,
    )


def concentrated_gradient(found: Diagnosis) -> Advice | None:
    mine = found.own_gradients
    if mine is None or mine.by_positive.top["5%"] <= CONCENTRATED:
        return None
    return Advice(
        "gradient concentrated",
        f"The top 5% of positives hold {mine.by_positive.top['5%']:.0%} of {mine.label}'s gradient.",
        f"Over {CONCENTRATED:.0%}, most of the data teaches next to nothing, and single positives can throw the "
        "model about.",
        'Use loss.name = "slatk" or "softmax", or a higher loss.tau where the loss has one; a lower '
        "train.learning_rate "
        "eases the jumps.",
    )
