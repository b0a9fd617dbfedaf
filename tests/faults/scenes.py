"""What the forked processes do."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import typer

from topshelf import cli, demo
from topshelf.config import make_config, merged
from topshelf.data import generate, split_interactions
from topshelf.evaluation import evaluate
from topshelf.models import MODELS
from topshelf.page import Page
from topshelf.queries import Context
from topshelf.ragged import ragged_from_pairs
from topshelf.recommender import Recommender
from topshelf.training.build import build_model, build_trainer, resolve
from vectors import fit_to, vectors_of

N_USERS, N_ITEMS = 40, 24
ITEM_ITEM = ("ease", "slim", "itemknn", "rp3beta")
BASE = {
    "k": 5,
    "evaluate": {"auc": False, "cutoffs": [5]},
    "train": {"epochs": 2, "batch_size": 16, "validate_every": 1, "checkpoint_seconds": 0.0, "patience": 0},
}
MF = {"model": {"name": "mf", "dim": 8}, "loss": {"name": "slatk", "tau": 0.2}}
SETTINGS = [
    f"{section}.{key}={str(value).lower()}"
    for section, values in BASE.items() if isinstance(values, dict)
    for key, value in values.items()
]  # fmt: skip


def config_of(model="mf", **train):
    """A small run's config."""
    chosen = MF if model == "mf" else {"model": {"name": model}}
    return make_config(merged(BASE, {**chosen, "train": train}))


def small_data(seed=3, n_users=N_USERS, n_items=N_ITEMS):
    """With times, and with a part that was rated too low."""
    data = generate(n_users, n_items, interactions_per_user=9, timestamps=True, seed=seed)
    is_low = np.arange(len(data)) % 9 == 4
    return split_interactions(data.where(~is_low), name="small", below=data.where(is_low), split="ratio")


def write_clicks(path, seed=0, n_users=40, n_items=24):
    """Purchases at random, 8 a user."""
    draw = np.random.default_rng(seed)
    rows = [f"{user},{item}\n" for user in range(n_users) for item in sorted(draw.choice(n_items, 8, replace=False))]
    path.write_text("user,item\n" + "".join(rows))
    return path


def options(**more):
    """The settings above as options of ``topshelf train``."""
    texts = [*SETTINGS, *(f"{key.replace('__', '.')}={value}" for key, value in more.items())]
    return ["--k", "5", "--quiet", *(word for text in texts for word in ("--set", text))]


def command(arguments):
    """``topshelf`` with these arguments."""
    # Twenty plots take seconds; the page and the numbers are written the same way.
    with (
        mock.patch.object(sys, "argv", ["topshelf", *arguments]),
        mock.patch("topshelf.charts.can_plot", return_value=False),
        mock.patch.object(cli, "app", _APP[0]),
    ):
        cli.main()


_APP = [cli.app]  # what typer makes of it, once it is made


def save(run, out):
    """``Recommender.save`` of a run's model."""
    Recommender.load(run).save(out)


def write_page(path, text):
    """A report page, as the demonstration writes its own."""
    page = Page(text)
    page.paragraph(text * 200)
    page.write(path)


def demonstrate(out):
    """The demonstration with its quickest method, on small data."""
    quick = {label: method for label, method in demo.METHODS.items() if method[1] == "popularity"}
    with (
        mock.patch.object(demo, "METHODS", quick),
        mock.patch.object(demo, "_data", return_value=[(small_data(), "Generated data, as asked.")]),
        mock.patch("topshelf.charts.can_plot", return_value=False),  # fonts are read in threads
    ):
        demo.run(Path(out), offline=True, budget=None)


def warm_up():
    """Load all compiled code, without polars, which must not start its threads before a fork."""
    import matplotlib.figure  # noqa: F401

    torch.set_num_threads(1)
    rows = torch.arange(N_USERS).repeat_interleave(3)
    pairs = ragged_from_pairs(rows, (rows * 7 + torch.arange(rows.numel()) * 5) % N_ITEMS, N_USERS)
    config = resolve(config_of())
    model = build_model(config, N_USERS, N_ITEMS)
    build_trainer(config, model, Context(pairs, N_ITEMS)).run()
    for name in (*ITEM_ITEM, "popularity"):
        fitted = MODELS[name](N_USERS, N_ITEMS)
        fit_to(fitted, pairs)
        with torch.no_grad():
            queries, items = vectors_of(fitted)
        nothing = ragged_from_pairs(rows[:0], rows[:0], N_USERS)
        evaluate(queries, items, pairs, train=nothing, cutoffs=(5,), auc=False)
    _APP[0] = typer.main.get_command(cli.app)
    gc.collect()
    gc.freeze()  # a fork then copies less
