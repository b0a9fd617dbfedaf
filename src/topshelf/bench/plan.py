"""What a bench compares: methods by data by seeds, with what was published of them, read from TOML.

A plan is a grid. Every combination of a dataset, a group (usually a backbone), a method and a value of the varied
setting is a *case*; a case with a seed is a *cell*, which is one run. ``choose`` says where the settings of a case come
from: ``published`` (the optimum that was published for it), ``shipped`` (those shipped with topshelf), or ``tuned`` (a
search on validation with the same number of trials for every case).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pydantic
from pydantic import Field

from topshelf.config import explained, merged, parse_toml
from topshelf.diagnose.run import COMPARED, EPOCHS, USERS
from topshelf.errors import ConfigError, closest, suggestion
from topshelf.metrics import METRICS
from topshelf.settings import Settings

Choice = Literal["published", "shipped", "tuned"]
Value = bool | int | float | str
_AT = re.compile(r"(?P<name>[a-z_]+)@(?P<k>\d+)")
_NAME = re.compile(r"[\w.-]+")
# What is measured of the cells of each task: at a K, and without one.
_OF_LISTS = (tuple(METRICS), ("auc",))
_MEASURED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "interactions": _OF_LISTS,
    "sequences": _OF_LISTS,
    "ranking": ((*METRICS, "err"), ("map", "mrr")),
    "links": (("hits",), ("mrr",)),
}


class PlanData(Settings):
    source: str
    """A file, a folder, or the name of a dataset (`topshelf data list`)."""
    label: str
    """What tables call it."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of its cells, such as `data.split`."""
    folds: tuple[int, ...] = ()
    """Values of `data.fold`: every case is run once per fold and seed, and its score is the mean over them."""


class PlanGroup(Settings):
    label: str
    """What tables call it; usually a backbone."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of its cells, such as `model.name`."""
    published: dict[str, Any] = Field(default_factory=dict)
    """The same, with `choose = "published"` alone."""
    ranges: dict[str, list[Value]] = Field(default_factory=dict)
    """With `choose = "tuned"`: put in place of those of its methods, or beside them; an empty list takes one away."""
    own: bool = False
    """Whether only methods that name it are in it, such as models without a loss."""


class PlanMethod(Settings):
    label: str
    """What tables call it; usually a loss."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of its cells, such as `loss.name`."""
    published: dict[str, Any] = Field(default_factory=dict)
    """The same, with `choose = "published"` alone."""
    hyperparameters: tuple[str, ...] = ()
    """The settings that an `optimum` has values of, in its order."""
    ranges: dict[str, list[Value]] = Field(default_factory=dict)
    """With `choose = "tuned"`: the values to search; default: those of the model and the loss."""
    group: str | None = None
    """The only group it is in; default: every group that is not `own`."""
    at_k: bool = False
    """Train a model for the K of every metric, and report each metric of its own model."""


class Vary(Settings):
    setting: str
    """The whole name of a setting, such as `data.noise`."""
    label: str
    """What tables and axes call it."""
    values: tuple[Value, ...] = Field(min_length=1)
    """Its values."""


class PlanDiagnose(Settings):
    """What is measured of every run beside its metrics, as `topshelf diagnose` does."""

    losses: tuple[str, ...] = COMPARED
    """The losses that the run's own is compared with, by their names."""
    epochs: int = Field(EPOCHS, ge=1)
    """How long each loss is trained for the diagnosis."""
    users: int = Field(USERS, ge=1)
    """How many users are sampled."""

    @pydantic.field_validator("losses")
    @classmethod
    def _are_names(cls, losses: tuple[str, ...]) -> tuple[str, ...]:
        for name in losses:
            if name.endswith(".toml"):
                raise ValueError(f"must be names of losses, not files, got {name!r}")
            if losses.count(name) > 1:
                raise ValueError(f"must differ, got {name!r} twice")
        return losses


class Published(Settings):
    """What was published of the cases that its labels name; a label left out means all."""

    data: str | None = None
    group: str | None = None
    method: str | None = None
    x: Value | None = None
    k: int | None = None
    """The K of a model that `at_k` trains."""
    optimum: tuple[Value, ...] = ()
    """Values of the method's hyperparameters."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Further settings of these cases, with `choose = "published"` alone."""
    values: dict[str, float] = Field(default_factory=dict)
    """Published figures, by metric."""


