"""A whole run: data, fitting, evaluation, and its folder."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from topshelf import registry
from topshelf.config import RunConfig, class_names
from topshelf.data import Dataset, load_split, through_refit
from topshelf.data.splits import Through
from topshelf.errors import CheckpointError, ConfigError, TopshelfWarning, at_most
from topshelf.evaluation import PROTOCOLS, Evaluation
from topshelf.models import Model
from topshelf.queries import QuerySet
from topshelf.ragged import Ragged
from topshelf.training.build import build_model, resolve
from topshelf.training.folder import RunFolder, peak_mib
from topshelf.training.phases import Outcome, Phases
from topshelf.training.task import Part, Task, check_device, check_parts, task_of


@dataclass(frozen=True)
class Fitted:
    """A fitted model with the data it was fitted on."""

    config: RunConfig
    dataset: Dataset
    model: Model
    best_epoch: int = 0
    seconds: float = 0.0
    valid_score: float | None = None
    measured: dict[str, Any] | None = None
    is_finished: bool = True
    is_final: bool = True  # whether the model is that of the run's last phase, the refit if there is one

    @property
    def through(self) -> Through:
        """The parts that the model was trained on."""
        return through_refit(self.config.train.refit) if self.is_final else "train"

    def histories(self) -> Ragged:
        """The items per user that the model was trained on."""
        return self.dataset.split.seen(self.through)

    def seen(self) -> Ragged:
        """All items per user, in training or not; low ratings included."""
        return self.dataset.split.seen("below")

    @cached_property
    def task(self) -> Task:
        return task_of(self.dataset, str(_device(self.model)))

    def evaluate(
        self, protocol: str | None = None, cutoffs: tuple[int, ...] | None = None, *, part: Part = "test"
    ) -> Evaluation:
        """Full-ranking evaluation on the test or the validation part; by default as the config says.

        Validation masks train only. With ``train.refit`` the model has seen the validation part, so that part is not
        held out for it; with ``refit = "all"`` it has seen the test part too, and is refused.
        """
        if part == "test" and not self.task.has("test"):
            raise ConfigError(
                "this run has no test part (data.test_fraction = 0), so there is nothing to evaluate on; its "
                "validation metrics are in metrics.json"
            )
        if self.measured is not None:
            raise ConfigError(
                "this model was refitted on everything, the test part too (train.refit = 'all'); its test metrics, "
                "from before the refit, are in metrics.json"
            )
        settings, cutoffs = self.config.evaluate, cutoffs or self._cutoffs()
        protocol = protocol or settings.protocol
        return self.task.measure(self.model, part, protocol=protocol, cutoffs=cutoffs, auc=settings.auc)

    @cached_property
    def test(self) -> Evaluation:
        """The evaluation on the test part, as the config says; computed once."""
        return self.evaluate()

    def test_json(self) -> dict[str, Any] | None:
        """The test metrics of this model, or from before a refit on all; None without a test part."""
        if self.measured is not None:
            return self.measured
        return self.test.to_json() if self.task.has("test") else None

    def _cutoffs(self) -> tuple[int, ...]:
        """The config's cut-offs, without those larger than the catalogue."""
        return tuple(k for k in self.config.cutoffs if k <= self.model.n_items)

    def summary(self) -> dict[str, Any]:
        """The content of metrics.json."""
        test, refit = self.test_json(), self.config.train.refit
        # A refitted model has seen the validation part; report the score that chose the epoch.
        valid = {f"ndcg@{self.config.k}": self.valid_score} if refit else self.evaluate(part="valid").to_json()["mean"]
        return {
            "protocol": self.config.evaluate.protocol,
            "empty": test and test.get("empty", PROTOCOLS[self.config.evaluate.protocol]),
            "k": self.config.k,
            "model": self.config.model.name,
            "loss": None if self.model.is_closed_form else self.config.loss.name,
            "data": self.dataset.name,
            "seed": self.config.seed,
            "refit": refit,
            "derived": self.model.derived(),
            "test": test and {**test["mean"], **test["extras"]},
            "test_intervals": test and test["interval"],
            "test_users": test and {"evaluated": test["n_evaluated"], "skipped": test["n_skipped"]},
            "valid": valid,
            "best_epoch": self.best_epoch,
            "seconds": round(self.seconds, 3),
            "peak_mib": peak_mib(),
        }


