"""Negatives: items drawn by popularity, shared by the batch."""

from __future__ import annotations

from typing import ClassVar

import torch

from topshelf.negatives import Draw, Layout, Negatives, columns_of
from topshelf.queries import Batch, Encoded


class ByPopularity(Negatives):
    """``n`` items drawn without replacement, an item with c interactions with a weight of c to the ``power``."""

    layout: ClassVar[Layout] = "shared"

    def __init__(self, n: int = 200, *, power: float = 0.75) -> None:
        self.n, self.power = n, power

    def draw(self, batch: Batch, encoded: Encoded, generator: torch.Generator) -> Draw:
        counts = self.population.item_counts
        weight = counts.clamp(min=1).double() ** self.power
        n_items = counts.numel()
        n = min(self.n or n_items, n_items)
        items = torch.multinomial(weight, n, generator=generator).to(batch.item.device)
        # How much likelier than in a uniform draw each of them is; losses that correct for it use that.
        log_q = torch.log(weight[items] / weight.mean()).to(encoded.queries.dtype)
        return Draw(items, columns_of(batch.positives, items, n_items), log_q)