class Plan(Settings):
    title: str
    """One line that says what is compared."""
    source: str = ""
    """Where the published figures are from."""
    task: str = "interactions"
    """The task of every cell."""
    k: int | None = Field(None, ge=1)
    """K of every cell that does not set its own; default: that of the task."""
    metrics: tuple[str, ...] = Field(min_length=1)
    """The metrics that are reported, such as `ndcg@20`."""
    protocols: tuple[str, ...] = ()
    """Rules of the evaluation; default: that of the task."""
    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=1)
    """Every case is run once per seed."""
    choose: Choice = "shipped"
    """Where the settings of a case come from."""
    trials: int = Field(16, ge=1)
    """With `choose = "tuned"`: trials per case."""
    tune_seed: int = Field(10, ge=0)
    """With `choose = "tuned"`: decides the validation part of the search; not one of `seeds`."""
    minutes: float = Field(60.0, gt=0)
    """Time for one cell; one that needs more is stopped and reported."""
    ours: str | None = None
    """The method that is compared with the best of the others."""
    times: bool = False
    """Whether tables have the seconds per epoch."""
    views: tuple[Literal["activity", "curves"], ...] = ()
    """What else is shown: scores by how active users are; validation scores against training time."""
    diagnose: PlanDiagnose | None = None
    """With this table every run is also diagnosed, and the report has the paper's figures 1, 2, 4, 5 and 6."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of every cell."""
    published_settings: dict[str, Any] = Field(default_factory=dict)
    """The same, with `choose = "published"` alone."""
    data: tuple[PlanData, ...] = Field(min_length=1)
    group: tuple[PlanGroup, ...] = ()
    method: tuple[PlanMethod, ...] = Field(min_length=1)
    vary: Vary | None = None
    published: tuple[Published, ...] = ()

    @pydantic.model_validator(mode="after")
    def _nothing_is_twice(self) -> Plan:
        """A seed or a metric that is named twice would count twice."""
        given: dict[str, tuple[Value, ...]] = {name: getattr(self, name) for name in ("seeds", "metrics", "protocols")}
        given |= {"vary.values": self.vary.values} if self.vary else {}
        for name, values in given.items():
            if twice := [value for value in values if values.count(value) > 1]:
                raise ValueError(f"{name} must differ, got {twice[0]!r} twice")
        values = self.vary.values if self.vary else ()
        for entry in self.published:
            if entry.x is not None and entry.x not in values:
                raise ValueError(f"published names x {entry.x!r}, which must be one of the values of vary, {values}")
            if entry.k is not None and entry.k not in metric_ks(self):
                raise ValueError(f"published names k {entry.k}, which must be the K of a metric, {metric_ks(self)}")
        return self

    @pydantic.model_validator(mode="after")
    def _metrics_are_measured(self) -> Plan:
        """Noticed before hours of work, not after."""
        at_k, whole = _MEASURED.get(self.task, ((), ()))
        for metric in self.metrics if at_k else ():
            name, at, _ = metric.partition("@")
            if metric not in whole and not (_AT.fullmatch(metric) and name in at_k):
                close = "".join(f"; did you mean {one}{at and metric[len(name) :]}?" for one in closest(name, at_k))
                forms = ", ".join([*(f"{one}@K" for one in at_k), *whole])
                raise ValueError(f"metrics of task {self.task} must be among {forms}, got {metric!r}{close}")
        return self

    @pydantic.model_validator(mode="after")
    def _can_be_diagnosed(self) -> Plan:
        if self.diagnose is not None and self.task != "interactions":
            raise ValueError(f"a plan with [diagnose] must be of the task interactions, got {self.task!r}")
        return self

    @pydantic.model_validator(mode="after")
    def _labels_are_known(self) -> Plan:
        names = {name: [one.label for one in getattr(self, name)] for name in ("data", "group", "method")}
        for name, labels in names.items():
            if twice := {label for label in labels if labels.count(label) > 1}:
                raise ValueError(f"the labels of {name} must differ, got {sorted(twice)[0]!r} twice")
        for entry in self.published:
            for name, labels in names.items():
                if (label := getattr(entry, name)) is not None and label not in labels:
                    raise ValueError(f"published names {name} {label!r}, which must be one of {', '.join(labels)}")
        for method in self.method:
            if method.group is not None and method.group not in names["group"]:
                raise ValueError(f"method {method.label!r} is of group {method.group!r}, which is no group of the plan")
            if method.at_k and any(_AT.fullmatch(metric) is None for metric in self.metrics):
                raise ValueError(f"method {method.label!r} with at_k needs metrics at a K, got {self.metrics}")
        if self.ours is not None and self.ours not in names["method"]:
            raise ValueError(f"ours must be the label of a method, got {self.ours!r}")
        return self