def load_dataset(config: RunConfig, *, test: bool = True) -> Dataset:
    """The split that the config describes; without ``test``, that part is empty, and a file of its own is not read.

    Notes on the data are :class:`TopshelfWarning`s.
    """
    settings = config.data.model_dump()
    dataset = load_split(settings.pop("source"), **settings, seed=config.seed, test=test)
    dataset.warn()
    return dataset


def fit(
    config: RunConfig, dataset: Dataset | None = None, *, out: str | Path | None = None, quiet: bool = True
) -> Fitted:
    """Fit the model of ``config``; with ``out``, in a run folder that can be resumed and evaluated."""
    config = resolve(config)
    if out is not None:
        RunFolder(out).check_new()
        _say_of_scripts(config)
    dataset = dataset or load_dataset(config)
    phases = _phases(config, dataset, quiet)
    if out is None:
        return _finish(phases, dataset, None, None)
    with RunFolder.create(out, config, dataset) as folder:
        return _finish(phases, dataset, folder, None)


def resume(out: str | Path, *, quiet: bool = True, allow: Collection[str] = ()) -> Fitted:
    """Continue a stopped run; the result is that of an uninterrupted run. A finished run is loaded.

    ``allow``: packages with classes that the folder's config may name (see :func:`load`).
    """
    registry.allow(allow)
    if RunFolder.open(out).is_finished:
        return load(out)
    with RunFolder.resume(out) as folder:
        if folder.is_finished:  # by another process, before the lock was ours
            return load(out)
        config, dataset, state = folder.load_config(), folder.load_dataset(), folder.load_checkpoint()
        return _finish(_phases(config, dataset, quiet), dataset, folder, state)


def load(out: str | Path, *, allow: Collection[str] = ()) -> Fitted:
    """The model of a run folder; a :class:`TopshelfWarning` says so if its run is not finished.

    A folder may name classes of other packages. They are imported only if you allow it: import their modules first,
    or name the packages in ``allow``; they stay allowed for the rest of the process.
    """
    registry.allow(allow)
    folder = RunFolder.open(out)
    config, dataset, state = folder.load_config(), folder.load_dataset(), folder.load_model()
    if folder.is_finished:
        folder.load_metrics()  # refused if they are of another model
    outcome = _outcome(folder, config, dataset.split.n_users, dataset.split.n_items, state)
    model = outcome.model
    _check_seen(folder, config, dataset, state)
    # Before the last phase ends, a run's model is that of the first phase, which has seen train alone.
    is_final = "refit" in state or folder.is_finished
    fitted = Fitted(config, dataset, **vars(outcome), is_finished=folder.is_finished, is_final=is_final)
    model.attach(fitted.task.context(fitted.through))
    folder.say_if_unfinished(outcome.best_epoch)
    return fitted


def load_model(folder: RunFolder, config: RunConfig, n_users: int, n_items: int) -> Model:
    """Only the model of a finished run; no data are read or attached."""
    folder.load_metrics()  # refused if they are of another model
    return _outcome(folder, config, n_users, n_items, folder.load_model()).model


def _outcome(folder: RunFolder, config: RunConfig, n_users: int, n_items: int, state: dict[str, Any]) -> Outcome:
    model = build_model(config, n_users, n_items)
    try:
        return Outcome.of(model, state)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise CheckpointError(f"{folder.model} does not fit its config, or is damaged: {error}") from None


