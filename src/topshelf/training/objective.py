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
from topshelf.models import Encoded, Model
from topshelf.negatives import Catalogue, Draw, InBatch, Negatives, PerQuery, Population, Shared, sampled_scores
from topshelf.ragged import Ragged
from topshelf.thresholds import counted_step
from topshelf.training.batches import Batch

_DENSE_BYTES = 8 * 2**30
# Margins of one block, about what a core's cache holds: larger tables are fresh memory at every operation, and slower.
_PAIR_CELLS = 2**20


# What a step does to the thresholds of its queries: nothing, set them to the exact ones, or follow at a rate.
InStep = Literal["exact"] | tuple[Literal["follow"], float] | None


class Scored(NamedTuple):
    """What a step computed on its way to the loss, detached."""

    queries: Tensor  # (Q, d)
    items: Tensor  # (I, d)


class Objective:
    """Loss of a batch. Where the loss takes a log-partition and the draw is shared, no (Q, N) scores enter autograd.

    ``effective_n``: the partition sum over n columns is scaled by effective_n / n. For the softmax loss that is a
    constant; for SL@K it sets how hard the weight's gradient pushes badly ranked positives down (docs/losses/slatk.md).
    Losses whose own sum or mean over negatives is meant (``Loss.defaults.effective_n`` is None) are never scaled.
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
        model.attach(positives)
        self.population = Population.of(positives, model.n_items)
        if loss.reduction != "mean":
            raise ConfigError(
                f"training takes the mean over positives: reduction must be 'mean', got {loss.reduction!r}"
            )
        self.effective_n = _effective_n(effective_n, loss, negatives, model.n_items)
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
        """The loss as a number, the model's own with it, and its gradients added to the parameters'.

        ``in_step`` moves the thresholds of the batch's queries before the loss is taken (only where ``by_blocks``). A
        loss that is not finite leaves the model's gradients alone.
        """
        if not self.by_blocks and not self.by_pairs:
            value, scored = self(batch, generator)
            number = value.item()
            if math.isfinite(number):
                value.backward()
            return number, scored
        encoded = self._encode(batch)
        scored = Scored(encoded.queries.detach(), encoded.items.detach())
        gradients: tuple[Tensor, Tensor] | None
        if self.by_blocks:
            number, gradients = self._by_blocks(batch, scored, in_step)
        else:
            draw = self.negatives.draw(batch.positives, batch.item, self.population, generator)
            number, gradients = self._by_pairs(batch, draw, scored)
        if encoded.auxiliary is not None:
            number += encoded.auxiliary.item()
        if gradients is not None and math.isfinite(number):
            _backward(encoded, *gradients)
        return number, scored

    def _encode(self, batch: Batch) -> Encoded:
        return self.model.encode_batch(batch.query, batch.owner, batch.item)

    @property
    def by_blocks(self) -> bool:
        """Whether the exact catalogue is gone through by blocks of queries, forward and backward at once."""
        return (
            isinstance(self.negatives, Catalogue) and "log_partition" in self.loss.needs and self.loss.scope != "batch"
        )

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

    @property
    def by_pairs(self) -> bool:
        """Whether the loss looks at every pair of a positive and a negative, and a few queries at once will do."""
        return "negative" in self.loss.needs and self.loss.scope != "batch"

    def _by_pairs(self, batch: Batch, draw: Draw, scored: Scored) -> tuple[float, tuple[Tensor, Tensor] | None]:
        """The loss a few queries at a time, and the tables' gradients.

        The loss's own parameters get their gradients here; a loss that leaves the scores alone for once gives none.
        """
        order = None
        if "query" in self.loss.needs and not (batch.is_whole or self.shares_negatives):
            # A query may have several rows; together in a block, they move its state once.
            order = torch.argsort(batch.query, stable=True)
            batch, draw = batch.reordered(order), draw.reordered(order)
            scored = Scored(scored.queries[order], scored.items)
        items = scored.items.detach().requires_grad_()
        n_columns = items.size(0) if draw.items is None else draw.items.size(-1)
        self._check_dense(int(batch.counts().max()) * n_columns)  # one query is never cut
        to_queries, number = torch.zeros_like(scored.queries), 0.0
        for start, stop in self._affordable(batch, n_columns):
            part = batch.part(start, stop)
            queries = scored.queries[start:stop].detach().requires_grad_()
            value = self._pairs_loss(part, draw.part(start, stop), queries, items)
            value = value * (part.item.numel() / batch.item.numel())
            value.backward()
            number += value.item()
            if queries.grad is not None:
                to_queries[start:stop] = queries.grad
        if order is not None:
            to_queries = torch.empty_like(to_queries).index_copy_(0, order, to_queries)
        return number, None if items.grad is None else (to_queries, items.grad)

    def _affordable(self, batch: Batch, n_items: int) -> list[tuple[int, int]]:
        """Blocks of queries whose (P, I) margins, the copies a loss makes of them and their gradients fit."""
        cells = min(self.workspace.budget // (4 * self.loss.pair_copies), _PAIR_CELLS)
        most = max(1, cells // n_items)  # positives, or queries, a block
        load = torch.maximum(batch.counts(), torch.ones_like(batch.query)).cumsum(0).tolist()
        may_cut = [True, *(batch.query[1:] != batch.query[:-1]).tolist(), True]
        blocks, start, before = [], 0, 0
        for stop in range(1, len(load) + 1):
            if stop == len(load) or (load[stop] - before > most and may_cut[stop]):
                blocks.append((start, stop))
                start, before = stop, load[stop - 1]
        return blocks

    def __call__(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Scored]:
        """The differentiable loss, in one piece, the model's own with it."""
        queries, items, auxiliary = self._encode(batch)
        if "item_vector" in self.loss.needs:
            value = self._vectors_loss(batch, queries, items)
        else:
            draw = self.negatives.draw(batch.positives, batch.item, self.population, generator)
            by_partition = draw.is_shared and "log_partition" in self.loss.needs
            if "negative" in self.loss.needs:
                self._check_dense(batch.item.numel() * (items.size(0) if draw.items is None else draw.items.size(-1)))
            take = self._partition_of_draw if by_partition else self._pairs_loss
            value = take(batch, draw, queries, items)
        if auxiliary is not None:
            value = value + auxiliary
        return value, Scored(queries.detach(), items.detach())

    def _partition_of_draw(self, batch: Batch, draw: Draw, queries: Tensor, items: Tensor) -> Tensor:
        columns = items if draw.items is None else F.embedding(draw.items, items)
        partition = log_partition(
            queries,
            columns,
            self.loss.tau,
            exclude=draw.exclude,
            log_weight=None if draw.log_q is None else -draw.log_q,
            workspace=self.workspace,
        )
        positive = _positive_scores(batch, queries, items)
        return self._partition_loss(batch, positive, partition - self._scale(columns.size(0)))

    def _pairs_loss(self, batch: Batch, draw: Draw, queries: Tensor, items: Tensor) -> Tensor:
        if draw.items is None:
            negative = queries @ items.T
            positive = negative[batch.owner, batch.item]
        else:
            positive = _positive_scores(batch, queries, items)
            is_shared = draw.items.dim() == 1
            negative = (
                queries @ F.embedding(draw.items, items).T if is_shared else sampled_scores(queries, items, draw.items)
            )
        needs, columns = self.loss.needs, draw.items
        if "negative_item" in needs and columns is None:
            columns = torch.arange(negative.size(1), device=negative.device)
        return self.loss(
            positive,
            negative,
            batch.owner,
            query=batch.query,
            mask=draw.mask(negative.size(1)),
            log_q=self._log_q(draw, negative),
            pair=batch.pair() if "pair" in needs else None,
            negative_item=columns if "negative_item" in needs else None,
        )

    def _vectors_loss(self, batch: Batch, queries: Tensor, items: Tensor) -> Tensor:
        return self.loss(
            _positive_scores(batch, queries, items),
            owner=batch.owner,
            query=batch.query,
            query_vector=queries,
            item_vector=F.embedding(batch.item, items),
        )

    def _partition_loss(self, batch: Batch, positive: Tensor, partition: Tensor) -> Tensor:
        return self.loss(positive, owner=batch.owner, query=batch.query, log_partition=partition)

    def _check_dense(self, n_cells: int) -> None:
        """A loss that looks at every pair holds (P, N) margins at once, some copies of them, and their gradients."""
        needed = n_cells * 4 * self.loss.pair_copies
        if needed > _DENSE_BYTES:
            raise ConfigError(
                f"this loss looks at every pair of a positive and a negative: {needed / 2**30:.1f} GiB at once, and at "
                f"most {_DENSE_BYTES / 2**30:.0f} GiB are taken. Use negatives.kind = 'shared' with a smaller "
                "negatives.n, or, where the loss takes a batch in one piece, a smaller train.batch_size"
            )

    def _scale(self, n_columns: int) -> float:
        return math.log(n_columns / self.effective_n) if self.effective_n else 0.0

    def _log_q(self, draw: Draw, negative: Tensor) -> Tensor | None:
        scale = self._scale(negative.size(1))
        if draw.log_q is not None:
            return draw.log_q + scale
        return negative.new_full((1,), scale) if scale else None


