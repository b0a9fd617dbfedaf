"""Training with losses that keep state, in one process or in two under DistributedDataParallel.

``python two_processes.py FOLDER RANK`` is one of two processes; it writes what its losses hold to FOLDER/RANK.pt.
"""

from __future__ import annotations

import copy
import inspect
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from topshelf.errors import ConfigError
from topshelf.losses import LOSSES, Loss, SLatK, SogCLR
from topshelf.thresholds import sampled_thresholds

N_QUERIES, N_ITEMS, PER_QUERY, DIM, K, STEPS, BATCH = 12, 30, 3, 5, 4, 6, 4
ITEMS = torch.arange(N_QUERIES * PER_QUERY).view(N_QUERIES, PER_QUERY) * 7 % N_ITEMS  # positives of each query
# What is trained: a loss, how its thresholds are updated, and the rate (0 for a loss whose scope is the batch).
CASES = {
    "slatk, update_threshold": ("slatk", "update_threshold", 0.5),
    "slatk, rows written": ("slatk", "rows", 0.5),
    "slatk, whole table copied": ("slatk", "copy", 0.5),
    "slatk, rows written after the step": ("slatk", "after", 0.5),
    "song": ("song", "", 0.5),
    "song_at_k": ("song_at_k", "", 0.5),
    "sogclr": ("sogclr", "", 0.5),
    "sogslatk, rows written": ("sogslatk", "rows", 0.0),
}
COMPILED = ("song_at_k",)


