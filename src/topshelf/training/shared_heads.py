"""The heads of a run that several processes train: the same loss and gradients as one process has, up to rounding.

All processes have the vectors of the whole batch, and end with the whole gradients of those vectors, so the way back
through the model is that of one process, and their parameters stay the same.

``ByQueries``        every process has all items: the loss of its own queries by any head; gradients are summed.
``SlicedPartition``  every process has a slice of the items: the log-partition by a MAX and a SUM over the processes,
                     the K-th best score from the K best of each; the loss of its own queries.
``SlicedPairs``      the same for losses of pairs: the scores of the drawn items are summed over the processes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf.catalogue import Block
from topshelf.drawing import sampled_scores
from topshelf.errors import ConfigError
from topshelf.losses import Loss
from topshelf.models import Model
from topshelf.models.slices import ItemSlice
from topshelf.negatives import Draw, Mixed
from topshelf.queries import Batch, Encoded
from topshelf.ragged import Ragged
from topshelf.training.heads import Head, PartitionHead, Whole, carried_back
from topshelf.training.shares import Share
from topshelf.world import World, summed_both_ways


class SharedHead(Head):
    """A head of one process, with what several do around it."""

    def __init__(self, inner: Head, share: Share) -> None:
        given = (inner.loss, inner.negatives, inner.effective_n, inner.workspace)
        super().__init__(*given, log_weight=inner.log_weight)
        self.inner, self.share, self.world, self.reader = inner, share, share.world, inner.reader

    def _agree(self, number: float, *gradients: Tensor | None) -> tuple[float, list[bool]]:
        """The loss of all processes, and whether any of them has each of the gradients."""
        total, *have = self.world.total([number, *(float(one is not None) for one in gradients)])
        return total, [count > 0 for count in have]

    def _sum_parameters(self, have: list[bool], scale: float) -> None:
        """Sum the gradients of the loss's own parameters over the processes."""
        for parameter, is_there in zip(self.loss.parameters(), have, strict=True):
            if is_there:
                mine = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad * scale
                parameter.grad = self.world.all_reduce(mine)


class ByQueries(SharedHead):
    """Every process has all items, and takes the loss of its own queries."""

    def backward(self, batch: Batch, encoded: Encoded, generator: torch.Generator) -> float:
        places, part = self.share.own(batch)
        queries = encoded.queries.detach()[places].requires_grad_()
        items = encoded.items.detach().requires_grad_()
        self.inner.whole, self.inner.made = Whole(batch, encoded.detach(), places), self.made
        share, number = part.item.numel() / batch.item.numel(), 0.0
        if part.item.numel():
            number = self.inner.backward(part, Encoded(queries, items), generator) * share
        total, have = self._agree(number, items.grad, *(one.grad for one in self.loss.parameters()))
        self._sum_parameters(have[1:], share)
        if not have[0] or not math.isfinite(total):
            return carried_back(total, encoded, None)
        to_items = torch.zeros_like(items) if items.grad is None else items.grad * share
        to_queries = torch.zeros_like(encoded.queries, requires_grad=False)
        if queries.grad is not None:
            to_queries[places] = queries.grad * share
        gradients = self.world.all_reduce(to_queries), self.world.all_reduce(to_items)
        return carried_back(total, encoded, gradients)


@dataclass(frozen=True)
class _Mine:
    """Which of a block's positives are items of this process's slice."""

    lists: Ragged  # all positives of the block's queries that are, counted from the slice's first item
    chosen: Tensor | None  # places in them of those that are trained on; None when they are all
    at: Tensor  # their places among the P positives of the block

    @classmethod
    def of(cls, part: Batch, held: ItemSlice) -> _Mine:
        is_mine, chosen = held.has(part.positives.indices), part.chosen()
        if chosen is None:
            return cls(held.local(part.positives), None, is_mine.nonzero().squeeze(1))
        at = is_mine[chosen].nonzero().squeeze(1)
        return cls(held.local(part.positives), (is_mine.cumsum(0) - 1)[chosen[at]], at)


