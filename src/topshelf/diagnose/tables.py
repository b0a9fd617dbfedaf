"""A diagnosis as text and tables, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from topshelf.diagnose.advice import Advice
from topshelf.diagnose.gradients import Concentration
from topshelf.diagnose.measures import HIGH, LOW, SMALL_LAMBDA, Estimate, quantiles
from topshelf.diagnose.run import Diagnosis

HEALTHY = "Nothing to change: no rule of docs/diagnose.md is broken."


@dataclass(frozen=True)
class Section:
    """One measure: its description, numbers, plots, and notes on how to read them."""

    title: str
    text: str
    header: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()
    plots: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def caption(diagnosis: Diagnosis) -> str:
    return (
        f"{diagnosis.target}: {diagnosis.label} on {diagnosis.data}, {diagnosis.n_users:,} users, "
        f"{diagnosis.n_items:,} items, K = {diagnosis.k}. {diagnosis.sampled_users:,} users are sampled. Every loss "
        f"was trained here for {diagnosis.epochs} epochs from the same initial values (seed {diagnosis.seed}); "
        "thresholds, scores, weights and hits are those of "
        f"{'' if diagnosis.state.startswith('the') else f'{diagnosis.label} '}{diagnosis.state}."
    )


def advice_lines(advice: Sequence[Advice]) -> list[str]:
    return [f"{one.topic}: {one.sentences()}" for one in advice] or [HEALTHY]


def sections(diagnosis: Diagnosis) -> list[Section]:
    parts = (_gradients, _thresholds, _scores, _weights, _bound, _lambda, _time)
    return [part(diagnosis) for part in parts]


def _gradients(diagnosis: Diagnosis) -> Section:
    rows = [
        (
            one.label,
            one.epochs,
            *(_top(getattr(one, kind)) for kind in ("by_positive", "by_user", "by_pair")),
            f"{100 * one.by_positive.top['1%']:.1f}",
            f"{one.by_positive.decades:.1f}",
        )
        for one in diagnosis.gradients
    ]
    return Section(
        "Gradient concentration",
        "The share of the whole gradient held by the largest 5% of positives, users and pairs.",
        (
            "loss",
            "epochs",
            "top 5% of positives, %",
            "top 5% of users, %",
            "top 5% of pairs, %",
            "top 1% of positives, %",
            "decades, 1st to 99th percentile",
        ),
        rows,
        ("gradient-concentration", "gradient-sizes"),
        _gradient_notes(diagnosis),
    )


def _gradient_notes(diagnosis: Diagnosis) -> tuple[str, ...]:
    notes = [
        "The gradient of a positive (u, i) is the gradient of its own term of the loss with respect to the user's "
        "vector, over the whole catalogue; with cosine scores, without the component along that vector. Per user: the "
        "sum over the user's positives. Per pair (u, i, j): the derivative of the positive's term with respect to the "
        "score of the negative j.",
        "The higher the curve, the fewer instances carry the gradient; the grey diagonal is an equal share for all.",
    ]
    coupled = [one.label for one in diagnosis.gradients if one.is_coupled]
    if coupled:
        notes.append(
            f"{', '.join(coupled)}: the positives of a batch depend on each other, so this is the gradient of the "
            "batch's loss."
        )
    return (*notes, *(f"{label} is left out: {reason}" for label, reason in diagnosis.failed.items()))


def _top(concentration: Concentration) -> str:
    """In percent; empty for a loss without such instances."""
    return f"{100 * concentration.top['5%']:.1f}" if concentration.n else ""


def _thresholds(diagnosis: Diagnosis) -> Section:
    exact = diagnosis.scores.threshold
    notes = [
        "The error is the estimate minus the exact threshold. With the trick (all positives and n sampled negatives) "
        "the estimate can only be too low: the more negatives are in the top K and the fewer are sampled, the lower. "
        "Without it (n items of the whole catalogue) the error is roughly centred, with a large variance. Weighted is "
        "the trick with every sampled negative counted for all the negatives it represents: roughly centred, with a "
        "smaller variance."
    ]
    if diagnosis.held is not None:
        notes.append(
            f"The loss's own: its buffer after {diagnosis.epochs} epochs (threshold.estimator = "
            f"{diagnosis.estimator}) against the exact thresholds of the same moment. The error combines staleness and "
            "the estimator's own error."
        )
    return Section(
        "Thresholds: exact and estimated",
        f"The K-th best score of each user. Exact: mean {exact.mean():.3f}, standard deviation {exact.std():.3f} "
        "over users.",
        ("estimator", "items sampled", "error, mean", "error, std", "error, mean absolute", "weights change by"),
        [_estimate(one) for one in all_estimates(diagnosis)],
        ("thresholds", "threshold-errors"),
        tuple(notes),
    )


def all_estimates(diagnosis: Diagnosis) -> list[Estimate]:
    """The estimators that were compared, and the loss's own thresholds if it has any."""
    return [one for one in (*diagnosis.estimates, diagnosis.held) if one is not None]


