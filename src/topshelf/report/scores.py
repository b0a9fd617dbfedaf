"""Scores and weights of the kept models, as a diagnosis measures them; nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topshelf import charts
from topshelf.config import RunConfig
from topshelf.diagnose.examine import RunDiagnosis, examined
from topshelf.diagnose.kept import Kept, kept_scores
from topshelf.diagnose.measures import HIGH, LOW
from topshelf.errors import ConfigError, TrainingError
from topshelf.page import Page
from topshelf.report.shown import Shown

_SAMPLED = 500  # users, queries or edges whose scores are looked at
_MOST = 6  # runs whose scores are drawn
_WEIGHTS = ("tau_weight", f"weights under {LOW:g}", f"over {HIGH:g}", "middle 90% span")


def scores_section(page: Page, runs: Sequence[Shown]) -> None:
    shown = runs[:_MOST]
    if isinstance(shown[0].config, RunConfig):
        page.heading("Scores and weights")
        _of_interactions(page, shown)
    else:
        page.heading("Group by group")
        _of_groups(page, shown)
    if len(runs) > len(shown):
        page.paragraph(f"Of the first {_MOST} runs.", note=True)


def _of_interactions(page: Page, runs: Sequence[Shown]) -> None:
    found: dict[str, Kept] = {}
    for run in runs:
        try:
            found[run.name] = kept_scores(run.fitted, _SAMPLED)
        except ConfigError as error:
            page.paragraph(f"{run.name} is left out: {error}.", note=True)
    if not found:
        return
    has_weights = any(kept.weights is not None for kept in found.values())
    page.paragraph(
        "Scores of training positives and of other items, and the thresholds: the K-th best score of each user."
        + (" Weights: what SL@K gives each training positive, at exact thresholds." if has_weights else "")
    )
    header = ("run", "positives", "negatives", "thresholds", *(_WEIGHTS if has_weights else ()))
    rows = [(name, *_row(kept, has_weights)) for name, kept in found.items()]
    n = max(kept.sampled_users for kept in found.values())
    page.table(header, rows, caption=f"{n:,} sampled users, mean ± standard deviation")
    if charts.can_plot():
        for name, kept in found.items():
            _drawn(page, name, kept, is_titled=len(found) > 1)
    else:
        page.paragraph(charts.NO_PLOTS, note=True)


def _row(kept: Kept, has_weights: bool) -> list[str]:
    scores, weights = kept.scores, kept.weights
    cells = [_spread(values) for values in (scores.positive, scores.negative, scores.threshold)]
    if not has_weights:
        return cells
    if weights is None:
        return [*cells, *("–" for _ in _WEIGHTS)]
    return [*cells, f"{weights.tau_weight:g}", f"{weights.low:.1%}", f"{weights.high:.1%}", f"{weights.range:.3f}"]


def _spread(values: np.ndarray) -> str:
    return f"{values.mean():.3f} ± {values.std():.3f}"


def _drawn(page: Page, name: str, kept: Kept, *, is_titled: bool) -> None:
    from topshelf.diagnose import plots  # needs matplotlib

    if is_titled:
        page.subheading(name)
    figures = [(plots.score_densities(kept), f"{name}: densities of the scores of positives, negatives and thresholds")]
    if kept.weights is not None:
        figures.append((plots.weight_histogram(kept), f"{name}: how many positives have which weight"))
    page.drawings([(charts.render(figure), alt) for figure, alt in figures])


def _of_groups(page: Page, runs: Sequence[Shown]) -> None:
    """The metric group by group beside simple references, as a diagnosis of the other tasks does."""
    for run in runs:
        try:
            found = examined(run.path, run.fitted, run.log, _SAMPLED)
        except (ConfigError, TrainingError) as error:
            page.paragraph(f"{run.name} is left out: {error}.", note=True)
            continue
        if len(runs) == 1:
            _examined(page, found)
            continue
        with page.details(run.name, is_open=run is runs[0]):
            _examined(page, found)
    if not charts.can_plot():
        page.paragraph(charts.NO_PLOTS, note=True)


def _examined(page: Page, found: RunDiagnosis) -> None:
    drawings = {name: charts.render(one) for name, one in found.draw().items()} if charts.can_plot() else {}
    for section in found.sections():
        if section.title in ("Training", "Data"):
            continue
        page.subheading(section.title)
        if section.text:
            page.paragraph(section.text)
        page.table(section.header, section.rows)
        page.drawings([(drawings[name], section.title) for name in section.plots if name in drawings])
