"""Advice on a run of any task: the training, the held-out part, the references, and what the loss sees."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from topshelf.diagnose.advice import WEIGHT_SHIFT, flat_weights, saturated_weights
from topshelf.diagnose.examine import RunDiagnosis
from topshelf.training.examination import Advice

IMPROVING = 0.02  # relative growth of the metric over the last tenth of the epochs
FALLEN = 0.2  # relative fall of the metric after the best epoch
FACTOR, DIFFERENCE = 3.0, 0.25  # of the metric on seen and on held-out data
NOISE = 0.2  # half of the interval, relative to the mean
ONE, ALL = 1.2, 0.95  # candidates that the softmax is spread over: a number, and a share


def advise(diagnosis: RunDiagnosis) -> list[Advice]:
    """Advice for every rule that is broken, the task's own last."""
    rules: tuple[Callable[[RunDiagnosis], Advice | None], ...] = (
        reference_better,
        loss_not_falling,
        still_improving,
        falls_after_best,
        wide_gap,
        noisy_part,
        positives_not_above,
        temperature_low,
        temperature_high,
        thresholds_off,
        saturated_weights,
        flat_weights,
    )
    return [one for rule in rules if (one := rule(diagnosis)) is not None] + list(diagnosis.examination.advice)


def reference_better(diagnosis: RunDiagnosis) -> Advice | None:
    found = diagnosis.examination
    means = {name: float(one.per_user[found.metric].mean()) for name, one in found.references.items()}
    best = max(means, key=lambda name: means[name])
    if means[best] < found.mean or best == diagnosis.model:
        return None
    return Advice(
        "a simple reference is better",
        f"{best} has {found.metric} {means[best]:.4f} on the {found.part} part, {diagnosis.label} {found.mean:.4f}.",
        "A trained model must beat what needs no training.",
        "Train longer, search settings (topshelf tune), or use the reference.",
    )


def _validated(diagnosis: RunDiagnosis) -> list[tuple[int, float]]:
    return [(one.epoch, one.valid) for one in diagnosis.epochs if one.valid is not None]


def loss_not_falling(diagnosis: RunDiagnosis) -> Advice | None:
    if len(diagnosis.epochs) < 2 or diagnosis.epochs[-1].loss < diagnosis.epochs[0].loss:
        return None
    first, last = diagnosis.epochs[0], diagnosis.epochs[-1]
    return Advice(
        "loss does not fall",
        f"The training loss is {first.loss:.4g} in epoch {first.epoch} and {last.loss:.4g} in epoch {last.epoch}.",
        "A loss that does not fall on its own training data has not learned.",
        "Lower train.learning_rate by ten first; then look at the data.",
    )


def still_improving(diagnosis: RunDiagnosis) -> Advice | None:
    points = _validated(diagnosis)
    if len(points) < 3 or diagnosis.best_epoch != points[-1][0]:
        return None
    before = max(value for epoch, value in points[:-1] if epoch <= max(points[0][0], 0.9 * points[-1][0]))
    if points[-1][1] <= (1 + IMPROVING) * before:
        return None
    return Advice(
        "still improving",
        f"The last epoch ({points[-1][0]}) is the best, and validation grew from {before:.4f} to {points[-1][1]:.4f} "
        "in the last tenth of the epochs.",
        f"Over {IMPROVING:.0%}, training has ended too early.",
        f"Set train.epochs to {2 * points[-1][0]}, or raise train.learning_rate.",
    )


def falls_after_best(diagnosis: RunDiagnosis) -> Advice | None:
    points = _validated(diagnosis)
    if not points:
        return None
    (best_epoch, best), (last_epoch, last) = max(points, key=lambda point: point[1]), points[-1]
    if last >= (1 - FALLEN) * best:
        return None
    return Advice(
        "overfits after the best epoch",
        f"Validation falls from {best:.4f} in epoch {best_epoch} to {last:.4f} in epoch {last_epoch}.",
        f"The best epoch is kept, but a fall of more than {FALLEN:.0%} says that the model learns its data by heart.",
        "Raise model.dropout or train.weight_decay, or lower train.learning_rate; a smaller train.patience saves time.",
    )


