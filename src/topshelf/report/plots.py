"""The plots of a report, each as large as a phone shows whole; this module needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from topshelf import charts
from topshelf.bench.activity import Activity, item_range
from topshelf.bench.tables import metric_name
from topshelf.diagnose.examine import Epoch
from topshelf.report.shown import Shown

WIDTH, HEIGHT = 4.6, 3.1
_MARKS = "osD^vPX"
_MOST_POINTS = 60  # of a line that say their numbers
Points = Sequence[tuple[float, float]]


def over_lengths(runs: Sequence[Shown], base: str, label: str) -> bytes | None:
    """A metric over the length of the list, a line per run; None where no run has two lengths of it."""
    lines = {run.name: _lengths(run, base) for run in runs}
    return _lines({name: points for name, points in lines.items() if len(points) > 1}, "K", label, log=True)


def _lengths(run: Shown, base: str) -> Points:
    cutoffs = () if run.result is None else run.result["cutoffs"]
    values = [(k, run.mean(f"{base}@{k}")) for k in cutoffs]
    return [(k, value) for k, value in values if value is not None]


def over_epochs(runs: Sequence[Shown], what: Callable[[Epoch], float | None], label: str) -> bytes | None:
    """Something of the log over epochs, a line per run, with a ring at the epoch that was chosen."""
    lines: dict[str, Points] = {}
    for run in runs:
        points = [(one.epoch, what(one)) for one in run.log]
        known = [(epoch, value) for epoch, value in points if value is not None]
        if any(value for _, value in known):  # thresholds that are never set say nothing
            lines[run.name] = known
    rings = {run.name: run.fitted.best_epoch for run in runs}
    return _lines(lines, "epoch", label, rings=rings)


def over_seconds(history: Points, label: str) -> bytes:
    """The best score so far over the seconds of a search."""
    drawing, (axes,) = charts.figure(WIDTH, HEIGHT)
    best: list[tuple[float, float]] = []
    for at, value in history:
        best.append((at, max(value, best[-1][1] if best else value)))
    axes.step([at for at, _ in best], [value for _, value in best], where="post", **charts.line(0, label))
    for at, value in best:
        _mark(axes, 0, at, value, f"after {at:.0f} s: {value:.4f}", is_ring=False, is_small=False)
    axes.set(xlabel="seconds", ylabel=charts.plain(label))
    return charts.render(drawing)


def _lines(
    lines: dict[str, Points], x: str, y: str, *, log: bool = False, rings: dict[str, int] | None = None
) -> bytes | None:
    if not lines:
        return None
    drawing, (axes,) = charts.figure(WIDTH, HEIGHT + 0.22 * (-(-len(lines) // 2)))
    for line, (name, points) in enumerate(lines.items()):
        axes.plot([point[0] for point in points], [point[1] for point in points], **charts.line(line, name))
        ring = None if rings is None else rings[name]
        every = -(-len(points) // _MOST_POINTS)
        for at, value in (point for place, point in enumerate(points) if place % every == 0 or point[0] == ring):
            text = f"{name}, {x} {at:g}: {value:.4f}"
            _mark(axes, line, at, value, text, is_ring=at == ring, is_small=rings is not None)
    axes.set(xlabel=x, ylabel=charts.plain(y))
    if log:
        axes.set_xscale("log")
        ticks = [k for k in (1, 2, 5, 10, 20, 50, 100) if any(k == at for points in lines.values() for at, _ in points)]
        axes.set_xticks(ticks, [str(k) for k in ticks])
        axes.minorticks_off()
    else:
        charts.whole_numbers(axes.xaxis)
    if len(lines) > 1:
        charts.legend_above(axes, 2)
    return charts.render(drawing)


def _mark(axes: Any, place: int, at: float, value: float, text: str, *, is_ring: bool, is_small: bool) -> None:
    """A point that says its numbers; of a dense line only the chosen one is seen."""
    colour = charts.COLOURS[place % len(charts.COLOURS)]
    style: dict[str, Any] = {"marker": _MARKS[place % len(_MARKS)], "markersize": 4}
    if is_small:
        style = {"marker": "o", "markersize": 7 if is_ring else 5, "alpha": 1.0 if is_ring else 0.0}
        style |= {"markerfacecolor": "white"} if is_ring else {}
    (point,) = axes.plot([at], [value], color=colour, linestyle="none", zorder=3, **style)
    charts.tip(point, text)


def by_activity(found: Sequence[Activity]) -> bytes:
    """The metric of each group of users, a line per run."""
    groups = list(dict.fromkeys((one.low, one.high) for one in found))
    names = list(dict.fromkeys(one.place.method for one in found))
    drawing, (axes,) = charts.figure(WIDTH, HEIGHT + 0.22 * (-(-len(names) // 2)))
    for place, name in enumerate(names):
        own = [one for one in found if one.place.method == name]
        axes.plot(range(len(own)), [one.score for one in own], **charts.line(place, name))
        for at, one in enumerate(own):
            text = f"{name}, {item_range(one.low, one.high)} items, {one.users:,} users: {one.score:.4f}"
            _mark(axes, place, at, one.score, text, is_ring=False, is_small=False)
    axes.set_xticks(range(len(groups)), [item_range(*group) for group in groups])
    axes.set(xlabel="items in train", ylabel=metric_name(found[0].metric))
    axes.set_ylim(bottom=0)
    if len(names) > 1:
        charts.legend_above(axes, 2)
    return charts.render(drawing)
