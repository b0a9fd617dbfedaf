"""What one training step minimises: a model, a loss and a source of negatives put together."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf.catalogue import CatalogueHead, Workspace, log_partition
from topshelf.errors import ConfigError
from topshelf.losses import Loss, SLatK
from topshelf.models import Model
from topshelf.negatives import Catalogue, Draw, InBatch, Negatives, PerQuery, Population, sampled_scores
from topshelf.ragged import Ragged
from topshelf.training.batches import Batch

# The paper's number of sampled negatives; see docs/losses.md on why the exact catalogue is scaled to it.
DEFAULT_EFFECTIVE_N = 1000
_DENSE_BYTES = 2 * 2**30


@dataclass(frozen=True)
class Scored:
    """What a step computed on its way to the loss, detached, for the threshold estimators."""

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
    ) -> None:
        self.model, self.loss, self.negatives = model, loss, negatives
        self.population = Population.of(positives, model.n_items)
        if effective_n is None and isinstance(negatives, Catalogue | InBatch):
            effective_n = DEFAULT_EFFECTIVE_N
        self.effective_n = effective_n
        self.workspace = workspace or Workspace()
        self.head = CatalogueHead(self.workspace.budget)

    @property
    def shares_negatives(self) -> bool:
        """Whether the queries of a batch look at the same items; else every pair has negatives of its own."""
        return not isinstance(self.negatives, PerQuery)

    def backward(self, batch: Batch, generator: torch.Generator, *, refresh: bool = False) -> tuple[float, Scored]:
        """The loss as a number, its gradients added to the parameters'.

        ``refresh`` also sets the thresholds of the batch's queries to their exact K-th best scores, before the loss is
        taken (only where ``by_blocks``). A loss that is not finite leaves the parameters' gradients alone.
        """
        if self.by_blocks:
            return self._backward_by_blocks(batch, refresh)
        value, scored = self(batch, generator)
        number = value.item()
        if math.isfinite(number):
            value.backward()
        return number, scored

    @property
    def by_blocks(self) -> bool:
        """Whether the exact catalogue is gone through by blocks of queries, forward and backward at once."""
        return isinstance(self.negatives, Catalogue) and self.loss.accepts_partition and self.loss.is_separable

    def _backward_by_blocks(self, batch: Batch, refresh: bool) -> tuple[float, Scored]:
        queries, items = self.model.encode(batch.query)
        assert isinstance(queries, Tensor)
        scale = self._scale(items.size(0))
        ends = batch.positives.indptr if batch.is_whole else torch.searchsorted(batch.owner, _steps(queries))
        k = self.loss.k if refresh and isinstance(self.loss, SLatK) else None
        number = 0.0
        for start, stop in self.head.begin(queries.detach(), items.detach(), self.loss.tau):
            part = slice(int(ends[start]), int(ends[stop]))
            query, owner = batch.query[start:stop], batch.owner[part] - start
            exclude = batch.positives.slice(start, stop)
            positive, partition, threshold = self.head.forward(start, stop, exclude, owner, batch.item[part], k)
            if threshold is not None:
                self.loss.get_buffer("threshold")[query] = threshold
            positive.requires_grad_()
            partition.requires_grad_()
            share = positive.numel() / batch.item.numel()
            value = share * self.loss(positive, owner=owner, query=query, log_partition=partition - scale)
            to_positive, to_partition = torch.autograd.grad(value, (positive, partition))
            self.head.backward(to_positive, to_partition, owner)
            number += value.item()
        if math.isfinite(number):
            torch.autograd.backward([queries, items], list(self.head.gradients()))
        return number, Scored(queries.detach(), items.detach())

    def __call__(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Scored]:
        """The differentiable loss, in one piece."""
        queries, items = self.model.encode(batch.query)
        assert isinstance(queries, Tensor)
        # F.embedding, not indexing: its backward pass adds in a fixed order and in parallel.
        positive = (F.embedding(batch.owner, queries) * F.embedding(batch.item, items)).sum(1)
        draw = self.negatives.draw(batch.positives, batch.item, self.population, generator)
        if draw.is_shared:
            value = self._shared(batch, draw, queries, items, positive)
        else:
            assert draw.items is not None
            negative = sampled_scores(queries, items, draw.items)
            value = self.loss(positive, negative, batch.owner, query=batch.query, log_q=self._log_q(draw, negative))
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
            partition = partition - self._scale(columns.size(0))
            return self.loss(positive, owner=batch.owner, query=batch.query, log_partition=partition)
        self._check_dense(batch.item.numel() * columns.size(0))
        negative = queries @ columns.T
        return self.loss(
            positive,
            negative,
            batch.owner,
            query=batch.query,
            mask=draw.mask(columns.size(0)),
            log_q=self._log_q(draw, negative),
        )

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


def _steps(queries: Tensor) -> Tensor:
    return torch.arange(queries.size(0) + 1, device=queries.device)
