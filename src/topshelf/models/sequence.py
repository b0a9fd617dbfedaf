"""What models of sequences share: the vector of a query is that of the last position of its sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from topshelf.errors import ConfigError, TopshelfError, at_least
from topshelf.models.base import Model
from topshelf.queries import Batch, Context, Encoded, QuerySet
from topshelf.ragged import Ragged
from topshelf.sequences import Packed, SequenceBatch, latest

ROWS = 1 << 14  # positions that go through a network at once when nothing is trained


class SequenceModel(Model):
    """Base of the models that read items in order.

    A subclass has :meth:`encode_positions`, ``encode_items`` and ``dim``.

    Known and new users are served alike, from their last ``max_length`` items. An empty sequence has the vector 0.
    """

    takes: ClassVar[frozenset[str]] = frozenset({"rows", "sequence"})
    dim: int
    _sequences: Ragged | None = None

    def __init__(self, n_queries: int, n_items: int, max_length: int) -> None:
        super().__init__(n_queries, n_items)
        self.max_length = at_least("max_length", max_length, 1)

    def encode_positions(self, packed: Packed) -> Tensor:
        """The vector of every position, (P, d), from the items up to it; in training mode with dropout."""
        raise NotImplementedError

    def encode_items(self) -> Tensor:
        """Vectors of all items, (I, d); deterministic."""
        raise NotImplementedError

    def attach(self, context: Context) -> None:
        self._sequences = events_of(self, context)

    def encode_queries(self, queries: QuerySet) -> Tensor:
        return self._last_vectors(sequences_of(self, queries, self._sequences))

    def encode_batch(self, batch: Batch) -> Encoded:
        self.train()
        try:
            if isinstance(batch, SequenceBatch):
                return Encoded(self.encode_positions(Packed(batch.sequences)), self.encode_items())
            return Encoded(self._last_vectors(sequences_of(self, batch.queries, self._sequences)), self.encode_items())
        finally:
            self.eval()

    def encode_every_position(self, lists: Ragged) -> Tensor:
        """The vectors of all positions, (P, d), of sequences that are none of them empty and shortest first."""
        parts = [self.encode_positions(packed) for packed in _packed(lists)]
        return torch.cat(parts) if parts else torch.zeros(0, self.dim, device=lists.indptr.device)

    def _last_vectors(self, lists: Ragged) -> Tensor:
        lists = latest(lists, self.max_length)
        if len(lists) == 1 and lists.indices.numel():  # one user waits for a list: nothing to put in order
            return self.encode_positions(Packed(lists))[-1:]
        order = torch.argsort(lists.counts, stable=True)
        order = order[lists.counts[order] > 0]
        parts = [self.encode_positions(packed)[packed.last] for packed in _packed(lists.select(order))]
        if not parts:
            return torch.zeros(len(lists), self.dim, device=lists.indptr.device)
        vectors = torch.cat(parts)
        return vectors.new_zeros(len(lists), vectors.size(1)).index_copy(0, order, vectors)


def _packed(lists: Ragged) -> Iterator[Packed]:
    """Some sequences after others, about ``ROWS`` positions at once."""
    start, ends = 0, lists.indptr[1:]
    while start < len(lists):
        stop = max(start + 1, int(torch.searchsorted(ends, int(lists.indptr[start]) + ROWS, right=True)))
        yield Packed(lists.slice(start, stop))
        start = stop


def events_of(model: Model, context: Context) -> Ragged:
    """The items of each training query in the order they happened."""
    if context.events is None:
        raise ConfigError(
            f"{type(model).__name__} reads items in the order they happened, and these data have no order; use data "
            "with times, or another model"
        )
    return context.events.items


def sequences_of(model: Model, queries: QuerySet, attached: Ragged | None) -> Ragged:
    """The sequence of each query: the given one, or that of its row among the attached ones."""
    if queries.sequence is not None:
        return queries.sequence
    if attached is None:
        raise TopshelfError(f"{type(model).__name__} has no sequences yet: call attach(context) with the training data")
    return attached.select(queries.known_rows())
