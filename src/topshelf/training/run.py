"""A whole run: data, fitting, evaluation, and the folder that keeps it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from topshelf.config import RunConfig
from topshelf.data import Dataset, load_split
from topshelf.errors import CheckpointError, ConfigError, at_most
from topshelf.evaluation import Evaluation, evaluate
from topshelf.models import Model
from topshelf.training import checkpoint
from topshelf.training.build import build_model, resolve
from topshelf.training.folder import RunFolder, peak_mib
from topshelf.training.phases import Lists, Outcome, Phases


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

    def evaluate(
        self, protocol: str | None = None, cutoffs: tuple[int, ...] | None = None, *, part: str = "test"
    ) -> Evaluation:
        """Full-ranking evaluation on the test or the validation part; by default as the config says.

        Validation masks train only. With ``train.refit`` the model has seen the validation part, so its numbers
        there are not those of a held-out set; with ``refit = "all"`` it has seen the test part too, and is refused.
        """
        if self.measured is not None:
            raise ConfigError(
                "this model was refitted on everything, the test part too (train.refit = 'all'); its numbers, made "
                "before that, are in metrics.json"
            )
        device = next(iter(self.model.state_dict().values())).device
        settings, lists = self.config.evaluate, Lists.of(self.dataset.split, str(device))
        with torch.no_grad():
            queries, items = self.model.encode()
            return evaluate(
                queries,
                items,
                lists.test if part == "test" else lists.valid,
                train=lists.train,
                valid=lists.valid if part == "test" else None,
                protocol=protocol or settings.protocol,
                cutoffs=cutoffs or self._cutoffs(),
                auc=settings.auc,
                item_counts=torch.bincount(lists.train.indices, minlength=self.model.n_items),
            )

    @cached_property
    def test(self) -> Evaluation:
        """The evaluation on the test part that the config asks for, made once."""
        return self.evaluate()

    def test_json(self) -> dict[str, Any]:
        """The numbers of the test part: this model's, or those measured before the refit on everything."""
        return self.measured if self.measured is not None else self.test.to_json()

    def _cutoffs(self) -> tuple[int, ...]:
        """The config's cut-offs, without those longer than the catalogue."""
        return tuple(k for k in self.config.cutoffs if k <= self.model.n_items)

    def summary(self) -> dict[str, Any]:
        """What metrics.json holds."""
        test, refit = self.test_json(), self.config.train.refit
        # A refitted model has seen the validation part; what counts is the score that chose the epoch.
        valid = {f"ndcg@{self.config.k}": self.valid_score} if refit else self.evaluate(part="valid").to_json()["mean"]
        return {
            "protocol": test["protocol"],
            "k": self.config.k,
            "model": self.config.model.name,
            "loss": None if self.model.is_closed_form else self.config.loss.name,
            "data": self.dataset.name,
            "seed": self.config.seed,
            "refit": refit,
            "test": {**test["mean"], **test["extras"]},
            "test_intervals": test["interval"],
            "test_users": {"evaluated": test["n_evaluated"], "skipped": test["n_skipped"]},
            "valid": valid,
            "best_epoch": self.best_epoch,
            "seconds": round(self.seconds, 3),
            "peak_mib": peak_mib(),
        }


def load_dataset(config: RunConfig, *, test: bool = True) -> Dataset:
    """The split that the config asks for; without ``test``, that part is empty and, where it is a file, unread."""
    settings = config.data.model_dump()
    return load_split(settings.pop("source"), **settings, seed=config.seed, test=test)


def fit(
    config: RunConfig, dataset: Dataset | None = None, *, out: str | Path | None = None, quiet: bool = True
) -> Fitted:
    """Fit what ``config`` asks for; with ``out``, keep the run in a folder that can be resumed and evaluated."""
    config = resolve(config)
    if out is not None:
        RunFolder(out).check_new()
    dataset = dataset or load_dataset(config)
    n_items = dataset.split.n_items
    at_most("k", config.k, n_items, f"{dataset.name} has {n_items} items")
    at_most("loss.k", config.loss.settings.get("k", 1), n_items, f"{dataset.name} has {n_items} items")
    phases = _phases(config, dataset, quiet)
    folder = RunFolder.create(out, config, dataset) if out is not None else None
    return _finish(phases, dataset, folder, None)


def resume(out: str | Path, *, quiet: bool = True) -> Fitted:
    """Go on with a run that was stopped; it ends as it would have ended uninterrupted. A finished run is loaded."""
    folder = RunFolder.open(out)
    if folder.metrics.exists():
        return load(out)
    state = checkpoint.load(folder.checkpoint) if folder.checkpoint.exists() else None
    dataset = folder.load_dataset()
    return _finish(_phases(folder.load_config(), dataset, quiet), dataset, folder, state)


def load(out: str | Path) -> Fitted:
    """The model that a run folder holds."""
    folder = RunFolder.open(out)
    config, dataset, state = folder.load_config(), folder.load_dataset(), folder.load_model()
    model = build_model(config, dataset.split.n_users, dataset.split.n_items)
    try:
        model.load_state_dict(state["model"])
        outcome = Outcome(model, *(state[name] for name in ("best_epoch", "seconds", "valid_score", "measured")))
    except (KeyError, RuntimeError) as error:
        raise CheckpointError(f"{folder.model} does not fit its config: {error}") from None
    lists = Lists.of(dataset.split, "cpu")
    # Until its last phase is over, a run's model is that of the first, which has seen train alone.
    model.attach(lists.histories(config) if "refit" in state or folder.metrics.exists() else lists.train)
    return Fitted(config, dataset, **vars(outcome))


def save(fitted: Fitted, out: str | Path) -> None:
    """Write a fitted model as a run folder."""
    folder = RunFolder.create(out, fitted.config, fitted.dataset)
    _keep(folder, fitted)


def _phases(config: RunConfig, dataset: Dataset, quiet: bool) -> Phases:
    def measure(outcome: Outcome) -> dict[str, Any]:
        return Fitted(config, dataset, **vars(outcome)).test.to_json()

    return Phases(config, dataset.split, quiet=quiet, measure=measure)


def _finish(phases: Phases, dataset: Dataset, folder: RunFolder | None, state: dict[str, Any] | None) -> Fitted:
    outcome = phases.run(folder, state)
    fitted = Fitted(phases.config, dataset, **vars(outcome))
    if folder is not None:
        _keep(folder, fitted)
    return fitted


def _keep(folder: RunFolder, fitted: Fitted) -> None:
    names = ("model", "best_epoch", "seconds", "valid_score", "measured")
    state = Outcome(*(getattr(fitted, name) for name in names)).state_dict()
    folder.save_model({**state, "refit": fitted.config.train.refit})  # what it has seen, should nothing more be written
    checkpoint.write_text(folder.metrics, json.dumps(fitted.summary(), indent=2) + "\n")
