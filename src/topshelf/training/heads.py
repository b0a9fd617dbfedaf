"""From the vectors of a step to its loss and gradients: three ways, chosen once per run.

``PartitionHead``  the exact catalogue by blocks of queries, for losses that need only the log-partition: forward and
                   backward in three products, and no (Q, I) table.
``PairHead``       losses of every pair of a positive and a negative, a few queries at a time, so that the margins stay
                   in the cache.
``AutogradHead``   everything else, in one piece through autograd: a partition of drawn columns, whole-batch losses.
"""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple, Protocol, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf.catalogue import Block, CatalogueBlocks, Workspace, log_partition
from topshelf.drawing import sampled_scores
from topshelf.errors import ConfigError, DataError
from topshelf.losses import Loss
from topshelf.models.slices import ItemSlice
from topshelf.negatives import Draw, Negatives
from topshelf.queries import Batch, Encoded

DENSE_BYTES = 8 * 2**30
# Margins of one block, about the size of a core's cache: larger tables are allocated at every operation, and slower.
PAIR_CELLS = 2**20


class Reading(TypedDict, total=False):
    """What to read from a block of scores besides its sums; the arguments of ``CatalogueBlocks.forward``."""

    k: int  # the k-th best score
    level: Tensor  # (Q,), how many items are above it, and by how much


class BlockReader(Protocol):
    """Reads the scores of the whole catalogue while a step computes them; the threshold hook is one."""

    def wanted(self, query: Tensor) -> Reading:
        """What to compute for the next block of queries (Q,) besides its sums; may be empty."""

    def take(self, query: Tensor, block: Block) -> None:
        """Read the block, before its loss is computed."""


class Whole(NamedTuple):
    """The batch of which a head is given some queries, where several processes divide it."""

    batch: Batch
    encoded: Encoded  # detached
    places: Tensor  # (Q,), of the given queries in the batch


