"""What every model of the registry promises."""

from __future__ import annotations

import functools
import inspect

import numpy as np
import polars as pl
import pytest
import torch
from torch.testing import assert_close

from topshelf.catalogue import top_k
from topshelf.config import make_config
from topshelf.data import Dataset, IdMap, Interactions, generate, make_split
from topshelf.errors import ConfigError
from topshelf.evaluation import ndcg
from topshelf.losses import LOSSES
from topshelf.models import MODELS
from topshelf.models.describe import takes_new_users
from topshelf.queries import Context
from topshelf.ragged import Ragged, ragged_from_pairs
from topshelf.recommender import Recommender
from topshelf.training import fit
from topshelf.training.batches import stream
from topshelf.training.build import build_loss, build_model, build_trainer, resolve
from topshelf.training.folder import RunFolder
from vectors import dense, queries_of, vectors_of

EVERY = pytest.mark.parametrize("name", MODELS)
TRAINABLE = [name for name, cls in MODELS.items() if not cls.is_closed_form]
TAKES_NEW = pytest.mark.parametrize("name", [name for name, cls in MODELS.items() if takes_new_users(cls)])
NETWORKS = ("ncf", "simplex")
N_BLOCKS, USERS, ITEMS = 4, 20, 24  # users and items of a block


def needs_whole_queries(loss: str) -> bool:
    return "whole_queries" in build_loss(resolve(make_config({"loss": {"name": loss}})), 2, 2, 2).needs


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
        (some, items), (everybody, all_items) = vectors_of(model, rows), vectors_of(model)
    # A network's products round by how many rows there are.
    close = {"rtol": 1e-5, "atol": 1e-6} if name in NETWORKS else {"rtol": 0, "atol": 0}
    assert_close(dense(some), everybody[rows].to_dense(), **close)
    assert torch.equal(items, all_items)
    assert len(everybody) == model.n_queries
    assert items.size(0) == model.n_items
    assert dense(some).size(1) == items.size(1)


@EVERY
def test_a_user_alone_gets_what_it_gets_among_all(name):
    recommender = Recommender.of(fitted(name))
    everybody = recommender.recommend(k=5)
    for user in (0, 41):
        alone, among = recommender.recommend([user], k=5), everybody.filter(pl.col("user") == user)
        assert alone["item"].equals(among["item"])
        np.testing.assert_allclose(alone["score"], among["score"], rtol=1e-5)


@TAKES_NEW
def test_users_that_came_after_training_get_their_own_block(name):
    if name == "popularity":
        pytest.skip("the same list for everybody")
    model = fitted(name).model
    block = torch.arange(4 * N_BLOCKS) % N_BLOCKS  # of 16 new users, each with four items of its block
    items = (torch.rand(block.numel(), ITEMS, generator=torch.Generator().manual_seed(1)).argsort(1)[:, :4]) * N_BLOCKS
    rows = torch.arange(block.numel()).repeat_interleave(4)
    histories = ragged_from_pairs(rows, (items + block.unsqueeze(1)).flatten(), block.numel())
    with torch.no_grad():
        found = top_k(queries_of(model, histories), vectors_of(model)[1], 5, exclude=histories)[1]
    assert found.shape == (block.numel(), 5)
    assert (found % N_BLOCKS == block.unsqueeze(1)).float().mean() > 0.9


@TAKES_NEW
def test_the_training_histories_give_the_queries_of_the_training(name):
    model, positives = fitted(name).model, planted().split.train.ragged()
    everybody = torch.arange(len(positives))
    with torch.no_grad():
        (known, items), new = vectors_of(model), queries_of(model, positives)
    assert len(new) == len(known) == len(positives)
    expected = known[everybody] @ items.T
    torch.testing.assert_close(new[everybody] @ items.T, expected)
    assert expected.abs().sum() > 0


@TAKES_NEW
def test_a_new_user_with_the_items_of_a_known_one_gets_its_list(name):
    recommender, train = Recommender.of(fitted(name)), planted().split.train.to_frame()
    histories = [train.filter(pl.col("user") == user)["item"].to_list() for user in (41, 7)]
    known = recommender.recommend([41, 7], filter_seen=False)
    new = recommender.recommend_new(histories, filter_seen=False)
    assert new.drop("score", "user").equals(known.drop("score", "user"))
    np.testing.assert_allclose(new["score"], known["score"], rtol=1e-5)


