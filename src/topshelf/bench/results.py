"""What was measured: the finished cells of a plan, or any run folders, as rows of one table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from topshelf.bench.cells import Cell, cells
from topshelf.bench.folder import Ledger
from topshelf.bench.plan import Plan, Value, known, metrics_of
from topshelf.errors import CheckpointError, ConfigError
from topshelf.reprs import brief, cut

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Measured:
    """One run: where it belongs in the table, its means by protocol and metric, and its values per user."""

    data: str
    group: str
    method: str
    x: Value | None
    k: int | None
    seed: int
    fold: int | None
    metrics: dict[str, dict[str, float]]
    names: tuple[str, ...]  # the metrics that it is reported with
    facts: dict[str, Any] = field(default_factory=dict)  # seconds, best_epoch, date, ...; of a search settings, score
    fingerprints: dict[str, int] = field(default_factory=dict)
    curve: list[list[float]] = field(default_factory=list)  # epoch, seconds and validation score
    diagnosis: dict[str, Any] | None = None  # as topshelf.diagnose.stored writes it
    users: Callable[[], pl.DataFrame] = pl.DataFrame  # columns "protocol/metric"

    def __repr__(self) -> str:
        return brief(self)

    @property
    def place(self) -> Place:
        return Place(self.data, self.group, self.method, self.x)

    @property
    def draw(self) -> tuple[int, int]:
        """The fold and the seed: runs of two methods are compared where both are the same."""
        return -1 if self.fold is None else self.fold, self.seed


@dataclass(frozen=True)
class Place:
    """A row of a table, for one dataset and one value of what varies."""

    data: str
    group: str
    method: str
    x: Value | None = None


@dataclass(frozen=True, eq=False)
class Results:
    """All that a report is made of. ``places`` are in the plan's order, also those without a run."""

    name: str
    title: str
    metrics: tuple[str, ...]
    runs: list[Measured]
    places: list[Place]
    protocols: tuple[str, ...]
    ours: str | None = None
    own_groups: frozenset[str] = frozenset()  # of models that stand outside the comparison, such as classics
    published: dict[tuple[Place, str], float] = field(default_factory=dict)
    source: str = ""
    x_label: str | None = None
    choose: str = ""
    missing: dict[Place, str] = field(default_factory=dict)  # why a place has no run
    n_wanted: int = 0
    times: bool = False
    views: tuple[str, ...] = ()
    note: str = ""  # what a reader should know, such as how runs of another time differ from the plan

    def __repr__(self) -> str:
        wanted = f" of {self.n_wanted:,}" if self.n_wanted else ""
        return cut(f"Results({self.name!r}, {', '.join(self.data)}: {len(self.runs):,}{wanted} runs)")

    @property
    def data(self) -> list[str]:
        return list(dict.fromkeys(place.data for place in self.places))

    def of(self, place: Place, metric: str) -> list[Measured]:
        """The runs of a place that report the metric, by fold and seed."""
        found = [run for run in self.runs if run.place == place and metric in run.names]
        return sorted(found, key=lambda run: run.draw)

    def frame(self) -> pl.DataFrame:
        """A row per run, protocol and metric."""
        rows = []
        for run in self.runs:
            where = {
                "data": run.data,
                "group": run.group,
                "method": run.method,
                "x": run.x,
                "k": run.k,
                "fold": run.fold,
            }
            for protocol, values in run.metrics.items():
                for metric in run.names:
                    value = {"seed": run.seed, "protocol": protocol, "metric": metric, "value": values[metric]}
                    rows.append({"plan": self.name, **where, **value, **run.facts})
        return pl.DataFrame(rows, infer_schema_length=None)


def of_plan(name: str, plan: Plan, ledger: Ledger) -> Results:
    """The results of a plan in a bench; places without a run say why."""
    done, failed = ledger.results(), ledger.failures()
    runs, published, missing = [], {}, {}
    places: dict[Place, None] = {}
    wanted = cells(plan)
    for cell in wanted:
        place = _place(cell)
        places[place] = None
        for metric, value in known(plan, cell.case).values.items():
            published[place, metric] = value
        if cell.key in done:
            runs.append(_measured(plan, cell, done[cell.key], ledger))
        else:
            failure = failed.get(cell.key, {}).get("reason")
            missing[place] = cell.absent or (f"failed: {failure}" if failure else "not run yet")
    protocols = plan.protocols or tuple(dict.fromkeys(name for run in runs for name in run.metrics))
    return Results(
        name=name,
        title=plan.title,
        metrics=plan.metrics,
        runs=runs,
        places=list(places),
        protocols=protocols,
        ours=plan.ours,
        own_groups=frozenset(group.label for group in plan.group if group.own),
        published=published,
        source=plan.source,
        x_label=plan.vary.label if plan.vary else None,
        choose=plan.choose,
        missing=missing,
        n_wanted=len(wanted),
        times=plan.times,
        views=plan.views,
    )


def _column(run: Measured, name: str) -> Array:
    frame = run.users()
    if name not in frame.columns:
        where = f"{run.method} on {run.data} with seed {run.seed}"
        raise CheckpointError(f"the values per user of {where} have no {name}; delete its result, and run it again")
    return frame[name].to_numpy().astype(np.float64)


def _place(cell: Cell) -> Place:
    case = cell.case
    return Place(case.data.label, case.group.label if case.group else "", case.method.label, case.x)


def _measured(plan: Plan, cell: Cell, result: dict[str, Any], ledger: Ledger) -> Measured:
    place, key, reported = _place(cell), cell.key, metrics_of(plan, cell.case)
    for protocol, means in result["metrics"].items():
        if absent := [metric for metric in reported if metric not in means]:
            raise ConfigError(f"metrics must be among those measured ({protocol}: {', '.join(means)}), got {absent[0]}")
    names = ("seconds", "best_epoch", "epochs", "peak_mib", "valid_score", "version", "date")
    facts = {name: result.get(name) for name in names}
    if "chosen" in result:
        facts |= {"settings": as_text(result["chosen"]), "score": result["chosen_score"]}
    return Measured(
        data=place.data,
        group=place.group,
        method=place.method,
        x=place.x,
        k=cell.case.k,
        seed=cell.seed,
        fold=cell.case.fold,
        metrics=result["metrics"],
        names=tuple(reported),
        facts={**facts, "choose": plan.choose, "key": key},
        fingerprints=result.get("fingerprints", {}),
        curve=result.get("curve", []),
        diagnosis=result.get("diagnosis"),
        users=lambda: ledger.per_user(key),
    )


def as_text(settings: Mapping[str, Any]) -> str:
    """Chosen settings in the form of the command line, which ``config.overrides`` reads."""
    return " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())


def per_user(runs: list[Measured], protocol: str, metric: str) -> Array:
    """The values per user, meaned over the seeds of each fold, fold after fold; NaN where a user was not measured."""
    by_fold: dict[int, list[Array]] = {}
    for run in runs:
        by_fold.setdefault(run.draw[0], []).append(_column(run, f"{protocol}/{metric}"))
    return np.concatenate([_mean(columns) for columns in by_fold.values()])


def _mean(columns: list[Array]) -> Array:
    size = max(len(column) for column in columns)
    filled = [np.pad(column, (0, size - len(column)), constant_values=np.nan) for column in columns]
    return np.asarray(np.mean(filled, axis=0))
