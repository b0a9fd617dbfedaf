"""A diagnosis in words and tables, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from topshelf.diagnose.gradients import Concentration
from topshelf.diagnose.measures import HIGH, LOW, SMALL_LAMBDA, Estimate
from topshelf.diagnose.run import Diagnosis

HEALTHY = "Nothing to change: no rule of docs/diagnose.md is broken."


@dataclass(frozen=True)
class Section:
    """One measure: what it is, its numbers, its plots, and how to read them."""

    title: str
    text: str
    header: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()
    plots: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def caption(found: Diagnosis) -> str:
    return (
        f"{found.target}: {found.label} on {found.data}, {found.n_users:,} users, {found.n_items:,} items, K = "
        f"{found.k}. "
        f"{found.sampled_users:,} users are looked at. Every loss was trained here for {found.epochs} epochs from "
        "the same "
        f"initial values (seed {found.seed}); thresholds, scores, weights and hits are those of {_state(found)}."
    )


def _state(found: Diagnosis) -> str:
    return found.state if found.state.startswith("the") else f"{found.label} {found.state}"


def advice_lines(found: Diagnosis) -> list[str]:
    return [f"{one.topic}: {one.sentences()}" for one in found.advice] or [HEALTHY]


def sections(found: Diagnosis) -> list[Section]:
    parts = [
        _gradients(found),
        _thresholds(found),
        _scores(found),
        _weights(found),
        _bound(found),
        _lambda(found),
        _time(found),
    ]
    return [part for part in parts if part is not None]


def _gradients(found: Diagnosis) -> Section:
    rows = [
        (
            one.label,
            one.epochs,
            *(_top(getattr(one, kind)) for kind in ("by_positive", "by_user", "by_pair")),
            f"{100 * one.by_positive.top['1%']:.1f}",
            f"{one.by_positive.decades:.1f}",
        )
        for one in found.gradients
    ]
    notes = [
        "The gradient of a positive (u, i) is that of its own term of the loss with respect to the user's vector, "
        "over the "
        "whole catalogue; with cosine scores, without its part along that vector. Of a user: the sum over their "
        "positives. "
        "Of a pair (u, i, j): the derivative of the positive's term by the score of the negative j.",
        "The higher the curve, the fewer instances do all the teaching; the grey diagonal is an equal share for all.",
    ]
    coupled = [one.label for one in found.gradients if one.is_coupled]
    if coupled:
        notes.append(
            f"{', '.join(coupled)} ties the positives of a batch together: what is shown is the gradient of the "
            "batch's loss."
        )
    notes += [f"{label} is left out: {reason}" for label, reason in found.failed.items()]
    return Section(
        "Gradient concentration",
        "How much of the whole gradient the largest 5% of instances hold, by what an instance is.",
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
        tuple(notes),
    )


def _top(found: Concentration) -> str:
    """In percent; nothing for a loss without such instances."""
    return f"{100 * found.top['5%']:.1f}" if found.n else ""


def _thresholds(found: Diagnosis) -> Section:
    exact = found.scores.threshold
    shown = [*found.estimates, *([found.held] if found.held is not None else [])]
    notes = [
        "The error is the estimate minus the exact threshold. With the trick (all positives and n drawn negatives) it "
        "can only come out too low, the more so the more of the top K are negatives and the fewer of them are drawn; "
        "without it (n items of the whole catalogue) it is about centred and scatters. Weighted is the trick with "
        "every drawn negative counted for all those that it stands for: about centred, and it scatters less."
    ]
    if found.held is not None:
        notes.append(
            f"The loss's own: what its buffer holds after {found.epochs} epochs (threshold.estimator = "
            f"{found.estimator}), against "
            "the exact ones of the same moment: staleness, and the estimator's own error."
        )
    return Section(
        "Thresholds: exact and estimated",
        f"The K-th best score of each user. Exact: mean {exact.mean():.3f}, standard deviation {exact.std():.3f} "
        "over users.",
        ("estimator", "items drawn", "error, mean", "error, std", "error, mean absolute", "weights move by"),
        [_estimate(one) for one in shown],
        ("thresholds", "threshold-errors"),
        tuple(notes),
    )


def _estimate(one: Estimate) -> tuple[str, ...]:
    numbers = one.to_json()
    shift = "" if one.weight_shift is None else f"{one.weight_shift:.3f}"
    errors = (f"{numbers['error_mean']:+.3f}", f"{numbers['error_std']:.3f}", f"{numbers['error_mean_absolute']:.3f}")
    return (one.name, "" if one.n is None else f"{one.n:,}", *errors, shift)


def _scores(found: Diagnosis) -> Section:
    rows = [
        (name, f"{values.mean():.3f}", f"{values.std():.3f}")
        for name, values in (
            ("training positives", found.scores.positive),
            ("negatives", found.scores.negative),
            ("thresholds", found.scores.threshold),
        )
    ]
    return Section(
        "Scores",
        "Scores of training positives and of drawn negatives, and where the top K begins.",
        ("", "mean", "std"),
        rows,
        ("scores",),
        (
            "Thresholds usually lie among the positives' scores. Positives that lie left of the negatives are "
            "being pushed down.",
        ),
    )


def _weights(found: Diagnosis) -> Section:
    title = "Weights"
    if found.weights is None:
        return Section(title, f"{found.label} has no sigmoid weights about thresholds.")
    weights = found.weights
    middle = weights.to_json()["quantiles"]
    return Section(
        title,
        f"The weight of each training positive, its threshold being exact; tau_weight = {weights.tau_weight:g}.",
        (f"under {LOW:g}, %", f"over {HIGH:g}, %", "5th percentile", "median", "95th percentile"),
        [
            (
                f"{100 * weights.low:.1f}",
                f"{100 * weights.high:.1f}",
                *(f"{middle[q]:.3f}" for q in ("5%", "50%", "95%")),
            )
        ],
        ("weights",),
        ("In the shaded ends the sigmoid is saturated: the weight no longer follows the score.",),
    )


def _bound(found: Diagnosis) -> Section:
    last = {label: points[-1] for label, points in found.bounds.items()}
    shown = {**({} if found.state.startswith("after") else {f"{found.label}, as kept": found.bound}), **last}
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
        f"Hits H: training positives of a user in their top {found.k}. Theorem 3.2: with H > 1, -log DCG@K <= "
        "SL@K, the sum over "
        "the whole catalogue.",
        ("loss", "epochs", "H = 0, %", "H = 1, %", "H > 1, %", "bound holds, %", "median gap", "broken with H > 1"),
        rows,
        ("hits", "bound"),
        (
            "bound holds: of users with a hit. median gap: SL@K + log DCG@K of users with H > 1; SL@K is a sum "
            "over a user's "
            "positives, so it grows with their number. Losses other than SL@K are judged by SL@K's value at their "
            "scores.",
        ),
    )


def _lambda(found: Diagnosis) -> Section:
    return Section(
        "Lambda weights",
        f"What LambdaLoss@{found.k} would multiply a pair of places with: {100 * found.small_lambda:.2f}% of all "
        "pairs of places among "
        f"{found.n_items:,} items have a weight under {SMALL_LAMBDA:g}.",
        plots=("lambda-weights",),
        notes=(
            "From the formula alone (paper, appendix A), whatever the model; only places close to each other count.",
        ),
    )


def _time(found: Diagnosis) -> Section:
    by_label = {timing.label: timing.seconds for timing in found.timings}
    unit = "softmax" if "softmax" in by_label else found.timings[0].label
    rows = [
        (
            one.label,
            one.negatives,
            f"{1000 * one.seconds:.2f}",
            f"{1e6 * one.seconds / one.n_positives:.2f}",
            f"{one.seconds / by_label[unit]:.2f}",
        )
        for one in found.timings
    ]
    return Section(
        "Time of a step",
        f"Forward and backward pass of the same batch ({found.timings[0].n_queries:,} users, "
        f"{found.timings[0].n_positives:,} positives), "
        "losses in turns, the best of five rounds.",
        ("loss", "negatives", "ms a step", "microseconds a positive", f"times {unit}"),
        rows,
        ("time",),
        ("The optimizer's step and the refreshes of thresholds are not in it.",),
    )
