"""What every model of the registry promises."""

from __future__ import annotations

import functools
import inspect

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
from topshelf.training import checkpoint, fit
from topshelf.training.batches import stream
from topshelf.training.build import build_loss, build_model, build_objective, resolve
from topshelf.training.trainer import Trainer

EVERY = pytest.mark.parametrize("name", MODELS)
TRAINABLE = [name for name, cls in MODELS.items() if not cls.is_closed_form]
N_BLOCKS, USERS, ITEMS = 4, 20, 24  # users and items of a block


def needs_whole_queries(loss: str) -> bool:
    return build_loss(resolve(make_config({"loss": {"name": loss}})), 2, 2, 2).needs_whole_queries


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


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("order", ["query", "pair"])
def test_every_loss_trains_mf_to_finite_values(loss, order):
    if order == "pair" and needs_whole_queries(loss):
        pytest.skip("refused: it needs all positives of a user in one batch")
    dataset = planted()
    if order == "pair" and LOSSES[loss].needs_whole_queries:
        with pytest.raises(ConfigError, match="needs all positives of a user in one batch"):
            fit(config("mf", loss, order=order), dataset)
        return
    done = fit(config("mf", loss, epochs=2, order=order, batch_size=64), dataset)
    assert all(value.isfinite().all() for value in done.model.state_dict().values())
    start = fit(config("mf", loss, epochs=1, order=order, learning_rate=1e-12), dataset)
    moved = [not torch.equal(a, b) for a, b in zip(done.model.parameters(), start.model.parameters(), strict=True)]
    assert all(moved)


@pytest.mark.parametrize("name", TRAINABLE)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_of_every_loss_moves_every_parameter(name, loss):
    settings = resolve(config(name, loss, batch_size=64))
    positives = planted().split.train.ragged()
    model = build_model(settings, N_BLOCKS * USERS, N_BLOCKS * ITEMS)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    objective = build_objective(settings, model, positives)
    trainer = Trainer(objective, positives, settings.train, threshold=settings.threshold, seed=0)
    trainer.loss.begin_epoch(1)
    trainer._step(next(iter(trainer.batches.epoch(stream(0)))), 1, 0)
    for key, value in model.named_parameters():
        assert value.isfinite().all()
        assert not torch.equal(value, before[key]), key


@pytest.mark.parametrize("name", TRAINABLE)
def test_what_is_kept_of_a_model_is_its_parameters_and_nothing_of_the_data(name, tmp_path):
    done = fit(config(name, epochs=1, checkpoint_seconds=0.0), planted(), out=tmp_path / "run")
    parameters = dict(done.model.named_parameters())
    assert done.model.state_dict().keys() == parameters.keys()
    kept = checkpoint.load(tmp_path / "run" / "model.safetensors")["model"]
    trainer = checkpoint.load(tmp_path / "run" / "checkpoint.safetensors")["trainer"]
    for state in (kept, trainer["model"], trainer["best_weights"]):
        assert {key: value.shape for key, value in state.items()} == {k: v.shape for k, v in parameters.items()}


@EVERY
def test_search_ranges_name_settings_and_values_that_it_takes(name):
    for key, values in MODELS[name].ranges.items():
        section, setting = key.split(".")
        assert len(set(values)) == len(values) > 1
        for value in values:
            component = {"name": name, setting: value} if section == "model" else {"name": name}
            more = {} if section == "model" else {section: {setting: value}}
            settings = resolve(make_config({"model": component, **more}))
            build_model(settings, 3, 4)


@EVERY
def test_its_documentation_says_when_to_use_it_and_what_it_costs(name):
    text = inspect.getdoc(MODELS[name])
    assert text.partition("\n\n")[0].endswith(".")
    for word in ("Use when:", "Cost:"):
        assert word in text


@EVERY
def test_recommendations_hold_finite_scores_best_first(name):
    lists = Recommender.of(fitted(name)).recommend(k=10)
    assert lists["score"].is_finite().all()
    falls = lists.with_columns(step=pl.col("score").diff().over("user"))["step"].drop_nulls()
    assert (falls <= 0).all()
