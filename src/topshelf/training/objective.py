"""What one training step minimises: a model, a loss and a source of negatives put together."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf.catalogue import Block, CatalogueHead, Workspace, log_partition
from topshelf.errors import ConfigError
from topshelf.losses import Loss
from topshelf.models import Model
from topshelf.negatives import Catalogue, Draw, InBatch, Negatives, PerQuery, Population, sampled_scores
from topshelf.ragged import Ragged
from topshelf.thresholds import counted_step
from topshelf.training.batches import Batch

# The paper's number of sampled negatives; see docs/losses.md on why the exact catalogue is scaled to it.
DEFAULT_EFFECTIVE_N = 1000
_DENSE_BYTES = 2 * 2**30
_PAIR_COPIES = 6  # tables of margins that a loss and its backward pass hold at once


# What a step does to the thresholds of its queries: nothing, set them to the exact ones, or follow at a rate.
InStep = Literal["exact"] | tuple[Literal["follow"], float] | None


def scales_partition(loss: Loss) -> bool:
    """Whether the size of the sum over negatives is a setting of its own; for other losses it is the formula's."""
    return loss.accepts_partition or loss.keeps_thresholds


class Scored(NamedTuple):
    """What a step computed on its way to the loss, detached."""

    queries: Tensor  # (Q, d)
    items: Tensor  # (I, d)


