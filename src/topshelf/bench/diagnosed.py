"""Runs that were also diagnosed: the paper's figures 1, 2, 4, 5 and 6 of them, and their numbers beside the paper's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from topshelf import charts
from topshelf.bench.inconsistency import draw_inconsistency, inconsistency_caption, inconsistency_grid
from topshelf.bench.results import Measured, Place, Results
from topshelf.bench.tables import NOT_RUN, Grid, shown
from topshelf.diagnose import Diagnosis
from topshelf.diagnose.gradients import Concentration
from topshelf.diagnose.measures import ESTIMATES, SMALL_LAMBDA, Estimate, small_lambda_share
from topshelf.diagnose.stored import restored

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAMBDA_K, LAMBDA_RANKS = 5, 20  # of figure 4
SL, SLATK, LAMBDA, SONG = "softmax", "slatk", "lambdaloss_at_k", "song_at_k"
# The sections of a diagnosis that are shown, with the figures that have their numbers.
SECTIONS = {
    "Time of a step": "figure 1b",
    "Gradient concentration": "figure 1c",
    "Scores": "figures 2a and 6",
    "Thresholds: exact and estimated": "figures 2b and 5",
    "Hits and the bound": "theorem 3.2",
}
# What the paper says of users with more than one hit, by epochs of SL@20 with MF on Electronic (appendix).
MORE_HITS = {5: "53.32%", 10: "81.92%", 20: "95.66%"}


@dataclass(frozen=True)
class Diagnosed:
    """The diagnosis of a place: that of its first run."""

    label: str
    diagnosis: Diagnosis


def diagnosed(results: Results) -> list[Diagnosed]:
    """A diagnosis per place that has one, in the plan's order."""
    first: dict[Place, Measured] = {}
    for run in sorted(results.runs, key=lambda run: run.draw):
        if run.diagnosis is not None:
            first.setdefault(run.place, run)
    found = []
    for place in results.places:
        if place in first:
            label = ", ".join(part for part in (place.data, place.group, place.method, shown(place.x)) if part)
            found.append(Diagnosed(label, restored(first[place].diagnosis, f"the diagnosis of {label}")))
    return found


def diagnosis_lines(found: list[Diagnosed]) -> list[str]:
    """How each diagnosis was made, and which losses it has not."""
    lines = []
    for one in found:
        lines.append(one.diagnosis.caption())
        lines += [f"{one.label}: {loss} is left out: {why}" for loss, why in one.diagnosis.failed.items()]
    return lines


def diagnosis_grids(found: list[Diagnosed]) -> list[Grid]:
    """Numbers beside the paper's, the example of figure 1a, and the tables behind the other figures."""
    if not found:
        return []
    grids = [_beside(found), inconsistency_grid()]
    for one in found:
        sections = {section.title: section for section in one.diagnosis.sections()}
        for title, figures in SECTIONS.items():
            section = sections[title]
            grids.append(Grid(f"{one.label}: {title} ({figures})", section.header, tuple(section.rows)))
    return grids


