"""What of a run each process does, where several train it: whose queries, and what it must exchange of the state.

Every process has the whole data, makes the same batches and draws the same negatives; it takes the loss of its own
queries. So the state that a loss keeps per query, thresholds among it, is up to date with the owner of the query.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from topshelf.losses import Loss
from topshelf.models import Model
from topshelf.queries import Batch
from topshelf.ragged import Ragged
from topshelf.world import World


class Share:
    """The queries of a process: consecutive ones, so many that all processes have equally many that are trained on.

    ``trained (n,)`` are the queries that are in batches, ascending; ``positives`` all training positives.
    """

    def __init__(self, trained: Tensor, positives: Ragged, world: World) -> None:
        self.world, n, size = world, trained.numel(), world.size
        bounds = [0, *(int(trained[rank * n // size]) for rank in range(1, size)), len(positives)]
        self.queries = list(itertools.pairwise(bounds))
        self.pairs = [(int(positives.indptr[first]), int(positives.indptr[last])) for first, last in self.queries]
        self.first, self.last = self.queries[world.rank]

    def places(self, query: Tensor) -> Tensor:
        """Where the process's own queries are among ``query (Q,)``."""
        return ((query >= self.first) & (query < self.last)).nonzero().squeeze(1)

    def own(self, batch: Batch) -> tuple[Tensor, Batch]:
        """The places of the process's queries in a batch, and the batch of them alone."""
        places = self.places(batch.query)
        return places, batch.select(places)

    @torch.no_grad()
    def gather_tables(self, loss: Loss) -> None:
        """Give every process the whole tables of a loss's state, each row from its owner."""
        for name, of in loss.indices_of_tables().items():
            table: Tensor = getattr(loss, name)
            first, last = (self.queries if of == "query" else self.pairs)[self.world.rank]
            table.copy_(self.world.all_rows(table[first:last]))


def gather_rows(model: Model, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by the names of the model's parameters, with the tables of items put together; all processes call it."""
    if model.held is None:
        return tensors
    return {name: model.held.whole(one) if name in model.item_tables else one for name, one in tensors.items()}


def slice_rows(model: Model, tensors: Any) -> Any:
    """The opposite of :func:`gather_rows`, for a state from a file; what is not a table of all items stays as it is."""
    held = model.held
    if held is None or not isinstance(tensors, dict):
        return tensors

    def part(name: str, one: Any) -> Any:
        is_table = isinstance(one, Tensor) and one.dim() > 0 and one.size(0) == held.n_items
        return held.rows(one).clone() if name in model.item_tables and is_table else one

    return {name: part(name, one) for name, one in tensors.items()}