class Head:
    """What the heads share: the loss of a batch in one piece, and the scale of its sum over negatives."""

    reads_blocks: ClassVar[bool] = False  # whether a ``reader`` sees the scores of a step

    def __init__(
        self,
        loss: Loss,
        negatives: Negatives,
        effective_n: int | None,
        workspace: Workspace,
        *,
        log_weight: Tensor | None = None,
    ) -> None:
        self.loss, self.negatives, self.effective_n, self.workspace = loss, negatives, effective_n, workspace
        self.log_weight = log_weight  # (I,), of every item as a negative; None: all count alike
        self.reader: BlockReader | None = None
        self.whole: Whole | None = None
        self.made: Draw | None = None  # the draw of the next batch, where it was made before
        self.held: ItemSlice | None = None  # of the items that the vectors are of, where processes divide them
        self.n_items: int | None = None  # of the catalogue, where the vectors are those of a slice of it
        self._is_checked = False

    def value(self, batch: Batch, encoded: Encoded, generator: torch.Generator) -> Tensor:
        """The differentiable loss of the vectors, in one piece."""
        if "item_vector" in self.loss.needs:
            return self._vectors_loss(batch, encoded.queries, encoded.items)
        draw = self._draw(batch, encoded, generator)
        if "negative" in self.loss.needs:
            self._check_dense(batch.item.numel() * draw.n_columns(encoded.items.size(0)))
        by_partition = draw.is_shared and "log_partition" in self.loss.needs
        take = self._partition_of_draw if by_partition else self._pairs_loss
        return take(batch, draw, encoded.queries, encoded.items)

    def backward(self, batch: Batch, encoded: Encoded, generator: torch.Generator) -> float:
        """The loss as a number, the model's own loss included; its gradients are added to the parameters'.

        If the loss is not finite, the model's gradients are not changed.
        """
        raise NotImplementedError

    def draw(self, batch: Batch, encoded: Encoded, generator: torch.Generator) -> Draw:
        """The negatives of a whole batch, the items' own weights in their ``log_q``."""
        draw = self.negatives.draw(batch, encoded.detach(), generator)
        if not self._is_checked:  # the first draw of a run: later ones are made by the same code
            self._check_draw(draw, batch, encoded)
        return draw.weighted(self.log_weight)

    def _draw(self, batch: Batch, encoded: Encoded, generator: torch.Generator) -> Draw:
        if self.whole is None:
            return self.made or self.draw(batch, encoded, generator)
        # Drawn for all of it, as one process does.
        draw = self.made or self.draw(self.whole.batch, self.whole.encoded, generator)
        return draw.reordered(self.whole.places)

    def _check_draw(self, draw: Draw, batch: Batch, encoded: Encoded) -> None:
        try:
            draw.check(self.negatives.layout, len(batch.positives), self.n_items or encoded.items.size(0))
        except DataError as error:
            name = type(self.negatives).__name__
            raise ConfigError(
                f"the draw of negatives {name} does not fit its batch: {error}; correct {name}.draw"
            ) from None
        self._is_checked = True

    def _partition_of_draw(self, batch: Batch, draw: Draw, queries: Tensor, items: Tensor) -> Tensor:
        columns = items if draw.items is None else F.embedding(draw.items, items)
        partition = log_partition(
            queries,
            columns,
            self.loss.tau,
            exclude=draw.exclude,
            log_weight=self._log_weight(draw),
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
            negative = (
                queries @ F.embedding(draw.items, items).T
                if draw.is_shared
                else sampled_scores(queries, items, draw.items)
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

    def _scale(self, n_columns: int) -> float:
        return math.log(n_columns / self.effective_n) if self.effective_n else 0.0

    def _log_weight(self, draw: Draw) -> Tensor | None:
        """The log-weights of a draw's columns: the items' own, and the correction for how they were drawn."""
        if draw.items is None:
            return self.log_weight
        return None if draw.log_q is None else -draw.log_q

    def _log_q(self, draw: Draw, negative: Tensor) -> Tensor | None:
        scale, log_weight = self._scale(negative.size(1)), self._log_weight(draw)
        if log_weight is not None:
            return scale - log_weight
        return negative.new_full((1,), scale) if scale else None

    def _check_dense(self, n_cells: int) -> None:
        """A loss of pairs needs (P, N) margins, some copies of them, and their gradients at once."""
        needed = n_cells * 4 * self.loss.pair_copies
        if needed > DENSE_BYTES:
            raise ConfigError(
                f"this loss compares every positive with every negative, which needs {needed / 2**30:.1f} GiB at once; "
                f"the limit is {DENSE_BYTES / 2**30:.0f} GiB. Use negatives.kind = 'shared' with a smaller "
                "negatives.n, or, if the loss needs the whole batch at once, a smaller train.batch_size"
            )


class AutogradHead(Head):
    """The loss in one piece, and its gradients by autograd."""

    def backward(self, batch: Batch, encoded: Encoded, generator: torch.Generator) -> float:
        value = self.value(batch, encoded, generator)
        if encoded.auxiliary is not None:
            value = value + encoded.auxiliary
        number = value.item()
        if math.isfinite(number):
            value.backward()
        return number


class PartitionHead(Head):
    """The whole catalogue, by blocks of queries with scores that fit the workspace."""

    reads_blocks: ClassVar[bool] = True

    def __init__(
        self,
        loss: Loss,
        negatives: Negatives,
        effective_n: int | None,
        workspace: Workspace,
        *,
        log_weight: Tensor | None = None,
        half: bool = False,
    ) -> None:
        super().__init__(loss, negatives, effective_n, workspace, log_weight=log_weight)
        self.blocks = CatalogueBlocks(workspace.budget, half=half)

    def backward(self, batch: Batch, encoded: Encoded, generator: torch.Generator) -> float:  # noqa: ARG002  nothing is drawn
        scale, number = self._scale(encoded.items.size(0)), 0.0
        vectors = encoded.queries.detach(), encoded.items.detach()
        for start, stop in self.blocks.begin(*vectors, self.loss.tau, self.log_weight):
            part = batch.part(start, stop)
            wanted: Reading = {} if self.reader is None else self.reader.wanted(part.query)
            block = self.blocks.forward(start, stop, part.positives, part.chosen(), **wanted)
            if self.reader is not None and wanted:
                self.reader.take(part.query, block)
            positive, partition = block.scores.requires_grad_(), block.partition.requires_grad_()
            value = self._partition_loss(part, positive, partition - scale)
            value = value * (positive.numel() / batch.item.numel())
            self.blocks.backward(*torch.autograd.grad(value, (positive, partition)))
            number += value.item()
        return carried_back(number, encoded, self.blocks.gradients())


class PairHead(Head):
    """Every pair of a positive and a negative, a few queries at a time."""

    def backward(self, batch: Batch, encoded: Encoded, generator: torch.Generator) -> float:
        draw = self._draw(batch, encoded, generator)
        number, gradients = self._by_blocks(batch, draw, encoded.detach())
        return carried_back(number, encoded, gradients)

    def _by_blocks(self, batch: Batch, draw: Draw, encoded: Encoded) -> tuple[float, tuple[Tensor, Tensor] | None]:
        """The loss, and the gradients of the vectors.

        The loss's own parameters get their gradients here. None if the loss does not depend on the scores this time.
        """
        order, vectors = None, encoded.queries
        if "query" in self.loss.needs and not (batch.is_whole or draw.is_shared):
            # A query may have several rows; in one block they update its state once.
            order = torch.argsort(batch.query, stable=True)
            batch, draw, vectors = batch.reordered(order), draw.reordered(order), vectors[order]
        items = encoded.items.detach().requires_grad_()
        n_columns = draw.n_columns(items.size(0))
        self._check_dense(int(batch.counts().max()) * n_columns)  # one query is never divided
        to_queries, number = torch.zeros_like(vectors), 0.0
        for start, stop in self.affordable(batch, n_columns):
            part = batch.part(start, stop)
            queries = vectors[start:stop].detach().requires_grad_()
            value = self._pairs_loss(part, draw.part(start, stop), queries, items)
            value = value * (part.item.numel() / batch.item.numel())
            value.backward()
            number += value.item()
            if queries.grad is not None:
                to_queries[start:stop] = queries.grad
        if order is not None:
            to_queries = torch.empty_like(to_queries).index_copy_(0, order, to_queries)
        return number, None if items.grad is None else (to_queries, items.grad)

    def affordable(self, batch: Batch, n_columns: int) -> list[tuple[int, int]]:
        """Blocks of queries that fit in memory: their (P, N) margins, the loss's copies of them, and gradients."""
        cells = min(self.workspace.budget // (4 * self.loss.pair_copies), PAIR_CELLS)
        most = max(1, cells // n_columns)  # positives, or queries, per block
        total = torch.maximum(batch.counts(), torch.ones_like(batch.query)).cumsum(0).tolist()
        may_cut = [True, *(batch.query[1:] != batch.query[:-1]).tolist(), True]
        blocks, start, before = [], 0, 0
        for stop in range(1, len(total) + 1):
            if stop == len(total) or (total[stop] - before > most and may_cut[stop]):
                blocks.append((start, stop))
                start, before = stop, total[stop - 1]
        return blocks


def choose_head(
    loss: Loss,
    negatives: Negatives,
    effective_n: int | None,
    workspace: Workspace,
    *,
    log_weight: Tensor | None = None,
    half: bool = False,
) -> Head:
    """The head for a loss and its negatives; ``half`` applies to products with the whole catalogue only.

    ``log_weight (I,)`` is that of every item as a negative.
    """
    given = (loss, negatives, effective_n, workspace)
    if negatives.is_exact and "log_partition" in loss.needs and loss.scope != "batch":
        return PartitionHead(*given, log_weight=log_weight, half=half)
    if half:
        raise ConfigError(
            "train.precision = 'bfloat16' is for losses of the softmax family over the whole catalogue "
            "(negatives.kind = 'catalogue'); set train.precision = 'float32'"
        )
    if "negative" in loss.needs and loss.scope != "batch":
        return PairHead(*given, log_weight=log_weight)
    return AutogradHead(*given, log_weight=log_weight)


def carried_back(number: float, encoded: Encoded, gradients: tuple[Tensor, Tensor] | None) -> float:
    """One backward pass through the model, from the gradients of its vectors and from its own loss."""
    queries, items, auxiliary = encoded
    if auxiliary is not None:
        number += auxiliary.item()
    if gradients is None or not math.isfinite(number):
        return number
    # The first is copied: a sparse gradient would keep the head's buffer.
    carried = [gradients[0].to(queries.dtype, copy=True), gradients[1].to(items.dtype)]
    if auxiliary is None:
        torch.autograd.backward([queries, items], carried)
    else:
        torch.autograd.backward([queries, items, auxiliary], [*carried, torch.ones_like(auxiliary)])
    return number


def _positive_scores(batch: Batch, queries: Tensor, items: Tensor) -> Tensor:
    # F.embedding, not indexing: its backward pass adds in a fixed order and in parallel.
    return (F.embedding(batch.owner, queries) * F.embedding(batch.item, items)).sum(1)
