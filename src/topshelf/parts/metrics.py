"""An evaluation in parts: the metrics of every user as Parquet, for means, intervals and paired tests."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import torch

from topshelf import files, registry
from topshelf.config import CatalogueConfig, of_task
from topshelf.data import IdMap
from topshelf.errors import CheckpointError, ConfigError, DataError, at_least, whole
from topshelf.evalset import EvalSet
from topshelf.evaluation import Evaluation, check_json, checked_cutoffs, evaluation_of
from topshelf.measurement import BLOCK, measure, ranked_places
from topshelf.parts.folder import PartsFolder, run_identity
from topshelf.parts.processes import fill
from topshelf.training import load
from topshelf.training.folder import RunFolder
from topshelf.training.tasks.catalogue import CatalogueTask

PART_USERS = 4 * BLOCK  # of a part, by default
_PLACE = "query"  # the column with the place of a user, or of another query, among those of the run
_BROKEN = (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException, KeyError, ValueError)


@dataclass(frozen=True)
class _Job:
    run: Path
    out: Path
    protocol: str | None
    cutoffs: tuple[int, ...] | None
    part_users: int | None
    allow: tuple[str, ...]


@dataclass(frozen=True)
class _Writer:
    """Measures parts; the fields from ``queries`` on are what an evaluation is given."""

    folder: PartsFolder
    users: IdMap
    queries: Any
    items: Any
    evalset: EvalSet
    cutoffs: tuple[int, ...]
    auc: bool
    item_counts: Any

    def __call__(self, number: int, users: range) -> None:
        rows = self.evalset.evaluated[users.start : users.stop]
        part = replace(self.evalset, measured=rows)
        tiles = ranked_places(self.queries, self.items, part, self.cutoffs[-1], self.auc)
        per_user, exposure = measure(tiles, part, self.cutoffs, self.items.size(0))
        listed = pl.DataFrame({f"@{k}": counts.numpy() for k, counts in exposure.items()}).with_row_index("item")
        files.write(self.folder.beside(number), listed.filter(pl.any_horizontal(pl.exclude("item") > 0)).write_parquet)
        table = pl.DataFrame({_PLACE: rows.numpy(), **{name: values.numpy() for name, values in per_user.items()}})
        if (known := self.evalset.queries.rows) is not None:
            table.insert_column(1, self.users.take(known.cpu()[rows].numpy()).alias("user"))
        files.write(self.folder.part(number), table.write_parquet)

    def finish(self) -> None:
        """Write what is known when every part is there: the figures of the lists as a whole."""
        exposure = {k: torch.zeros(self.items.size(0), dtype=torch.int64) for k in self.cutoffs}
        for number in range(self.folder.n_parts):
            listed = pl.read_parquet(self.folder.beside(number), glob=False)
            for k, counts in exposure.items():
                counts[listed["item"].to_numpy().astype("int64")] += listed[f"@{k}"].to_torch()
        whole = evaluation_of(self.evalset, self.cutoffs, {}, exposure, self.item_counts)
        self.folder.finish({"kind": "metrics", "extras": whole.extras})


def evaluate_parts(
    run: str | Path,
    out: str | Path,
    protocol: str | None = None,
    cutoffs: tuple[int, ...] | None = None,
    *,
    part_users: int | None = None,
    processes: int = 1,
    allow: Collection[str] = (),
    quiet: bool = True,
) -> Evaluation:
    """Evaluate a run on its test part, writing the metrics of every user to a folder of Parquet parts.

    The result is that of :meth:`topshelf.training.Fitted.evaluate`, to the last bit, and :func:`read_evaluation` reads
    it again. The folder is shared and continued as that of :func:`topshelf.parts.recommend_parts`. ``part_users``, a
    multiple of 8,192, are those of a part.
    """
    if part_users is not None and at_least("part_users", whole("part_users", part_users), 1) % BLOCK:
        raise ConfigError(
            f"part_users must be a multiple of {BLOCK}, the users that are measured at once, got {part_users}"
        )
    job = _Job(Path(run), Path(out), protocol, cutoffs, part_users, registry.allowed(allow))
    writer = fill(_open, job, processes, quiet=quiet)
    writer.finish()
    return read_evaluation(out)


def _open(job: _Job) -> _Writer:
    registry.allow(job.allow)
    identity = run_identity(job.run)
    of_task(RunFolder.open(job.run).load_config(), CatalogueConfig, "an evaluation in parts")
    fitted = load(job.run)
    assert isinstance(fitted.task, CatalogueTask)
    fitted.check_measured("test")
    measured = fitted.task.measured(fitted.model, "test", fitted.config, protocol=job.protocol, cutoffs=job.cutoffs)
    n_items = measured["items"].size(0)
    cutoffs = checked_cutoffs(measured["cutoffs"], n_items)
    evalset = measured["evalset"].checked(n_items)
    about = evaluation_of(evalset, cutoffs, {}, {k: torch.zeros(n_items) for k in cutoffs}, None)
    names = ("protocol", "n_skipped", "fingerprint", "empty", "gain", "units")
    identity |= {"kind": "metrics", "n_users": about.users.numel(), "cutoffs": list(cutoffs), "auc": measured["auc"]}
    identity |= {name: getattr(about, name) for name in names}
    identity |= {"data": fitted.dataset.name, "metric": fitted.task.metric(fitted.config)}
    if not identity["n_users"]:
        raise DataError("the test part must have something to find for at least one user, got nothing to evaluate")
    folder = PartsFolder.begin(job.out, identity, job.part_users, PART_USERS)
    return _Writer(folder, fitted.dataset.split.users, **{**measured, "evalset": evalset, "cutoffs": cutoffs})


def read_evaluation(path: str | Path) -> Evaluation:
    """The evaluation in a folder that :func:`evaluate_parts` wrote; :func:`topshelf.compare` takes it as any other."""
    folder = PartsFolder.open(path)
    about = folder.content
    if about.get("kind") != "metrics":
        raise CheckpointError(f"{path} must hold metrics per user, got parts of {about.get('kind')!r}")
    extras: dict[str, float] = folder.result().get("extras", {})
    try:
        table = pl.concat(pl.read_parquet(folder.part(number), glob=False) for number in range(folder.n_parts))
        users = table[_PLACE].to_torch()
        per_user = {name: table[name].to_torch() for name in table.columns if name not in (_PLACE, "user")}
        known = {name: about[name] for name in ("n_skipped", "fingerprint", "empty", "gain", "units")}
        found = Evaluation(about["protocol"], tuple(about["cutoffs"]), users, per_user, extras=extras, **known)
        check_json(found.to_json(n_resamples=2))
    except _BROKEN as error:
        raise CheckpointError(f"{path} is damaged: {files.reason(error)}; delete it and evaluate again") from None
    if users.numel() != folder.n_users:
        raise CheckpointError(f"{path} is damaged: it must have {folder.n_users} rows, got {users.numel()}")
    return found