@dataclass(frozen=True)
class Case:
    """A place of the grid, or one fold of it. ``k`` is set where the method trains a model for each K."""

    data: PlanData
    group: PlanGroup | None
    method: PlanMethod
    x: Value | None = None
    k: int | None = None
    fold: int | None = None

    @property
    def name(self) -> str:
        """What progress and errors call it."""
        named = [self.data.label, self.group.label if self.group else None, self.method.label]
        named += [None if self.x is None else f"{self.x:g}" if isinstance(self.x, float) else str(self.x)]
        named += [None if self.k is None else f"K = {self.k}", None if self.fold is None else f"fold {self.fold}"]
        return ", ".join(part for part in named if part)


def cases(plan: Plan) -> Iterator[Case]:
    """Every place of the plan's grid, in its order."""
    groups: list[PlanGroup | None] = list(plan.group) or [None]
    for data in plan.data:
        for group in groups:
            for method in plan.method:
                if group is not None and (method.group != group.label if method.group else group.own):
                    continue
                xs = plan.vary.values if plan.vary else (None,)
                ks = metric_ks(plan) if method.at_k else (None,)
                for x, k, fold in product(xs, ks, data.folds or (None,)):
                    yield Case(data, group, method, x, k, fold)


def metric_ks(plan: Plan) -> list[int]:
    """The K of the plan's metrics, ascending."""
    return sorted({int(match["k"]) for metric in plan.metrics if (match := _AT.fullmatch(metric))})


def metrics_of(plan: Plan, case: Case) -> list[str]:
    """The metrics that a case is reported with."""
    return [metric for metric in plan.metrics if case.k is None or metric.endswith(f"@{case.k}")]


def known(plan: Plan, case: Case) -> Published:
    """What was published of a case; later entries of the plan override earlier ones."""
    found = Published()
    for entry in plan.published:
        labels = (case.data.label, case.group.label if case.group else None, case.method.label, case.x, case.k)
        wanted = (entry.data, entry.group, entry.method, entry.x, entry.k)
        if all(one is None or one == label for one, label in zip(wanted, labels, strict=True)):
            found = Published(
                optimum=entry.optimum or found.optimum,
                settings=merged(found.settings, entry.settings),
                values={**found.values, **entry.values},
            )
    values = {metric: found.values[metric] for metric in metrics_of(plan, case) if metric in found.values}
    return found.model_copy(update={"values": values})


def values_of(plan: Plan, case: Case) -> dict[str, Any]:
    """The settings that the plan gives a case, as nested values of a config."""
    parts: list[Any] = [case.data, *([case.group] if case.group else []), case.method]
    result: dict[str, Any] = {"task": plan.task} | ({} if plan.k is None else {"k": plan.k})
    result = merged(merged(result, {"evaluate": {"cutoffs": metric_ks(plan)}}), plan.settings)
    for part in parts:
        result = merged(result, part.settings)
    if plan.choose == "published":
        result = merged(result, plan.published_settings)
        for part in parts[1:]:
            result = merged(result, getattr(part, "published", {}))
        result = merged(merged(result, known(plan, case).settings), _optimum(plan, case))
    if plan.vary is not None and case.x is not None:
        result = merged(result, nested(plan.vary.setting, case.x))
    result = merged(result, {"data": {"source": case.data.source}})
    result = result if case.fold is None else merged(result, {"data": {"fold": case.fold}})
    return result if case.k is None else merged(result, {"k": case.k})


def _optimum(plan: Plan, case: Case) -> dict[str, Any]:
    optimum, names = known(plan, case).optimum, case.method.hyperparameters
    if len(optimum) > len(names):
        raise ConfigError(
            f"the optimum of {case.name} has {len(optimum)} values, and its method names {len(names)} hyperparameters"
        )
    result: dict[str, Any] = {}
    for name, value in zip(names, optimum, strict=False):
        result = merged(result, nested(name, value))
    return result


