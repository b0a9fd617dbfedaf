"""Runs that one process or several train: what the tests of several processes compare.

``python shared_runs.py FOLDER`` is one of several processes; RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set as
torchrun sets them. It writes what it found to FOLDER/RANK.pt.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path

import torch

from topshelf.callbacks import Callbacks
from topshelf.catalogue import Workspace
from topshelf.config import make_config, merged
from topshelf.data import generate, make_split
from topshelf.data.datasets import Dataset
from topshelf.errors import TopshelfError, TopshelfWarning
from topshelf.losses import SLatK
from topshelf.models.slices import ItemSlice
from topshelf.negatives import Catalogue
from topshelf.queries import Batch, Encoded
from topshelf.ragged import Ragged
from topshelf.training import fit, resume, run
from topshelf.training.build import resolve
from topshelf.training.heads import PartitionHead
from topshelf.training.shared_heads import SlicedPartition, _Mine
from topshelf.training.shares import Share
from topshelf.world import current, joined

SMALL = {
    "k": 5,
    "model": {"dim": 16},
    "train": {"epochs": 2, "batch_size": 32, "validate_every": 1, "checkpoint_seconds": 0.0},
    "evaluate": {"auc": False},
}
SHARDED = {"train": {"shard_items": True}}
# What the default suite compares, with tables of items that every process has, and that they divide.
CASES = {
    "softmax": {"loss": {"name": "softmax"}},
    "slatk": {"loss": {"name": "slatk"}, "threshold": {"every": 1}},
    "slatk, pairs": {"loss": {"name": "slatk"}, "threshold": {"every": 1}, "train": {"order": "pair"}},
    "slatk, incremental": {"loss": {"name": "slatk"}, "threshold": {"estimator": "incremental"}},
    "slatk, in small blocks": {"loss": {"name": "slatk"}, "train": {"batch_size": 120, "workspace_mib": 1}},
    "slatk, prior": {"loss": {"name": "slatk"}, "negatives": {"prior": 0.5}},
    "bpr": {"loss": {"name": "bpr"}},
    "bpr, pairs": {"loss": {"name": "bpr"}, "train": {"order": "pair"}},
    "softmax, drawn": {"loss": {"name": "softmax"}, "negatives": {"kind": "in_batch"}},
    "softmax, by rows": {
        "loss": {"name": "softmax"},
        "negatives": {"kind": "shared", "n": 5, "popularity": 0.5},
        "train": {"optimizer": "row_adam", "batch_size": 4},
    },
    "song_at_k": {"loss": {"name": "song_at_k"}, "threshold": {"every": 1}},
    "sogclr": {"loss": {"name": "sogclr"}, "train": {"optimizer": "row_adam"}},
    "lightgcn": {"model": {"name": "lightgcn"}, "loss": {"name": "slatk"}},
    "history": {"model": {"name": "history"}, "loss": {"name": "softmax"}, "train": {"learning_rate": 0.01}},
}
# Those that every process must have all items for.
HALF = {"loss": {"name": "slatk"}, "model": {"tables": "bfloat16"}, "train": {"optimizer": "row_adam"}}
REPLICATED = {
    "slatk, by rows": {
        "loss": {"name": "slatk"},
        "negatives": {"kind": "mixed", "n_hard": 5, "pool": 30, "corrected": True},
        "threshold": {"estimator": "incremental", "n": 30},
        "train": {"optimizer": "row_adam", "learning_rate": 0.01},
    },
    "bpr, every pair": {"loss": {"name": "bpr"}, "negatives": {"kind": "catalogue"}},
    "xsimgcl": {"model": {"name": "xsimgcl", "n_contrast": 20}},
    "advinfonce": {"loss": {"name": "advinfonce", "every": 2}},
    "slatk, sampled": {"loss": {"name": "slatk"}, "threshold": {"estimator": "sampled", "every": 2, "n": 30}},
}
# The rest, for the slow suite.
MORE = {
    "lightgcn_pp": {"model": {"name": "lightgcn_pp"}, "loss": {"name": "softmax"}},
    "simplex": {"model": {"name": "simplex"}, "loss": {"name": "slatk"}},
    "slatk, dot": {"model": {"score": "dot"}, "loss": {"name": "slatk", "tau": 0.01}},
    "slatk, sigmoid": {
        "loss": {"name": "slatk", "distance": "sigmoid"},
        "negatives": {"kind": "shared", "n": 50},
    },
    "llpauc": {"loss": {"name": "llpauc"}},
    "guidedrec": {"loss": {"name": "guidedrec"}, "train": {"refit": True}},
    "slatk, refit on all": {"loss": {"name": "slatk"}, "train": {"refit": "all"}},
    "mixed decay": {"train": {"decay_every": 2, "decay_factor": 0.5, "weight_decay": 1e-4}},
}
MORE_REPLICATED = {
    "ncf": {"model": {"name": "ncf"}, "loss": {"name": "softmax"}},
    "simgcl": {"model": {"name": "simgcl"}, "loss": {"name": "bpr"}},
    "clipped": {"train": {"clip_norm": 0.01}},
    "mixed": {"loss": {"name": "bpr"}, "negatives": {"kind": "mixed", "n_hard": 5, "pool": 30}},
    "lambdaloss_at_k": {"loss": {"name": "lambdaloss_at_k"}},
    "slatk, weighted": {"loss": {"name": "slatk"}, "threshold": {"estimator": "weighted", "every": 2, "n": 30}},
    "slatk, regression": {"loss": {"name": "slatk"}, "threshold": {"estimator": "regression", "n": 30}},
}
REFUSED = {
    "whole batch": {"loss": {"name": "directau"}},
    "closed form": {"model": {"name": "ease", "dim": None}},
    "sliced ncf": {"model": {"name": "ncf"}, **SHARDED},
    "sliced pairs": {"loss": {"name": "bpr"}, "negatives": {"kind": "catalogue"}, **SHARDED},
    "sliced draws": {"loss": {"name": "slatk"}, "threshold": {"estimator": "sampled"}, **SHARDED},
    "sliced bfloat16": {"model": {"tables": "bfloat16"}, "train": {"optimizer": "row_adam", "shard_items": True}},
    "sliced clip": {"train": {"clip_norm": 1.0, "shard_items": True}},
}


@cache
def dataset(n_users=150):
    return Dataset("generated", make_split(generate(n_users, 61, interactions_per_user=8, seed=3), seed=0))


def config_of(case, *more):
    values = SMALL
    for one in (case, *more):
        values = merged(values, one)
    return make_config(values)


def train(case, *more):
    """The records of the epochs, and the weights that the run ends with; nothing is measured on the test part."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TopshelfWarning)
        phases = run._phases(resolve(config_of(case, *more)), dataset(), True, Callbacks())
        progress = phases._first_trainer.progress
        outcome = phases.run(None, None)
    history = [{k: v for k, v in one.items() if k != "seconds"} for one in progress.history]
    return {"records": history, "weights": dict(outcome.model.state_dict())}


