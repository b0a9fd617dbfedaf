"""The objective of positions of sequences against the catalogue."""

from __future__ import annotations

from topshelf.errors import ConfigError
from topshelf.losses import Loss
from topshelf.models.sequence import SequenceModel
from topshelf.queries import Context
from topshelf.ragged import Ragged
from topshelf.sequence_settings import SequenceConfig
from topshelf.training.build import build_estimator, build_loss, catalogue_objective
from topshelf.training.objective import CatalogueObjective
from topshelf.training.sequence_batches import SequenceBatches
from topshelf.training.sequence_thresholds import SequenceThresholdHook


def build_sequence_objective(config: SequenceConfig, model: SequenceModel, context: Context) -> CatalogueObjective:
    """Every position of the training sequences against the catalogue, with its batches and its threshold hook."""
    assert context.events is not None
    batches = SequenceBatches(
        context.events.items,
        size=config.train.batch_size,
        max_length=model.max_length,
        slots=config.threshold.of,
    )
    loss = build_loss(config, batches.n_slots(model.n_queries), model.n_items, batches.n_positions)
    objective = catalogue_objective(config, model, loss.to(config.train.device), context)
    objective.negatives.attach(_positions(batches, context.n_items))
    objective.batches = batches
    _check_slots(config, loss)
    if loss.keeps_thresholds:
        in_steps, estimator = objective.head.reads_blocks, build_estimator(config)
        objective.own_thresholds(
            SequenceThresholdHook(loss, estimator, batches, every=config.threshold.every, in_steps=in_steps)
        )
    return objective


def _positions(batches: SequenceBatches, n_items: int) -> Context:
    """The positions as queries, each with the item that comes next: what negatives are drawn for."""
    whole = batches.whole()
    return Context(Ragged(whole.positives.indptr, whole.item), n_items)


def _check_slots(config: SequenceConfig, loss: Loss) -> None:
    """States that are kept from one step to the next need an owner that comes again."""
    if config.threshold.of == "batch" and "query" in loss.needs and not loss.keeps_thresholds:
        raise ConfigError(
            f"threshold.of = 'batch' keeps no state, and loss {config.loss.name} has one per query; set threshold.of = "
            "'position' or 'user'"
        )
