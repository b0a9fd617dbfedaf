"""What every model of the registry promises."""

from __future__ import annotations

import functools

import numpy as np
import polars as pl
import pytest
import torch

from topshelf.config import make_config
from topshelf.data import Dataset, IdMap, Interactions, generate, make_split
from topshelf.errors import ConfigError
from topshelf.losses import LOSSES
from topshelf.models import MODELS
from topshelf.recommender import Recommender
from topshelf.training import fit

EVERY = pytest.mark.parametrize("name", MODELS)
TRAINABLE = [name for name, cls in MODELS.items() if not cls.is_closed_form]
N_BLOCKS, USERS, ITEMS = 4, 20, 24  # users and items of a block


def planted() -> Dataset:
    """Users of a block take a third of its items, at random, and nothing else. Blocks are dealt out in turn."""
    random = np.random.default_rng(0)
    users = np.repeat(np.arange(N_BLOCKS * USERS), ITEMS // 3)
    chosen = [random.choice(ITEMS, ITEMS // 3, replace=False) for _ in range(N_BLOCKS * USERS)]
    items = np.concatenate(chosen) * N_BLOCKS + users % N_BLOCKS
    maps = IdMap.range(N_BLOCKS * USERS), IdMap.range(N_BLOCKS * ITEMS)
    return Dataset("planted", make_split(Interactions.from_indices(users, items, *maps)))


def config(name: str, loss: str = "slatk", epochs: int = 30, **train):
    values = {"model": {"name": name}, "loss": {"name": loss}, "k": 5, "train": {"epochs": epochs, **train}}
    return make_config(values)


@functools.cache
def fitted(name: str):
    return fit(config(name), planted())


@EVERY
def test_a_planted_block_is_recovered(name):
    if name == "popularity":
        pytest.skip("the same list for everybody")
    lists = Recommender.of(fitted(name)).recommend(k=5)
    assert len(lists) == 5 * N_BLOCKS * USERS
    is_own = lists["user"].to_numpy() % N_BLOCKS == lists["item"].to_numpy() % N_BLOCKS
    assert is_own.mean() > 0.9


@EVERY
def test_some_rows_are_encoded_as_among_all(name):
    model, rows = fitted(name).model, torch.tensor([5, 0, 41, 5])
    with torch.no_grad():
        (some, items), (everybody, all_items) = model.encode(rows), model.encode()
    assert torch.equal(some, everybody[rows])
    assert torch.equal(items, all_items)
    assert len(everybody) == model.n_queries
    assert items.size(0) == model.n_items
    assert some.size(1) == items.size(1)


@EVERY
def test_the_same_seed_gives_the_same_weights_to_the_bit(name):
    dataset = Dataset("generated", make_split(generate(80, 60, seed=3)))
    a, b = (fit(config(name, epochs=3, batch_size=32), dataset).model.state_dict() for _ in range(2))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("name", TRAINABLE)
def test_another_seed_gives_other_weights(name):
    dataset = Dataset("generated", make_split(generate(80, 60, seed=3)))
    settings = config(name, epochs=1)
    other = settings.model_copy(update={"seed": 1})
    a, b = (dict(fit(some, dataset).model.named_parameters()) for some in (settings, other))
    assert not any(torch.equal(a[key], b[key]) for key in a)


@EVERY
@pytest.mark.parametrize("refit", [False, True])
def test_a_saved_model_recommends_the_same_when_loaded(name, refit, tmp_path):
    first = Recommender.of(fit(config(name, epochs=3, refit=refit), planted()))
    first.save(tmp_path / "run")
    again = Recommender.load(tmp_path / "run")
    for call in (Recommender.recommend, lambda r: r.similar_items([0, 7], k=4)):
        assert call(again).equals(call(first))
    assert again.evaluate().mean() == first.evaluate().mean()
    assert again.fitted.config == first.fitted.config


@pytest.mark.parametrize("name", TRAINABLE)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("order", ["query", "pair"])
def test_every_loss_trains_the_model_to_finite_values(name, loss, order):
    dataset = planted()
    if order == "pair" and LOSSES[loss].needs_whole_queries:
        with pytest.raises(ConfigError, match="needs all positives of a user in one batch"):
            fit(config(name, loss, order=order), dataset)
        return
    done = fit(config(name, loss, epochs=2, order=order, batch_size=64), dataset)
    assert all(value.isfinite().all() for value in done.model.state_dict().values())
    start = fit(config(name, loss, epochs=1, order=order, learning_rate=1e-12), dataset)
    moved = [not torch.equal(a, b) for a, b in zip(done.model.parameters(), start.model.parameters(), strict=True)]
    assert all(moved)


@EVERY
def test_recommendations_hold_finite_scores_best_first(name):
    lists = Recommender.of(fitted(name)).recommend(k=10)
    assert lists["score"].is_finite().all()
    falls = lists.with_columns(step=pl.col("score").diff().over("user"))["step"].drop_nulls()
    assert (falls <= 0).all()