def wide_gap(diagnosis: RunDiagnosis) -> Advice | None:
    gap = diagnosis.examination.gap
    if gap is None or (gap.seen < FACTOR * gap.held_out and gap.seen < gap.held_out + DIFFERENCE):
        return None
    return Advice(
        "far better on training data",
        f"{gap.seen:.3f} on training data ({gap.how}), {gap.held_out:.3f} on held-out data, measured alike.",
        f"{FACTOR:g} times as much, or {DIFFERENCE:g} more, is learned by heart.",
        "Raise model.dropout or train.weight_decay, lower model.dim, or get more data.",
    )


def noisy_part(diagnosis: RunDiagnosis) -> Advice | None:
    found = diagnosis.examination
    values = found.values
    half = 1.96 * float(values.std()) / np.sqrt(len(values))
    if half <= NOISE * found.mean:
        return None
    return Advice(
        "held-out part is small",
        f"{found.metric} is {found.mean:.4f} ± {half:.4f} over {len(values):,} {found.evaluation.units}.",
        f"With an interval of more than {NOISE:.0%}, most differences between runs are chance, and so is the epoch "
        "that validation chooses.",
        "Hold out more data, or compare means over several seeds.",
    )


def positives_not_above(diagnosis: RunDiagnosis) -> Advice | None:
    scores = diagnosis.examination.scores
    if scores is None or not scores.negative.size or scores.positive.mean() > scores.negative.mean():
        return None
    return Advice(
        "positives are not above the others",
        f"Training positives score {scores.positive.mean():.3f} on average, other candidates "
        f"{scores.negative.mean():.3f}.",
        "A model that has learned puts its own training positives first.",
        "Train longer, or change train.learning_rate; with SL@K try loss.detach_weight = true.",
    )


def temperature_low(diagnosis: RunDiagnosis) -> Advice | None:
    scores = diagnosis.examination.scores
    if scores is None or scores.effective is None or np.median(scores.effective) >= ONE:
        return None
    return Advice(
        "temperature is low",
        f"For half of the queries the softmax at loss.tau = {diagnosis.loss_settings['tau']:g} is spread over "
        f"{np.median(scores.effective):.2f} candidates or fewer.",
        f"Under {ONE:g}, the loss sees the single best candidate, and has no gradient where that is the positive.",
        f"Raise loss.tau, to {2 * diagnosis.loss_settings['tau']:g} first.",
    )


def temperature_high(diagnosis: RunDiagnosis) -> Advice | None:
    scores = diagnosis.examination.scores
    if scores is None or scores.effective is None or np.median(scores.effective / scores.n_candidates) <= ALL:
        return None
    return Advice(
        "temperature is high",
        f"For half of the queries the softmax at loss.tau = {diagnosis.loss_settings['tau']:g} is spread over "
        f"{np.median(scores.effective / scores.n_candidates):.0%} of the candidates or more.",
        f"Over {ALL:.0%}, all candidates count alike, the hard ones no more than the rest.",
        f"Lower loss.tau, to {diagnosis.loss_settings['tau'] / 4:g} first, or train longer.",
    )


def thresholds_off(diagnosis: RunDiagnosis) -> Advice | None:
    shift = diagnosis.weight_shift
    if shift is None or shift <= WEIGHT_SHIFT:
        return None
    return Advice(
        "thresholds off",
        f"The run's thresholds change the weights by {shift:.2f} on average, compared with exact ones.",
        f"Over {WEIGHT_SHIFT:g}, the weights are those of another K.",
        'Set threshold.estimator = "exact" or raise threshold.n; where threshold.of = "user", set "position".',
    )