class Holder(nn.Module):
    """A loss two levels down, as in a task inside a framework's module."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.losses = nn.ModuleDict({"ranking": loss})


class Ranker(nn.Module):
    """Vectors, and the loss of a batch computed inside, so that DistributedDataParallel wraps the loss too."""

    def __init__(self, loss: Loss | None) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.users = nn.Parameter(torch.randn(N_QUERIES, DIM, generator=generator))
        self.items = nn.Parameter(torch.randn(N_ITEMS, DIM, generator=generator))
        self.register_buffer("steps", torch.zeros(1))  # a buffer for DistributedDataParallel to send
        self.head = None if loss is None else Holder(loss)

    def forward(self, query: Tensor, thresholds: str = "") -> Tensor | tuple[Tensor, Tensor]:
        scores = F.normalize(self.users[query], dim=1) @ F.normalize(self.items, dim=1).T  # (Q, I)
        return scores if self.head is None else value(self.head.losses["ranking"], query, scores, thresholds)


def value(loss: Loss, query: Tensor, scores: Tensor, thresholds: str) -> Tensor:
    owner = torch.arange(query.numel()).repeat_interleave(PER_QUERY)
    item = ITEMS[query].flatten()
    positive = scores[owner, item]
    mask = torch.zeros(scores.shape, dtype=torch.bool)
    mask[owner, item] = True
    if thresholds == "update_threshold":
        loss.update_threshold(query, positive, scores, owner, mask=mask)
    if thresholds in ("rows", "copy"):
        write(loss, query, scores, thresholds)
    pair = query.repeat_interleave(PER_QUERY) * PER_QUERY + torch.arange(PER_QUERY).repeat(query.numel())
    result = loss(positive, scores, owner, query=query, pair=pair, mask=mask)
    if thresholds == "after":
        write(loss, query, scores, "rows")
    return result


@torch.no_grad()
def write(loss: Loss, query: Tensor, scores: Tensor, how: str) -> None:
    kth_best = sampled_thresholds(torch.zeros(0), scores, torch.zeros(0, dtype=torch.int64), K)
    if how == "rows":
        loss.threshold[query] = kth_best
    else:
        loss.threshold.copy_(loss.threshold.clone().index_put((query,), kth_best))


def make(name: str) -> Loss:
    sizes = {"n_queries": N_QUERIES, "n_items": N_ITEMS, "n_positives": N_QUERIES * PER_QUERY, "k": K, "eta": 0.1}
    taken = inspect.signature(LOSSES[name].__init__).parameters
    return LOSSES[name](**{key: size for key, size in sizes.items() if key in taken})


def queries_of(step: int, rank: int | None) -> Tensor:
    """The queries of a step, half of them of each rank; a query meets both ranks in the course of training."""
    order = torch.randperm(N_QUERIES, generator=torch.Generator().manual_seed(step))
    batch = order[: 2 * BATCH]
    return batch if rank is None else batch[rank * BATCH :][:BATCH]


def train(case: str, rank: int | None, *, beside: bool = False, compiled: bool = False) -> dict[str, Tensor]:
    """The state of the loss and of the model after some steps; ``beside``: the loss is not wrapped."""
    name, thresholds, rate = CASES[case]
    loss = make(name)
    ranker = Ranker(None if beside else loss)
    model = ranker if rank is None else DistributedDataParallel(ranker)
    if compiled:
        model = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(ranker.parameters(), lr=rate)
    for step in range(STEPS):
        query = queries_of(step, rank)
        optimizer.zero_grad()
        result = value(loss, query, model(query), thresholds) if beside else model(query, thresholds)
        result.backward()
        optimizer.step()
    loss.synchronise()  # what was written after the last step
    return {**{f"loss.{key}": x for key, x in loss.state_dict().items()}, "users": ranker.users.data}


def without_batch(rank: int | None) -> Tensor:
    """Rank 1 has no queries in half of the steps."""
    loss, scores = SLatK(N_QUERIES, K), torch.linspace(-1, 1, N_QUERIES * N_ITEMS).view(N_QUERIES, N_ITEMS)
    for step in range(STEPS):
        query = queries_of(step, rank)
        if step % 2:
            query = queries_of(step, 0) if rank is None else query[: 0 if rank else BATCH]
        value(loss, query, scores[query] / (step + 1), "update_threshold")
    return loss.threshold


def loaded_by_one(rank: int) -> Tensor:
    """Only rank 0 reads the checkpoint, as is usual where DistributedDataParallel sends the rest."""
    loss = SogCLR(N_QUERIES)
    if rank == 0:
        loss.load_state_dict({"log_g": torch.arange(float(N_QUERIES))})
    loss.synchronise()
    return loss.log_g


def contested(rank: int) -> Tensor:
    """Both ranks write to query 3: the lowest rank decides. Copies of a loss begin with a new ledger."""
    loss = SLatK(N_QUERIES, K)
    loss.threshold[3] = 10.0 + rank
    loss.synchronise()
    other = copy.deepcopy(loss)
    other.threshold[rank] = 20.0 + rank
    other.synchronise()
    other.resize(N_QUERIES + 1)
    other.double().synchronise()
    other.threshold[N_QUERIES - rank] = 30.0 + rank
    other.synchronise()
    return other.threshold


def refused(rank: int) -> str:
    try:
        SLatK(N_QUERIES + rank, K).synchronise()
    except ConfigError as error:
        return str(error)
    return "nothing"


def alone(rank: int) -> float:
    """Loss of an evaluation, and of a loss that shares nothing, on one rank only: it does not wait for the other."""
    if rank:
        return 0.0
    query, scores = torch.arange(2), torch.zeros(2, N_ITEMS)
    private = make("song")
    private.shares_state = False
    return float(value(make("song").eval(), query, scores, "") + value(private, query, scores, ""))


def main(folder: Path, rank: int) -> None:
    wait = timedelta(seconds=300)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2, timeout=wait)
    results = {case: train(case, rank) for case in CASES}
    results |= {f"{case}, beside": train(case, rank, beside=True) for case in CASES}
    results |= {f"{case}, compiled": train(case, rank, compiled=True) for case in COMPILED}
    results |= {check.__name__: check(rank) for check in (without_batch, loaded_by_one, contested, refused, alone)}
    torch.save(results, folder / f"{rank}.pt")
    dist.destroy_process_group()
    # When the interpreter ends, gloo's threads abort now and then, without topshelf too (torch 2.13).
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
