"""The plots of a study. matplotlib is an extra: nothing here is imported without it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from topshelf.tuning.outcome import TrialRow, Tuned
from topshelf.tuning.ranges import Choice, Range, text

# Of Okabe and Ito's colours, which colour-blind people can tell apart.
BLUE, RED, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#999999"


def draw(found: Tuned) -> dict[str, Figure]:
    """Every plot that the study has something for."""
    plots: dict[str, Callable[[Tuned], Figure]] = {"history": history}
    if any(len(row.history) > 1 for row in found.rows):
        plots["curves"] = curves
    if found.importances:
        plots["importances"] = importances
    if len(scored(found)) > 1:
        plots |= {"by_setting": by_setting} if len(found.ranges) == 1 else {"coordinates": coordinates}
    return {name: plot(found) for name, plot in plots.items()} if scored(found) else {}


def scored(found: Tuned) -> list[TrialRow]:
    return [row for row in found.rows if row.score is not None]


def history(found: Tuned) -> Figure:
    """The score of every trial in their order, and the best complete one so far."""
    figure, axes = _figure(7, 3.8)
    _dots(axes, found, lambda row: row.number)
    complete = [row for row in found.rows if row.state == "complete"]
    if complete:
        best = list(np.maximum.accumulate([row.score or 0.0 for row in complete]))
        numbers = [*(row.number for row in complete), found.rows[-1].number]  # to the last trial, however it ended
        axes.step(numbers, [*best, best[-1]], where="post", color=GREEN, linewidth=1.8, label="best so far")
    axes.set(xlabel="trial", ylabel=f"validation {found.metric}")
    axes.xaxis.get_major_locator().set_params(integer=True)
    _legend(axes)
    return figure


def curves(found: Tuned) -> Figure:
    """Validation by epoch; pruned trials end where they were stopped."""
    figure, axes = _figure(7, 3.8)
    best, default = found.best, next((row for row in found.rows if row.is_default), None)
    others = [row for row in found.rows if row.history and row is not best and row is not default]
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
    axes.set(xlabel="epoch", ylabel=f"validation {found.metric}")
    axes.xaxis.get_major_locator().set_params(integer=True)
    _legend(axes)
    return figure


def importances(found: Tuned) -> Figure:
    """How much of the difference between good and bad trials each setting explains."""
    names, values = list(found.importances), list(found.importances.values())
    figure, axes = _figure(7, 0.9 + 0.4 * len(names))
    axes.barh(range(len(names)), values, color=BLUE, height=0.6)
    for place, value in enumerate(values):
        axes.annotate(f"{value:.0%}", (value, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("importance (PED-ANOVA, complete trials)")
    return figure


def by_setting(found: Tuned) -> Figure:
    """The score of every trial by the one setting that was searched."""
    name, range_ = next(iter(found.ranges.items()))
    figure, axes = _figure(7, 3.8)
    _dots(axes, found, lambda row: _height(range_, row.settings[name]))
    ticks = _ticks(range_)
    axes.set_xticks([height for height, _ in ticks], [_plain(label) for _, label in ticks])
    axes.set(xlabel=_plain(name), ylabel=f"validation {found.metric}", xlim=(-0.04, 1.04))
    _legend(axes)
    return figure


def coordinates(found: Tuned) -> Figure:
    """A line a trial through its settings to its score."""
    rows, names = scored(found), list(found.ranges)
    scores = [row.score or 0.0 for row in rows]
    scale = Normalize(min(scores), max(scores) if max(scores) > min(scores) else min(scores) + 1e-9)
    figure, axes = _figure(max(7, 1.35 * (len(names) + 1)), 4.2)
    for row, score in sorted(zip(rows, scores, strict=True), key=lambda pair: pair[1]):
        heights = [_height(found.ranges[name], row.settings[name]) for name in names]
        colour, is_best = colormaps["viridis_r"](scale(score)), row is found.best
        style: dict[str, Any] = {"color": colour, "linewidth": 2.6 if is_best else 1, "zorder": 3 if is_best else 2}
        style |= {"linestyle": ":" if row.state == "pruned" else "-", "alpha": 1.0 if is_best else 0.7}
        axes.plot(range(len(names) + 1), [*heights, float(scale(score))], **style)
    for place, name in enumerate(names):
        axes.axvline(place, color="#bbb", linewidth=1)
        for height, label in _ticks(found.ranges[name]):
            behind = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.7}
            offset = {"xytext": (3, 0), "textcoords": "offset points", "zorder": 4}
            axes.annotate(_plain(label), (place, height), va="center", fontsize=8, bbox=behind, **offset)
    labels = [_plain(name.replace(".", ".\n", 1)) for name in names]
    axes.set_xticks(range(len(names) + 1), [*labels, f"validation\n{found.metric}"], fontsize=9)
    axes.set(yticks=[], ylim=(-0.05, 1.05))
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_title("thick: the best; dotted: pruned", fontsize=10)
    figure.colorbar(ScalarMappable(scale, colormaps["viridis_r"]), ax=axes, fraction=0.04, pad=0.02)
    return figure


def _dots(axes: Any, found: Tuned, place: Callable[[TrialRow], float]) -> None:
    """A mark a trial at its score, of a kind that says how it ended."""
    kinds = (
        ("complete", [row for row in scored(found) if row.state == "complete"], "o", BLUE, BLUE),
        ("pruned, best until then", [row for row in scored(found) if row.state == "pruned"], "o", "white", GREY),
        ("the defaults", [row for row in scored(found) if row.is_default], "D", RED, RED),
    )
    for label, rows, marker, face, edge in kinds:
        if rows:
            places, scores = [place(row) for row in rows], [row.score for row in rows]
            axes.scatter(places, scores, s=28, marker=marker, facecolors=face, edgecolors=edge, label=label, zorder=3)


def _height(range_: Range, value: Any) -> float:
    """Where a value stands on its axis, 0 to 1."""
    if isinstance(range_, Choice):
        return range_.values.index(value) / max(1, len(range_.values) - 1)
    low, high, value = (math.log(x) if range_.log else x for x in (range_.low, range_.high, value))
    return float((value - low) / (high - low))


def _ticks(range_: Range) -> list[tuple[float, str]]:
    """Where an axis has its labels: at every value of a list, at the ends and quarters of an interval."""
    if isinstance(range_, Choice):
        return [(_height(range_, value), text(value)) for value in range_.values]
    if range_.log:
        found = [range_.low * (range_.high / range_.low) ** (place / 4) for place in range(1, 4)]
    else:
        found = [range_.low + (range_.high - range_.low) * place / 4 for place in range(1, 4)]
    between = {round(value) if range_.whole else float(f"{value:.2g}") for value in found}
    values = [range_.low, *sorted(value for value in between if range_.low < value < range_.high), range_.high]
    return [(_height(range_, value), text(value)) for value in values]


def _figure(width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _legend(axes: Any) -> None:
    """Above the plot, where it hides nothing."""
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False, fontsize=9)


def _plain(label: str) -> str:
    """Text that matplotlib draws as it is: between dollars it would read a formula."""
    return label.replace("$", r"\$")
