"""The plots of a study; this module needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from topshelf import charts
from topshelf.charts import BLUE, GREEN, GREY, RED
from topshelf.tuning.outcome import TrialRow, Tuned
from topshelf.tuning.ranges import Choice, Range, text

_SHADES = ("#8c9cae", RED)  # from the worst to the best: both are seen on light and on dark ground


def draw(tuned: Tuned) -> dict[str, Figure]:
    """Every plot that the study has values for."""
    plots: dict[str, Callable[[Tuned], Figure]] = {"history": history}
    if any(len(row.history) > 1 for row in tuned.rows):
        plots["curves"] = curves
    if tuned.importances:
        plots["importances"] = importances
    if len(scored(tuned)) > 1:
        plots |= {"by_setting": by_setting} if len(tuned.ranges) == 1 else {"coordinates": coordinates}
    return {name: plot(tuned) for name, plot in plots.items()} if scored(tuned) else {}


def scored(tuned: Tuned) -> list[TrialRow]:
    return [row for row in tuned.rows if row.score is not None]


def history(tuned: Tuned) -> Figure:
    """The score of every trial in order, and the best complete one so far."""
    figure, (axes,) = charts.figure(7, 3.8)
    _dots(axes, tuned, lambda row: row.number)
    complete = [row for row in tuned.rows if row.state == "complete"]
    if complete:
        best = list(np.maximum.accumulate([row.score or 0.0 for row in complete]))
        numbers = [*(row.number for row in complete), tuned.rows[-1].number]  # to the last trial, however it ended
        axes.step(numbers, [*best, best[-1]], where="post", color=GREEN, linewidth=1.8, label="best so far")
    axes.set(xlabel="trial", ylabel=f"validation {tuned.metric}")
    charts.whole_numbers(axes.xaxis)
    charts.legend_above(axes, 4)
    return figure


def curves(tuned: Tuned) -> Figure:
    """Validation by epoch; pruned trials end where they were stopped."""
    figure, (axes,) = charts.figure(7, 3.8)
    best, default = tuned.best, next((row for row in tuned.rows if row.is_default), None)
    others = [row for row in tuned.rows if row.history and row is not best and row is not default]
    pruned = [row for row in others if row.state == "pruned"]
    lines: tuple[tuple[str, list[TrialRow], dict[str, Any]], ...] = (
        ("other trials", others, {"color": GREY, "linewidth": 1, "alpha": 0.5}),
        ("the defaults", [default] if default and default is not best else [], {"color": RED, "linewidth": 1.4}),
        ("the best: the defaults" if best is default else "the best", [best] if best else [], {"color": BLUE}),
    )
    for label, rows, style in lines:
        for place, row in enumerate(row for row in rows if row.history):
            shown = label if place == 0 else None
            axes.plot(list(row.history), list(row.history.values()), **{"linewidth": 2, **style, "label": shown})
    if pruned:
        ends = [max(row.history) for row in pruned], [row.history[max(row.history)] for row in pruned]
        axes.plot(*ends, "x", color=GREY, markersize=5, label="pruned here")
    axes.set(xlabel="epoch", ylabel=f"validation {tuned.metric}")
    charts.whole_numbers(axes.xaxis)
    charts.legend_above(axes, 4)
    return figure


def importances(tuned: Tuned) -> Figure:
    """The share of the difference between good and bad trials that each setting explains."""
    names, values = list(tuned.importances), list(tuned.importances.values())
    figure, (axes,) = charts.figure(7, 0.9 + 0.4 * len(names))
    charts.bars(axes, names, values, [f"{value:.0%}" for value in values])
    axes.margins(x=0.12)
    axes.set_xlabel("importance (PED-ANOVA, complete trials)")
    return figure


def by_setting(tuned: Tuned) -> Figure:
    """The score of every trial by the one setting that was searched."""
    name, range_ = next(iter(tuned.ranges.items()))
    figure, (axes,) = charts.figure(7, 3.8)
    _dots(axes, tuned, lambda row: _height(range_, row.settings[name]))
    ticks = _ticks(range_)
    axes.set_xticks([height for height, _ in ticks], [charts.plain(label) for _, label in ticks])
    axes.set(xlabel=charts.plain(name), ylabel=f"validation {tuned.metric}", xlim=(-0.04, 1.04))
    charts.legend_above(axes, 4)
    return figure


def coordinates(tuned: Tuned) -> Figure:
    """One line per trial, through its settings to its score."""
    rows, names = scored(tuned), list(tuned.ranges)
    scores = [row.score or 0.0 for row in rows]
    scale = Normalize(min(scores), max(scores) if max(scores) > min(scores) else min(scores) + 1e-9)
    shades = LinearSegmentedColormap.from_list("scores", _SHADES)
    figure, (axes,) = charts.figure(max(7, 1.35 * (len(names) + 1)), 4.2)
    for row, score in sorted(zip(rows, scores, strict=True), key=lambda pair: pair[1]):
        heights = [_height(tuned.ranges[name], row.settings[name]) for name in names]
        colour, is_best = shades(scale(score)), row is tuned.best
        style: dict[str, Any] = {"color": colour, "linewidth": 2.6 if is_best else 1, "zorder": 3 if is_best else 2}
        style |= {"linestyle": ":" if row.state == "pruned" else "-", "alpha": 1.0 if is_best else 0.7}
        axes.plot(range(len(names) + 1), [*heights, float(scale(score))], **style)
    for place, name in enumerate(names):
        axes.axvline(place, color="#bbb", linewidth=1)
        for height, label in _ticks(tuned.ranges[name]):
            behind = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.7}
            offset = {"xytext": (3, 0), "textcoords": "offset points", "zorder": 4}
            axes.annotate(charts.plain(label), (place, height), va="center", fontsize=8, bbox=behind, **offset)
    labels = [charts.plain(name.replace(".", ".\n", 1)) for name in names]
    axes.set_xticks(range(len(names) + 1), [*labels, f"validation\n{tuned.metric}"], fontsize=9)
    axes.set(yticks=[], ylim=(-0.05, 1.05))
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_title("thick: the best; dotted: pruned", fontsize=10)
    figure.colorbar(ScalarMappable(scale, shades), ax=axes, fraction=0.04, pad=0.02)
    return figure


def _dots(axes: Any, tuned: Tuned, place: Callable[[TrialRow], float]) -> None:
    """One mark per trial at its score; its shape and colour show how the trial ended."""
    kinds = (
        ("complete", [row for row in scored(tuned) if row.state == "complete"], "o", BLUE, BLUE),
        ("pruned, best before", [row for row in scored(tuned) if row.state == "pruned"], "o", "white", GREY),
        ("the defaults", [row for row in scored(tuned) if row.is_default], "D", RED, RED),
    )
    for label, rows, marker, face, edge in kinds:
        if rows:
            places, scores = [place(row) for row in rows], [row.score for row in rows]
            axes.scatter(places, scores, s=28, marker=marker, facecolors=face, edgecolors=edge, label=label, zorder=3)


def _height(range_: Range, value: Any) -> float:
    """The position of a value on its axis, 0 to 1."""
    if isinstance(range_, Choice):
        return range_.values.index(value) / max(1, len(range_.values) - 1)
    low, high, value = (math.log(x) if range_.log else x for x in (range_.low, range_.high, value))
    return float((value - low) / (high - low))


def _ticks(range_: Range) -> list[tuple[float, str]]:
    """The labels of an axis: every value of a list; the ends and quarters of an interval."""
    if isinstance(range_, Choice):
        return [(_height(range_, value), text(value)) for value in range_.values]
    if range_.log:
        quarters = [range_.low * (range_.high / range_.low) ** (place / 4) for place in range(1, 4)]
    else:
        quarters = [range_.low + (range_.high - range_.low) * place / 4 for place in range(1, 4)]
    between = {round(value) if range_.whole else float(f"{value:.2g}") for value in quarters}
    values = [range_.low, *sorted(value for value in between if range_.low < value < range_.high), range_.high]
    return [(_height(range_, value), text(value)) for value in values]
