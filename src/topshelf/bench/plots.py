"""Figures of a report: a metric against what varies, or ours beside the published figures."""

from __future__ import annotations

import math
from typing import Any

from topshelf import charts
from topshelf.bench.results import Measured, Place, Results
from topshelf.bench.summary import scores
from topshelf.bench.tables import Scores, metric_name

_MARKS = "osD^vPX"
_MOST_TICKS = 9


def figures(results: Results) -> dict[str, bytes]:
    """SVG drawings by name, each with the data of the report's tables behind it; none without matplotlib."""
    if not charts.can_plot() or not results.runs:
        return {}
    drawings = {"curves": _training(results)} if "curves" in results.views else {}
    if results.x_label is not None:
        return {**{f"{protocol}": _curves(results, protocol) for protocol in results.protocols}, **drawings}
    is_compared = bool(results.published) and len(results.places) > 1  # a lone figure is read in the table
    return {**({"published": _beside(results)} if is_compared else {}), **drawings}


def _training(results: Results) -> bytes:
    """Validation scores against seconds of training, the first seed of each method; points of its best epoch."""
    drawing, axes = charts.figure(5.4 * len(results.data), 3.6, len(results.data))
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
        panel.set_xlabel("seconds of training")
        panel.set_ylabel("validation score")
        panel.set_title(charts.plain(data), fontsize=10, loc="left")
        panel.legend(frameon=False, fontsize=8)
    return charts.render(drawing)


def _curves(results: Results, protocol: str) -> bytes:
    """One panel per dataset: the last metric of the plan against what varies, with intervals over seeds."""
    table, metric = scores(results), results.metrics[-1]
    drawing, axes = charts.figure(4.6 * len(results.data), 3.4, len(results.data))
    for panel, data in zip(axes, results.data, strict=True):
        lines = dict.fromkeys((place.group, place.method) for place in results.places if place.data == data)
        several = len({group for group, _ in lines}) > 1
        for at, (group, method) in enumerate(lines):
            name = f"{group}, {method}" if several and group else method
            _line(
                panel,
                table,
                [one for one in results.places if one.data == data],
                (group, method),
                name,
                at,
                protocol,
                metric,
            )
        _mark_values(panel, [one.x for one in results.places if one.data == data])
        panel.set_xlabel(charts.plain(results.x_label or ""))
        panel.set_ylabel(f"{metric_name(metric)}, {protocol}")
        panel.set_title(charts.plain(data), fontsize=10, loc="left")
        panel.legend(frameon=False, fontsize=9)
    return charts.render(drawing)


def _mark_values(panel: Any, values: list[Any]) -> None:
    """The values that were run, in place of even steps; words at their place in the plan."""
    distinct = list(dict.fromkeys(values))
    if len(distinct) > _MOST_TICKS:
        return
    is_number = all(isinstance(value, int | float) for value in distinct)
    places = [float(value) for value in distinct] if is_number else list(range(len(distinct)))
    texts = [f"{value:g}" if is_number else charts.plain(str(value)) for value in distinct]
    panel.set_xticks(places, texts, fontsize=9)


def _line(
    panel: object,
    table: Scores,
    places: list[Place],
    key: tuple[str, str],
    name: str,
    at: int,
    protocol: str,
    metric: str,
) -> None:
    own = [place for place in places if (place.group, place.method) == key and (place, protocol, metric) in table]
    found = [table[place, protocol, metric] for place in own]
    if not found:
        return
    spread = [0.0 if math.isnan(one.deviation) else one.deviation for one in found]
    panel.errorbar(  # type: ignore[attr-defined]
        [float(place.x) if isinstance(place.x, int | float) else at for at, place in enumerate(own)],
        [one.mean for one in found],
        yerr=spread,
        label=charts.plain(name),
        color=charts.COLOURS[at % len(charts.COLOURS)],
        linestyle=charts.DASHES[at % len(charts.DASHES)],
        marker=_MARKS[at % len(_MARKS)],
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
    tallest = max(len(places) for places in by_data.values())
    drawing, axes = charts.figure(5.2 * len(by_data), 0.9 + 0.27 * tallest, len(by_data))
    for panel, (data, places) in zip(axes, by_data.items(), strict=True):
        names = [f"{one.group}, {one.method}" if one.group else one.method for one in places]
        ours = [table[one, protocol, metric].mean for one in places]
        published = [results.published.get((one, metric), math.nan) for one in places]
        panel.plot(published, range(len(places)), "D", color=charts.RED, markerfacecolor="none", label="published")
        panel.plot(ours, range(len(places)), "o", color=charts.BLUE, label="measured here")
        panel.set_yticks(range(len(places)), [charts.plain(name) for name in names], fontsize=8)
        panel.invert_yaxis()
        panel.grid(axis="y", color="#dddddd", linewidth=0.6)
        panel.set_xlabel(f"{metric_name(metric)}, protocol {protocol}")
        panel.set_title(charts.plain(data), fontsize=10, loc="left")
        charts.legend_above(panel, 2)
    return charts.render(drawing)
