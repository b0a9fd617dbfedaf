"""The tables of a report as text: one form for the terminal, Markdown and HTML, and one for LaTeX."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from topshelf.bench.plan import Value
from topshelf.bench.results import Place, Results
from topshelf.bench.summary import Comparison, MeanGain, Score, scores
from topshelf.terminal import printable

Scores = dict[tuple[Place, str, str], Score]
_FEW = 2  # metrics that have room for intervals
NOT_RUN = "–"


@dataclass(frozen=True)
class Grid:
    """A table of texts with what it shows above it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: int | None = None


def metric_name(metric: str) -> str:
    """The field's own spelling: NDCG@20, Recall@20, Hit@20, MRR."""
    name, at, k = metric.partition("@")
    known = {"ndcg": "NDCG", "recall": "Recall", "hit_rate": "Hit", "mrr": "MRR", "map": "MAP", "err": "ERR"}
    known |= {"precision": "Precision", "f1": "F1", "auc": "AUC"}
    return f"{known.get(name, name)}{at}{k}"


def shown(value: Value | None) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def grids(results: Results) -> list[Grid]:
    """A table of means per dataset and protocol, and one of the differences from the published figures."""
    table, made = scores(results), []
    for data in results.data:
        places = [place for place in results.places if place.data == data]
        for protocol in results.protocols:
            if any((place, protocol, metric) in table for place in places for metric in results.metrics):
                made.append(_means(results, table, places, data, protocol))
        if (grid := _beside_published(results, table, places, data)) is not None:
            made.append(grid)
    return made


def _heads(results: Results) -> tuple[list[str], list[int]]:
    """The first columns, and which of group, method and x they are."""
    names = ("group", "method", results.x_label or "x")
    used = [
        at
        for at, name in enumerate(("group", "method", "x"))
        if len({getattr(place, name) for place in results.places}) > 1 or name == "method"
    ]
    return [names[at] for at in used], used


def _labels(place: Place, used: Sequence[int]) -> list[str]:
    texts = (place.group, place.method, shown(place.x))
    return [texts[at] for at in used]


def _means(results: Results, table: Scores, places: list[Place], data: str, protocol: str) -> Grid:
    heads, used = _heads(results)
    few = len(results.metrics) <= _FEW
    rows = []
    for place in places:
        found = [table.get((place, protocol, metric)) for metric in results.metrics]
        runs = max((one.n for one in found if one), default=0)
        times = (epoch_seconds(results, place),) if results.times else ()
        rows.append((*_labels(place, used), str(runs), *(_mean(one, few) for one in found), *times))
    last = results.metrics[-1]
    known = [
        (table[place, protocol, last].mean, at) for at, place in enumerate(places) if (place, protocol, last) in table
    ]
    best = max(known)[1] if known and results.x_label is None else None
    header = (*heads, "runs", *map(metric_name, results.metrics), *(("s / epoch",) if results.times else ()))
    return Grid(f"{data}, protocol {protocol}", header, tuple(rows), best)


def epoch_seconds(results: Results, place: Place) -> str:
    """Seconds per epoch, validations included; empty for a closed form."""
    runs = [run.facts for run in results.runs if run.place == place and run.facts.get("epochs")]
    return f"{fmean(one['seconds'] / one['epochs'] for one in runs):.2f}" if runs else ""


def _mean(score: Score | None, with_interval: bool) -> str:
    if score is None:
        return NOT_RUN
    text = f"{score.mean:.4f}"
    if math.isnan(score.deviation):
        return text
    text += f" ± {score.deviation:.4f}"
    return f"{text} ({score.low:.4f} to {score.high:.4f})" if with_interval else text