class SlicedPartition(SharedHead):
    """The whole catalogue, of which every process has a slice, by blocks of the queries of all processes."""

    inner: PartitionHead
    held: ItemSlice

    def __init__(self, inner: PartitionHead, share: Share, held: ItemSlice) -> None:
        super().__init__(inner, share)
        self.blocks, self.held = inner.blocks, held

    def backward(self, batch: Batch, encoded: Encoded, generator: torch.Generator) -> float:  # noqa: ARG002  nothing is drawn
        number = 0.0
        for start, stop in self._begin(encoded):
            part = batch.part(start, stop)
            places, own = self.share.own(part)
            mine = _Mine.of(part, self.held)
            local = self._forward(start, stop, places, own, mine)
            block = self._merged(local, part, mine)
            value, to_positive, to_partition = self._own_loss(block, part, places, own, batch.item.numel())
            number += value
            weight = torch.exp(local.partition - _without_inf(block.partition))  # of the slice in the whole sum
            self.blocks.backward(to_positive[mine.at], to_partition * weight)
        total = self.world.total([number])[0]
        to_queries, to_items = self.blocks.gradients()
        return carried_back(total, encoded, (self.world.all_reduce(to_queries), to_items))

    def _begin(self, encoded: Encoded) -> list[tuple[int, int]]:
        """The blocks of a step, the same ones on every process."""
        weight = None if self.log_weight is None else self.held.rows(self.log_weight)
        tables = encoded.queries.detach(), encoded.items.detach(), self.loss.tau, weight
        spans = self.blocks.begin(*tables)
        most = int(max(n for (n,) in self.world.numbers([len(spans)])))
        return spans if most == len(spans) else self.blocks.begin(*tables, n_blocks=most)

    def _forward(self, start: int, stop: int, places: Tensor, own: Batch, mine: _Mine) -> Block:
        """The scores and sums of this process's slice; what is to be read besides is decided by each query's owner."""
        wanted = {} if self.reader is None else dict(self.reader.wanted(own.query))
        if "k" in wanted:
            wanted["k"] = min(self.loss.k, len(self.held))
        if "level" in wanted:
            level = torch.zeros(stop - start, dtype=self.blocks.scaled.dtype, device=places.device)
            level[places] = wanted["level"].to(level.dtype)  # type: ignore[attr-defined]
            wanted["level"] = self.world.all_reduce(level)
        return self.blocks.forward(start, stop, mine.lists, mine.chosen, **wanted)  # type: ignore[arg-type]

    def _merged(self, local: Block, part: Batch, mine: _Mine) -> Block:
        """The block over all slices: one MAX, one SUM, and one small gather where a K-th best score is wanted."""
        n, threshold, above = part.query.numel(), None, None
        highest = self.world.all_reduce(local.partition.clone(), "max")
        sums = local.partition.new_zeros(n + part.item.numel())
        sums[:n] = torch.exp(local.partition - _without_inf(highest))
        sums[n + mine.at] = local.scores
        self.world.all_reduce(sums)
        if local.threshold is not None:
            assert self.blocks.best is not None
            threshold = kth_best(self.blocks.best, self.loss.k, self.world)
        if local.above is not None:
            count, excess = self.world.all_reduce(torch.stack(local.above))
            above = count, excess
        return Block(sums[n:], sums[:n].log() + _without_inf(highest), threshold, above)

    def _own_loss(
        self, block: Block, part: Batch, places: Tensor, own: Batch, n_positives: int
    ) -> tuple[float, Tensor, Tensor]:
        """The loss of the process's own queries, and the gradients of all processes: (P,) and (B,)."""
        kept = torch.isin(part.owner, places)
        n, gradients = part.query.numel(), block.scores.new_zeros(part.query.numel() + part.item.numel())
        number = 0.0
        if own.item.numel():
            positive, partition = block.scores[kept].requires_grad_(), block.partition[places].requires_grad_()
            if self.reader is not None and (block.threshold is not None or block.above is not None):
                self.reader.take(own.query, _rows(block, positive.detach(), partition.detach(), places))
            value = self._partition_loss(own, positive, partition - self._scale(self.held.n_items))
            value = value * (own.item.numel() / n_positives)
            to_positive, to_partition = torch.autograd.grad(value, (positive, partition))
            gradients[places], gradients[n:][kept] = to_partition, to_positive
            number = value.item()
        self.world.all_reduce(gradients)
        return number, gradients[n:], gradients[:n]


