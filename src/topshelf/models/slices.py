"""A process's slice of the catalogue, where the tables of items are divided among the processes of a run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from topshelf.errors import ConfigError
from topshelf.ragged import Ragged
from topshelf.world import World


@dataclass(frozen=True)
class ItemSlice:
    """The items ``first`` to ``last`` of ``n_items``, whose rows this process has; by the layout of ``torch.chunk``."""

    first: int
    last: int
    n_items: int
    world: World

    @classmethod
    def of(cls, n_items: int, world: World) -> ItemSlice:
        """The slice of this process; every process has at least one item."""
        size = -(-n_items // world.size)
        if size * (world.size - 1) >= n_items:
            raise ConfigError(
                f"train.shard_items divides {n_items} items into {world.size} slices of {size}, and the last one would "
                "be empty; use fewer processes"
            )
        first = world.rank * size
        return cls(first, min(first + size, n_items), n_items, world)

    def __len__(self) -> int:
        return self.last - self.first

    def has(self, items: Tensor) -> Tensor:
        """Which of the items are in the slice."""
        return (items >= self.first) & (items < self.last)

    def local(self, lists: Ragged) -> Ragged:
        """The lists without the items of other slices, counted from the first item of this one."""
        kept = lists.where(self.has(lists.indices))
        return Ragged(kept.indptr, kept.indices.long() - self.first)

    def among(self, items: Tensor) -> ItemSlice:
        """The slice of these items, ascending and each once, as if they were all; it may be empty."""
        first, last = torch.searchsorted(items, items.new_tensor([self.first, self.last])).tolist()
        return ItemSlice(first, last, items.numel(), self.world)

    def rows(self, table: Tensor) -> Tensor:
        """This slice's rows of a table with a row per item."""
        return table[self.first : self.last]

    def whole(self, rows: Tensor) -> Tensor:
        """The whole table, from the rows of every process."""
        return self.world.all_rows(rows)