@TAKES_NEW
def test_a_user_who_has_nothing_is_no_harm_to_others(name):
    model = fitted(name).model
    items = planted().split.train.ragged().slice(3, 4).indices
    rows = torch.arange(3)
    some = Ragged(torch.tensor([0, 0, items.numel(), items.numel()]), items)
    with torch.no_grad():
        vectors = vectors_of(model)[1]
        scores = queries_of(model, some)[rows] @ vectors.T
        alone = queries_of(model, some.slice(1, 2))[rows[:1]] @ vectors.T
        assert len(queries_of(model, some.slice(0, 0))) == 0
    assert scores.isfinite().all()
    torch.testing.assert_close(scores[1:2], alone)
    assert torch.equal(scores[0], scores[2])
    if name != "popularity":
        assert (scores[0] == 0).all()


@EVERY
def test_a_model_gives_new_users_lists_or_says_that_it_cannot(name):
    recommender = Recommender.of(fitted(name))
    if takes_new_users(MODELS[name]):
        assert recommender.recommend_new([]).is_empty()
        assert recommender.recommend_new([[0, 4], []], k=2)["user"].to_list() == [0, 0, 1, 1]
        return
    with pytest.raises(ConfigError, match=f"{MODELS[name].__name__} has vectors for the users of its training only"):
        recommender.recommend_new([[0, 4]])


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


# Every loss with three of the models, and two losses with the others: what they share is in the step, tested below.
PAIRS = [
    (name, loss)
    for name in TRAINABLE
    for loss in (LOSSES if name in ("mf", "lightgcn", "xsimgcl") else ("slatk", "bpr"))
]


@pytest.mark.parametrize(("name", "loss"), PAIRS)
def test_training_lowers_the_loss_or_lifts_what_it_is_of(name, loss):
    settings = resolve(config(name, loss, epochs=5, batch_size=32))
    positives = planted().split.train.ragged()
    model = build_model(settings, N_BLOCKS * USERS, N_BLOCKS * ITEMS)
    trainer = build_trainer(settings, model, Context(positives, model.n_items))
    before = ranked(model, positives)
    trainer.run()
    losses = [record["loss"] for record in trainer.progress.history]
    assert all(value.isfinite().all() for value in model.state_dict().values())
    # A graph of blocks ranks them before anything is learned, and a loss that moves its thresholds need not fall.
    assert losses[-1] < losses[0] or ranked(model, positives) > before


def ranked(model, positives):
    """NDCG@5 of the training positives themselves."""
    nothing = Ragged(torch.zeros_like(positives.indptr), positives.indices[:0])
    with torch.no_grad():
        return ndcg(*vectors_of(model), positives, nothing, 5)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_trains_on_pairs_or_says_that_it_needs_whole_users(loss):
    dataset = planted()
    if needs_whole_queries(loss):
        with pytest.raises(ConfigError, match="needs all positives of a user in one batch"):
            fit(config("mf", loss, order="pair"), dataset)
        return
    done = fit(config("mf", loss, epochs=2, order="pair", batch_size=64), dataset)
    assert all(value.isfinite().all() for value in done.model.state_dict().values())
    start = fit(config("mf", loss, epochs=1, order="pair", learning_rate=1e-12), dataset)
    moved = [not torch.equal(a, b) for a, b in zip(done.model.parameters(), start.model.parameters(), strict=True)]
    assert all(moved)


@pytest.mark.parametrize("name", TRAINABLE)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_of_every_loss_moves_every_parameter(name, loss):
    settings = resolve(config(name, loss, batch_size=64))
    positives = planted().split.train.ragged()
    model = build_model(settings, N_BLOCKS * USERS, N_BLOCKS * ITEMS)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    trainer = build_trainer(settings, model, Context(positives, model.n_items))
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
    kept = RunFolder(tmp_path / "run").load_model()["model"]
    trainer = RunFolder(tmp_path / "run").load_checkpoint()["trainer"]
    for state in (kept, trainer["model"], trainer["best_weights"]):
        assert {key: value.shape for key, value in state.items()} == {k: v.shape for k, v in parameters.items()}


@EVERY
def test_what_a_model_keeps_is_as_large_as_it_says(name):
    """Bytes, of two sizes: dim numbers a user and twice as many an item, or a weight for every two items."""
    for n_users, n_items in ((50, 40), (90, 160)):
        done = fit(config(name, epochs=1), Dataset("generated", make_split(generate(n_users, n_items, seed=1))))
        kept = sum(value.numel() * value.element_size() for value in done.model.state_dict().values())
        dim = done.config.model.settings.get("dim", 1)
        networks = 16 * dim * dim
        if "n_items^2" in inspect.getdoc(MODELS[name]):
            assert kept <= 8 * n_items**2 + 8 * (n_items + 1)
        else:
            assert kept <= 4 * dim * (n_users + 2 * n_items) + networks


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