def _beside_published(results: Results, table: Scores, places: list[Place], data: str) -> Grid | None:
    heads, used = _heads(results)
    rows = []
    protocol = "paper" if "paper" in results.protocols else (*results.protocols, "")[0]
    for place in places:
        cells = []
        for metric in results.metrics:
            published, score = results.published.get((place, metric)), table.get((place, protocol, metric))
            difference = f"{score.difference:+.1%}" if score and score.difference is not None else NOT_RUN
            ours = f"{score.mean:.4f}" if score else NOT_RUN
            cells += [ours, "" if published is None else f"{published:.4f}", difference if published else ""]
        if any(results.published.get((place, metric)) is not None for metric in results.metrics):
            rows.append((*_labels(place, used), *cells))
    if not rows:
        return None
    header = [*heads]
    for metric in map(metric_name, results.metrics):
        header += [metric, f"published {metric}", "difference"]
    return Grid(f"{data}, beside the published figures, protocol {protocol}", tuple(header), tuple(rows))


def comparison_grid(results: Results, found: Sequence[Comparison]) -> Grid | None:
    """Ours against the best of the others: gain, difference with its interval, and p-values.

    A column that says the same in every row is left out.
    """
    if not found:
        return None
    columns: dict[str, list[str]] = {
        "data": [one.place.data for one in found],
        "group": [one.place.group for one in found],
        results.x_label or "x": [shown(one.place.x) for one in found],
        "protocol": [one.protocol for one in found],
        "metric": [metric_name(one.metric) for one in found],
        "best of": ["outside" if one.among == "outside" else "group" for one in found],
    }
    kept = {name: column for name, column in columns.items() if len(set(column)) > 1}
    kept["against"] = [one.other.method for one in found]
    kept["gain"] = [f"{one.gain:+.1%}" for one in found]
    kept["difference (95%)"] = [f"{one.difference:+.4f} ({one.low:+.4f} to {one.high:+.4f})" for one in found]
    kept["p"] = [p_text(one.p_value) for one in found]
    kept["p, Holm"] = [p_text(one.p_holm) for one in found]
    title = f"{results.ours} against the best of the others, paired over users"
    return Grid(title, tuple(kept), tuple(zip(*kept.values(), strict=True)))


def p_text(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def gain_lines(results: Results, gains: Iterable[MeanGain]) -> list[str]:
    """The mean gain in a sentence per protocol and metric."""
    lines = []
    for one in gains:
        published = "" if one.published is None else f"; of the published figures: {one.published:+.2%}"
        lines.append(
            f"Mean gain of {results.ours} over the best other method of its group, {metric_name(one.metric)}, protocol "
            f"{one.protocol}, {one.n} groups: {one.gain:+.2%} (95%: {one.low:+.2%} to {one.high:+.2%}){published}."
        )
    return lines


def missing_lines(results: Results) -> list[str]:
    """What was not run, and why, once per reason."""
    by_reason: dict[str, list[str]] = {}
    have = {(run.place, run.seed) for run in results.runs}
    for place, reason in results.missing.items():
        n = sum(one == place for one, _ in have)
        name = ", ".join(part for part in (place.data, place.group, place.method, shown(place.x)) if part)
        done = f" ({n} {'run' if n == 1 else 'runs'} done)" if n else ""
        by_reason.setdefault(reason, []).append(f"{name}{done}")
    return [f"{reason}: {'; '.join(names)}" for reason, names in by_reason.items()]


def one_line(text: str) -> str:
    """The text without line breaks, which would end a row of a table."""
    return " ".join(printable(text).split())


def markdown_text(text: str) -> str:
    """The text on one line, with what a page would read as a tag of HTML shown instead."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", one_line(text))


def markdown(grid: Grid) -> str:
    rows = [
        tuple(f"**{cell}**" if cell else "" for cell in row) if at == grid.best else row
        for at, row in enumerate(grid.rows)
    ]
    return f"**{markdown_text(grid.title)}**\n\n{table_lines(grid.header, rows)}"


def table_lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""

    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(markdown_text(cell).replace('|', chr(92) + '|') for cell in cells)} |"

    return "\n".join([line(header), "|---" * len(header) + "|", *map(line, rows)])
