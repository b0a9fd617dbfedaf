"""A cell of a plan: one run with one seed, and the key that says whether it was run before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from inspect import signature
from pathlib import Path
from typing import Any

from topshelf import files
from topshelf.bench.plan import Case, Plan, PlanDiagnose, Value, cases, metrics_of, ranges_of, values_of
from topshelf.config import BaseConfig, RunConfig, assemble, class_names, make_config, merged
from topshelf.data.datasets import fetch, local_file
from topshelf.data.local_datasets import LocalDataset
from topshelf.data.named import NAMED
from topshelf.diagnose.states import entries
from topshelf.errors import ConfigError, DataError, one_of
from topshelf.evalset import PROTOCOLS
from topshelf.training.build import loss_class, model_class, resolve

_KEY = 20  # hexadecimal digits


@dataclass(frozen=True)
class Cell:
    """One run. Its config is the one that is run, or with ``trials`` the one that is tuned first.

    ``absent`` says why it cannot be run here: its data are missing. The key is empty where it depends on them.
    """

    case: Case
    seed: int
    config: BaseConfig
    key: str
    minutes: float
    protocols: tuple[str, ...] = ()
    trials: int = 0
    tune_seed: int = 0
    ranges: tuple[tuple[str, tuple[Value, ...]], ...] = ()
    diagnose: PlanDiagnose | None = None
    absent: str | None = None

    @property
    def name(self) -> str:
        return f"{self.case.name}, seed {self.seed}"


def cells(plan: Plan) -> list[Cell]:
    """All cells of a plan: the first seed of every case, then the second, so that tables fill evenly."""
    return [_cell(plan, case, seed) for seed in plan.seeds for case in cases(plan)]


def data_here(plan: Plan) -> dict[str, bool]:
    """Which datasets of a plan are here, by label."""
    first = {case.data.label: case for case in reversed(list(cases(plan)))}
    return {data.label: _cell(plan, first[data.label], plan.seeds[0]).absent is None for data in plan.data}


def _cell(plan: Plan, case: Case, seed: int) -> Cell:
    trials = plan.trials if plan.choose == "tuned" else 0
    common: dict[str, Any] = {"case": case, "seed": seed, "minutes": plan.minutes, "protocols": plan.protocols}
    ranges = tuple((name, tuple(values)) for name, values in ranges_of(case).items()) if trials else ()
    common |= {"trials": trials, "tune_seed": plan.tune_seed, "ranges": ranges, "diagnose": plan.diagnose}
    values = merged(values_of(plan, case), {"seed": seed})
    try:
        given = make_config(values) if plan.choose == "published" else assemble(more=values)
        config = resolve(given, keep_auto=not trials)  # a search begins with a number
        compared = _compared(plan, config)
    except ConfigError as error:
        raise ConfigError(f"{case.name}: {error}") from None
    _check_metrics(plan, case, config)
    try:
        content, absent = data_digest(config), missing_data(config)
    except DataError as error:
        return Cell(config=config, key="", absent=str(error), **common)
    more: tuple[Any, ...] = (trials, plan.tune_seed, ranges) if trials else ()
    if plan.diagnose is not None:
        more = (*more, plan.diagnose.epochs, plan.diagnose.users, *(cell_key(one, content) for one in compared))
    key = cell_key(config, content, more)
    return Cell(config=config, key=key, absent=absent, **common)


def _compared(plan: Plan, config: BaseConfig) -> list[RunConfig]:
    """The configs of the losses that a diagnosis of the cell trains; those that none could have are refused."""
    if plan.diagnose is None or not isinstance(config, RunConfig):
        return []
    if model_class(config).is_closed_form:
        name = config.model.name
        raise ConfigError(f"a plan with [diagnose] must have trained models alone, got {name}: it has no loss")
    return [one for _, one in entries(config, plan.diagnose.losses, "diagnose.losses")]


def _check_metrics(plan: Plan, case: Case, config: BaseConfig) -> None:
    """Refuse what no cell would measure before any is run."""
    cutoffs = {*config.evaluate.cutoffs, config.k}
    for metric in metrics_of(plan, case):
        k = metric.partition("@")[2]
        if k.isdecimal() and int(k) not in cutoffs:
            given = sorted(cutoffs)
            raise ConfigError(f"{case.name}: evaluate.cutoffs must have the K of every metric, got {given}, not {k}")
    if plan.task == "interactions":
        for protocol in plan.protocols:
            one_of("protocols", protocol, PROTOCOLS)


def cell_key(config: BaseConfig, content: str, more: tuple[Any, ...] = ()) -> str:
    """The same for the same settings, data and code, wherever the data are: topshelf's version, and own classes.

    ``more`` is what a search or a diagnosis adds; a cell without them has nothing of it in its key.
    """
    values = _deciding(config)
    values["data"] = {**values.get("data", {}), "source": content}
    text = json.dumps([values, version(), list(more), *_own_code(config)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY]


def _deciding(config: BaseConfig) -> dict[str, Any]:
    """The settings that decide a run's numbers, without those at their defaults.

    So a new setting of topshelf, whose default changes nothing, leaves the keys of finished cells as they are.
    """
    values = config.model_dump(mode="json", exclude_defaults=True)
    for section, cls in (("model", model_class(config)), ("loss", loss_class(config))):
        own = getattr(config, section)
        defaults = {name: one.default for name, one in signature(cls.__init__).parameters.items()}
        kept = {name: value for name, value in own.settings.items() if name not in defaults or defaults[name] != value}
        values[section] = {"name": own.name, **kept}
    for name in ("checkpoint_seconds", "device"):
        values.get("train", {}).pop(name, None)
    if model_class(config).is_closed_form:
        refit = {"refit": config.train.refit}
        values = {name: value for name, value in values.items() if name in ("task", "seed", "k", "data", "model")}
        values["train"] = refit
    values["evaluate"] = config.evaluate.model_dump(mode="json")
    return values


def _own_code(config: BaseConfig) -> list[str]:
    """Checksums of the files of the user's own classes: an edited loss is another loss."""
    found = []
    for name in sorted(set(class_names(config).values())):
        module = name.partition(":")[0]
        if ":" in name and module.partition(".")[0] != "topshelf":
            path = getattr(import_module(module), "__file__", None)
            found.append(_digest(Path(path)) if path else "")
    return found


