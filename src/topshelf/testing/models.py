"""What every model promises."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor

from topshelf.config import RunConfig
from topshelf.data import Dataset, Interactions, generate, make_split
from topshelf.errors import ConfigError
from topshelf.models import MODELS, Model
from topshelf.models.describe import takes_new_users
from topshelf.queries import QuerySet
from topshelf.ragged import Ragged, ragged_from_pairs
from topshelf.ranking import QueryVectors, top_k
from topshelf.recommender import Recommender
from topshelf.testing.promises import (
    ITEMS,
    N_BLOCKS,
    USERS,
    check_is_named,
    check_training,
    dense,
    identical,
    planted,
    planted_events,
    planted_trainer,
    run_config,
    same,
)
from topshelf.training import Fitted, fit
from topshelf.training.batches import stream
from topshelf.training.folder import RunFolder


class ModelContract:
    """Inherit it and name the model::

        class TestMyModel(topshelf.testing.ModelContract):
            model = MyModel

    settings     of the model, such as {"dim": 16}; its defaults are tested when left out
    train        settings of the training, such as {"learning_rate": 0.01}
    losses       those that it is trained with; the first one is the loss of the other tests
    is_personal  False where everyone gets the same list
    tolerance    how far the vectors of some rows may be from those among all rows; 0: not a bit. 1e-5 for networks,
                 whose products round by the number of rows

    Tests of new users run for models whose ``takes`` has "history" or "sequence".
    """

    model: type[Model]
    settings: Mapping[str, Any] = {}
    train: Mapping[str, Any] = {}
    losses: tuple[str, ...] = ("slatk", "bpr")
    is_personal: bool = True
    tolerance: float = 0.0

    def config(self, loss: str | None = None, **train: Any) -> RunConfig:
        return run_config(model=(self.model, self.settings), loss=loss or self.losses[0], **{**self.train, **train})

    def fitted(self) -> Fitted:
        """The model fitted to the planted data, once for all tests of a class."""
        model: Any = self.model
        return _fitted(model, self.losses[0], json.dumps([dict(self.settings), dict(self.train)]))

    def recommender(self) -> Recommender:
        return Recommender.of(self.fitted())

    def only(self, *, trained: bool = False, new_users: bool = False, personal: bool = False) -> None:
        """Skip a test that is not about this kind of model."""
        if trained and self.model.is_closed_form:
            pytest.skip("it is fitted in closed form")
        if new_users and not takes_new_users(self.model):
            pytest.skip("it does not take new users")
        if personal and not self.is_personal:
            pytest.skip("the same list for everyone")

    def test_a_run_can_name_it(self) -> None:
        check_is_named(self.model, Model, MODELS)

    # Vectors

    def test_two_calls_give_the_same_vectors(self) -> None:
        model, rows = self.fitted().model, torch.tensor([5, 0, 41])
        for queries in (QuerySet.known(model.n_queries), QuerySet(rows=rows)):
            with torch.no_grad():
                first, second = (dense(model.encode_queries(queries)) for _ in range(2))
                both = model.encode(queries)
                items = model.encode_items()
                promise = "two calls must give the same vectors to the last bit; noise belongs in encode_batch"
                identical(first, second, f"encode_queries: {promise}")
                identical(model.encode_items(), items, f"encode_items: {promise}")
                identical(dense(both[0]), first, "encode must give the queries of encode_queries")
                identical(both[1], items, "encode must give the items of encode_items")

    def test_some_rows_are_encoded_as_among_all(self) -> None:
        model, rows = self.fitted().model, torch.tensor([5, 0, 41, 5])
        (some, items), (everyone, all_items) = _vectors(model, rows), _vectors(model)
        assert len(everyone) == model.n_queries, f"there must be n_queries = {model.n_queries}, got {len(everyone)}"
        assert items.size(0) == model.n_items, f"there must be n_items = {model.n_items} items, got {items.size(0)}"
        assert dense(some).size(1) == items.size(1), "vectors of queries and items must be of one length"
        promise = f"the vectors of some rows must be those among all rows, within tolerance = {self.tolerance}"
        close = {"rtol": self.tolerance, "atol": self.tolerance / 10}
        same(dense(some), everyone[rows].to_dense(), promise, **close)
        identical(items, all_items, "the items' vectors must not depend on the queries")
        if model.by_rows:
            with torch.no_grad():
                chosen = model.encode_item_rows(rows)
            same(chosen, items[rows], "encode_item_rows must give the rows of encode_items", **close)

    def test_a_user_alone_gets_what_it_gets_among_all(self) -> None:
        recommender = self.recommender()
        everyone = recommender.recommend(k=5)
        for user in (0, 41):
            alone, among = recommender.recommend([user], k=5), everyone.filter(pl.col("user") == user)
            assert alone["item"].equals(among["item"]), f"user {user} alone must get the list it gets among all"
            np.testing.assert_allclose(alone["score"], among["score"], rtol=1e-5)

    # Learning

    def test_a_planted_block_is_recovered(self) -> None:
        self.only(personal=True)
        lists = self.recommender().recommend(k=5)
        assert len(lists) == 5 * N_BLOCKS * USERS, "every user must get a list of K items"
        is_own = lists["user"].to_numpy() % N_BLOCKS == lists["item"].to_numpy() % N_BLOCKS
        promise = "users who take items of one block only must be recommended that block; set train to train it longer"
        assert is_own.mean() > 0.9, f"{promise}. Of the items listed, {is_own.mean():.0%} are"

    def test_training_lowers_the_loss_or_improves_what_it_stands_for(self) -> None:
        self.only(trained=True)
        for loss in self.losses:
            check_training(self.config(loss, epochs=5, batch_size=32))

    def test_a_step_moves_every_parameter(self) -> None:
        self.only(trained=True)
        for loss in self.losses:
            self.check_step(loss)

    def check_step(self, loss: str) -> None:
        trainer, _ = planted_trainer(self.config(loss, batch_size=64))
        model = trainer.model
        before = {key: value.clone() for key, value in model.state_dict().items()}
        trainer.loss.begin_epoch(1)
        trainer._step(next(iter(trainer.batches.epoch(stream(0)))), 1, 0)
        for key, value in model.named_parameters():
            assert value.isfinite().all(), f"a step of {loss} must keep {key} finite"
            assert not torch.equal(value, before[key]), f"a step of {loss} must move {key}"

    def test_the_same_seed_gives_the_same_weights_to_the_bit(self) -> None:
        first, second = (fit(self.config(epochs=3, batch_size=32), _generated()).model for _ in range(2))
        promise = "the same seed must give the same weights to the last bit; draw from torch's global generator"
        identical(dict(first.state_dict()), dict(second.state_dict()), promise)

    def test_another_seed_gives_other_weights(self) -> None:
        self.only(trained=True)
        settings = self.config(epochs=1)
        other = settings.model_copy(update={"seed": 1})
        first, second = (dict(fit(some, _generated()).model.named_parameters()) for some in (settings, other))
        for key, value in first.items():
            assert not torch.equal(value, second[key]), f"another seed must give another {key}"

    # Keeping

    @pytest.mark.parametrize("refit", [False, True])
    def test_a_saved_model_recommends_the_same_when_loaded(self, refit: bool, tmp_path: Path) -> None:
        first = Recommender.of(fit(self.config(epochs=3, refit=refit), planted()))
        first.save(tmp_path / "run")
        again = Recommender.load(tmp_path / "run")
        promise = "must be the same after saving and loading: all that it has learned must be in state_dict"
        for loaded, saved in zip(*(_vectors(one.fitted.model) for one in (again, first)), strict=True):
            identical(dense(loaded), dense(saved), f"vectors {promise}")
        assert again.recommend().equals(first.recommend()), f"lists {promise}"
        assert again.similar_items([0, 7], k=4).equals(first.similar_items([0, 7], k=4)), f"similar items {promise}"
        assert again.evaluate().mean() == first.evaluate().mean(), f"metrics {promise}"
        assert again.fitted.config == first.fitted.config, f"the config {promise}"

    def test_what_is_kept_of_a_model_is_its_parameters_and_nothing_of_the_data(self, tmp_path: Path) -> None:
        self.only(trained=True)
        done = fit(self.config(epochs=1, checkpoint_seconds=0.0), planted(), out=tmp_path / "run")
        shapes = {key: value.shape for key, value in done.model.named_parameters()}
        kept = RunFolder(tmp_path / "run").load_model()["model"]
        checkpoint = RunFolder(tmp_path / "run").load_checkpoint()
        assert checkpoint is not None
        trainer = checkpoint["trainer"]
        promise = "state_dict must hold the parameters and nothing of the data (register_buffer(..., persistent=False))"
        for state in (done.model.state_dict(), kept, trainer["model"], trainer["best_weights"]):
            assert {key: value.shape for key, value in state.items()} == shapes, promise

    # Lists

    def test_recommendations_hold_finite_scores_best_first(self) -> None:
        lists = self.recommender().recommend(k=10)
        assert lists["score"].is_finite().all(), "scores must be finite"
        falls = lists.with_columns(step=pl.col("score").diff().over("user"))["step"].drop_nulls()
        assert (falls <= 0).all(), "lists must have the best item first"

    def test_a_model_gives_new_users_lists_or_says_that_it_cannot(self) -> None:
        recommender = self.recommender()
        if takes_new_users(self.model):
            assert recommender.recommend_new([]).is_empty(), "no new users must get no lists"
            users = recommender.recommend_new([[0, 4], []], k=2)["user"].to_list()
            assert users == [0, 0, 1, 1], "every new user must get a list, also one without items"
            return
        message = f"{self.model.__name__} has vectors for the users of its training only"
        with pytest.raises(ConfigError, match=message):
            recommender.recommend_new([[0, 4]])

    # New users

    def test_users_that_came_after_training_get_their_own_block(self) -> None:
        self.only(new_users=True, personal=True)
        block = torch.arange(4 * N_BLOCKS) % N_BLOCKS  # of 16 new users, each with four items of its block
        items = (
            torch.rand(block.numel(), ITEMS, generator=torch.Generator().manual_seed(1)).argsort(1)[:, :4] * N_BLOCKS
        )
        rows = torch.arange(block.numel()).repeat_interleave(4)
        histories = ragged_from_pairs(rows, (items + block.unsqueeze(1)).flatten(), block.numel())
        model = self.fitted().model
        with torch.no_grad():
            best = top_k(_new(model, histories), model.encode_items(), 5, exclude=histories)[1]
        assert best.shape == (block.numel(), 5), "every new user must have K items"
        share = (best % N_BLOCKS == block.unsqueeze(1)).float().mean()
        assert share > 0.9, f"new users must be recommended the block of their items; of those listed {share:.0%} are"

    def test_the_training_histories_give_the_queries_of_the_training(self) -> None:
        self.only(new_users=True)
        model = self.fitted().model
        positives = planted().split.train.ragged() if "history" in model.kinds else planted_events()
        everyone = torch.arange(len(positives))
        known, items = _vectors(model)
        with torch.no_grad():
            new = _new(model, positives)
            assert len(new) == len(known) == len(positives), "there must be as many queries as histories"
            expected = known[everyone] @ items.T
            promise = "a history that a user had in training must give the scores of that user"
            same(new[everyone] @ items.T, expected, promise)
        assert expected.abs().sum() > 0, "scores must not all be 0"

    def test_a_new_user_with_the_items_of_a_known_one_gets_its_list(self) -> None:
        self.only(new_users=True)
        recommender, train = self.recommender(), planted_events()
        histories = [train.slice(user, user + 1).indices.tolist() for user in (41, 7)]
        known = recommender.recommend([41, 7], filter_seen=False)
        new = recommender.recommend_new(histories, filter_seen=False)
        promise = "a new user with the items of a known one must get its list"
        assert new.drop("score", "user").equals(known.drop("score", "user")), promise
        np.testing.assert_allclose(new["score"], known["score"], rtol=1e-5)

    def test_the_order_of_items_reaches_a_model_of_sequences(self, tmp_path: Path) -> None:
        self.only(new_users=True, personal=True)
        if "sequence" not in self.model.takes:
            pytest.skip("it does not take sequences")
        made, events = self.recommender(), planted_events()
        made.save(tmp_path / "run")
        some = [events.slice(row, row + 1).indices.tolist() for row in range(8)]
        for recommender in (made, Recommender.load(tmp_path / "run")):
            forth, back = (
                recommender.recommend_new(lists, filter_seen=False) for lists in (some, [one[::-1] for one in some])
            )
            promise = "a model that takes sequences must give the same items in another order other scores"
            assert not forth["score"].equals(back["score"]), f"{promise}; if order does not matter, take histories"
            known = recommender.recommend_new({row: one[:1] for row, one in enumerate(some)}, filter_seen=False)
            before = recommender.recommend_new({row: [] for row in range(8)}, filter_seen=False)
            assert not known["score"].equals(before["score"]), "what a known user did since training must count"

    def test_a_user_who_has_nothing_is_no_harm_to_others(self) -> None:
        self.only(new_users=True)
        model = self.fitted().model
        items = planted().split.train.ragged().slice(3, 4).indices
        some = Ragged(torch.tensor([0, 0, items.numel(), items.numel()]), items)
        with torch.no_grad():
            vectors = model.encode_items()
            scores = _new(model, some)[torch.arange(3)] @ vectors.T
            alone = _new(model, some.slice(1, 2))[torch.arange(1)] @ vectors.T
            assert len(_new(model, some.slice(0, 0))) == 0, "no histories must give no queries"
        assert scores.isfinite().all(), "scores must be finite, also those of an empty history"
        same(scores[1:2], alone, "an empty history in a call must not change the scores of the others")
        assert torch.equal(scores[0], scores[2]), "all empty histories must have the same scores"
        assert not self.is_personal or (scores[0] == 0).all(), "an empty history must have scores of 0"


@functools.cache
def _fitted(model: type[Any], loss: str, settings: str) -> Fitted:
    of_model, train = json.loads(settings)
    return fit(run_config(model=(model, of_model), loss=loss, **train), planted())


@functools.cache
def _generated() -> Dataset:
    rows = Interactions.from_frame(generate(80, 60, seed=3).to_frame())  # a frame has an order
    return Dataset("generated", make_split(rows))


def _vectors(model: Model, rows: Tensor | None = None) -> tuple[QueryVectors, Tensor]:
    """Of all known queries, or of some rows, and of all items."""
    with torch.no_grad():
        queries, items = model.encode(QuerySet.known(model.n_queries) if rows is None else QuerySet(rows=rows))
        return queries, items[:]


def _new(model: Model, lists: Ragged) -> QueryVectors:
    is_set = "history" in model.kinds
    return model.encode_queries(QuerySet(history=lists) if is_set else QuerySet(sequence=lists))
