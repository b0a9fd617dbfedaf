"""Scores by how active users are: whether a method helps those with few items in train, or those with many."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topshelf.bench.results import Array, Measured, Place, Results
from topshelf.bench.tables import NOT_RUN, Grid, metric_name
from topshelf.bench.worker import ACTIVITY

PARTS = 4


@dataclass(frozen=True)
class Activity:
    """The score of a place for users with ``low`` to ``high`` items in train: a mean over users, then over seeds."""

    place: Place
    protocol: str
    metric: str
    low: int
    high: int
    users: int
    score: float


def by_activity(results: Results) -> list[Activity]:
    """The plan's last metric under its last protocol, for four groups of users of about one size."""
    metric, protocol = results.metrics[-1], results.protocols[-1]
    found: list[Activity] = []
    for data in results.data:
        runs = [run for run in results.runs if run.data == data and ACTIVITY in run.users().columns]
        if not runs:
            continue
        edges = _edges(_counts(runs[0]))
        for place in dict.fromkeys(run.place for run in runs):
            own = [run for run in runs if run.place == place and metric in run.names]
            found += [_scored(place, own, protocol, metric, low, high) for low, high in edges if own]
    return found


def _counts(run: Measured) -> Array:
    return run.users()[ACTIVITY].to_numpy().astype(np.float64)


def _edges(counts: Array) -> list[tuple[int, int]]:
    """The fewest and the most items of each group; equal counts are never parted."""
    shares = np.arange(1, PARTS + 1) / PARTS
    highs = np.unique(np.quantile(counts, shares, method="inverted_cdf")).astype(int).tolist()
    lows = [int(counts.min()), *(high + 1 for high in highs[:-1])]
    return list(zip(lows, highs, strict=True))


def _scored(place: Place, runs: list[Measured], protocol: str, metric: str, low: int, high: int) -> Activity:
    means, sizes = [], []
    for run in runs:
        counts, values = _counts(run), run.users()[f"{protocol}/{metric}"].to_numpy().astype(np.float64)
        inside = (counts >= low) & (counts <= high) & ~np.isnan(values)
        means.append(values[inside].mean() if inside.any() else np.nan)
        sizes.append(int(inside.sum()))
    return Activity(place, protocol, metric, low, high, round(float(np.mean(sizes))), float(np.nanmean(means)))


def item_range(low: int, high: int) -> str:
    """From how many to how many items the users of a group have."""
    return str(low) if low == high else f"{low} to {high}"


def activity_grid(found: list[Activity]) -> Grid | None:
    """Methods by groups of users."""
    if not found:
        return None
    one = found[0]
    groups = sorted({(a.place.data, a.low, a.high) for a in found})
    places = list(dict.fromkeys(a.place for a in found))
    scores = {(a.place, a.low, a.high): a for a in found}
    rows = []
    for place in places:
        cells = [scores.get((place, low, high)) if place.data == data else None for data, low, high in groups]
        labels = [part for part in (place.group, place.method) if part]
        rows.append((place.data, ", ".join(labels), *(f"{c.score:.4f}" if c else NOT_RUN for c in cells)))
    heads = [item_range(low, high) for _, low, high in groups]
    title = f"{metric_name(one.metric)} by items in train, protocol {one.protocol}"
    return Grid(title, ("data", "method", *heads), tuple(rows))