def version() -> str:
    """The version of topshelf; results of another one are not taken for its own."""
    return metadata.version("topshelf")


def data_digest(config: BaseConfig) -> str:
    """A checksum of the files that a config reads; a DataError if it is not known and they are not here."""
    source = config.data.source
    known = NAMED[config.task].get(source)
    if known is None:
        named = [value for key, value in config.data.model_dump().items() if isinstance(value, str) and key != "source"]
        return "+".join(_digest(path) for path in (Path(source), *(Path(one) for one in named if _is_there(one))))
    if known.sha256 is not None:
        return f"{source}:{known.sha256}"
    if isinstance(known, LocalDataset):
        return f"{source}:{_digest(known.locate())}"  # refused with a remedy if it is not here
    if known.address is None:
        return source  # generated
    if (path := local_file(source)) is None:
        raise DataError(f"{source} is not here; topshelf data get {source} downloads it where that is possible")
    return f"{source}:{_digest(path)}"


def missing_data(config: BaseConfig) -> str | None:
    """Why a named dataset cannot be read; None if it is here."""
    source = config.data.source
    known = NAMED[config.task].get(source)
    try:
        if isinstance(known, LocalDataset):
            known.locate()
        elif known is not None and known.address is not None and local_file(source) is None:
            return f"{source} is not here; topshelf data get {source} downloads it where that is possible"
    except DataError as error:
        return str(error)
    return None


def fetch_missing(some: Sequence[Cell]) -> None:
    """Download the named datasets that are not here, where that is possible; those that are not stay missing."""
    for source in dict.fromkeys(cell.config.data.source for cell in some if cell.absent):
        if source in NAMED["interactions"]:
            with suppress(DataError):
                fetch(source)


def _is_there(value: str) -> bool:
    try:
        return Path(value).exists()
    except (OSError, ValueError):  # no name of a file
        return False


def _digest(path: Path) -> str:
    """Of a file, or of all files of a folder."""
    if path.is_file():
        return _file_digest(path)[:_KEY]
    if not path.is_dir():
        raise DataError(f"{str(path)!r} is neither a file nor a named dataset")
    parts = [f"{one.relative_to(path)} {_file_digest(one)}" for one in sorted(path.rglob("*")) if one.is_file()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:_KEY]


def _file_digest(path: Path) -> str:
    known = path.stat()
    return _digest_once(path.resolve(), known.st_size, known.st_mtime_ns, known.st_ino)


@cache
def _digest_once(path: Path, *state: int) -> str:  # noqa: ARG001  a changed file is read again
    return files.digest(path)
