"""Figures of a report: a metric against what varies, or ours beside the published figures."""

from __future__ import annotations

import math
from typing import Any

from topshelf import charts
from topshelf.bench.results import Measured, Place, Results
from topshelf.bench.summary import scores
from topshelf.bench.tables import metric_name

_MARKS = "osD^vPX"
_MOST_TICKS = 9
_BESIDE = 2  # panels in a row: more are too small to read on a page
_LEAST_STEP = 0.08  # of an axis, between two of its labels
_LONG_WORDS = 45  # characters of all labels of an axis, from which they are set aslant


def figures(results: Results) -> dict[str, bytes]:
    """SVG drawings by name, each with the data of the report's tables behind it; none without matplotlib."""
    if not charts.can_plot() or not results.runs:
        return {}
    drawings = {"curves": _training(results)} if "curves" in results.views else {}
    if results.x_label is not None:
        varied = {protocol: _varied(results, protocol) for protocol in results.protocols}
        return {**{name: _curves(results, name, shown) for name, shown in varied.items() if shown}, **drawings}
    if not results.published or len(results.places) < 2:  # a lone figure is read in the table
        return drawings
    return {"published": _beside(results), **drawings}


def _training(results: Results) -> bytes:
    """Validation scores against seconds of training, the first seed of each method; points of its best epoch."""
    from matplotlib.ticker import LogLocator, NullFormatter

    drawing, axes = _figure(5.4, 3.6, len(results.data))
    for panel, data in zip(axes, results.data, strict=True):
        first: dict[Place, Measured] = {}
        for run in sorted(results.runs, key=lambda run: run.draw):
            if run.data == data and run.curve:
                first.setdefault(run.place, run)
        for at, (place, run) in enumerate(first.items()):
            _, seconds, scores_ = zip(*run.curve, strict=True)
            name = f"{place.group}, {place.method}" if place.group else place.method
            colour = charts.COLOURS[at % len(charts.COLOURS)]
            panel.plot(seconds, scores_, charts.DASHES[at % len(charts.DASHES)], color=colour, label=charts.plain(name))
            best = scores_.index(max(scores_))
            panel.plot(seconds[best], scores_[best], _MARKS[at % len(_MARKS)], color=colour)
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.set_xlabel("seconds of training")
        panel.set_ylabel("validation score")
        panel.set_title(charts.plain(data), fontsize=10, loc="left")
        panel.legend(frameon=False, fontsize=8)
    return charts.render(drawing)


def _figure(width: float, height: float, panels: int) -> tuple[Any, list[Any]]:
    """Panels of this size, a few in a row."""
    rows = -(-panels // _BESIDE)
    return charts.figure(width * min(panels, _BESIDE), height * rows, panels, rows=rows)


def _varied(results: Results, protocol: str) -> list[str]:
    """The datasets with results for several of the values that vary."""
    table, metric, found = scores(results), results.metrics[-1], dict[str, set[Any]]()
    for place in results.places:
        if (place, protocol, metric) in table:
            found.setdefault(place.data, set()).add(place.x)
    return [data for data in results.data if len(found.get(data, ())) > 1]


def _curves(results: Results, protocol: str, shown: list[str]) -> bytes:
    """One panel per dataset: the last metric of the plan against what varies, with intervals over seeds."""
    table, metric = scores(results), results.metrics[-1]
    drawing, axes = _figure(4.6, 3.4, len(shown))
    for panel, data in zip(axes, shown, strict=True):
        own = [place for place in results.places if place.data == data]
        lines = dict.fromkeys((place.group, place.method) for place in own)
        several = len({group for group, _ in lines}) > 1
        at = _mark_values(panel, [one.x for one in own])
        for number, (group, method) in enumerate(lines):
            name = f"{group}, {method}" if several and group else method
            measured = [place for place in own if (place.group, place.method) == (group, method)]
            found = {at[place.x]: one for place in measured if (one := table.get((place, protocol, metric)))}
            if found:
                _line(panel, found, name, number)
        panel.set_xlabel(charts.plain(results.x_label or ""))
        panel.set_ylabel(f"{metric_name(metric)}, {protocol}")
        panel.set_title(charts.plain(data), fontsize=10, loc="left")
        panel.legend(frameon=False, fontsize=9)
    return charts.render(drawing)


def _mark_values(panel: Any, values: list[Any]) -> dict[Any, float]:
    """Where on the axis each value is: numbers at themselves, words by their order in the plan; marks the values."""
    distinct = list(dict.fromkeys(values))
    is_number = all(isinstance(value, int | float) for value in distinct)
    places = [float(value) if is_number else float(at) for at, value in enumerate(distinct)]
    if len(distinct) <= _MOST_TICKS:  # in place of even steps
        texts = [f"{value:g}" if is_number else charts.plain(str(value)) for value in distinct]
        slant = 0 if is_number or sum(map(len, texts)) <= _LONG_WORDS else 30
        panel.set_xticks(places, _thinned(places, texts), fontsize=9, rotation=slant)
    return dict(zip(distinct, places, strict=True))


def _thinned(places: list[float], texts: list[str]) -> list[str]:
    """The labels, those empty that would run into the one before."""
    step, last = _LEAST_STEP * (max(places) - min(places)), -math.inf
    kept = list(texts)
    for at in sorted(range(len(places)), key=places.__getitem__):
        if places[at] - last < step:
            kept[at] = ""
        else:
            last = places[at]
    return kept


def _line(panel: Any, found: dict[float, Any], name: str, number: int) -> None:
    panel.errorbar(
        list(found),
        [one.mean for one in found.values()],
        yerr=[0.0 if math.isnan(one.deviation) else one.deviation for one in found.values()],
        label=charts.plain(name),
        color=charts.COLOURS[number % len(charts.COLOURS)],
        linestyle=charts.DASHES[number % len(charts.DASHES)],
        marker=_MARKS[number % len(_MARKS)],
        markersize=5,
        capsize=3,
    )


def _beside(results: Results) -> bytes:
    """Our mean and the published figure of every method, the last metric of the plan."""
    metric = results.metrics[-1]
    protocol = "paper" if "paper" in results.protocols else results.protocols[0]
    table = scores(results)
    by_data = {
        data: [one for one in results.places if one.data == data and (one, protocol, metric) in table]
        for data in results.data
    }
    by_data = {data: places for data, places in by_data.items() if places}
    tallest = max(map(len, by_data.values()), default=0)
    drawing, axes = _figure(5.2, 0.9 + 0.27 * tallest, len(by_data))
    for panel, (data, places) in zip(axes, by_data.items(), strict=True):
        names = [f"{one.group}, {one.method}" if one.group else one.method for one in places]
        ours = [table[one, protocol, metric].mean for one in places]
        published = [results.published.get((one, metric), math.nan) for one in places]
        panel.plot(published, range(len(places)), "D", color=charts.RED, markerfacecolor="none", label="published")
        panel.plot(ours, range(len(places)), "o", color=charts.BLUE, label="measured here")
        panel.set_yticks(range(len(places)), [charts.plain(name) for name in names], fontsize=8)
        panel.set_ylim(len(places) - 0.4, -0.6)  # the first on top
        panel.locator_params(axis="x", nbins=5)
        panel.grid(axis="y", color="#dddddd", linewidth=0.6)
        panel.set_title(charts.plain(data), fontsize=10, loc="left")
    drawing.supxlabel(f"{metric_name(metric)}, protocol {protocol}", fontsize=10)  # may be wider than a panel
    drawing.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False, fontsize=9)
    return charts.render(drawing)
