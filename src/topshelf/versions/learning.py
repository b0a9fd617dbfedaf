"""A model that learns further: from an older one, on data that have grown or lost some people."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from topshelf.data.splits import Through
from topshelf.models import Model
from topshelf.training.tasks.interactions import InteractionsTask
from topshelf.training.thresholding import ThresholdHook
from topshelf.training.trainer import Trainer
from topshelf.training.watchers import RunWatcher

# A trained model is trained for one epoch per so many of its first training: about a tenth of a full refit's time.
EPOCHS_PER_EPOCH = 12


def continued(config: Any, old: Model, task: InteractionsTask, best_epoch: int, *, quiet: bool = True) -> Model:
    """The model of ``config`` for all data of the task, from an old one of some of them.

    The old queries and items are the first ones of the task. A closed-form model is fitted, from the old one where
    that is quicker. A trained one starts with the old vectors, and new rows among what they met; thresholds are set
    before they are used; then all interactions are trained on for ``best_epoch`` / ``EPOCHS_PER_EPOCH`` epochs, rounded
    up, by an optimizer without a past and at the learning rate of the best epoch.
    """
    model: Model = task.model(config)
    if model.is_closed_form:
        model.fit_from(old, task.context("all"))
        return model
    keep_rows(old, model)
    model.place_new(old.n_queries, old.n_items, task.context("all"))
    rate = _rate(config.train, best_epoch)
    # Thresholds are those of every epoch: the few epochs of an update may have none that is divisible by more.
    often = config.model_copy(update={"threshold": config.threshold.model_copy(update={"every": 1})})
    epochs = max(1, -(-best_epoch // EPOCHS_PER_EPOCH))
    trainer = _trainer(often, model, task, "all", epochs=epochs, learning_rate=rate, decay_every=None)
    for hook in trainer.objective.hooks:
        if isinstance(hook, ThresholdHook) and hook.estimator.updates == "steps":
            hook.fill(model)
    _run(trainer, "update", task.metric(config), quiet)
    return model


def again(config: Any, task: InteractionsTask, through: Through, best_epoch: int, *, quiet: bool = True) -> Model:
    """The model of ``config`` fitted from the start, trained for the epochs that were chosen before."""
    model: Model = task.model(config)
    if model.is_closed_form:
        model.fit(task.context(through))
    else:
        trainer = _trainer(config, model, task, through, epochs=max(1, best_epoch))
        _run(trainer, "refit", task.metric(config), quiet)
    return model


@torch.no_grad()
def keep_rows(old: Model, model: Model) -> None:
    """Copy an old model's numbers into a larger one: rows of tables keep their places."""
    state = model.state_dict()
    for name, value in old.state_dict().items():
        state[name][tuple(slice(0, size) for size in value.shape)].copy_(value)


@torch.no_grad()
def keep_queries(old: Model, model: Model, rows: Tensor) -> None:
    """Copy an old model's numbers into one with the queries of ``rows`` alone: what differs in size is by query."""
    state = model.state_dict()
    for name, value in old.state_dict().items():
        for dim, (before, after) in enumerate(zip(value.shape, state[name].shape, strict=True)):
            if before != after:
                value = value.index_select(dim, rows.to(value.device))
        state[name].copy_(value)


def _trainer(config: Any, model: Model, task: InteractionsTask, through: Through, **changes: Any) -> Trainer:
    settings = config.model_copy(update={"train": config.train.model_copy(update=changes)})
    return Trainer(task.objective(settings, model, through), settings)


def _rate(train: Any, best_epoch: int) -> float:
    """The learning rate of the best epoch."""
    n_decays = 0 if train.decay_every is None else max(0, best_epoch - 1) // train.decay_every
    return float(train.learning_rate * train.decay_factor**n_decays)


def _run(trainer: Trainer, phase: str, metric: str, quiet: bool) -> None:
    with RunWatcher(None, phase=phase, metric=metric, quiet=quiet) as watcher:
        watcher.begin(trainer)
        trainer.run(watcher)
