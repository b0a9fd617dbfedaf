"""Models and trainers for benchmarks: every use that they make of topshelf's inner parts is here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from topshelf.config import RunConfig, assemble, merged
from topshelf.data import Split
from topshelf.evaluation import ndcg
from topshelf.models import Model
from topshelf.queries import Context, QuerySet
from topshelf.ragged import Ragged
from topshelf.training.batches import stream
from topshelf.training.build import build_model, build_trainer, resolve
from topshelf.training.thresholding import ThresholdHook
from topshelf.training.trainer import Trainer

TEST_AT_20 = {"evaluate": {"auc": False, "cutoffs": [20]}}
METRIC = "ndcg@20"
# Learning rate, tau, tau_w and T_beta of MF with SL@20: the paper's tables of optimal hyperparameters.
PAPER = {
    "amazon2014-health": (0.1, 0.2, 2.5, 5),
    "amazon2014-electronic": (0.01, 0.2, 2.25, 20),
    "gowalla": (0.01, 0.1, 1.0, 20),
}


def paper_settings(data: str, negatives: str) -> dict[str, Any]:
    """The paper's MF with SL@20: 1024 pairs, 1000 negatives (``per_query`` or ``shared``), N(0, 1) start."""
    rate, tau, tau_weight, every = PAPER[data]
    return {
        "model": {"dim": 64, "init": "normal"},
        "loss": {"tau": tau, "tau_weight": tau_weight},
        "negatives": {"kind": negatives, "n": 1000, "effective_n": None},
        "threshold": {"estimator": "sampled", "every": every, "n": 1000},
        "train": {"order": "pair", "batch_size": 1024, "learning_rate": rate},
    }


def trainer(
    config: RunConfig, positives: Ragged, n_items: int, validate: Callable[[Model], float] | None = None
) -> Trainer:
    """A new model of the config with its trainer."""
    return build_trainer(config, build_model(config, len(positives), n_items), Context(positives, n_items), validate)


def trainer_of(split: Split, data: str, loss: str, more: dict[str, Any], seed: int = 0) -> Trainer:
    """MF with the shipped settings and ``more``, in batches of 2048 users where nothing else is said."""
    more = merged({"train": {"batch_size": 2048}}, more)
    torch.manual_seed(seed)
    config = resolve(assemble(data=data, loss=loss, seed=seed, more=more))
    return trainer(config, split.train.ragged(), split.n_items)


def epoch_of(trained: Trainer) -> Callable[[], None]:
    """One more epoch."""
    return lambda: trained._epoch(None)


def begin_refreshing(trained: Trainer) -> int:
    """Begin an epoch that refreshes the thresholds; its number."""
    (hook,) = trained.objective.hooks
    assert isinstance(hook, ThresholdHook)
    hook.begin_epoch(hook.every, trained.model, stream(0))
    return hook.every


@torch.no_grad()
def vectors(model: Model) -> tuple[Any, torch.Tensor]:
    """Of all users and all items."""
    return model.encode(QuerySet.known(model.n_queries))


def validation(train: Ragged, valid: Ragged, k: int = 20) -> Callable[[Model], float]:
    """NDCG@k on the validation part, train masked."""
    return lambda model: ndcg(*vectors(model), valid, train, k)


def fitted(config: RunConfig, split: Split) -> tuple[Model, int]:
    """The model of a config fitted on train, and its best epoch by validation; 0 for a closed form."""
    train, valid = split.train.ragged(), split.valid.ragged()
    model = build_model(config, split.n_users, split.n_items)
    if model.is_closed_form:
        model.fit(Context(train, split.n_items))
        return model, 0
    trained = trainer(config, train, split.n_items, validation(train, valid, config.k))
    trained.run()
    return trained.model, trained.progress.best_epoch
