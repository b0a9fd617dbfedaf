"""Update a run: new interactions, users and items, without training from the start."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from topshelf import registry
from topshelf.blending import combined, spread
from topshelf.config import Component, RunConfig
from topshelf.data import Dataset, Interactions, read
from topshelf.data.growth import Growth, grown
from topshelf.data.titles import read_titles
from topshelf.errors import CheckpointError, ConfigError
from topshelf.queries import QuerySet
from topshelf.training import Fitted, load, save
from topshelf.training.folder import RunFolder
from topshelf.training.origin import TrainedPart
from topshelf.training.tasks.interactions import InteractionsTask
from topshelf.versions.learning import continued

_NUMBERED = re.compile(r"(?P<name>.*?)-(?P<number>[1-9]\d{0,5})")


def update(
    run: Fitted | str | Path,
    data: Any,
    *,
    out: str | Path | None = None,
    replaced: bool = False,
    columns: Mapping[str, Any] | None = None,
    titles: Any = None,
    quiet: bool = True,
    allow: Collection[str] = (),
) -> Fitted:
    """The run with new interactions: the old model goes on learning instead of starting again.

    ``data`` is a file, a polars or pandas frame, or :class:`Interactions`, read as the run's own data were, unless
    ``columns`` names other ones (``user``, ``item``, ``weight``, ``timestamp``, ``dates``). Users and items may be new.
    The new run has learned from everything, the parts that the old one was measured on too. Its test part is what is
    new of known users and items, and its test metrics are those of the old model on them, before it has seen them.
    ``out`` keeps it in a new folder; ``replaced`` puts it in the place of the old one. ``titles``: of new items.
    """
    if out is not None:
        RunFolder(out).check_new()  # before the work
    old = opened(run, "an update", allow)
    if replaced and isinstance(run, Fitted):
        raise ConfigError("replaced must be False where the run is not a folder; give its path")
    growth = grown(old.dataset, _table(data, old.config, columns or {}), old.config.data.min_rating)
    new = updated(old, growth, name=_name(data), titles=titles, quiet=quiet)
    if out is not None:
        save(new, out)
    if replaced:
        save(new, str(run), replace=True)
    return new


def updated(old: Fitted, growth: Growth, *, name: str, titles: Any = None, quiet: bool = True) -> Fitted:
    """The fitted model for a split that has grown."""
    measured = None
    if len(growth.held_out.test):
        measured = InteractionsTask(growth.held_out).measure(old.model, "test", old.config).to_json()
    dataset = Dataset(old.dataset.name, growth.split, _titles(old.dataset.titles, growth, titles))
    task, started = InteractionsTask(growth.split, old.config.train.device), time.perf_counter()
    config = refitted(old.config)
    if old.config.model.name == "blend":
        learned = _blend(old, dataset, task, quiet)
    else:
        model = continued(config, old.model, task, old.best_epoch, quiet=quiet)
        learned = Fitted(config, dataset, model)
    seconds = time.perf_counter() - started
    step = {
        "kind": "update",
        "parent": old.origin.run,
        "date": datetime.now(UTC).date().isoformat(),
        "data": name,
        **growth.counts,
        "seconds": round(seconds, 3),
    }
    origin = replace(learned.origin, lineage=(*old.origin.lineage, step))
    facts: dict[str, Any] = {
        "best_epoch": old.best_epoch,
        "seconds": seconds,
        "valid_score": valid_score(old),
        "measured": measured,
    }
    return replace(learned, **facts, origin=origin)


def opened(run: Fitted | str | Path, what: str, allow: Collection[str] = ()) -> Fitted:
    """A finished run of interactions; others are refused."""
    if isinstance(run, str | Path):
        registry.allow(allow)
        folder = RunFolder.open(run)
        _check_task(folder.load_config(), what)
        if not folder.is_finished:
            raise CheckpointError(f"{run} is not finished; finish it: topshelf train --resume {run}")
        run = load(run)
    _check_task(run.config, what)
    if run.config.model.name == "blend":
        parts_of(run)
    return run


def _check_task(config: Any, what: str) -> None:
    if not isinstance(config, RunConfig):
        raise ConfigError(
            f"{what} takes runs of task interactions, got task {config.task!r}; train it again on the data as they are "
            f"now: topshelf train --task {config.task} --data FILE --out FOLDER"
        )


def refitted(config: Any) -> Any:
    """The config of a model that has learned from everything."""
    return config.model_copy(update={"train": config.train.model_copy(update={"refit": "all"})})


def valid_score(fitted: Fitted) -> float | None:
    """The validation score that the run was chosen by; None if there was none."""
    if fitted.valid_score is not None or fitted.config.train.refit or not fitted.task.has("valid"):
        return fitted.valid_score
    return float(fitted.evaluate(part="valid").mean()[fitted.task.metric(fitted.config)])


def next_name(run: str | Path) -> Path:
    """The next free folder for a version of a run: clicks-2 for clicks, clicks-3 for clicks-2."""
    path = Path(run)
    match = _NUMBERED.fullmatch(path.name)
    name, number = (match["name"], int(match["number"])) if match else (path.name, 1)
    while (candidate := path.with_name(f"{name}-{number + 1}")).exists():
        number += 1
    return candidate


def _table(data: Any, config: RunConfig, columns: Mapping[str, Any]) -> pl.DataFrame:
    if isinstance(data, Interactions):
        return data.to_frame(events=data.events is not None)
    reading = config.data.model_dump(include={"user", "item", "weight", "timestamp", "dates"}) | dict(columns)
    if isinstance(data, str | Path):
        return read(data, **reading)
    return Interactions.from_frame(data, **reading).to_frame(events=True)


def _name(data: Any) -> str:
    return Path(data).name if isinstance(data, str | Path) else "table"


def _titles(known: list[str] | None, growth: Growth, titles: Any) -> list[str] | None:
    items = growth.split.items
    if known is not None:
        known = [*known, *(str(id) for id in items.ids(range(len(known), len(items))))]
    return known if titles is None else read_titles(titles, items, known)


def _blend(old: Fitted, dataset: Dataset, task: InteractionsTask, quiet: bool) -> Fitted:
    """A blend of the updated parts with the old weights; the spread of their scores is measured again."""
    parts, known = [], QuerySet.known(task.sizes()[0], task.device)
    for part, model in zip(parts_of(old), old.model.parts, strict=True):
        config = refitted(part.config)
        parts.append(
            Fitted(config, dataset, continued(config, model, task, part.best_epoch, quiet=quiet), part.best_epoch)
        )
    scales = [spread(*part.model.encode(known)) for part in parts]
    return combined(parts, old.config.model.settings["weights"], scales)


def parts_of(run: Fitted) -> tuple[TrainedPart, ...]:
    """How the parts of a blend were trained; refused if that is not known, and needed."""
    settings = run.config.model.settings["parts"]
    names, kept = [part["name"] for part in settings], [part.config.model.name for part in run.origin.parts]
    if names == kept:
        return run.origin.parts
    if kept:
        raise CheckpointError(f"the run's origin.json is damaged: its parts must be {', '.join(names)}, got {kept}")
    if any(not part.is_closed_form for part in run.model.parts):
        raise ConfigError(
            "this blend does not say how its parts were trained, because an earlier version made it. Make it again "
            "from its runs (topshelf blend RUN RUN --out FOLDER, or topshelf auto), then use that"
        )
    configs = [run.config.model_copy(update={"model": Component.model_validate(part)}) for part in settings]
    return tuple(TrainedPart(config, 0) for config in configs)