def _backward(encoded: Encoded, to_queries: Tensor, to_items: Tensor) -> None:
    """One pass back through the model, from the gradients of its two tables and from its own loss."""
    queries, items, auxiliary = encoded
    # The first is copied: a sparse gradient would keep the head's buffer.
    gradients = [to_queries.to(queries.dtype, copy=True), to_items.to(items.dtype)]
    if auxiliary is None:
        torch.autograd.backward([queries, items], gradients)
    else:
        torch.autograd.backward([queries, items, auxiliary], [*gradients, torch.ones_like(auxiliary)])


def _positive_scores(batch: Batch, queries: Tensor, items: Tensor) -> Tensor:
    # F.embedding, not indexing: its backward pass adds in a fixed order and in parallel.
    return (F.embedding(batch.owner, queries) * F.embedding(batch.item, items)).sum(1)


def _effective_n(given: int | None, loss: Loss, negatives: Negatives, n_items: int) -> int | None:
    """The size to which the sum over negatives is scaled; None: as it is."""
    default = loss.defaults.effective_n
    if default is None:
        return None
    if given is None:
        if default == "catalogue":
            return n_items
        return default if isinstance(negatives, Catalogue | InBatch) else None
    # As many as were drawn is what is meant, and there are no more than all items.
    return min(given, n_items) if isinstance(negatives, Shared) and given == negatives.n else given