def _beside(found: list[Diagnosed]) -> Grid:
    """What the paper says of its figures, and what was measured here."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for at, one in enumerate(found):
        for key, value in _claims(one.diagnosis).items():
            rows.setdefault(key, [NOT_RUN] * len(found))[at] = value
    header = ("figure", "what", "the paper, on Electronic", *(one.label for one in found))
    ordered = sorted(rows.items(), key=lambda row: row[0][0])  # by figure
    return Grid("Beside the paper", header, tuple((*key, *values) for key, values in ordered))


def _claims(diagnosis: Diagnosis) -> dict[tuple[str, str, str], str]:
    """By figure, what it shows and what the paper says: the value here."""
    claims: dict[tuple[str, str, str], str] = {}
    seconds = {one.label: one.seconds for one in diagnosis.timings}
    for loss in (SL, SLATK):
        if LAMBDA in seconds and loss in seconds:
            ratio = f"{seconds[LAMBDA] / seconds[loss]:.3g} times"
            claims["1b", f"time of a step, {LAMBDA} / {loss}", "60 times"] = ratio
    for one in diagnosis.gradients:
        said = {LAMBDA: "over 90%", SONG: "over 90%", SLATK: "under 15%"}.get(one.label)
        if said:
            here = f"{one.by_positive.top['5%']:.1%} of positives"
            here += f", {one.by_pair.top['5%']:.1%} of pairs" if one.by_pair.n else ""
            claims["1c", f"share of the gradient in the top 5%, {one.label}", said] = here
    error = np.abs(_estimate(diagnosis, "sampled").error)
    text = "absolute error of thresholds, sampled with the trick"
    claims["2b", text, "0.06 ± 0.03"] = f"{error.mean():.3f} ± {error.std():.3f}"
    large = 1 - small_lambda_share(diagnosis.n_items, LAMBDA_K)
    claims["4", f"lambda weights of LambdaLoss@{LAMBDA_K} over {SMALL_LAMBDA:g}", "under 1%"] = f"{large:.2%}"
    for point in diagnosis.bounds.get(SLATK, []):
        if point.epoch in MORE_HITS:
            key = ("theorem 3.2", f"users with H > 1, {SLATK}, epoch {point.epoch}", MORE_HITS[point.epoch])
            claims[key] = f"{point.more_hits:.2%}"
    return claims


def _estimate(diagnosis: Diagnosis, name: str) -> Estimate:
    return next(one for one in diagnosis.estimates if one.name == ESTIMATES[name])


def diagnosis_captions(found: list[Diagnosed]) -> dict[str, str]:
    """What each figure shows, by its name: the text below it, and for those who cannot see it."""
    if not found:
        return {}
    captions = {"figure-1a": inconsistency_caption()}
    for one, more in zip(found, _suffixes(found), strict=True):
        captions |= {f"figure-{name}{more}": text for name, text in _captions(one).items()}
    return captions


def _captions(one: Diagnosed) -> dict[str, str]:
    diagnosis, scores = one.diagnosis, one.diagnosis.scores
    times = ", ".join(f"{timing.label} {charts.milliseconds(timing.seconds)}" for timing in diagnosis.timings)
    tops = _tops([(part.label, part.by_positive) for part in diagnosis.gradients])
    pairs = _tops([(part.label, part.by_pair) for part in diagnosis.gradients if part.by_pair.n])
    trick, iid = (_estimate(diagnosis, name) for name in ("sampled", "iid"))
    errors = [f"{part.error.mean():+.3f} ± {part.error.std():.3f}" for part in (trick, iid)]
    small = small_lambda_share(diagnosis.n_items, LAMBDA_K)
    parts = f"positives {scores.positive.mean():.2f}, negatives {scores.negative.mean():.2f}"
    return {
        "1b": f"Figure 1b. {one.label}: time of a step, forward and backward: {times}.",
        "1c": f"Figure 1c. {one.label}: share of the gradient held by the largest instances. The top 5% of positives "
        f"(u, i) hold: {tops}; of pairs (u, i, j): {pairs}.",
        "2a": f"Figure 2a. {one.label}: densities of scores and exact thresholds; means: {parts}, thresholds "
        f"{scores.threshold.mean():.2f}.",
        "2b": f"Figure 2b. {one.label}: estimated against exact thresholds of {len(trick.exact):,} users; error "
        f"{errors[0]}.",
        "4": f"Figure 4. Lambda weights of LambdaLoss@{LAMBDA_K} by the ranks of the two items, up to {LAMBDA_RANKS}; "
        f"{small:.2%} of all pairs among {diagnosis.n_items:,} items are under {SMALL_LAMBDA:g}.",
        "5": f"Figure 5. {one.label}: thresholds with the negative-sampling trick, error {errors[0]}, and without it, "
        f"{errors[1]}.",
        "6": f"Figure 6. {one.label}: densities of scores with estimated thresholds (mean {trick.estimate.mean():.2f}) "
        f"and with exact ones (mean {trick.exact.mean():.2f}).",
    }


def _tops(spreads: list[tuple[str, Concentration]]) -> str:
    return ", ".join(f"{label} ({spread.top['5%']:.0%})" for label, spread in spreads)


def _suffixes(found: list[Diagnosed]) -> list[str]:
    """What tells the figures of several diagnoses apart."""
    return [""] if len(found) == 1 else [f"-{at}" for at in range(1, len(found) + 1)]


def diagnosis_figures(found: list[Diagnosed]) -> dict[str, bytes]:
    """The figures as SVG, by name; needs matplotlib."""
    if not found:
        return {}
    captions, drawings = diagnosis_captions(found), {"figure-1a": draw_inconsistency()}
    for one, more in zip(found, _suffixes(found), strict=True):
        for name, draw in _drawn(one.diagnosis).items():
            whole = f"figure-{name}{more}"
            drawings[whole] = charts.render(draw(), title=captions[whole])
    return drawings


def _drawn(diagnosis: Diagnosis) -> dict[str, Callable[[], Figure]]:
    from topshelf.diagnose import plots  # needs matplotlib

    trick, iid = (_estimate(diagnosis, name) for name in ("sampled", "iid"))
    small = small_lambda_share(diagnosis.n_items, LAMBDA_K)
    return {
        "1b": lambda: plots.step_times(diagnosis),
        "1c": lambda: plots.gradient_concentration(diagnosis),
        "2a": lambda: plots.score_densities(diagnosis),
        "2b": lambda: plots.threshold_scatter(diagnosis, [trick]),
        "4": lambda: plots.lambda_weights(LAMBDA_K, min(LAMBDA_RANKS, diagnosis.n_items), small),
        "5": lambda: plots.threshold_scatter(diagnosis, [trick, iid]),
        "6": lambda: plots.estimated_densities(diagnosis, trick),
    }