class SlicedPairs(SharedHead):
    """Drawn negatives, of which every process has those in its slice of the items; there may be none."""

    held: ItemSlice

    def __init__(self, inner: Head, share: Share, held: ItemSlice) -> None:
        super().__init__(inner, share)
        self.held, self.n_items = held, held.n_items

    def backward(self, batch: Batch, encoded: Encoded, generator: torch.Generator) -> float:
        draw = self._draw(batch, encoded, generator)
        queries, items = (one.detach().requires_grad_() for one in (encoded.queries, encoded.items))
        positive, negative = self._scores(batch, draw, queries, items)
        places, own = self.share.own(batch)
        share = own.item.numel() / batch.item.numel()
        self._check_dense(own.item.numel() * negative.size(1))
        # Every process goes backward through the sum of scores, though it may have no query of its own.
        value = (positive.sum() + negative.sum()) * 0.0
        if own.item.numel():
            kept = torch.isin(batch.owner, places)
            value = value + self._own_loss(own, draw.reordered(places), positive[kept], negative[places]) * share
        value.backward()
        mine = [one.grad for one in self.loss.parameters()]
        total, have = self._agree(value.item(), *mine)
        self._sum_parameters(have, 1.0)
        if not math.isfinite(total):
            return carried_back(total, encoded, None)
        assert queries.grad is not None
        to_items = torch.zeros_like(items) if items.grad is None else items.grad
        return carried_back(total, encoded, (self.world.all_reduce(queries.grad), to_items))

    def _scores(self, batch: Batch, draw: Draw, queries: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """The scores of the positives (P,) and of the drawn items (Q, N), summed over the slices."""
        assert draw.items is not None
        if not len(self.held):  # of this step's items
            shape = (batch.query.numel(), draw.items.size(-1))
            both = summed_both_ways(
                queries.sum() * queries.new_zeros(batch.item.numel() + math.prod(shape)), self.world
            )
            return both[: batch.item.numel()], both[batch.item.numel() :].view(shape)
        ids, known = draw.items - self.held.first, self.held.has(draw.items)
        at = (batch.item - self.held.first).clamp(0, len(self.held) - 1)
        positive = (F.embedding(batch.owner, queries) * F.embedding(at, items)).sum(1)
        positive = positive.where(self.held.has(batch.item), 0.0)
        ids = ids.clamp(0, len(self.held) - 1)
        negative = queries @ F.embedding(ids, items).T if draw.is_shared else sampled_scores(queries, items, ids)
        negative = negative.where(known, 0.0)
        both = summed_both_ways(torch.cat([positive, negative.flatten()]), self.world)
        return both[: positive.numel()], both[positive.numel() :].view_as(negative)

    def _own_loss(self, own: Batch, draw: Draw, positive: Tensor, negative: Tensor) -> Tensor:
        needs = self.loss.needs
        return self.loss(
            positive,
            negative,
            own.owner,
            query=own.query,
            mask=draw.mask(negative.size(1)),
            log_q=self._log_q(draw, negative),
            pair=own.pair() if "pair" in needs else None,
            negative_item=draw.items if "negative_item" in needs else None,
        )


def kth_best(best: Tensor, k: int, world: World) -> Tensor:
    """The k-th best score (B,) over all slices, from the best of each (B, k or fewer), sorted or not."""
    padded = F.pad(best, (0, k - best.size(1)), value=-math.inf)
    return torch.cat(world.all_gather(padded), 1).topk(k, dim=1).values[:, -1]


def choose_shared_head(inner: Head, model: Model, share: Share) -> SharedHead:
    """The head for several processes around the head of one; refuses what cannot be divided."""
    loss, negatives, held = inner.loss, inner.negatives, model.held
    if loss.scope == "batch":
        raise ConfigError(_of_batch(loss))
    if held is None:
        return ByQueries(inner, share)
    if isinstance(inner, PartitionHead):
        return SlicedPartition(inner, share, held)
    if negatives.layout == "catalogue" or isinstance(negatives, Mixed):
        raise ConfigError(
            f"train.shard_items does not go with negatives of kind {type(negatives).__name__} and loss "
            f"{type(loss).__name__}, which need the scores of every item at once. Set negatives.kind = 'shared', "
            "'per_query' or 'in_batch', use a loss of the softmax family, or set train.shard_items = false"
        )
    return SlicedPairs(inner, share, held)


def _of_batch(loss: Loss) -> str:
    return (
        f"{type(loss).__name__} compares all queries of a batch with each other, so several processes cannot divide "
        "it. Train in one process, or use a loss of queries, such as slatk, softmax or bpr"
    )


def _rows(block: Block, scores: Tensor, partition: Tensor, places: Tensor) -> Block:
    """The block of some of its queries."""
    above = None if block.above is None else (block.above[0][places], block.above[1][places])
    return Block(scores, partition, None if block.threshold is None else block.threshold[places], above)


def _without_inf(values: Tensor) -> Tensor:
    """-inf as 0: a query without negatives, whose sum is empty on every process."""
    return values.masked_fill(values == -math.inf, 0.0)
