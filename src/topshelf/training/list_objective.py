"""Training on graded lists: batches of queries of similar length, and the loss of their scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from topshelf.errors import TrainingError, at_least
from topshelf.graded_lists import GradedLists, ListBatch, in_rows
from topshelf.losses import ListwiseLoss
from topshelf.models.list_base import ListModel
from topshelf.training.objective import Hook, StepResult

BUCKETS = 8  # batches that are sorted by length together: lists of a batch are alike, and batches stay random


class ListBatches:
    """The batches of an epoch, in an order that only the generator decides.

    Queries are shuffled, sorted by length within groups of batches, and batches are shuffled again, so that little is
    padded. Queries whose documents all have one grade are left out. A list longer than ``slate`` is cut to that many
    documents, drawn anew each epoch: the relevant ones, then others; all are kept without a slate.
    """

    def __init__(self, lists: GradedLists, *, size: int, slate: int | None = None) -> None:
        self.lists, self.size = lists, at_least("batch_size", size, 1)
        self.slate = None if slate is None else at_least("slate", slate, 2)
        self.queries = varied_queries(lists)
        if self.queries.numel() == 0:
            raise TrainingError("no query has documents of different grades: there is nothing to rank")

    def __len__(self) -> int:
        return -(-self.queries.numel() // self.size)

    def epoch(self, generator: torch.Generator) -> Iterator[ListBatch]:
        shuffled = self.queries.cpu()[torch.randperm(self.queries.numel(), generator=generator)]
        lengths = self.lists.lengths.cpu()
        batches: list[Tensor] = []
        for group in shuffled.split(BUCKETS * self.size):
            batches += group[lengths[group].argsort(stable=True)].split(self.size)
        for place in torch.randperm(len(batches), generator=generator).tolist():
            yield self._batch(batches[place], generator)

    def _batch(self, query: Tensor, generator: torch.Generator) -> ListBatch:
        lists = self.lists.select(query.to(self.lists.indptr.device))
        if self.slate is not None and int(lists.lengths.max()) > self.slate:
            lists = shortened(lists, self.slate, generator)
        return ListBatch(query, lists)


def varied_queries(lists: GradedLists) -> Tensor:
    """Queries with documents of different grades, ascending."""
    lengths = lists.lengths
    owner = torch.repeat_interleave(torch.arange(len(lists), device=lengths.device), lengths)
    edges = [torch.zeros(len(lists), device=lengths.device).scatter_reduce(
        0, owner, lists.grades, how, include_self=False) for how in ("amax", "amin")]  # fmt: skip
    return ((edges[0] > edges[1]) & (lengths > 1)).nonzero().squeeze(1)


def shortened(lists: GradedLists, slate: int, generator: torch.Generator) -> GradedLists:
    """Lists of at most ``slate`` documents, in their old order: relevant ones first of all, the rest by chance.

    A list with more relevant documents than that loses some of them, and keeps one that is less relevant.
    """
    device, lengths = lists.indptr.device, lists.lengths
    owner = torch.repeat_interleave(torch.arange(len(lists), device=device), lengths)
    chance = torch.rand(lists.grades.numel(), generator=generator).to(device)
    lowest = torch.zeros(len(lists), device=device).scatter_reduce(0, owner, lists.grades, "amin", include_self=False)
    is_low = lists.grades == lowest[owner]
    # One of the lowest grade is sure to stay, then the relevant, then the others.
    first_low = _first_of(is_low, chance, owner)
    rank = torch.where(first_low, 0.0, torch.where(lists.grades > 0, 1.0, 2.0)) + chance
    order = rank.argsort(stable=True)
    order = order[owner[order].argsort(stable=True)]
    place = torch.empty_like(order)
    place[order] = torch.arange(order.numel(), device=device)
    kept = place - lists.indptr[owner] < slate
    indptr = torch.zeros_like(lists.indptr)
    torch.cumsum(lengths.clamp(max=slate), 0, out=indptr[1:])
    return GradedLists(lists.features[kept], lists.grades[kept], indptr)


def _first_of(flags: Tensor, chance: Tensor, owner: Tensor) -> Tensor:
    """One flagged document per list, that of the least chance, (D,)."""
    least = torch.full((int(owner.max()) + 1,), torch.inf, device=owner.device)
    least = least.scatter_reduce(0, owner, torch.where(flags, chance, torch.inf), "amin")
    return flags & (chance == least[owner])


class ListObjective:
    """A model of lists and a listwise loss: the mean over the queries of a batch."""

    def __init__(self, model: ListModel, loss: ListwiseLoss, batches: ListBatches) -> None:
        self.model, self.loss, self.batches = model, loss, batches
        self.hooks: Sequence[Hook] = ()

    def value(self, batch: ListBatch) -> Tensor:
        """The differentiable loss of a batch."""
        lists = batch.lists
        scores, mask = in_rows(self.model.score_batch(lists.features, lists.indptr), lists.indptr)
        relevance, _ = in_rows(lists.grades, lists.indptr)
        return self.loss(scores, relevance, mask)

    def backward(self, batch: Any, generator: torch.Generator) -> StepResult:  # noqa: ARG002  dropout has its own
        loss = self.value(batch)
        loss.backward()
        return StepResult(float(loss.detach()))