class Objective:
    """Loss of a batch. Where the loss takes a log-partition and the draw is shared, no (Q, N) scores enter autograd.

    ``effective_n``: the partition sum over n columns is scaled by effective_n / n. For the softmax loss that is a
    constant; for SL@K it sets how hard the weight's gradient pushes badly ranked positives down.
    """

    def __init__(
        self,
        model: Model,
        loss: Loss,
        negatives: Negatives,
        positives: Ragged,
        *,
        effective_n: int | None = None,
        workspace: Workspace | None = None,
        half: bool = False,
    ) -> None:
        self.model, self.loss, self.negatives = model, loss, negatives
        self.population = Population.of(positives, model.n_items)
        if effective_n is None and isinstance(negatives, Catalogue | InBatch) and scales_partition(loss):
            effective_n = DEFAULT_EFFECTIVE_N
        self.effective_n = effective_n
        self.workspace = workspace or Workspace()
        self.head = CatalogueHead(self.workspace.budget, half=half)
        if half and not self.by_blocks:
            raise ConfigError(
                "train.precision = 'bfloat16' is for losses of the softmax family over the whole catalogue "
                "(negatives.kind = 'catalogue'); set train.precision = 'float32'"
            )

    @property
    def shares_negatives(self) -> bool:
        """Whether the queries of a batch look at the same items; else every pair has negatives of its own."""
        return not isinstance(self.negatives, PerQuery)

    def backward(self, batch: Batch, generator: torch.Generator, in_step: InStep = None) -> tuple[float, Scored]:
        """The loss as a number, its gradients added to the parameters'.

        ``in_step`` moves the thresholds of the batch's queries before the loss is taken (only where ``by_blocks``). A
        loss that is not finite leaves the parameters' gradients alone.
        """
        if not isinstance(self.negatives, Catalogue) or not self.loss.is_separable:
            value, scored = self(batch, generator)
            number = value.item()
            if math.isfinite(number):
                value.backward()
            return number, scored
        queries, items = self.model.encode(batch.query)
        assert isinstance(queries, Tensor)
        scored = Scored(queries.detach(), items.detach())
        number, gradients = self._by_blocks(batch, scored, in_step) if self.by_blocks else self._by_pairs(batch, scored)
        if gradients is not None and math.isfinite(number):
            to_queries, to_items = gradients  # the first is copied: a sparse gradient would keep the head's buffer
            torch.autograd.backward(
                [queries, items], [to_queries.to(queries.dtype, copy=True), to_items.to(items.dtype)]
            )
        return number, scored

    @property
    def by_blocks(self) -> bool:
        """Whether the exact catalogue is gone through by blocks of queries, forward and backward at once."""
        return isinstance(self.negatives, Catalogue) and self.loss.accepts_partition and self.loss.is_separable

    def _by_blocks(self, batch: Batch, scored: Scored, in_step: InStep) -> tuple[float, tuple[Tensor, Tensor]]:
        """Losses that need no more of the negatives than their partition: the loss, and the tables' gradients."""
        scale = self._scale(scored.items.size(0))
        number = 0.0
        for start, stop in self.head.begin(*scored, self.loss.tau):
            part = batch.part(start, stop)
            if self.loss.keeps_thresholds and in_step is not None:
                block = self._moved_thresholds(part, start, stop, in_step)
            else:
                block = self.head.forward(start, stop, part.positives, part.chosen())
            positive, partition = block.scores.requires_grad_(), block.partition.requires_grad_()
            value = self._partition_loss(part, positive, partition - scale)
            value = value * (positive.numel() / batch.item.numel())
            self.head.backward(*torch.autograd.grad(value, (positive, partition)))
            number += value.item()
        return number, self.head.gradients()

    def _moved_thresholds(self, part: Batch, start: int, stop: int, in_step: InStep) -> Block:
        """The block's scores, with its queries' thresholds set or moved by what they show."""
        loss = self.loss
        if in_step == "exact":
            block = self.head.forward(start, stop, part.positives, part.chosen(), k=loss.k)
            assert block.threshold is not None
            loss.threshold[part.query] = block.threshold.to(loss.threshold.dtype)
            return block
        assert isinstance(in_step, tuple)
        level = loss.threshold[part.query].to(self.head.scaled.dtype)
        block = self.head.forward(start, stop, part.positives, part.chosen(), level=level)
        assert block.above is not None
        moved = counted_step(level, *block.above, loss.tau, loss.k, rate=in_step[1])
        loss.threshold[part.query] = moved.to(loss.threshold.dtype)
        return block

    def _by_pairs(self, batch: Batch, scored: Scored) -> tuple[float, tuple[Tensor, Tensor] | None]:
        """Losses that look at every pair of a positive and a negative: as many queries at once as the budget holds.

        The loss's own parameters get their gradients here; a loss that leaves the scores alone for once gives none.
        """
        queries, items = scored
        self._check_dense(int(batch.counts().max()) * items.size(0))  # one query is never cut
        to_queries, to_items = torch.empty_like(queries), torch.zeros_like(items)
        number, is_moved = 0.0, False
        for start, stop in self._affordable(batch, items.size(0)):
            part = batch.part(start, stop)
            negative = (queries[start:stop] @ items.T).requires_grad_()
            positive = negative.detach()[part.owner, part.item].requires_grad_()
            value = self._pairs_loss(part, Draw(None, part.positives), positive, negative)
            value = value * (positive.numel() / batch.item.numel())
            value.backward()
            number += value.item()
            if positive.grad is None or negative.grad is None:
                continue
            is_moved = True
            negative.grad.index_put_((part.owner, part.item), positive.grad, accumulate=True)
            torch.mm(negative.grad, items, out=to_queries[start:stop])
            to_items.addmm_(negative.grad.T, queries[start:stop])
        return number, (to_queries, to_items) if is_moved else None

    def _affordable(self, batch: Batch, n_items: int) -> list[tuple[int, int]]:
        """Blocks of queries whose (P, I) margins, the copies a loss makes of them and their gradients fit."""
        most = max(1, self.workspace.budget // (4 * _PAIR_COPIES * n_items))  # positives, or queries, a block
        load = torch.maximum(batch.counts(), torch.ones_like(batch.query)).cumsum(0).tolist()
        blocks, start, before = [], 0, 0
        for stop in range(1, len(load) + 1):
            if stop == len(load) or load[stop] - before > most:
                blocks.append((start, stop))
                start, before = stop, load[stop - 1]
        return blocks

    def __call__(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Scored]:
        """The differentiable loss, in one piece."""
        queries, items = self.model.encode(batch.query)
        assert isinstance(queries, Tensor)
        # F.embedding, not indexing: its backward pass adds in a fixed order and in parallel.
        item_vector = F.embedding(batch.item, items)
        positive = (F.embedding(batch.owner, queries) * item_vector).sum(1)
        if "item_vector" in self.loss.needs:
            value = self.loss(
                positive, owner=batch.owner, query=batch.query, query_vector=queries, item_vector=item_vector
            )
            return value, Scored(queries.detach(), items.detach())
        draw = self.negatives.draw(batch.positives, batch.item, self.population, generator)
        if draw.is_shared:
            value = self._shared(batch, draw, queries, items, positive)
        else:
            assert draw.items is not None
            value = self._pairs_loss(batch, draw, positive, sampled_scores(queries, items, draw.items))
        return value, Scored(queries.detach(), items.detach())

    def _shared(self, batch: Batch, draw: Draw, queries: Tensor, items: Tensor, positive: Tensor) -> Tensor:
        columns = items if draw.items is None else F.embedding(draw.items, items)
        if self.loss.accepts_partition:
            partition = log_partition(
                queries,
                columns,
                self.loss.tau,
                exclude=draw.exclude,
                log_weight=None if draw.log_q is None else -draw.log_q,
                workspace=self.workspace,
            )
            return self._partition_loss(batch, positive, partition - self._scale(columns.size(0)))
        self._check_dense(batch.item.numel() * columns.size(0))
        return self._pairs_loss(batch, draw, positive, queries @ columns.T)

    def _pairs_loss(self, batch: Batch, draw: Draw, positive: Tensor, negative: Tensor) -> Tensor:
        needs, items = self.loss.needs, draw.items
        if "negative_item" in needs and items is None:
            items = torch.arange(negative.size(1), device=negative.device)
        return self.loss(
            positive,
            negative,
            batch.owner,
            query=batch.query,
            mask=draw.mask(negative.size(1)),
            log_q=self._log_q(draw, negative),
            pair=batch.pair() if "pair" in needs else None,
            negative_item=items if "negative_item" in needs else None,
        )

    def _partition_loss(self, batch: Batch, positive: Tensor, partition: Tensor) -> Tensor:
        pair = batch.pair() if "pair" in self.loss.needs else None
        return self.loss(positive, owner=batch.owner, query=batch.query, log_partition=partition, pair=pair)

    def _check_dense(self, n_cells: int) -> None:
        """A loss that looks at every pair holds (P, N) margins, some copies of them, and their gradients."""
        needed = n_cells * 4
        if needed > _DENSE_BYTES:
            raise ConfigError(
                f"this loss looks at every pair of a positive and a negative: {needed / 2**30:.1f} GiB a batch, and at "
                f"most {_DENSE_BYTES / 2**30:.0f} GiB are taken. Use negatives.kind = 'shared' with a smaller "
                "negatives.n, or a smaller train.batch_size"
            )

    def _scale(self, n_columns: int) -> float:
        return math.log(n_columns / self.effective_n) if self.effective_n else 0.0

    def _log_q(self, draw: Draw, negative: Tensor) -> Tensor | None:
        scale = self._scale(negative.size(1))
        if draw.log_q is not None:
            return draw.log_q + scale
        return negative.new_full((1,), scale) if scale else None
