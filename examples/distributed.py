"""SL@K under DistributedDataParallel: two processes, each with half of the users, and the same thresholds in both.

    python examples/distributed.py                             # starts both processes
    torchrun --nproc-per-node 2 examples/distributed.py        # the same

The loss is a part of the wrapped module. Its thresholds are in a table and not in a buffer, so
DistributedDataParallel does not overwrite what the second process has learned; instead each call of the loss tells the
other process what has changed. Every process makes the same number of calls.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from topshelf.data import generate, make_split
from topshelf.evaluation import ndcg
from topshelf.losses import SLatK
from topshelf.ragged import Ragged

K, N_PROCESSES = 10, 2


class Ranker(nn.Module):
    """The model and the loss in one module, so that both are wrapped."""

    def __init__(self, n_users: int, n_items: int, dim: int = 32) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(n_users, dim), nn.Embedding(n_items, dim)
        self.loss = SLatK(n_users, k=K, tau=0.2, tau_weight=1.0)  # one threshold per user

    def vectors(self, users: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(self.user(users), dim=1), F.normalize(self.item.weight, dim=1)

    def forward(self, users: Tensor, positives: Ragged, refresh: bool) -> Tensor:
        queries, items = self.vectors(users)
        scores, owner = queries @ items.T, positives.owner()
        positive = scores[owner, positives.indices]
        mask = torch.zeros_like(scores, dtype=torch.bool)
        mask[owner, positives.indices] = True
        if refresh:  # the scores of the whole catalogue are here, so these thresholds are exact
            self.loss.update_threshold(users, positive.detach(), scores.detach(), owner, mask=mask)
        return self.loss(positive, scores, owner, query=users, mask=mask)


def train(rank: int, epochs: int = 20) -> None:
    split = make_split(generate(400, 200, seed=0), kind="ratio", seed=0)
    lists = split.train.ragged()
    torch.manual_seed(0)  # the same start in both processes
    ranker = Ranker(split.n_users, split.n_items)
    model = DistributedDataParallel(ranker)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    @torch.no_grad()
    def evaluate() -> float:
        return ndcg(*ranker.vectors(torch.arange(split.n_users)), split.valid.ragged(), lists, K)

    before = evaluate()
    mine = torch.arange(split.n_users)[rank::N_PROCESSES]
    for epoch in range(1, epochs + 1):
        for users in mine[torch.randperm(len(mine))].split(50):
            value = model(users, lists.select(users), epoch % 5 == 0)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    after = evaluate()

    thresholds = [torch.empty(split.n_users) for _ in range(N_PROCESSES)]
    dist.all_gather(thresholds, ranker.loss.threshold)
    assert torch.equal(thresholds[0], thresholds[1]), "the processes have different thresholds"
    assert (thresholds[0] != 0).all(), "some thresholds were never updated"
    assert after > 3 * before, "it learned nothing"
    if rank == 0:
        print(f"validation NDCG@{K}: {before:.4f} before training, {after:.4f} after")


def start_both() -> int:
    """Two of these processes, joined by a file; returns 0 if both end well."""
    with tempfile.TemporaryDirectory() as folder:
        shared = {**os.environ, "STORE": (Path(folder) / "store").as_uri(), "WORLD_SIZE": str(N_PROCESSES)}
        command = [sys.executable, __file__]
        running = [subprocess.Popen(command, env={**shared, "RANK": str(rank)}) for rank in range(N_PROCESSES)]
        try:
            return max(abs(process.wait(timeout=300)) for process in running)
        finally:
            for process in running:
                process.kill()


if __name__ == "__main__":
    if "RANK" not in os.environ:
        sys.exit(start_both())
    torch.set_num_threads(1)
    rank, store = int(os.environ["RANK"]), os.environ.get("STORE", "env://")
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    train(rank)
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads can abort when the interpreter ends (torch 2.13, without topshelf too)
