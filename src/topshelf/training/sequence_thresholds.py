"""Thresholds of positions: one per position, one per user, or those of the step itself."""

from __future__ import annotations

import torch
from torch import Tensor

from topshelf.catalogue import Block
from topshelf.errors import ConfigError
from topshelf.losses import Loss
from topshelf.models import Model
from topshelf.models.sequence import SequenceModel
from topshelf.queries import QuerySet
from topshelf.ragged import Ragged
from topshelf.training.sequence_batches import SequenceBatches
from topshelf.training.thresholding import Estimator, ThresholdHook


class SequenceThresholdHook(ThresholdHook):
    """The owner of the thresholds of positions.

    A user's threshold is the mean over its positions in the block of a step, or over all of them in a refresh, so that
    no order of writing decides it. Thresholds of the "batch" are read in every step and used in that step alone.
    """

    def __init__(
        self, loss: Loss, estimator: Estimator, batches: SequenceBatches, *, every: int = 5, in_steps: bool = False
    ) -> None:
        positives = Ragged(torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
        every = 1 if batches.slots == "batch" else every
        super().__init__(loss, estimator, QuerySet.known(0), positives, every=every, in_steps=in_steps)
        self.batches = batches
        if batches.slots == "batch" and self.reads is None:
            raise ConfigError(
                "threshold.of = 'batch' reads the thresholds off the scores of a step: it needs the exact catalogue "
                "(negatives.kind = 'catalogue') and threshold.estimator = 'exact' or 'incremental'; or use 'position'"
            )

    def begin_epoch(self, epoch: int, model: Model, generator: torch.Generator, *, is_resumed: bool = False) -> None:
        is_by_steps = self.estimator.updates == "steps"
        self._is_due = is_by_steps or epoch % self.every == 0
        if self._is_due and not (is_by_steps or self.reads is not None or is_resumed):
            self._refresh(model, generator)

    @torch.no_grad()
    def _refresh(self, model: Model, generator: torch.Generator) -> None:
        assert isinstance(model, SequenceModel)
        batch = self.batches.whole()
        queries, items = model.encode_every_position(batch.sequences), model.encode_items()
        now = self.loss.threshold[batch.query]
        updated = self.estimator.refresh(now, queries, items, batch.positives, self.loss.k, generator)
        self._write(batch.query, updated)

    @torch.no_grad()
    def take(self, query: Tensor, block: Block) -> None:
        now = self.loss.threshold[query].to(block.partition.dtype)
        self._write(query, self.estimator.read(now, block, self.loss))

    def _write(self, query: Tensor, values: Tensor) -> None:
        table = self.loss.threshold
        if self.batches.slots != "user":
            table[query] = values.to(table.dtype)
            return
        rows, place = torch.unique(query, return_inverse=True)
        sums = torch.zeros(rows.numel(), dtype=torch.float64, device=rows.device).index_add_(0, place, values.double())
        table[rows] = (sums / torch.bincount(place)).to(table.dtype)
