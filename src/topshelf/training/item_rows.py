"""Steps that read and update a few items of a large catalogue: those of the batch and of its draw."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from topshelf.models import Model
from topshelf.negatives import Draw
from topshelf.queries import Batch
from topshelf.ragged import Ragged


class ItemRows:
    """The vectors of all items, (I, d), of which rows are encoded when they are asked for; without gradients."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def size(self, dim: int) -> int:
        """The number of items, for ``dim`` 0."""
        assert dim == 0
        return self.model.n_items

    @torch.no_grad()
    def __getitem__(self, ids: Tensor) -> Tensor:
        return self.model.encode_item_rows(ids)

    def detach(self) -> ItemRows:
        return self

    @torch.no_grad()
    def whole(self) -> Any:
        """All of them, for those that cannot read rows."""
        return self.model.encode_items()


def only_rows(batch: Batch, draw: Draw) -> tuple[Tensor, Batch, Draw]:
    """The items (R,) that a batch and its draw need, ascending, and both of them with places in these as items."""
    lists = batch.positives
    parts = [lists.indices] if draw.items is None else [lists.indices, draw.items.flatten()]
    rows = torch.cat(parts).unique()

    def places(ids: Tensor) -> Tensor:
        return torch.searchsorted(rows, ids)

    small = replace(batch, item=places(batch.item), positives=Ragged(lists.indptr, places(lists.indices)))
    return rows, small, draw if draw.items is None else replace(draw, items=places(draw.items))
