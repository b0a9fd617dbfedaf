"""Batches of sequences: every position is a query whose positive is the item that comes next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from topshelf.errors import at_least
from topshelf.ragged import Ragged
from topshelf.sequences import SequenceBatch, from_end, latest

Slots = Literal["user", "position", "batch"]


class SequenceBatches:
    """The batches of an epoch, in an order that only the generator decides; ``size`` counts sequences.

    A sequence gives its last ``max_length`` + 1 items: all but the last are read, all but the first are to be found.
    Those with one item or none have no position and are left out. Inside a batch the shortest come first.
    ``slots`` says which of the loss's states a position has: that of its "user", its own ("position"), or, of losses
    whose states are exact in each step, the next one in the "batch".
    """

    def __init__(self, sequences: Ragged, *, size: int, max_length: int, slots: Slots = "position") -> None:
        self.size, self.slots = at_least("size", size, 1), slots
        tails = latest(sequences, max_length + 1)
        self.users = (tails.counts > 1).nonzero().squeeze(1)
        self.sequences = tails.select(self.users)
        self.first = self.sequences.indptr[:-1] - torch.arange(len(self.sequences), device=self.users.device)
        self.n_positions = self.sequences.indices.numel() - len(self.sequences)

    def __len__(self) -> int:
        return -(-len(self.sequences) // self.size)

    def n_slots(self, n_users: int) -> int:
        """How many states a loss has."""
        if self.slots == "user":
            return n_users
        if self.slots == "position":
            return self.n_positions
        lengths = self.sequences.counts.sort(descending=True).values - 1
        return int(lengths[: self.size].sum())

    def epoch(self, generator: torch.Generator) -> Iterator[SequenceBatch]:
        shuffled = torch.randperm(len(self.sequences), generator=generator).to(self.users.device)
        for part in shuffled.split(self.size):
            yield self.batch(part)

    def whole(self) -> SequenceBatch:
        """All sequences as one batch."""
        return self.batch(torch.arange(len(self.sequences), device=self.users.device))

    def batch(self, rows: Tensor) -> SequenceBatch:
        """The sequences of ``rows (B,)``."""
        rows = rows[torch.argsort(self.sequences.counts[rows], stable=True)]
        lists = self.sequences.select(rows)
        is_last = from_end(lists) == 0
        inputs = lists.where(~is_last)
        is_first = torch.zeros_like(is_last)
        is_first[lists.indptr[:-1]] = True
        item = lists.indices[~is_first]
        everyone = torch.arange(item.numel() + 1, device=item.device)
        counts = inputs.counts
        begin = torch.repeat_interleave(self.first[rows] - inputs.indptr[:-1], counts) + everyone[:-1]
        query = {
            "user": lambda: torch.repeat_interleave(self.users[rows], counts),
            "position": lambda: begin,
            "batch": lambda: everyone[:-1],
        }[self.slots]()
        return SequenceBatch(query, everyone[:-1], item, Ragged(everyone, item), True, begin, None, inputs)
