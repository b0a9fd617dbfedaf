"""The processes that train one run together: who this one is, and what they exchange.

One process is the case ``size = 1``: nothing is imported from torch.distributed, and every call returns at once. Others
are started by torchrun, or by ``topshelf train --processes``; each of them calls :func:`joined` and then does the same
as one process would. Whatever they exchange besides numbers is JSON: nothing is unpickled.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import Function

from topshelf.errors import ConfigError, TopshelfError, TrainingError, WorldError, positive

TIMEOUT = 300.0  # seconds that a process waits for the others
_SHOWN = 300  # characters of torch's message that an error shows
T = TypeVar("T")


class World:
    """One of ``size`` processes that run the same program. The class itself is a world of one process.

    ``sent`` counts the bytes that this process gave to the collective operations so far, for measurements.
    """

    def __init__(self, rank: int = 0, size: int = 1, device: str = "cpu") -> None:
        self.rank, self.size, self.device = rank, size, torch.device(device)
        self.sent = 0

    def __repr__(self) -> str:
        return f"World(rank={self.rank}, size={self.size})"

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes and says things."""
        return self.rank == 0

    def all_reduce(self, tensor: Tensor, how: Literal["sum", "max"] = "sum") -> Tensor:
        """The tensor, which then holds the sum or the maximum over all processes, the same bits on each."""
        if self.size > 1 and tensor.numel():
            import torch.distributed as dist

            operation = dist.ReduceOp.SUM if how == "sum" else dist.ReduceOp.MAX
            self._do("all_reduce", lambda: dist.all_reduce(tensor, operation), tensor)
        return tensor

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, which have one shape, in the order of their ranks."""
        if self.size == 1:
            return [tensor]
        import torch.distributed as dist

        tensor = tensor.contiguous()
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        if tensor.numel():
            self._do("all_gather", lambda: dist.all_gather(parts, tensor), tensor)
        return parts

    def all_rows(self, rows: Tensor) -> Tensor:
        """The rows of all processes one below the other; each may have another number of them."""
        if self.size == 1:
            return rows
        counts = self.numbers([rows.size(0)])
        longest = int(max(count for (count,) in counts))
        padded = rows.new_zeros(longest, *rows.shape[1:])
        padded[: rows.size(0)] = rows
        parts = self.all_gather(padded)
        return torch.cat([part[: int(count)] for part, (count,) in zip(parts, counts, strict=True)])

    def numbers(self, mine: Sequence[float]) -> list[list[float]]:
        """A few numbers of each process, in the order of their ranks."""
        return [list(map(float, mine))] if self.size == 1 else [part.tolist() for part in self._gathered(mine)]

    def total(self, mine: Sequence[float]) -> list[float]:
        """The sum over all processes of each number."""
        if self.size == 1:
            return list(mine)
        summed: list[float] = self.all_reduce(torch.tensor(mine, dtype=torch.float64, device=self.device)).tolist()
        return summed

    def any(self, *mine: bool) -> list[bool]:
        """For each question, whether any process says yes."""
        return list(mine) if self.size == 1 else [total > 0 for total in self.total([float(one) for one in mine])]

    def every(self, value: T) -> list[T]:
        """The values of all processes, in the order of their ranks: anything that JSON can hold."""
        if self.size == 1:
            return [value]
        content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(self.device)
        sizes = [int(size) for (size,) in self.numbers([content.numel()])]
        padded = content.new_zeros(max(sizes))
        padded[: content.numel()] = content
        texts = zip(self.all_gather(padded), sizes, strict=True)
        return [json.loads(bytes(part[:size].cpu().numpy())) for part, size in texts]

    def broadcast(self, value: T) -> T:
        """The main process's value: anything that JSON can hold."""
        return self.every(value if self.is_main else None)[0]  # type: ignore[return-value]

    def barrier(self) -> None:
        """Wait until all processes are here."""
        self.total([0.0])

    def agreed(self, function: Callable[[], T]) -> T:
        """The function's result, called on every process; an error of one of them is an error of all."""
        if self.size == 1:
            return function()
        error, result = None, None
        try:
            result = function()
        except WorldError:
            raise
        except TopshelfError as caught:
            error = caught
        failed = self.every(None if error is None else [isinstance(error, TrainingError), str(error)])
        if error is not None:
            raise error
        for rank, one in enumerate(failed):
            if one is not None:
                raise (TrainingError if one[0] else ConfigError)(f"process {rank} of {self.size}: {one[1]}")
        return result  # type: ignore[return-value]

    def same(self, **values: Any) -> None:
        """Refuse processes that do not have the same values, by name."""
        if self.size == 1:
            return
        by_rank = self.every(values)
        for rank, others in enumerate(by_rank):
            for name, value in by_rank[0].items():
                if others.get(name) != value:
                    raise ConfigError(
                        f"all processes of a run must have the same {name.replace('_', ' ')}: process 0 has {value!r}, "
                        f"process {rank} has {others.get(name)!r}. Start them with the same command, files and versions"
                    )

    def _gathered(self, mine: Sequence[float]) -> list[Tensor]:
        return self.all_gather(torch.tensor([float(one) for one in mine], dtype=torch.float64, device=self.device))

    def _do(self, name: str, operation: Callable[[], Any], tensor: Tensor) -> None:
        try:
            operation()
        except RuntimeError as error:  # torch has no narrower one for a peer that is gone or does not answer
            reason = " ".join(str(error).split())[:_SHOWN]
            raise WorldError(
                f"process {self.rank} of {self.size} lost the others in {name}: one of them has ended, or did not "
                f"answer in time ({reason}). The last checkpoint is kept; continue with topshelf train --resume"
            ) from None
        self.sent += tensor.numel() * tensor.element_size()


