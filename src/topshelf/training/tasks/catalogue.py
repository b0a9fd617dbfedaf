"""What the tasks share that rank a whole catalogue for users: interactions and sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from topshelf.data import IdMap, Split
from topshelf.data.memory import available
from topshelf.data.sequence_split import SequenceSplit
from topshelf.errors import DataError
from topshelf.evalset import EvalSet
from topshelf.evaluation import Evaluation, evaluate_set
from topshelf.item_table import ItemVectors
from topshelf.models import EncodedRows, Model
from topshelf.queries import QuerySet
from topshelf.ragged import Ragged
from topshelf.ranking import QueryVectors
from topshelf.training.tasks.base import Part, Task

_MAX_SIZE = 2**31  # more users or items than any table of vectors holds
_BLOCK = 1 << 16  # rows of a table that are encoded at once


class CatalogueTask(Task):
    """Users, and the items of a catalogue."""

    split: Split | SequenceSplit

    @property
    def n_items(self) -> int:
        return self.split.n_items

    def sizes(self) -> tuple[int, ...]:
        return self.split.n_users, self.split.n_items

    def measured(
        self,
        model: Model,
        part: Part,
        config: Any,
        *,
        protocol: str | None = None,
        cutoffs: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        """What :func:`topshelf.evaluation.evaluate_set` is given to measure a held-out part."""
        evalset, popularity = self.asked(model, part, protocol or config.evaluate.protocol)
        queries, items = vectors_for(model, evalset)
        cutoffs = cutoffs or self.cutoffs(config)
        given: dict[str, Any] = {"queries": queries, "items": items, "evalset": evalset, "cutoffs": cutoffs}
        return {**given, "auc": config.evaluate.auc, "item_counts": popularity}

    def asked(self, model: Model, part: Part, protocol: str) -> tuple[EvalSet, Tensor]:
        """The set that a held-out part is, and how often each item is in train."""
        raise NotImplementedError

    def measure(
        self,
        model: Model,
        part: Part,
        config: Any,
        *,
        protocol: str | None = None,
        cutoffs: Sequence[int] | None = None,
    ) -> Evaluation:
        return evaluate_set(**self.measured(model, part, config, protocol=protocol, cutoffs=cutoffs))


def known_vectors(model: Model, queries: QuerySet) -> dict[str, Tensor] | None:
    """The vectors of known users and of all items as an artifact keeps them; None if those of users are no table."""
    users, items = _encoded(model, queries)
    if isinstance(users, EncodedRows) and isinstance(items, Tensor):
        users = _table(users, items)
    if not isinstance(users, Tensor) or not isinstance(items, Tensor):
        return None
    dtype = torch.promote_types(torch.promote_types(users.dtype, items.dtype), torch.float32)  # as multiplied
    return {"queries": users.to("cpu", dtype), "items": items.to("cpu", dtype)}


def numbered(state: Mapping[str, Any]) -> tuple[IdMap, IdMap]:
    """Ids for the users and items of a study's file, which may hold any numbers of them."""
    sizes = [_checked_size(name, state[name]) for name in ("n_users", "n_items")]
    if 8 * sum(sizes) > available():  # before ids are made for them
        raise DataError(f"{sizes[0]} users and {sizes[1]} items do not fit into memory")
    return IdMap.range(sizes[0]), IdMap.range(sizes[1])


def _checked_size(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < _MAX_SIZE:
        raise ValueError(f"{name} must be a whole number from 1 to {_MAX_SIZE - 1}, got {value!r}")
    return value


def popularity(lists: Ragged, n_items: int) -> Tensor:
    """How often each item is in the lists, (I,)."""
    return torch.bincount(lists.indices, minlength=n_items).float()


@torch.no_grad()
def vectors_for(model: Model, evalset: EvalSet) -> tuple[QueryVectors, ItemVectors]:
    """The vectors of the set's queries, and of all items."""
    assert isinstance(evalset.queries, QuerySet)
    return _encoded(model, evalset.queries)


def _encoded(model: Model, queries: QuerySet) -> tuple[QueryVectors, ItemVectors]:
    return (EncodedRows(model, queries), model.encode_items()) if model.by_rows else model.encode(queries)


def _table(rows: EncodedRows, items: Tensor) -> Tensor:
    """All rows as one tensor, made a block at a time."""
    table = items.new_empty(len(rows), items.size(1))
    for block in torch.arange(len(rows), device=items.device).split(_BLOCK):
        table[block] = rows[block]
    return table
