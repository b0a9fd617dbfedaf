"""Queries, the batches of training, and the data that a model's vectors depend on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf.errors import ConfigError
from topshelf.ragged import Ragged
from topshelf.reprs import brief, brief_tuple

KINDS = ("rows", "history", "sequence", "features")


@dataclass(frozen=True, eq=False)
class QuerySet:
    """Q queries, described in exactly one way. A model's ``takes`` names the ways that it can encode.

    ``rows (Q,)``: queries that were in training, by their index. ``history``: Q sets of items, sorted and unique.
    ``sequence``: Q lists of items in the order they happened, repeats included. ``features (Q, f)``: numbers.
    ``is_all``: the rows are all known queries in order, so that a table need not be copied.
    """

    rows: Tensor | None = None
    history: Ragged | None = None
    sequence: Ragged | None = None
    features: Tensor | None = None
    is_all: bool = False

    def __repr__(self) -> str:
        return brief(self)

    def __post_init__(self) -> None:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ConfigError(f"a QuerySet must have exactly one of {', '.join(KINDS)}, got {given or 'none'}")

    @classmethod
    def known(cls, n: int, device: torch.device | str = "cpu") -> QuerySet:
        """All ``n`` queries of the training."""
        return cls(rows=torch.arange(n, device=device), is_all=True)

    @property
    def kind(self) -> str:
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    def __len__(self) -> int:
        return len(getattr(self, self.kind))

    def select(self, places: Tensor) -> QuerySet:
        """The queries at ``places (R,)`` of this set."""
        value = getattr(self, self.kind)
        chosen: Any = value.select(places) if isinstance(value, Ragged) else value[places]
        return QuerySet(**{self.kind: chosen})

    def to(self, device: torch.device | str) -> QuerySet:
        return replace(self, **{self.kind: getattr(self, self.kind).to(device)})

    def take(self, table: Tensor, *, sparse: bool = False) -> Tensor:
        """The rows of ``table (U, d)`` for known queries, (Q, d); the table itself if they are all."""
        rows = self.known_rows()
        # F.embedding, not indexing: its backward pass adds in a fixed order.
        is_table = self.is_all and rows.numel() == table.size(0)
        return table if is_table else F.embedding(rows, table, sparse=sparse)

    def known_rows(self) -> Tensor:
        if self.rows is None:
            raise ConfigError(
                f"queries must be known rows here, got a {self.kind}: the model has vectors only for the queries of "
                "its training. Train again with the new ones, or use a model that takes a history"
            )
        return self.rows


class EventLists(NamedTuple):
    """Events per query, in order and with repeats; ``times (m,)`` are seconds, None if they are unknown."""

    items: Ragged
    times: Tensor | None

    def __repr__(self) -> str:
        return brief_tuple(self)


@dataclass(frozen=True, eq=False)
class Context:
    """The data that a model's vectors, and draws of negatives, depend on. Nothing of it is saved with a model.

    ``histories``: the training items per known query, sorted and unique. ``events``: the same in order and with times,
    for models that need them; made by ``load_events`` on first use, None if the data do not have them.
    """

    histories: Ragged
    n_items: int
    load_events: Callable[[], EventLists | None] = lambda: None

    def __repr__(self) -> str:
        return brief(self)

    @cached_property
    def events(self) -> EventLists | None:
        return self.load_events()

    def to(self, device: torch.device | str) -> Context:
        def moved() -> EventLists | None:
            if self.events is None:
                return None
            items, times = self.events
            return EventLists(items.to(device), None if times is None else times.to(device))

        return Context(self.histories.to(device), self.n_items, moved)


class Encoded(NamedTuple):
    """A model's vectors in a training step."""

    queries: Tensor  # (Q, d), of the batch
    items: Tensor  # (I, d), of all items
    auxiliary: Tensor | None = None  # a loss of the model itself, one number, that the step adds to the loss

    def __repr__(self) -> str:
        return brief_tuple(self)

    def detach(self) -> Encoded:
        """The vectors without their graph, and without the model's own loss."""
        return Encoded(self.queries.detach(), self.items.detach())


@dataclass(frozen=True, eq=False)
class Batch:
    """Q queries and P of their positives.

    ``query (Q,)`` indexes state per query. ``asked`` overrides how the model gets the queries; default: as those rows.
    """

    query: Tensor  # (Q,), index of each query
    owner: Tensor  # (P,), which of the Q queries each positive belongs to, ascending
    item: Tensor  # (P,), the positive items
    positives: Ragged  # Q lists: all training positives of each query
    is_whole: bool  # whether the P positives are all of them, in the same order
    begin: Tensor  # (Q,), where each query's positives begin among all training positives
    asked: QuerySet | None = None

    def __repr__(self) -> str:
        return brief(self)

    @property
    def queries(self) -> QuerySet:
        return QuerySet(rows=self.query) if self.asked is None else self.asked

    def counts(self) -> Tensor:
        """Number of the P positives per query, (Q,)."""
        return self.positives.counts if self.is_whole else torch.bincount(self.owner, minlength=self.query.numel())

    def part(self, start: int, stop: int) -> Batch:
        """The queries ``start`` to ``stop``."""
        if start == 0 and stop == self.query.numel():
            return self
        if self.is_whole:
            first, last = int(self.positives.indptr[start]), int(self.positives.indptr[stop])
        else:
            first, last = torch.searchsorted(self.owner, torch.tensor([start, stop], device=self.owner.device)).tolist()
        return Batch(
            self.query[start:stop],
            self.owner[first:last] - start,
            self.item[first:last],
            self.positives.slice(start, stop),
            self.is_whole,
            self.begin[start:stop],
            None if self.asked is None else self.asked.select(torch.arange(start, stop, device=self.query.device)),
        )

    def select(self, places: Tensor) -> Batch:
        """The queries at ``places (R,)``, in that order, with their positives."""
        positives = self.positives.select(places)
        chosen = positives
        if not self.is_whole:
            bounds = F.pad(self.counts().cumsum(0), (1, 0))
            chosen = Ragged(bounds, self.item).select(places)
        return Batch(
            self.query[places],
            chosen.owner(),
            chosen.indices,
            positives,
            self.is_whole,
            self.begin[places],
            None if self.asked is None else self.asked.select(places),
        )

    def reordered(self, order: Tensor) -> Batch:
        """The same positives with the queries in another order; each query must have one of them."""
        return Batch(
            self.query[order],
            torch.arange(order.numel(), device=order.device),
            self.item[order],
            self.positives.select(order),
            self.is_whole,
            self.begin[order],
            None if self.asked is None else self.asked.select(order),
        )

    def pair(self) -> Tensor:
        """The index of each of the P positives among all training positives, (P,)."""
        chosen = self.chosen()
        if chosen is None:
            chosen = torch.arange(self.owner.numel(), device=self.owner.device)
        return (self.begin - self.positives.indptr[:-1])[self.owner] + chosen

    def chosen(self) -> Tensor | None:
        """Where the P positives are in ``positives.indices``; None when they are all of them."""
        if self.is_whole:
            return None
        span = int(self.positives.indices.max()) + 1
        return torch.searchsorted(self.positives.owner() * span + self.positives.indices, self.owner * span + self.item)
