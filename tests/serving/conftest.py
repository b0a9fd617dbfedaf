"""Small runs of every kind that can be served, and servers in a thread."""

from __future__ import annotations

import warnings

import polars as pl
import pytest

from servers import running
from topshelf.client import Client
from topshelf.data import generate
from topshelf.errors import TopshelfWarning
from topshelf.ranker import Ranker
from topshelf.recommender import Recommender
from topshelf.serving import Engine

N_ITEMS = 50
MODELS = {
    "mf": {"model": "mf", "seed": 0},
    "mf2": {"model": "mf", "seed": 1},
    "ease": {"model": "ease"},
    "sasrec": {"model": "sasrec", "task": "sequences"},
}
DOCUMENTS = pl.DataFrame(
    {
        "query": [n // 4 for n in range(80)],
        "grade": [n % 4 for n in range(80)],
        "clicks": [n % 4 for n in range(80)],
        "age": [n % 3 for n in range(80)],
    }
)


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A folder with a run per model, on the same clicks, and a ranker."""
    folder = tmp_path_factory.mktemp("runs")
    frame = generate(60, N_ITEMS, interactions_per_user=10, timestamps=True, seed=2).to_frame()
    clicks = frame.select(user=pl.format("u{}", "user"), item=pl.format("i{}", "item"), timestamp="timestamp")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TopshelfWarning)
        for name, settings in MODELS.items():
            train = {} if name == "ease" else {"train": {"epochs": 2, "batch_size": 64}}
            Recommender(k=5, **settings, **train).fit(clicks, out=folder / name)
        Recommender(k=5, model="itemknn").fit(clicks, out=folder / "itemknn")
        Ranker(k=3, model="linear_ranker", loss="softmax", train={"epochs": 2}).fit(DOCUMENTS, out=folder / "ranker")
    return folder


@pytest.fixture(scope="session")
def attributes(tmp_path_factory):
    """A table of items; i3 has no price, i49 is not in it, and one is of another shop."""
    path = tmp_path_factory.mktemp("attributes") / "items.csv"
    rows = ["item,price,category,on_sale,added"]
    rows += [
        f"i{n},{'' if n == 3 else n},{'abc'[n % 3]},{str(n % 2 == 0).lower()},2026-01-{n % 28 + 1:02}"
        for n in range(N_ITEMS - 1)
    ]
    path.write_text("\n".join([*rows, "other,1,a,true,2026-01-01"]))
    return path


@pytest.fixture
def serve(runs):
    """Starts servers by name of a run and settings, and ends them after the test."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def start(run="mf", **settings):
            server = stack.enter_context(running(Engine(runs / run, port=0, **settings)))
            client = stack.enter_context(Client(server.url, retries=0))
            client.server = server
            return client

        yield start
