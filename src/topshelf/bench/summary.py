"""Means over seeds with their spread and intervals, and tests of one method against the best of the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from topshelf.bench.results import Measured, Place, Results, per_user
from topshelf.statistics import holm, mean_interval, paired_test

LEVEL = 0.95


@dataclass(frozen=True)
class Score:
    """A metric of one place over its seeds; the spread and the interval need two."""

    place: Place
    protocol: str
    metric: str
    n: int
    mean: float
    deviation: float
    low: float
    high: float
    published: float | None

    @property
    def difference(self) -> float | None:
        """From the published value, as a share of it."""
        return None if not self.published else self.mean / self.published - 1


@dataclass(frozen=True)
class Comparison:
    """Ours against another method on the same users: means, gain, and the test of their difference.

    ``among`` says which methods the other one is the best of: the same group, or the groups of their own.
    """

    place: Place
    other: Place
    among: str
    protocol: str
    metric: str
    draws: tuple[tuple[int, int], ...]  # folds and seeds that both have
    ours: float
    theirs: float
    difference: float
    low: float
    high: float
    p_value: float
    p_holm: float
    n: int

    @property
    def gain(self) -> float:
        return self.ours / self.theirs - 1 if self.theirs else math.nan


def scores(results: Results) -> dict[tuple[Place, str, str], Score]:
    """By place, protocol and metric; only what was run."""
    found = {}
    for place in results.places:
        for metric in results.metrics:
            runs = results.of(place, metric)
            for protocol in results.protocols:
                values = [run.metrics[protocol][metric] for run in runs if protocol in run.metrics]
                if values:
                    published = results.published.get((place, metric)) if _is_published(results, protocol) else None
                    found[place, protocol, metric] = _score(place, protocol, metric, values, published)
    return found


def _is_published(results: Results, protocol: str) -> bool:
    """Published figures of recommendation were made under the protocol that is named after the paper."""
    return protocol == "paper" or "paper" not in results.protocols


def _score(place: Place, protocol: str, metric: str, values: list[float], published: float | None) -> Score:
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    low, high = mean_interval(values, LEVEL) if len(values) > 1 else (math.nan, math.nan)
    return Score(place, protocol, metric, len(values), float(np.mean(values)), deviation, low, high, published)


def comparisons(results: Results) -> list[Comparison]:
    """Ours against the best other method of its group, and against the best of the groups of their own.

    The best is the one with the highest mean on test, which favours the others. Holm's correction is over all
    comparisons of one metric under one protocol.
    """
    if results.ours is None:
        return []
    table, found = scores(results), []
    for metric in results.metrics:
        for protocol in results.protocols:
            made = []
            for place in results.places:
                if place.method == results.ours:
                    made += _against_best(results, table, place, protocol, metric)
            adjusted = holm([one.p_value for one in made])
            found += [_with_holm(one, p) for one, p in zip(made, adjusted, strict=True)]
    return found


def _with_holm(one: Comparison, p: float) -> Comparison:
    return Comparison(**{**vars(one), "p_holm": p})


def _against_best(
    results: Results, table: dict[tuple[Place, str, str], Score], place: Place, protocol: str, metric: str
) -> list[Comparison]:
    same = [one for one in results.places if (one.data, one.group, one.x) == (place.data, place.group, place.x)]
    outside = [one for one in results.places if one.data == place.data and one.group in results.own_groups]
    made = []
    for among, others in ((place.group or "the others", same), ("outside", outside)):
        rivals = [one for one in others if one != place and (one, protocol, metric) in table]
        if not rivals or (place, protocol, metric) not in table:
            continue
        best = max(rivals, key=lambda one: table[one, protocol, metric].mean)
        if (one := compared(results, place, best, among, protocol, metric)) is not None:
            made.append(one)
    return made


def compared(results: Results, place: Place, other: Place, among: str, protocol: str, metric: str) -> Comparison | None:
    """Two places on the users, folds and seeds that both have; None without a common run or the same test lists."""
    ours, theirs = (
        {run.draw: run for run in results.of(one, metric) if protocol in run.metrics} for one in (place, other)
    )
    draws = [draw for draw in ours if draw in theirs and _same_lists(ours[draw], theirs[draw], protocol)]
    if not draws:
        return None
    a, b = (per_user([runs[draw] for draw in draws], protocol, metric) for runs in (ours, theirs))
    both = ~(np.isnan(a) | np.isnan(b)) if len(a) == len(b) else np.zeros(0, dtype=bool)
    if not both.any():
        return None
    test = paired_test(a[both], b[both])
    return Comparison(
        place,
        other,
        among,
        protocol,
        metric,
        tuple(draws),
        float(a[both].mean()),
        float(b[both].mean()),
        test.difference,
        test.low,
        test.high,
        test.p_value,
        test.p_value,
        test.n,
    )


def _same_lists(one: Measured, two: Measured, protocol: str) -> bool:
    return one.fingerprints.get(protocol) == two.fingerprints.get(protocol)


@dataclass(frozen=True)
class MeanGain:
    """The mean gain of ours over the best other method of its group, with its interval over users."""

    protocol: str
    metric: str
    n: int
    gain: float
    low: float
    high: float
    published: float | None


def mean_gains(results: Results, found: Sequence[Comparison], n_resamples: int = 1000) -> list[MeanGain]:
    """One per protocol and metric; users are resampled, of every dataset alike for all groups."""
    gains = []
    for protocol in results.protocols:
        for metric in results.metrics:
            some = [one for one in found if (one.protocol, one.metric) == (protocol, metric) and one.among != "outside"]
            if len(some) > 1 and all(one.theirs for one in some):
                low, high = _gain_interval(results, some, n_resamples)
                published = _published_gain(results, some) if _is_published(results, protocol) else None
                mean = float(np.mean([one.gain for one in some]))
                gains.append(MeanGain(protocol, metric, len(some), mean, low, high, published))
    return gains


def _gain_interval(results: Results, some: Sequence[Comparison], n_resamples: int) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    totals = np.zeros(n_resamples)
    by_data: dict[str, list[Comparison]] = {}
    for one in some:
        by_data.setdefault(one.place.data, []).append(one)
    for group in by_data.values():
        pairs = [_pair(results, one) for one in group]
        size = min(len(a) for a, _ in pairs)
        for at in range(n_resamples):
            drawn = rng.integers(0, size, size)
            with np.errstate(divide="ignore", invalid="ignore"):  # of the users drawn, none may have found a thing
                totals[at] += sum(np.nanmean(a[drawn]) / np.nanmean(b[drawn]) - 1 for a, b in pairs)
    method: Literal["linear", "nearest"] = "linear" if np.isfinite(totals).all() else "nearest"
    low, high = np.quantile(totals / len(some), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method=method)
    return float(low), float(high)


def _pair(results: Results, one: Comparison) -> tuple[np.ndarray, np.ndarray]:
    a, b = (
        per_user([run for run in results.of(place, one.metric) if run.draw in one.draws], one.protocol, one.metric)
        for place in (one.place, one.other)
    )
    return a, b


def _published_gain(results: Results, some: Sequence[Comparison]) -> float | None:
    """The same mean of the published figures, each against the best published other."""
    gains = []
    for one in some:
        place = one.place
        ours = results.published.get((place, one.metric))
        others = [
            value
            for (other, metric), value in results.published.items()
            if metric == one.metric
            and (other.data, other.group, other.x) == (place.data, place.group, place.x)
            and other != place
        ]
        if ours is None or not others:
            return None
        gains.append(ours / max(others) - 1)
    return float(np.mean(gains))


def score_frame(results: Results) -> pl.DataFrame:
    """All scores as a table."""
    rows = [
        {
            "data": one.place.data,
            "group": one.place.group,
            "method": one.place.method,
            "x": one.place.x,
            "protocol": one.protocol,
            "metric": one.metric,
            "runs": one.n,
            "mean": one.mean,
            "standard_deviation": one.deviation,
            "low": one.low,
            "high": one.high,
            "published": one.published,
            "difference": one.difference,
        }
        for one in scores(results).values()
    ]
    return pl.DataFrame(rows, infer_schema_length=None).fill_nan(None)


def comparison_frame(found: Sequence[Comparison]) -> pl.DataFrame:
    """All comparisons as a table."""
    rows = [
        {
            "data": one.place.data,
            "group": one.place.group,
            "x": one.place.x,
            "method": one.place.method,
            "other": one.other.method,
            "among": one.among,
            "protocol": one.protocol,
            "metric": one.metric,
            "runs": len(one.draws),
            "ours": one.ours,
            "theirs": one.theirs,
            "gain": one.gain,
            "difference": one.difference,
            "low": one.low,
            "high": one.high,
            "p_value": one.p_value,
            "p_holm": one.p_holm,
            "users": one.n,
        }
        for one in found
    ]
    return pl.DataFrame(rows, infer_schema_length=None)