def refusal(function):
    try:
        function()
    except TopshelfError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def start(folder, what, size=2, timeout=60.0, **environment):
    """Start processes that do ``what``; returns them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__)), str(folder), what, str(timeout)]
    return [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank), **environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def results(folder, what, size=2, **options):
    """What each of several processes found."""
    processes = start(folder, what, size, **options)
    ends = [process.communicate(timeout=500)[1] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(ends)
    return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(size)]


def default(folder):
    """Everything that the default suite looks at, in one start."""
    found = {name: train(case) for name, case in {**CASES, **REPLICATED}.items()}
    found |= {f"{name}, sliced": train(case, SHARDED) for name, case in CASES.items()}
    found["bfloat16"] = train(HALF)
    found["refused"] = {name: refusal(lambda case=case: train(case)) for name, case in REFUSED.items()}
    found["seed"] = refusal(lambda: fit(config_of({"seed": current().rank}), dataset()))
    found["data"] = refusal(lambda: fit(config_of({}), dataset(150 - current().rank)))
    found["partition"] = {"slices": sliced_head()}
    found["sent"] = {name: sent(more) for name, more in (("all items", {}), ("sliced", SHARDED))}
    for name, more in (("all items", {}), ("sliced", SHARDED)):
        whole, stopped = folder / f"whole {name}", folder / f"stopped {name}"
        fit(config_of(CASES["slatk"], more), dataset(), out=whole)
        found[f"stopped {name}"] = refusal(lambda more=more, out=stopped: stop_and_go_on(more, out))
    return found


def sliced_head():
    """Log-partitions, positive scores and thresholds of a block over slices, and of all items in one process."""
    generator, world = torch.Generator().manual_seed(1), current()
    queries, items = torch.randn(7, 4, generator=generator), torch.randn(11, 4, generator=generator) * 20
    lists = [[0, 3, 10], [5], [1, 2, 4], [6, 7], [0, 10], [9], list(range(11))]
    positives = Ragged(
        torch.tensor([0, *map(len, lists)]).cumsum(0), torch.tensor([item for own in lists for item in own])
    )
    batch = Batch(torch.arange(7), positives.owner(), positives.indices, positives, True, positives.indptr[:-1])
    loss, held = SLatK(7, 3, tau=0.5), ItemSlice.of(11, world)
    head = SlicedPartition(
        PartitionHead(loss, Catalogue(), None, Workspace()), Share(batch.query, positives, world), held
    )
    spans = head._begin(Encoded(queries, held.rows(items)))
    mine = _Mine.of(batch, held)
    local = head.blocks.forward(0, 7, mine.lists, mine.chosen, k=3)
    merged = head._merged(local, batch, mine)
    return {"tables": (queries, items, lists), "spans": spans, "block": vars(merged)}


def sent(more):
    """The bytes that one process gives to the others in a step."""
    from topshelf.training import phases

    world, counts = current(), []

    class Counting(phases.SharedWatcher):
        def on_step(self, trainer):
            counts.append(world.sent)
            super().on_step(trainer)

    before, phases.SharedWatcher = phases.SharedWatcher, Counting
    try:
        train(CASES["softmax"], more, {"train": {"batch_size": 300, "epochs": 2}})
    finally:
        phases.SharedWatcher = before
    return counts


def stop_and_go_on(more, out):
    """A run that one process is asked to stop after some steps, then resumed."""
    from contextlib import contextmanager

    from topshelf.training import phases

    @contextmanager
    def after_some_steps():
        left = [7 if current().rank == 1 else 1000]

        def stop():
            left[0] -= 1
            return left[0] < 0

        yield stop

    before, phases.stop_on_signals = phases.stop_on_signals, after_some_steps
    try:
        fit(config_of(CASES["slatk"], more), dataset(), out=out)
    finally:
        phases.stop_on_signals = before
        current().barrier()
        resume(out)


def more(folder):
    found = {name: train(case) for name, case in {**MORE, **MORE_REPLICATED}.items()}
    return found | {f"{name}, sliced": train(case, SHARDED) for name, case in MORE.items()}


def four(folder):
    found = {name: train(CASES[name]) for name in ("slatk", "bpr")}
    return found | {f"{name}, sliced": train(CASES[name], SHARDED) for name in ("slatk", "bpr", "lightgcn")}


def main(folder, what, timeout):
    with joined(timeout) as world:
        found = {"default": default, "more": more, "four": four}[what](folder)
        torch.save(found, folder / f"{world.rank}.pt")
        world.barrier()
        if what == "default" and world.rank == 0:  # the other process ends here
            found["lost"] = refusal(lambda: [world.barrier() for _ in range(1000)])
            torch.save(found, folder / "0.pt")
            os._exit(0)
    # When the interpreter ends, gloo's threads abort now and then, without topshelf too (torch 2.13).
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
