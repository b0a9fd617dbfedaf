"""Tables of state, one number per query or per training positive, the same on every process of a distributed run.

DistributedDataParallel sends rank 0's buffers to all ranks before every forward pass, at any depth of the wrapped
module, and what the other ranks had learned about their own queries would be lost. So tables are not buffers: they are
saved and loaded with ``state_dict`` and moved with ``.to``, but DistributedDataParallel does not see them. Instead the
processes exchange the numbers that they have changed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from topshelf.errors import ConfigError, at_least

Index = Literal["query", "pair"]


class Table(NamedTuple):
    of: Index  # what its rows are
    fill: float  # the value of a row before the first write


class Ledger:
    """What this process last agreed on with the others, and what it has written since. Never copied or saved."""

    def __init__(self) -> None:
        self.agreed: dict[str, Tensor] = {}
        self.known: dict[str, tuple[Tensor, int | None]] = {}  # the table as it was when all its changes were noted
        self.written: dict[str, list[Tensor]] = {}

    def __reduce__(self) -> tuple[type[Ledger], tuple[()]]:
        return Ledger, ()

    def is_known(self, name: str, table: Tensor) -> bool:
        """Whether all writes to the table went through :meth:`note`."""
        seen, version = self.known.get(name, (None, None))
        return seen is table and version is not None and version == _version(table)

    def note(self, name: str, table: Tensor, index: Tensor, values: Tensor) -> None:
        """Write to the table, and remember where."""
        known = self.is_known(name, table)
        table[index] = values
        self.written.setdefault(name, []).append(index)
        if known:
            self.known[name] = (table, _version(table))

    def changes(self, name: str, table: Tensor, fill: float) -> Tensor:
        """The rows of the table that this process has changed, ascending."""
        if self.is_known(name, table):
            nothing = torch.empty(0, dtype=torch.int64, device=table.device)
            rows: Tensor = torch.cat([nothing, *self.written.get(name, [])])
            return rows.unique()  # type: ignore[no-any-return]
        agreed = self.agreed.get(name)
        if agreed is None or agreed.shape != table.shape:
            agreed = torch.full_like(table, fill)
        self.agreed[name] = agreed.to(table)
        return (table != self.agreed[name]).nonzero().squeeze(1)

    def agree(self, name: str, table: Tensor, rows: Tensor) -> None:
        """All processes now have this table; ``rows`` are those that any of them had changed."""
        self.agreed[name][rows] = table[rows]
        self.known[name] = (table, _version(table))


class Tables(nn.Module):
    """Base of modules with tables.

    shares_state   whether the processes of a distributed run keep their tables equal
    process_group  the group that does so, None for the default one: the group given to DistributedDataParallel
    """

    shares_state: bool = True
    process_group: dist.ProcessGroup | None = None

    def __init__(self) -> None:
        super().__init__()
        self._tables: dict[str, Table] = {}
        self._ledger = Ledger()

    def register_table(self, name: str, size: int, *, fill: float = 0.0, index: Index = "query") -> None:
        """Add a table of ``size`` numbers as attribute ``name``, one number per query or per positive (pair)."""
        sizes = {"query": "n_queries", "pair": "n_positives"}
        setattr(self, name, torch.full((at_least(sizes[index], size, 0),), fill))
        self._tables[name] = Table(index, fill)

    def index_sizes(self) -> dict[str, int]:
        """The number of queries and of positives, as far as there are tables of them."""
        return {table.of: getattr(self, name).numel() for name, table in self._tables.items()}

    def indices_of_tables(self) -> dict[str, Index]:
        """What the rows of each table are, by its name."""
        return {name: table.of for name, table in self._tables.items()}

    @torch.no_grad()
    def write(self, name: str, index: Tensor, values: Tensor) -> None:
        """Set rows ``index (n,)`` of a table to ``values (n,)``; for an index that occurs twice, the first value."""
        table: Tensor = getattr(self, name)
        values = values[first_rows(index)].to(table.dtype)
        if self.is_shared():
            _untraced(Ledger.note)(self._ledger, name, table, index, values)
        else:
            table[index] = values

    def is_shared(self) -> bool:
        """Whether other processes have the same tables."""
        return (
            self.shares_state
            and bool(self._tables)
            and dist.is_available()
            and dist.is_initialized()
            and dist.get_world_size(self.process_group) > 1
        )

    def synchronise(self) -> None:
        """Make the tables of all processes equal: each takes over what the others have changed since the last time.

        Every process must call it, as with any collective operation. If several have changed a row, the lowest rank
        decides. Without other processes it does nothing.
        """
        if self.is_shared():
            _untraced(_synchronise)(self)

    def has_written(self) -> bool:
        """Whether :meth:`write` was called since the tables were last made equal."""
        return bool(self._ledger.written)

    @contextmanager
    def _as_buffers(self) -> Iterator[None]:
        """Within it, torch treats the tables as buffers."""
        for name in self._tables:
            self._buffers[name] = self.__dict__.pop(name)
        try:
            yield
        finally:
            for name in self._tables:
                self.__dict__[name] = self._buffers.pop(name)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Tables:
        with self._as_buffers():
            super()._apply(fn, recurse)
        return self

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        with self._as_buffers():
            super()._save_to_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        with self._as_buffers():
            super()._load_from_state_dict(*args, **kwargs)


def _untraced(function: Callable[..., None]) -> Callable[..., None]:
    """The function, not traced by torch.compile."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled yet, and importing the compiler would take seconds
        return function
    return _disabled(function)


