"""The plots of a diagnosis; this module needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from scipy.stats import gaussian_kde

from topshelf import charts
from topshelf.charts import BLUE, COLOURS, RED
from topshelf.diagnose.advice import Weighted
from topshelf.diagnose.gradients import Concentration
from topshelf.diagnose.measures import (
    HIGH,
    LOW,
    PLOTTED,
    SMALL_LAMBDA,
    Estimate,
    Scores,
    lambda_table,
    thinned,
)
from topshelf.diagnose.run import Diagnosis
from topshelf.diagnose.tables import all_estimates

_MANY = 6  # losses that fit into a legend above the axes


class Scored(Protocol):
    """What has scores, with the K of their thresholds."""

    @property
    def k(self) -> int: ...

    @property
    def scores(self) -> Scores: ...


def draw(diagnosis: Diagnosis) -> dict[str, Figure]:
    """Every plot that the diagnosis has values for, by file name."""
    plots: dict[str, Callable[[Diagnosis], Figure]] = {
        "gradient-concentration": gradient_concentration,
        "gradient-sizes": gradient_sizes,
        "thresholds": threshold_scatter,
        "threshold-errors": threshold_errors,
        "scores": score_densities,
        "hits": hits,
        "bound": bound_gap,
        "lambda-weights": lambda_heat,
        "time": step_times,
    }
    if diagnosis.weights is not None:
        plots["weights"] = weight_histogram
    return {name: plot(diagnosis) for name, plot in plots.items()}


def gradient_concentration(diagnosis: Diagnosis) -> Figure:
    figure, (left, right) = charts.figure(9.6, 4.2, 2)
    kinds = (("by_positive", "positives (u, i)", left), ("by_pair", "pairs (u, i, j)", right))
    for attribute, what, axes in kinds:
        axes.plot([0, 1], [0, 1], color="#aaa", linewidth=1)
        for gradients in diagnosis.gradients:
            spread: Concentration = getattr(gradients, attribute)
            if not spread.n:
                continue  # a loss without single negatives has no pairs
            style = _loss_line(diagnosis, gradients.label, f": {spread.top['5%']:.0%}")
            axes.plot(np.linspace(0, 1, len(spread.curve)), spread.curve, **style)
        axes.axvline(0.05, color="#777", linewidth=1, linestyle=":")
        axes.set(xlabel=f"largest {what}", ylabel="share of the gradient", xlim=(0, 1), ylim=(0, 1.01))
        charts.percent(axes.xaxis, axes.yaxis)
        size = 9 if len(diagnosis.gradients) <= _MANY else 6
        axes.legend(title="held by the top 5%", loc="lower right", fontsize=size, title_fontsize=size)
    return figure


def gradient_sizes(diagnosis: Diagnosis) -> Figure:
    figure, (axes,) = charts.figure(7, 4)
    for gradients in diagnosis.gradients:
        spread = gradients.by_positive
        style = _loss_line(diagnosis, gradients.label, f" ({spread.decades:.1f} decades)")
        axes.stairs(spread.log10_shares, spread.log10_edges, **style)
    axes.set_xlabel("log10 of the gradient norm per positive (with respect to the user's vector)")
    _shares(axes, "positives", len(diagnosis.gradients))
    return figure


def threshold_scatter(diagnosis: Diagnosis, shown: Sequence[Estimate] | None = None) -> Figure:
    """A panel per estimate; default: all that the diagnosis has."""
    shown = all_estimates(diagnosis) if shown is None else shown
    figure, panels = charts.figure(max(7.0, 3.4 * len(shown) + 0.6), 4.1, len(shown))
    for place, (estimate, axes) in enumerate(zip(shown, panels, strict=True)):
        low, high = _ends(estimate)
        axes.plot([low, high], [low, high], color="#777", linewidth=1, zorder=3)
        axes.scatter(
            estimate.exact, estimate.estimate, s=8, alpha=0.35, color=COLOURS[place], linewidths=0, rasterized=True
        )
        axes.set(xlim=(low, high), ylim=(low, high), aspect="equal", xlabel="exact threshold", ylabel="estimate")
        axes.set_title(charts.plain(estimate.name), fontsize=10)
        text = f"error {estimate.error.mean():+.3f} ± {estimate.error.std():.3f}"
        axes.text(0.04, 0.94, text, transform=axes.transAxes, fontsize=9, va="top")
    return figure


def _ends(estimate: Estimate) -> tuple[float, float]:
    both = np.concatenate([estimate.exact, estimate.estimate])
    room = 0.04 * float(np.ptp(both) or 1.0)
    return float(both.min() - room), float(both.max() + room)


def threshold_errors(diagnosis: Diagnosis) -> Figure:
    figure, (axes,) = charts.figure(7, 4)
    shown = all_estimates(diagnosis)
    errors = np.concatenate([estimate.error for estimate in shown])
    low, high = np.quantile(errors, (0.005, 0.995))
    room = 0.05 * float(high - low or 0.1)
    edges = np.linspace(min(low, 0) - room, max(high, 0) + room, 61)
    for place, estimate in enumerate(shown):
        counts = np.histogram(np.clip(estimate.error, edges[0], edges[-1]), edges)[0]
        axes.stairs(counts / len(estimate.error), edges, **charts.line(place, estimate.name))
    axes.axvline(0, color="#777", linewidth=1)
    axes.set_xlabel("estimate minus exact threshold (in units of the score)")
    _shares(axes, "users", len(shown))
    return figure


def score_densities(diagnosis: Scored) -> Figure:
    figure, (axes,) = charts.figure(7, 4)
    _densities(axes, diagnosis, f"thresholds (rank {diagnosis.k})", diagnosis.scores.threshold)
    return figure


def estimated_densities(diagnosis: Diagnosis, estimate: Estimate) -> Figure:
    """The densities of the scores with estimated thresholds, and with the exact ones, in two panels."""
    figure, panels = charts.figure(9.6, 4, 2)
    kinds = (("estimated thresholds", estimate.estimate), ("exact thresholds", estimate.exact))
    for axes, (name, values) in zip(panels, kinds, strict=True):
        _densities(axes, diagnosis, name, values, columns=1)
    top = max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(0, top)
    return figure


def _densities(axes: Any, diagnosis: Scored, name: str, thresholds: np.ndarray, *, columns: int = 3) -> None:
    """Scores of negatives and positives, and thresholds."""
    scores = diagnosis.scores
    parts = (("negatives", scores.negative), ("training positives", scores.positive), (name, thresholds))
    low, high = np.quantile(np.concatenate([values for _, values in parts]), (0.0005, 0.9995))
    grid = np.linspace(low, high, 300)
    for place, (label, values) in enumerate(parts):
        height = _density(values, grid)
        axes.plot(grid, height, **charts.line(place, f"{label}, mean {values.mean():.2f}"))
        axes.fill_between(grid, height, color=COLOURS[place], alpha=0.12, linewidth=0)
    axes.set(xlabel="score", ylabel="density")
    axes.set_ylim(bottom=0)
    charts.legend_above(axes, columns)


def _density(values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    sample = thinned(values, PLOTTED).astype(np.float64)
    if len(sample) < 3 or np.ptp(sample) < 1e-9:
        return np.zeros_like(grid)  # a single value has no density
    return np.asarray(gaussian_kde(sample)(grid))


def weight_histogram(diagnosis: Weighted) -> Figure:
    assert diagnosis.weights is not None
    weights = diagnosis.weights
    figure, (axes,) = charts.figure(7, 4)
    axes.axvspan(0, LOW, color=RED, alpha=0.12, linewidth=0)
    axes.axvspan(HIGH, 1, color=RED, alpha=0.12, linewidth=0)
    shares = np.full(len(weights.values), 1 / len(weights.values))
    axes.hist(weights.values, np.linspace(0, 1, 101), weights=shares, histtype="stepfilled", color=BLUE)
    axes.set(xlim=(0, 1), xlabel=f"weight of a training positive (tau_weight = {weights.tau_weight:g})")
    axes.set_ylabel("share of positives")
    charts.percent(axes.yaxis)
    axes.set_title(
        f"saturated (shaded): {weights.low:.1%} under {LOW:g}, {weights.high:.1%} over {HIGH:g}", fontsize=10
    )
    return figure


def hits(diagnosis: Diagnosis) -> Figure:
    figure, (axes,) = charts.figure(7, 4)
    for label, points in diagnosis.bounds.items():
        axes.plot([p.epoch for p in points], [p.more_hits for p in points], **_loss_line(diagnosis, label))
    axes.set(xlabel="epoch", ylabel=f"users with two or more hits in the top {diagnosis.k}", ylim=(0, 1.01))
    axes.set_xlim(left=0)
    charts.whole_numbers(axes.xaxis)
    charts.percent(axes.yaxis)
    _legend(axes, len(diagnosis.bounds))
    return figure


def bound_gap(diagnosis: Diagnosis) -> Figure:
    figure, (axes,) = charts.figure(7, 4)
    for label, points in diagnosis.bounds.items():
        with_gap = [p for p in points if p.gap is not None]
        epochs = [p.epoch for p in with_gap]
        low, middle, high = ([p.gap[q] for p in with_gap if p.gap] for q in ("25%", "50%", "75%"))
        axes.plot(epochs, middle, **_loss_line(diagnosis, label))
        if label == diagnosis.label:  # bands of several losses hide each other
            axes.fill_between(epochs, low, high, color=BLUE, alpha=0.15, linewidth=0)
    axes.axhline(0, color="#777", linewidth=1)
    axes.set(xlabel="epoch", ylabel=f"SL@{diagnosis.k} + log DCG@{diagnosis.k} per user")
    axes.set_xlim(left=0)
    charts.whole_numbers(axes.xaxis)
    axes.set_title(
        charts.plain(f"median of users with two or more hits; shaded: {diagnosis.label}, middle half"), fontsize=10
    )
    axes.legend(fontsize=9 if len(diagnosis.bounds) <= _MANY else 6)
    return figure


def lambda_heat(diagnosis: Diagnosis) -> Figure:
    size = max(20, min(2 * diagnosis.k, 60))
    return lambda_weights(diagnosis.k, min(diagnosis.n_items, size), diagnosis.small_lambda)


def lambda_weights(k: int, size: int, small: float) -> Figure:
    """The lambda weights of LambdaLoss@K in the first ``size`` ranks; ``small``: share of all pairs under 0.005."""
    figure, (axes,) = charts.figure(5.6, 4.6)
    places = np.arange(1, size + 1)
    table = lambda_table(places[:, None], places[None, :], k)
    image = axes.imshow(
        np.ma.masked_invalid(table),
        norm=LogNorm(vmin=SMALL_LAMBDA / 10, vmax=np.nanmax(table)),
        cmap=colormaps["viridis"].with_extremes(bad="white"),  # the diagonal: no two items share a rank
        origin="upper",
        extent=(0.5, size + 0.5, size + 0.5, 0.5),
    )
    if np.nanmin(table) < SMALL_LAMBDA:
        axes.contour(places, places, np.nan_to_num(table, nan=1.0), [SMALL_LAMBDA], colors="white", linewidths=1)
    axes.set(xlabel="rank of the negative", ylabel="rank of the positive")
    ticks = [1, *range(5, size + 1, 5)]
    axes.set(xticks=ticks, yticks=ticks)
    axes.set_title(f"LambdaLoss@{k}: {small:.1%} of all pairs of ranks are under {SMALL_LAMBDA:g}", fontsize=10)
    figure.colorbar(image, ax=axes, label="lambda weight (white line: 0.005)")
    return figure


def step_times(diagnosis: Diagnosis) -> Figure:
    figure, (axes,) = charts.figure(7, 1.2 + 0.45 * len(diagnosis.timings))
    values, texts = zip(
        *((1000 * one.seconds, charts.milliseconds(one.seconds)) for one in diagnosis.timings), strict=True
    )
    labels = [f"{timing.label} ({timing.negatives})" for timing in diagnosis.timings]
    charts.bars(axes, labels, values, texts)
    axes.margins(x=0.18)
    first = diagnosis.timings[0]
    axes.set_xlabel("milliseconds per step, forward and backward")
    axes.set_title(f"{first.n_queries:,} users with {first.n_positives:,} positives", fontsize=10)
    return figure


def _loss_line(diagnosis: Diagnosis, label: str, more: str = "") -> dict[str, Any]:
    """The same colour for a loss in every plot; the run's saved model is the thin line."""
    labels = list(diagnosis.bounds)
    if label in labels:
        return charts.line(labels.index(label), label + more)
    return {**charts.line(0, label + more), "linestyle": (0, (1, 1)), "linewidth": 1.2}


def _shares(axes: Any, of: str, n: int) -> None:
    """A vertical axis of shares, and a legend of ``n`` lines."""
    axes.set_ylabel(f"share of {of}")
    axes.set_ylim(bottom=0)
    charts.percent(axes.yaxis)
    _legend(axes, n)


def _legend(axes: Any, n: int) -> None:
    """Above the axes, or beside them when it is long."""
    if n <= _MANY:
        charts.legend_above(axes, min(n, 3))
    else:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=7)
