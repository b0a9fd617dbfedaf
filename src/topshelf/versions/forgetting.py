"""Remove people from a run, and prove it by a search of its files."""

from __future__ import annotations

import time
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from topshelf.data import Dataset, through_refit
from topshelf.data.growth import without_users
from topshelf.data.ids import UNKNOWN
from topshelf.errors import ConfigError, DataError, TopshelfError, TopshelfWarning
from topshelf.models import Model
from topshelf.training import Fitted, save
from topshelf.training.folder import RunFolder
from topshelf.training.tasks.interactions import InteractionsTask
from topshelf.versions.learning import again, keep_queries
from topshelf.versions.searching import Found, search_run
from topshelf.versions.updating import opened, parts_of, valid_score

_COMMAND = ("topshelf", "forget")  # what a folder says that it was made by: the ids are not in it


@dataclass(frozen=True, eq=False)
class Forgotten:
    """``fitted``: the run without them. ``users``: how many were removed, ``unknown`` ids that the run does not have.

    ``interactions``: how many went with them. ``owing``: parts of the model whose shared numbers (vectors of items,
    networks) were learned with them too, by name; empty where all was fitted again. ``found``: the search of the
    folder, None without one.
    """

    fitted: Fitted
    users: int
    interactions: int
    unknown: tuple[Any, ...]
    owing: tuple[str, ...]
    found: Found | None


def forget(
    run: Fitted | str | Path,
    users: Sequence[Any],
    *,
    out: str | Path | None = None,
    replaced: bool = False,
    refit: bool = False,
    quiet: bool = True,
    allow: Collection[str] = (),
) -> Forgotten:
    """The run without some users: their ids, interactions, events, vectors and thresholds.

    Closed-form models are fitted again without them, so that nothing of them is left. Of trained models the users'
    own rows are removed, and the numbers that all users share stay as they were learned; ``refit`` trains those again
    from the start, without them. Metrics that were measured before a refit on everything are means over people, and
    stay. ``out`` keeps the result in a new folder,
    ``replaced`` puts it in the place of the old one; either is searched for the ids, and refused if one is left.
    With ``refit``, ``users`` may be empty or gone already: what was learned with those forgotten before is trained
    again.
    """
    if out is not None:
        RunFolder(out).check_new()  # before the work
    old = opened(run, "forgetting users", allow)
    if replaced and isinstance(run, Fitted):
        raise ConfigError("replaced must be False where the run is not a folder; give its path")
    rows, unknown = _rows(old, users, may_be_none=refit and _owes(old))
    names = old.dataset.split.users.ids(rows)
    n_before = _n_interactions(old.dataset)
    dataset = replace(old.dataset, split=without_users(old.dataset.split, rows), notes=())
    fitted, owing = _without(old, dataset, rows, refit=refit, quiet=quiet)
    n_gone = n_before - _n_interactions(dataset)
    fitted = _with_lineage(fitted, old, len(rows), n_gone, refit)
    found: list[Found] = []
    for place, is_old in ((run if replaced else None, True), (out, False)):
        if place is not None:
            options: dict[str, Any] = {"replace": is_old, "command": _COMMAND}
            save(fitted, str(place), **options, check=lambda path: found.append(_nothing_left(path, names)))
    return Forgotten(fitted, len(rows), n_gone, unknown, owing, found[-1] if found else None)


def _owes(run: Fitted) -> bool:
    """Whether users were forgotten before, and what all users share was not trained again since."""
    steps = [step.get("refit") for step in run.origin.lineage if step.get("kind") == "forget"]
    return bool(steps) and steps[-1] is False


def _rows(run: Fitted, users: Sequence[Any], *, may_be_none: bool) -> tuple[np.ndarray, tuple[Any, ...]]:
    given = list(dict.fromkeys([users] if isinstance(users, str | int) else users))
    known = run.dataset.split.users
    found = known.find(given)
    unknown = tuple(user for user, row in zip(given, found.tolist(), strict=True) if row == UNKNOWN)
    rows = np.unique(found[found != UNKNOWN])
    if not len(rows) and not may_be_none:
        like = ", ".join(map(repr, known.ids(range(min(3, len(known))))))
        got = ", ".join(map(repr, given[:3])) or "none"
        raise DataError(f"users must name users of the run, such as {like}, got {got}")
    return rows, unknown


def _n_interactions(dataset: Dataset) -> int:
    return sum(len(part) for part in dataset.split.parts.values())


def _without(
    old: Fitted, dataset: Dataset, rows: np.ndarray, *, refit: bool, quiet: bool
) -> tuple[Fitted, tuple[str, ...]]:
    """The model for the others, and the names of its parts that were not fitted again."""
    task = InteractionsTask(dataset.split, old.config.train.device)
    is_kept = torch.ones(old.dataset.split.n_users, dtype=torch.bool)
    is_kept[torch.from_numpy(rows)] = False
    kept = is_kept.nonzero().squeeze(1)
    score = valid_score(old)  # before its data are changed
    started = time.perf_counter()
    if old.config.model.name == "blend":
        parts = parts_of(old)
        models, owing = [], []
        for part, model in zip(parts, old.model.parts, strict=True):
            models.append(_reduced(part.config, model, task, kept, part.best_epoch, refit=refit, quiet=quiet))
            owing += [] if refit or model.is_closed_form else [part.config.model.name]
        whole = task.model(old.config)
        whole.parts = nn.ModuleList(models)
    else:
        whole = _reduced(old.config, old.model, task, kept, old.best_epoch, refit=refit, quiet=quiet)
        owing = [] if refit or whole.is_closed_form else [old.config.model.name]
    whole.attach(task.context(through_refit(old.config.train.refit)))
    seconds = time.perf_counter() - started
    return replace(old, dataset=dataset, model=whole, seconds=seconds, valid_score=score), tuple(owing)


def _reduced(
    config: Any, old: Model, task: InteractionsTask, kept: torch.Tensor, best_epoch: int, *, refit: bool, quiet: bool
) -> Model:
    if refit or old.is_closed_form:
        return again(config, task, through_refit(config.train.refit), best_epoch, quiet=quiet)
    model: Model = task.model(config)
    keep_queries(old, model, kept)
    return model


def _with_lineage(fitted: Fitted, old: Fitted, n_users: int, n_interactions: int, refit: bool) -> Fitted:
    step = {
        "kind": "forget",
        "parent": old.origin.run,
        "date": datetime.now(UTC).date().isoformat(),
        "users": n_users,
        "interactions": n_interactions,
        "refit": refit,
        "seconds": round(fitted.seconds, 3),
    }
    return replace(fitted, origin=replace(old.origin, lineage=(*old.origin.lineage, step)))


def _nothing_left(path: str | Path, names: list[Any]) -> Found:
    found = search_run(path, names)
    if not found.is_nothing:
        places = ", ".join(f"{where} ({name!r})" for where, name in found.places[:3])
        raise TopshelfError(f"the new run would still name forgotten users: {places}. Nothing was written")
    if found.words:
        where, name = found.words[0]
        warnings.warn(
            f"{name!r} is also a word of a longer text in {where}, such as a path or the name of a file; look at it",
            TopshelfWarning,
            stacklevel=4,
        )
    return found