def ranges_of(case: Case) -> dict[str, list[Value]]:
    """The values to search: those of the method, then those of the group; none: what the model and the loss define."""
    found = {**case.method.ranges, **(case.group.ranges if case.group else {})}
    return {name: values for name, values in found.items() if values}


def nested(name: str, value: Any) -> dict[str, Any]:
    """A setting's whole name as nested values."""
    for key in reversed(name.split(".")):
        value = {key: value}
    return dict(value)


def shipped_plans() -> dict[str, Any]:
    """The plans of the package, by name."""
    folder = resources.files("topshelf") / "bench" / "plans"
    found = {entry.name.removesuffix(".toml"): entry for entry in folder.iterdir() if entry.name.endswith(".toml")}
    return dict(sorted(found.items()))


def read_plan(name: str | Path) -> tuple[str, Plan]:
    """A plan and its name: one of the package, or a TOML file."""
    shipped = shipped_plans()
    if str(name) in shipped:
        return str(name), parse_plan(shipped[str(name)].read_text(encoding="utf-8"), str(name))
    path = Path(name)
    if not path.is_file():
        similar = suggestion(str(name), list(shipped))
        raise ConfigError(f"{str(name)!r} is neither a plan of topshelf bench list nor a TOML file{similar}")
    if not _NAME.fullmatch(path.stem):
        raise ConfigError(f"a plan's file must be named with letters, digits, - and _ alone, got {path.name!r}")
    try:
        return path.stem, parse_plan(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the plan {path} cannot be read: {error}") from None


def parse_plan(text: str, where: str) -> Plan:
    """A checked plan."""
    try:
        values = parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"the plan {where} is not TOML: {error}") from None
    return _validated(values, where)


def _validated(values: dict[str, Any], where: str) -> Plan:
    try:
        return Plan.model_validate(values)
    except pydantic.ValidationError as error:
        raise ConfigError(f"the plan {where} is wrong: {explained(error, Plan)}") from None


def narrowed(
    plan: Plan,
    *,
    data: Sequence[str] = (),
    groups: Sequence[str] = (),
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (),
    choose: Choice | None = None,
    trials: int | None = None,
    minutes: float | None = None,
) -> Plan:
    """The part of a plan with these labels and seeds, and with other limits where they are given."""
    for what, wanted, there in (
        ("data", data, plan.data),
        ("group", groups, plan.group),
        ("method", methods, plan.method),
    ):
        labels = [one.label for one in there]
        for label in wanted:
            if label not in labels:
                raise ConfigError(
                    f"--{what} must be a label of the plan ({', '.join(labels) or 'it has none'}), got {label!r}"
                    f"{suggestion(label, labels)}"
                )
    changes: dict[str, Any] = {
        "data": tuple(one for one in plan.data if not data or one.label in data),
        "group": tuple(one for one in plan.group if not groups or one.label in groups),
        "method": tuple(
            one
            for one in plan.method
            if (not methods or one.label in methods) and (not groups or one.group is None or one.group in groups)
        ),
        "seeds": tuple(seeds) or plan.seeds,
    }
    limits = {"choose": choose, "trials": trials, "minutes": minutes}
    changes |= {name: value for name, value in limits.items() if value is not None}
    if plan.ours not in [one.label for one in changes["method"]]:
        changes["ours"] = None
    kept = {name: {None, *(one.label for one in changes[name])} for name in ("data", "group", "method")}
    changes["published"] = tuple(
        entry for entry in plan.published if all(getattr(entry, name) in labels for name, labels in kept.items())
    )
    if not changes["method"]:
        raise ConfigError(_no_cell(groups, methods))
    found = _validated({**plan.model_dump(), **{k: _plain(v) for k, v in changes.items()}}, "with these limits")
    if not any(cases(found)):
        raise ConfigError(_no_cell(groups, methods))
    return found


def _no_cell(groups: Sequence[str], methods: Sequence[str]) -> str:
    wanted = ", ".join([*(f"--group {one}" for one in groups), *(f"--method {one}" for one in methods)])
    return f"the plan has no cell with {wanted}; topshelf bench show lists its cases"


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [one.model_dump() if isinstance(one, Settings) else one for one in value]
    return value
