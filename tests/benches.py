"""Small plans, cells run in this process, and results made of given numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl

from topshelf.bench.cells import cells
from topshelf.bench.folder import BenchFolder
from topshelf.bench.plan import parse_plan
from topshelf.bench.results import Measured, Place, Results
from topshelf.bench.worker import ENDS, Job, work
from topshelf.data import generate

PLAN = """
title = "Two models"
metrics = ["recall@5", "ndcg@5"]
k = 5
seeds = [0, 1]
ours = "EASE"
data = [{ label = "clicks", source = "DATA" }]
method = [
  { label = "popularity", settings = { model = { name = "popularity" } } },
  { label = "EASE", settings = { model = { name = "ease" } } },
]
"""
TRAINED = """
title = "Two losses"
metrics = ["recall@5", "ndcg@5"]
k = 5
seeds = [0, 1]
ours = "SL@5"
settings = { model = { dim = 8 }, train = { epochs = EPOCHS, patience = 0, validate_every = 1, batch_size = 16 } }
data = [{ label = "clicks", source = "DATA" }]
method = [
  { label = "SL", settings = { loss = { name = "softmax" } } },
  { label = "SL@5", settings = { loss = { name = "slatk" } } },
]
"""
COSTS = ["seconds", "peak_mib"]


def write_clicks(path, seed=1):
    """A small file of clicks; another seed, other clicks."""
    generate(60, 40, interactions_per_user=8, seed=seed).to_frame().write_csv(path)
    return path


def plan_of(text, data, **changes):
    """The plan of a text with its placeholders filled."""
    text = text.replace("DATA", str(data)).replace("EPOCHS", str(changes.pop("epochs", 2)))
    assert not changes
    return parse_plan(text, "a test")


def work_here(plan, out, *, storage=None):
    """Run every cell of a plan in this process; how each ended."""
    folder = BenchFolder(out).make()
    return [work(Job(cell, folder.path, storage)) for cell in cells(plan)]


class Here:
    """A process that is none: its cell runs when it is started."""

    def __init__(self, target, args, name):
        (self.job,), self.name, self.pid = args, name, None

    def start(self):
        self.exitcode = ENDS[work(self.job)]

    def is_alive(self):
        return False


class HereContext:
    Process = Here


def topshelf_process(*arguments, cwd, **options):
    """The command line in a process group of its own."""
    source = str(Path(__file__).resolve().parents[1] / "src")
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    return subprocess.Popen(
        [sys.executable, "-m", "topshelf", *map(str, arguments)],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        **options,
    )


def measured(method, values, *, seed=0, group="", data="clicks", x=None, metric="ndcg@5", protocol="standard", lists=7):
    """A run with these values of users."""
    column = np.asarray(values, dtype=np.float32)
    frame = pl.DataFrame({f"{protocol}/{metric}": column})
    return Measured(
        data=data,
        group=group,
        method=method,
        x=x,
        k=None,
        seed=seed,
        fold=None,
        metrics={protocol: {metric: float(np.nanmean(column))}},
        names=(metric,),
        facts={"seconds": 1.0, "date": "2026-01-01"},
        fingerprints={protocol: lists},
        users=lambda: frame,
    )


def results_of(runs, **options):
    """Results with a place per run, in their order; ``more`` are places without one."""
    places = [run.place for run in runs] + options.pop("more", [])
    given = {"name": "small", "title": "Small", "metrics": ("ndcg@5",), "protocols": ("standard",), **options}
    return Results(runs=list(runs), places=list(dict.fromkeys(places)), **given)


def place(method, *, group="", data="clicks", x=None):
    return Place(data, group, method, x)
