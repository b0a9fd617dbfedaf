"""Checkpoints of tables that several processes divide: every process writes its own rows, and nothing is gathered.

The state goes to the one file of a checkpoint, with a name in the place of every divided table. The rows of each
process are in a file beside it, in the order of the processes (the layout of ``torch.chunk``, as DTensor's
``Shard(0)``). The one file names those that belong to it and is written last, so a crash at any moment leaves a
checkpoint that is whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from topshelf.errors import CheckpointError

_KEY = "divided"


@dataclass(frozen=True, eq=False)
class Rows:
    """This process's rows of a divided table, in a state."""

    rows: Tensor


def without_rows(state: Any, found: dict[str, Tensor]) -> Any:
    """The state with names in the place of divided tables; their rows are put into ``found`` by these names."""
    if isinstance(state, Rows):
        name = f"table{len(found)}"
        found[name] = state.rows
        return {_KEY: name}
    if isinstance(state, dict):
        return {key: without_rows(one, found) for key, one in state.items()}
    return [without_rows(one, found) for one in state] if isinstance(state, list) else state


def with_tables(state: Any, parts: list[dict[str, Any]]) -> Any:
    """The state with whole tables, from the rows of every process; from files, so everything is checked."""
    if isinstance(state, dict):
        if state.keys() == {_KEY}:
            return _whole(state[_KEY], parts)
        return {key: with_tables(one, parts) for key, one in state.items()}
    return [with_tables(one, parts) for one in state] if isinstance(state, list) else state


def _whole(name: Any, parts: list[dict[str, Any]]) -> Tensor:
    rows = [part.get(name) if isinstance(name, str) else None for part in parts]
    known = [one for one in rows if isinstance(one, Tensor) and one.dim() > 0]
    if len(known) != len(parts) or len({(one.shape[1:], one.dtype) for one in known}) != 1:
        raise CheckpointError(f"the checkpoint is damaged: the rows of its divided table {name!r} do not fit together")
    return torch.cat(known)
