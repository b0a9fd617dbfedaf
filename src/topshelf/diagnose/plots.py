"""The plots of a diagnosis. matplotlib is an extra: nothing here is imported without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from scipy.stats import gaussian_kde

from topshelf.diagnose.gradients import Concentration
from topshelf.diagnose.measures import HIGH, LOW, SMALL_LAMBDA, Estimate, lambda_table
from topshelf.diagnose.run import Diagnosis

# Okabe and Ito's colours, which colour-blind people can tell apart; dashes tell them apart in grey.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#333333")
DASHES = ("-", "--", "-.", ":")
_KDE_SAMPLE = 4000
_MANY = 6  # losses that a legend over the axes has room for


def draw(found: Diagnosis) -> dict[str, Figure]:
    """Every plot that the diagnosis has something for, by file name."""
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
    if found.weights is not None:
        plots["weights"] = weight_histogram
    return {name: plot(found) for name, plot in plots.items()}


def gradient_concentration(found: Diagnosis) -> Figure:
    figure, (left, right) = _figure(9.6, 4.2, 2)
    kinds = (("by_positive", "positives (u, i)", left), ("by_pair", "pairs (u, i, j)", right))
    for attribute, what, axes in kinds:
        axes.plot([0, 1], [0, 1], color="#aaa", linewidth=1)
        for one in found.gradients:
            spread: Concentration = getattr(one, attribute)
            if not spread.n:
                continue  # a loss that looks at no single negative has no pairs
            label = _plain(f"{one.label}: {spread.top['5%']:.0%}")
            axes.plot(np.linspace(0, 1, len(spread.curve)), spread.curve, **_loss_line(found, one.label), label=label)
        axes.axvline(0.05, color="#777", linewidth=1, linestyle=":")
        axes.set(xlabel=f"the largest of the {what}", ylabel="share of the gradient they hold")
        axes.set(xlim=(0, 1), ylim=(0, 1.01))
        _in_percent(axes.xaxis, axes.yaxis)
        size = 9 if len(found.gradients) <= _MANY else 6
        axes.legend(title="held by the top 5%", loc="lower right", fontsize=size, title_fontsize=size)
    return figure


def gradient_sizes(found: Diagnosis) -> Figure:
    figure, (axes,) = _figure(7, 4)
    for one in found.gradients:
        spread, label = one.by_positive, f"{one.label} ({one.by_positive.decades:.1f} decades)"
        _steps(axes, spread.log10_edges, spread.log10_shares, _loss_line(found, one.label), label)
    axes.set(xlabel="log10 of a positive's gradient (norm, by the user's vector)", ylabel="share of positives")
    _in_percent(axes.yaxis)
    axes.set_ylim(bottom=0)
    _legend_above(axes, len(found.gradients))
    return figure


def _all_estimates(found: Diagnosis) -> list[Estimate]:
    return [*found.estimates, *([found.held] if found.held is not None else [])]


def threshold_scatter(found: Diagnosis) -> Figure:
    shown = _all_estimates(found)
    figure, panels = _figure(3.4 * len(shown) + 0.6, 4.1, len(shown))
    for place, (one, axes) in enumerate(zip(shown, panels, strict=True)):
        low, high = _ends(one)
        axes.plot([low, high], [low, high], color="#777", linewidth=1, zorder=3)
        axes.scatter(one.exact, one.estimate, s=8, alpha=0.35, color=COLOURS[place], linewidths=0, rasterized=True)
        axes.set(xlim=(low, high), ylim=(low, high), aspect="equal", xlabel="exact threshold", ylabel="estimate")
        axes.set_title(_plain(one.name), fontsize=10)
        text = f"error {one.error.mean():+.3f} ± {one.error.std():.3f}"
        axes.text(0.04, 0.94, text, transform=axes.transAxes, fontsize=9, va="top")
    return figure


def _ends(one: Estimate) -> tuple[float, float]:
    both = np.concatenate([one.exact, one.estimate])
    room = 0.04 * float(np.ptp(both) or 1.0)
    return float(both.min() - room), float(both.max() + room)


def threshold_errors(found: Diagnosis) -> Figure:
    figure, (axes,) = _figure(7, 4)
    shown = _all_estimates(found)
    errors = np.concatenate([one.error for one in shown])
    low, high = np.quantile(errors, (0.005, 0.995))
    room = 0.05 * float(high - low or 0.1)
    edges = np.linspace(min(low, 0) - room, max(high, 0) + room, 61)
    for place, one in enumerate(shown):
        counts = np.histogram(np.clip(one.error, edges[0], edges[-1]), edges)[0]
        _steps(axes, edges, counts / len(one.error), _line(place), one.name)
    axes.axvline(0, color="#777", linewidth=1)
    axes.set(xlabel="estimate minus exact threshold (in units of the score)", ylabel="share of users")
    _in_percent(axes.yaxis)
    axes.set_ylim(bottom=0)
    _legend_above(axes, len(shown))
    return figure


def score_densities(found: Diagnosis) -> Figure:
    figure, (axes,) = _figure(7, 4)
    parts = (
        ("negatives", found.scores.negative),
        ("training positives", found.scores.positive),
        (f"thresholds (place {found.k})", found.scores.threshold),
    )
    both = np.concatenate([values for _, values in parts])
    low, high = np.quantile(both, (0.0005, 0.9995))
    grid = np.linspace(low, high, 300)
    for place, (name, values) in enumerate(parts):
        height = _density(values, grid)
        axes.plot(grid, height, **_line(place), label=_plain(f"{name}, mean {values.mean():.2f}"))
        axes.fill_between(grid, height, color=COLOURS[place], alpha=0.12, linewidth=0)
    axes.set(xlabel="score", ylabel="density")
    axes.set_ylim(bottom=0)
    _legend_above(axes, len(parts))
    return figure


def _density(values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    some = values[np.linspace(0, len(values) - 1, min(len(values), _KDE_SAMPLE)).astype(int)].astype(np.float64)
    if len(some) < 3 or np.ptp(some) < 1e-9:
        return np.zeros_like(grid)  # a single value has no density
    return np.asarray(gaussian_kde(some)(grid))


def weight_histogram(found: Diagnosis) -> Figure:
    assert found.weights is not None
    weights = found.weights
    figure, (axes,) = _figure(7, 4)
    axes.axvspan(0, LOW, color="#d55e00", alpha=0.12, linewidth=0)
    axes.axvspan(HIGH, 1, color="#d55e00", alpha=0.12, linewidth=0)
    shares = np.full(len(weights.values), 1 / len(weights.values))
    axes.hist(weights.values, np.linspace(0, 1, 101), weights=shares, histtype="stepfilled", color=COLOURS[0])
    axes.set(
        xlim=(0, 1),
        xlabel=f"weight of a training positive (tau_weight = {weights.tau_weight:g})",
        ylabel="share of positives",
    )
    _in_percent(axes.yaxis)
    axes.set_title(
        f"saturated (shaded): {weights.low:.1%} under {LOW:g}, {weights.high:.1%} over {HIGH:g}", fontsize=10
    )
    return figure


def hits(found: Diagnosis) -> Figure:
    figure, (axes,) = _figure(7, 4)
    for label, points in found.bounds.items():
        axes.plot(
            [p.epoch for p in points], [p.more_hits for p in points], **_loss_line(found, label), label=_plain(label)
        )
    axes.set(xlabel="epoch", ylabel=f"users with two or more hits in the top {found.k}", ylim=(0, 1.01))
    axes.set_xlim(left=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    _in_percent(axes.yaxis)
    _legend_above(axes, len(found.bounds))
    return figure


def bound_gap(found: Diagnosis) -> Figure:
    figure, (axes,) = _figure(7, 4)
    for label, points in found.bounds.items():
        some = [p for p in points if p.gap is not None]
        epochs = [p.epoch for p in some]
        low, middle, high = ([p.gap[q] for p in some if p.gap] for q in ("25%", "50%", "75%"))
        axes.plot(epochs, middle, **_loss_line(found, label), label=_plain(label))
        if label == found.label:  # bands of several losses hide each other
            axes.fill_between(epochs, low, high, color=COLOURS[0], alpha=0.15, linewidth=0)
    axes.axhline(0, color="#777", linewidth=1)
    axes.set(xlabel="epoch", ylabel=f"SL@{found.k} + log DCG@{found.k}, a user")
    axes.set_xlim(left=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_title(_plain(f"median of users with two or more hits; shaded: {found.label}, middle half"), fontsize=10)
    axes.legend(fontsize=9 if len(found.bounds) <= _MANY else 6)
    return figure


def lambda_heat(found: Diagnosis) -> Figure:
    figure, (axes,) = _figure(5.6, 4.6)
    size = min(found.n_items, max(20, min(2 * found.k, 60)))
    places = np.arange(1, size + 1)
    table = lambda_table(places[:, None], places[None, :], found.k)
    image = axes.imshow(
        np.ma.masked_invalid(table),
        norm=LogNorm(vmin=SMALL_LAMBDA / 10, vmax=np.nanmax(table)),
        cmap=colormaps["viridis"].with_extremes(bad="#bbb"),  # the diagonal: two items do not share a place
        origin="upper",
        extent=(0.5, size + 0.5, size + 0.5, 0.5),
    )
    if np.nanmin(table) < SMALL_LAMBDA:
        axes.contour(places, places, np.nan_to_num(table, nan=1.0), [SMALL_LAMBDA], colors="white", linewidths=1)
    axes.set(xlabel="place of the negative", ylabel="place of the positive")
    ticks = [1, *range(5, size + 1, 5)]
    axes.set(xticks=ticks, yticks=ticks)
    axes.set_title(
        f"LambdaLoss@{found.k}: {found.small_lambda:.1%} of all pairs of places are under {SMALL_LAMBDA:g}",
        fontsize=10,
    )
    figure.colorbar(image, ax=axes, label="lambda weight (white line: 0.005)")
    return figure


def step_times(found: Diagnosis) -> Figure:
    figure, (axes,) = _figure(7, 1.2 + 0.45 * len(found.timings))
    milliseconds = [1000 * timing.seconds for timing in found.timings]
    axes.barh(range(len(milliseconds)), milliseconds, color=COLOURS[0], height=0.6)
    for place, value in enumerate(milliseconds):
        axes.annotate(f"{value:.3g} ms", (value, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(range(len(milliseconds)), [_plain(f"{t.label} ({t.negatives})") for t in found.timings])
    axes.invert_yaxis()
    axes.margins(x=0.18)
    first = found.timings[0]
    axes.set_xlabel("milliseconds a step, forward and backward")
    axes.set_title(f"{first.n_queries:,} users with {first.n_positives:,} positives", fontsize=10)
    return figure


def _figure(width: float, height: float, panels: int = 1) -> tuple[Figure, list[Any]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = list(np.atleast_1d(figure.subplots(1, panels)))
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _line(place: int) -> dict[str, Any]:
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[place % len(DASHES)], "linewidth": 1.8}


def _loss_line(found: Diagnosis, label: str) -> dict[str, Any]:
    """The same colour for a loss in every plot; its kept model is the thin line of that colour."""
    labels = list(found.bounds)
    if label in labels:
        return _line(labels.index(label))
    return {**_line(0), "linestyle": (0, (1, 1)), "linewidth": 1.2}


def _steps(axes: Any, edges: Any, shares: Any, style: dict[str, Any], label: str) -> None:
    """A histogram as one closed line."""
    heights = np.concatenate([[0.0], np.repeat(np.asarray(shares), 2), [0.0]])
    axes.plot(np.repeat(np.asarray(edges), 2), heights, **style, label=_plain(label))


def _in_percent(*axes: Any) -> None:
    for axis in axes:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))


def _legend_above(axes: Any, n: int) -> None:
    """Above the axes, where it hides nothing; a long one beside them."""
    if n <= _MANY:
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=min(n, 3), frameon=False, fontsize=9)
    else:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=7)


def _plain(text: str) -> str:
    """Text that matplotlib draws as it is: between dollars it would read a formula."""
    return text.replace("$", r"\$")
