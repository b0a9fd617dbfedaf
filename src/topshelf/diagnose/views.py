"""The diagnosis of a run of any task as text, tables and JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from topshelf.diagnose.examine import RunDiagnosis
from topshelf.diagnose.measures import HIGH, LOW, quantiles
from topshelf.diagnose.tables import Section
from topshelf.training.examination import Trait


def caption(diagnosis: RunDiagnosis) -> str:
    found = diagnosis.examination
    return (
        f"{diagnosis.target}: {diagnosis.label} on {diagnosis.data} (task {diagnosis.task}), K = {diagnosis.k}. "
        f"Measured on the {found.part} part, {len(found.values):,} {found.evaluation.units}"
        f"{f', {found.evaluation.n_skipped:,} left out' if found.evaluation.n_skipped else ''}."
    )


def sections(diagnosis: RunDiagnosis) -> list[Section]:
    groups = [_groups(diagnosis, trait) for trait in diagnosis.examination.traits]
    more = [_compared(diagnosis)] if diagnosis.compared or diagnosis.failed else []
    return [_references(diagnosis), *groups, _training(diagnosis), *_scores(diagnosis), *more, _data(diagnosis)]


def _references(diagnosis: RunDiagnosis) -> Section:
    found = diagnosis.examination
    rows = []
    for label, one in {diagnosis.label: found.evaluation, **found.references}.items():
        low, high = one.intervals()[found.metric]
        rows.append((label, f"{float(one.per_user[found.metric].mean()):.4f}", f"{low:.4f}", f"{high:.4f}"))
    return Section(
        "Beside simple references",
        f"{found.metric} on the {found.part} part, with the 95% interval over {found.evaluation.units}.",
        ("", found.metric, "from", "to"),
        rows,
        ("references",),
    )


def _groups(diagnosis: RunDiagnosis, trait: Trait) -> Section:
    found = diagnosis.examination
    rows = [
        (one.label, f"{one.n:,}", f"{100 * one.n / len(found.values):.1f}", f"{one.mean:.4f}", f"{100 * one.share:.1f}")
        for one in found.groups(trait)
    ]
    units = found.evaluation.units
    is_first = trait is found.traits[0]
    return Section(
        f"By {trait.title}",
        f"How good the run is for which {units}, and what share of all {found.metric} they have." if is_first else "",
        (trait.title, units, f"{units}, %", found.metric, f"share of {found.metric}, %"),
        rows,
        ("groups",) if is_first else (),
    )


def _training(diagnosis: RunDiagnosis) -> Section:
    gap, epochs, rows = diagnosis.examination.gap, diagnosis.epochs, []
    if epochs:
        rows += [("epochs", str(epochs[-1].epoch)), ("best epoch", str(diagnosis.best_epoch))]
        rows.append(("loss, first and last epoch", f"{epochs[0].loss:.4g}, {epochs[-1].loss:.4g}"))
        valid = [one.valid for one in epochs if one.valid is not None]
        if valid:
            rows.append(("validation, best and last", f"{max(valid):.4f}, {valid[-1]:.4f}"))
    if gap is not None:
        rows += [("on training data", f"{gap.seen:.4f}"), ("on held-out data", f"{gap.held_out:.4f}")]
    text = "The epochs of the run." if epochs else "The run has no log of epochs."
    text += f" Training data: {gap.how}; held-out data are measured in the same way." if gap is not None else ""
    return Section("Training", text, ("", "value"), rows, ("training",))


def _scores(diagnosis: RunDiagnosis) -> list[Section]:
    scores, weights = diagnosis.examination.scores, diagnosis.weights
    if scores is None:
        return []
    named = {"training positives": scores.positive, "others": scores.negative, "thresholds": scores.threshold}
    rows = [(name, f"{x.mean():.3f}", f"{x.std():.3f}") for name, x in named.items() if x.size]
    text = "Scores of training positives, of other candidates, and of the K-th best candidate (the threshold)."
    if scores.effective is not None:
        text += (
            f" At loss.tau = {diagnosis.loss_settings['tau']:g} the softmax is spread over "
            f"{np.median(scores.effective):,.1f} of {np.median(scores.n_candidates):,.0f} candidates (median)."
        )
    shown = [Section("Scores", text, ("", "mean", "std"), rows)]
    if weights is None:
        return shown
    shift = diagnosis.weight_shift
    said = "" if shift is None else f" The run's own thresholds change them by {shift:.3f} on average."
    middle = quantiles(weights.values)
    numbers = [
        f"{100 * weights.low:.1f}",
        f"{100 * weights.high:.1f}",
        *(f"{middle[q]:.3f}" for q in ("5%", "50%", "95%")),
    ]
    header = (f"under {LOW:g}, %", f"over {HIGH:g}, %", "5th percentile", "median", "95th percentile")
    text = f"The weight of each training positive at exact thresholds, tau_weight = {weights.tau_weight:g}.{said}"
    return [*shown, Section("Weights", text, header, [tuple(numbers)], ("weights",))]


def _compared(diagnosis: RunDiagnosis) -> Section:
    best = sorted(diagnosis.compared, key=lambda one: -one.metric)
    return Section(
        "Losses",
        f"Each trained alike for this diagnosis; {diagnosis.examination.metric} on the valid part.",
        ("loss", diagnosis.examination.metric, "best epoch", "seconds"),
        [(one.label, f"{one.metric:.4f}", str(one.best_epoch), f"{one.seconds:.1f}") for one in best],
        (),
        tuple(f"{label} is left out: {reason}" for label, reason in diagnosis.failed.items()),
    )


def _data(diagnosis: RunDiagnosis) -> Section:
    return Section("Data", "What is measured.", ("", "value"), list(diagnosis.examination.facts))


def to_json(diagnosis: RunDiagnosis) -> dict[str, Any]:
    """Everything but the raw values per query."""
    found, weights, scores = diagnosis.examination, diagnosis.weights, diagnosis.examination.scores
    names = ("target", "task", "model", "loss", "data", "k", "n_items", "loss_settings", "best_epoch", "failed")
    parts = {"positive": scores.positive, "negative": scores.negative, "threshold": scores.threshold} if scores else {}
    return {
        **{name: getattr(diagnosis, name) for name in names},
        "part": found.part,
        "metric": found.metric,
        "value": found.mean,
        "references": {name: float(one.per_user[found.metric].mean()) for name, one in found.references.items()},
        "groups": {trait.title: [asdict(one) for one in found.groups(trait)] for trait in found.traits},
        "gap": None if found.gap is None else asdict(found.gap),
        "epochs": [asdict(one) for one in diagnosis.epochs],
        "scores": {name: {"mean": float(x.mean()), "std": float(x.std())} for name, x in parts.items() if x.size},
        "effective_candidates": None
        if scores is None or scores.effective is None
        else float(np.median(scores.effective)),
        "weights": None if weights is None else weights.to_json(),
        "weight_shift": diagnosis.weight_shift,
        "compared": [asdict(one) for one in diagnosis.compared],
        "facts": dict(found.facts),
        "advice": [asdict(one) for one in diagnosis.advice],
    }