@cache
def _disabled(function: Callable[..., None]) -> Callable[..., None]:
    untraced: Callable[..., None] = torch.compiler.disable(function)
    return untraced


@torch.no_grad()
def first_rows(index: Tensor) -> Tensor:
    """For each place of ``index (n,)``, the first place with the same index, (n,).

    ``table[index] = values[first_rows(index)]`` writes the same value however often an index occurs, so the order
    of the writes does not matter. Cost: O(n log n), and no shape that depends on the values.
    """
    order = torch.argsort(index, stable=True)
    ordered = index[order]
    place = torch.arange(index.numel(), device=index.device)
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    run = torch.where(begins, place, torch.zeros_like(place)).cummax(0).values if index.numel() else place
    return torch.empty_like(place).scatter_(0, order, order[run])


@torch.no_grad()
def _synchronise(module: Tables) -> None:
    kinds, ledger = module._tables, module._ledger
    tables = {name: getattr(module, name) for name in kinds}
    changed = {name: ledger.changes(name, table, kinds[name].fill) for name, table in tables.items()}
    received = _exchange(tables, changed, module.process_group)
    for name, table in tables.items():
        for index, values in reversed(received[name]):
            table[index] = values.to(table)
        ledger.agree(name, table, torch.cat([index for index, _ in received[name]]))
    ledger.written.clear()


def _version(table: Tensor) -> int | None:
    """How often the table has been written to; None where torch does not count."""
    return None if table.is_inference() else table._version


def _exchange(
    tables: dict[str, Tensor], changed: dict[str, Tensor], group: dist.ProcessGroup | None
) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """What each rank has changed in each table, in the order of ranks: rows and their values."""
    device = _transport(next(iter(tables.values())), group)
    sizes = torch.tensor([[tables[name].numel(), rows.numel()] for name, rows in changed.items()], device=device)
    counts = torch.stack(_gathered(sizes, group)).tolist()  # per rank and table: rows of it, rows changed
    for place, name in enumerate(tables):
        if len(seen := {rank[place][0] for rank in counts}) > 1:
            raise ConfigError(f"{name} must have one size on all ranks, got {' and '.join(map(str, sorted(seen)))}")
    totals = [sum(n for _, n in rank) for rank in counts]
    # float64 represents every index up to 2^53, and every float32, exactly.
    mine = torch.zeros(2, max(totals), dtype=torch.float64, device=device)
    mine[0, : totals[dist.get_rank(group)]] = torch.cat([rows.double() for rows in changed.values()])
    mine[1, : totals[dist.get_rank(group)]] = torch.cat([tables[name][rows].double() for name, rows in changed.items()])
    sent = _gathered(mine, group) if max(totals) else [mine] * len(totals)
    received: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in tables}
    for payload, rank in zip(sent, counts, strict=True):
        parts = payload[:, : sum(n for _, n in rank)].split([n for _, n in rank], dim=1)
        for (name, table), part in zip(tables.items(), parts, strict=True):
            received[name].append((part[0].to(table.device, torch.int64), part[1]))
    return received


def _gathered(mine: Tensor, group: dist.ProcessGroup | None) -> list[Tensor]:
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, mine, group=group)
    return parts


def _transport(table: Tensor, group: dist.ProcessGroup | None) -> torch.device:
    """The device of the tensors that the group exchanges: NCCL takes only GPUs."""
    if table.device.type == "cpu" and dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return table.device