def _estimate(one: Estimate) -> tuple[str, ...]:
    numbers = one.to_json()
    shift = "" if one.weight_shift is None else f"{one.weight_shift:.3f}"
    errors = (f"{numbers['error_mean']:+.3f}", f"{numbers['error_std']:.3f}", f"{numbers['error_mean_absolute']:.3f}")
    return (one.name, "" if one.n is None else f"{one.n:,}", *errors, shift)


def _scores(diagnosis: Diagnosis) -> Section:
    names = {"positive": "training positives", "negative": "negatives", "threshold": "thresholds"}
    numbers = diagnosis.scores.to_json()
    rows = [(name, f"{numbers[key]['mean']:.3f}", f"{numbers[key]['std']:.3f}") for key, name in names.items()]
    return Section(
        "Scores",
        "Scores of training positives and of sampled negatives, and the thresholds of the top K.",
        ("", "mean", "std"),
        rows,
        ("scores",),
        (
            "Thresholds usually lie among the positives' scores. Positives with lower scores than the negatives are "
            "being pushed down.",
        ),
    )


def _weights(diagnosis: Diagnosis) -> Section:
    weights = diagnosis.weights
    if weights is None:
        return Section("Weights", f"{diagnosis.label} has no sigmoid weights around thresholds.")
    shares, middle = [f"{100 * share:.1f}" for share in (weights.low, weights.high)], quantiles(weights.values)
    return Section(
        "Weights",
        f"The weight of each training positive, with exact thresholds; tau_weight = {weights.tau_weight:g}.",
        (f"under {LOW:g}, %", f"over {HIGH:g}, %", "5th percentile", "median", "95th percentile"),
        [(*shares, *(f"{middle[q]:.3f}" for q in ("5%", "50%", "95%")))],
        ("weights",),
        ("In the shaded ends the sigmoid is saturated: the weight no longer follows the score.",),
    )


def _bound(diagnosis: Diagnosis) -> Section:
    last = {label: points[-1] for label, points in diagnosis.bounds.items()}
    shown = last if diagnosis.state.startswith("after") else {f"{diagnosis.label}, as kept": diagnosis.bound, **last}
    rows = [
        (
            label,
            "as kept" if label not in last else str(point.epoch),
            *(f"{100 * share:.1f}" for share in (point.no_hit, point.one_hit, point.more_hits)),
            "" if point.holds is None else f"{100 * point.holds:.1f}",
            "" if point.gap is None else f"{point.gap['50%']:.2f}",
            str(point.broken),
        )
        for label, point in shown.items()
    ]
    return Section(
        "Hits and the bound",
        f"Hits H: a user's training positives in their top {diagnosis.k}. Theorem 3.2: with H > 1, -log DCG@K <= SL@K, "
        "summed over the whole catalogue.",
        ("loss", "epochs", "H = 0, %", "H = 1, %", "H > 1, %", "bound holds, %", "median gap", "violations with H > 1"),
        rows,
        ("hits", "bound"),
        (
            "bound holds: of users with a hit. median gap: SL@K + log DCG@K of users with H > 1; SL@K is a sum over a "
            "user's positives, so it grows with their number. For other losses it is SL@K's value at their scores.",
        ),
    )


def _lambda(diagnosis: Diagnosis) -> Section:
    return Section(
        "Lambda weights",
        f"The weight of a pair of ranks in LambdaLoss@{diagnosis.k}: {100 * diagnosis.small_lambda:.2f}% of all pairs "
        f"of ranks among {diagnosis.n_items:,} items have a weight under {SMALL_LAMBDA:g}.",
        plots=("lambda-weights",),
        notes=(
            "From the formula alone (paper, appendix A), whatever the model; only nearby ranks have a large weight.",
        ),
    )


def _time(diagnosis: Diagnosis) -> Section:
    by_label = {timing.label: timing.seconds for timing in diagnosis.timings}
    unit = "softmax" if "softmax" in by_label else diagnosis.timings[0].label
    rows = [
        (
            one.label,
            one.negatives,
            f"{1000 * one.seconds:.2f}",
            f"{1e6 * one.seconds / one.n_positives:.2f}",
            f"{one.seconds / by_label[unit]:.2f}",
        )
        for one in diagnosis.timings
    ]
    return Section(
        "Time of a step",
        f"Forward and backward pass of the same batch ({diagnosis.timings[0].n_queries:,} users, "
        f"{diagnosis.timings[0].n_positives:,} positives), losses interleaved, the best of five rounds.",
        ("loss", "negatives", "ms per step", "microseconds per positive", f"relative to {unit}"),
        rows,
        ("time",),
        ("Without the optimizer's step and the threshold updates.",),
    )