ALONE = World()
_worlds: list[World] = []


def current() -> World:
    """The world of this process: that of the innermost :func:`joined`, else this process alone."""
    return _worlds[-1] if _worlds else ALONE


def is_launched() -> bool:
    """Whether torchrun, or a launcher that sets the same variables, started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


@contextmanager
def joined(timeout: float = TIMEOUT, device: str = "cpu") -> Iterator[World]:
    """Join the other processes that torchrun started; without it, this process is alone.

    ``timeout``: seconds after which a process that waits for the others gives up. CUDA devices exchange by NCCL, one
    device per process; everything else by gloo.
    """
    if not is_launched():
        yield ALONE
        return
    import torch.distributed as dist

    if not dist.is_available():
        raise ConfigError("this build of torch has no torch.distributed; train in one process")
    place = device
    if torch.device(device).type == "cuda":
        place = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(place)
    wait = timedelta(seconds=positive("timeout", timeout))
    backend = "nccl" if place.startswith("cuda") else "gloo"
    try:
        dist.init_process_group(backend, timeout=wait, **_meeting_place(wait))
    except (RuntimeError, ValueError) as error:
        raise WorldError(f"the processes did not find each other within {timeout:g} s: {error}") from None
    world = World(dist.get_rank(), dist.get_world_size(), place)
    _worlds.append(world)
    try:
        yield world
    finally:
        _worlds.pop()
        dist.destroy_process_group()


def _meeting_place(wait: timedelta) -> dict[str, Any]:
    """Where the processes find each other.

    torchrun's agent keeps one store for all its attempts (torch 2.13), and gloo would find the addresses of processes
    that have ended: every attempt has its own names in it.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    from torch.distributed import PrefixStore, TCPStore

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, is_master=False, timeout=wait)
    return {"store": PrefixStore(f"topshelf/attempt {n_restarts()}", store), "rank": rank, "world_size": size}


def launch_name() -> str | None:
    """A name of the launch that started this process, the same after a restart by torchrun; None without torchrun."""
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    return None if name is None else f"{name}:{socket.gethostname()}:{os.getppid()}"


def n_restarts() -> int:
    """How often torchrun has restarted the processes of this launch."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def summed(tensor: Tensor, world: World) -> Tensor:
    """The sum over all processes of what each computed in part; every process then uses the whole sum in the same way.

    So the gradient that it gets is that of the sum already, and is passed on as it is.
    """
    result: Tensor = _Summed.apply(tensor, world, False)
    return result


def summed_both_ways(tensor: Tensor, world: World) -> Tensor:
    """:func:`summed` where each process uses a part of the sum: the gradients are summed too."""
    result: Tensor = _Summed.apply(tensor, world, True)
    return result


def used_in_parts(tensor: Tensor, world: World) -> Tensor:
    """A tensor that all processes have, and of which each uses a part: its gradients are summed."""
    result: Tensor = _UsedInParts.apply(tensor, world)
    return result


class _Summed(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, world: World, is_used_in_parts: bool) -> Tensor:
        ctx.world, ctx.is_used_in_parts = world, is_used_in_parts
        return world.all_reduce(tensor.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        if ctx.is_used_in_parts:
            gradient = ctx.world.all_reduce(gradient.clone(memory_format=torch.contiguous_format))
        return gradient, None, None


class _UsedInParts(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, world: World) -> Tensor:
        ctx.world = world
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.world.all_reduce(gradient.clone(memory_format=torch.contiguous_format)), None