def _check_seen(folder: RunFolder, config: RunConfig, dataset: Dataset, state: dict[str, Any]) -> None:
    """The model must have seen what the config says: a run's lists and metrics depend on it."""
    refit = config.train.refit
    if folder.run is None or not (folder.is_finished or "refit" in state):
        return  # of an earlier version, or of the first phase
    if state.get("refit") != refit:
        raise CheckpointError(
            f"{folder.model} was fitted with train.refit = {state.get('refit')!r}, and {folder.config.name} says "
            f"{refit!r}; set it back, or train a new run"
        )
    if (state["measured"] is None) == (refit == "all" and len(dataset.split.test) > 0):
        raise CheckpointError(f"{folder.model} is damaged: only a model refitted on all has metrics from before that")


def save(fitted: Fitted, out: str | Path) -> None:
    """Write a fitted model as a run folder."""
    with RunFolder.whole(out, fitted.config, fitted.dataset) as folder:
        _keep(folder, fitted)


def _say_of_scripts(config: RunConfig) -> None:
    if scripted := [name for name in class_names(config).values() if name.startswith("__main__:")]:
        warnings.warn(
            f"{scripted[0]} is a class of this script: its run folder opens only in this script. Put the class into a "
            "module of its own to open it elsewhere",
            TopshelfWarning,
            stacklevel=3,
        )


def _phases(config: RunConfig, dataset: Dataset, quiet: bool) -> Phases:
    n_items = dataset.split.n_items
    for name, k in (("k", config.k), ("loss.k", config.loss.settings.get("k", 1))):
        at_most(name, k, n_items, f"{dataset.name} has {n_items} items")
    check_device(config.train.device)
    task = task_of(dataset, config.train.device)
    check_parts(task, config, dataset.split.kind)

    def measure(outcome: Outcome) -> dict[str, Any]:
        return Fitted(config, dataset, **vars(outcome)).test.to_json()

    return Phases(config, task, quiet=quiet, measure=measure)


def _finish(phases: Phases, dataset: Dataset, folder: RunFolder | None, state: dict[str, Any] | None) -> Fitted:
    outcome = phases.run(folder, state)
    fitted = Fitted(phases.config, dataset, **vars(outcome))
    if folder is not None:
        _keep(folder, fitted)
    return fitted


def _keep(folder: RunFolder, fitted: Fitted) -> None:
    names = ("model", "best_epoch", "seconds", "valid_score", "measured")
    state = Outcome(*(getattr(fitted, name) for name in names)).state_dict()
    # What the model has seen is in its file, so that it is known even if no other file is written.
    folder.save_model({**state, "refit": fitted.config.train.refit})
    folder.save_artifact(answers(fitted))
    folder.save_metrics(fitted.summary())


@torch.no_grad()
def answers(fitted: Fitted) -> dict[str, Any]:
    """The content of a run's :class:`topshelf.artifact.Artifact`, as plain tensors.

    It has the vectors of known queries if they are a table, else the histories that they are made of.
    """
    model, learned = fitted.model, fitted.histories()
    state: dict[str, Any] = {
        "seen": _arrays(fitted.seen()),
        "n_learned": learned.counts,
        "counts": popularity(learned, model.n_items),
    }
    if len(fitted.dataset.split.below):
        state["taken"] = _arrays(fitted.dataset.split.seen("all"))
    queries, items = model.encode(QuerySet.known(model.n_queries, _device(model)))
    if isinstance(queries, torch.Tensor):
        dtype = torch.promote_types(torch.promote_types(queries.dtype, items.dtype), torch.float32)  # as multiplied
        return {**state, "queries": queries.to("cpu", dtype), "items": items.to("cpu", dtype)}
    return {**state, "learned": _arrays(learned)}


def popularity(lists: Ragged, n_items: int) -> torch.Tensor:
    """How often each item is in the lists, (I,)."""
    return torch.bincount(lists.indices, minlength=n_items).float()


def _device(model: Model) -> torch.device:
    return next((tensor.device for tensor in model.state_dict().values()), torch.device("cpu"))


def _arrays(lists: Ragged) -> dict[str, torch.Tensor]:
    return {"indptr": lists.indptr, "indices": lists.indices}
