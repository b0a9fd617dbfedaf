"""What every model that ranks documents promises."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from topshelf.config import RankingConfig, make_config, of_task
from topshelf.data.documents import Documents, RankingData
from topshelf.data.ranking_sources import split_documents
from topshelf.graded_lists import GradedLists
from topshelf.models.lists import LIST_MODELS, ListModel
from topshelf.ranker import Ranker
from topshelf.registry import named
from topshelf.testing.promises import check_is_named, identical, same
from topshelf.training import Fitted, fit
from topshelf.training.batches import stream
from topshelf.training.build import resolve
from topshelf.training.tasks.ranking import RankingTask, graded_lists
from topshelf.training.trainer import Trainer

N_QUERIES, N_FEATURES = 80, 5


class ListModelContract:
    """Inherit it and name the model::

        class TestMyModel(topshelf.testing.ListModelContract):
            model = MyModel

    settings   of the model, such as {"dim": 16}; its defaults are tested when left out
    train      settings of the training, such as {"learning_rate": 0.01}
    loss       the listwise loss that it is trained with
    tolerance  how far scores may be from those of the same list among others, or in another order
    """

    model: type[ListModel]
    settings: Mapping[str, Any] = {}
    train: Mapping[str, Any] = {}
    loss: str = "softmax"
    tolerance: float = 1e-4

    def config(self, **train: Any) -> RankingConfig:
        name = named(self.model, LIST_MODELS, ListModel, "model")["name"]
        values = {
            "task": "ranking",
            "k": 3,
            "model": {"name": name, **self.settings},
            "loss": {"name": self.loss},
            "train": {"epochs": 12, "learning_rate": 0.01, **self.train, **train},
        }
        return of_task(make_config(values), RankingConfig, "ListModelContract")

    def fitted(self) -> Fitted:
        """The model fitted to the planted data, once for all tests of a class."""
        model: Any = self.model
        return _fitted(model, self.loss, json.dumps([dict(self.settings), dict(self.train)]))

    def scores(self, lists: GradedLists) -> Tensor:
        model = self.fitted().model
        with torch.no_grad():
            scores: Tensor = model.score(lists.features, lists.indptr)
        return scores

    def close(self, actual: Tensor, expected: Tensor, promise: str) -> None:
        same(actual, expected, f"{promise}, within tolerance = {self.tolerance}", rtol=self.tolerance, atol=1e-5)

    def only_trained(self) -> None:
        if self.model.is_closed_form:
            pytest.skip("it is fitted in closed form")

    def test_a_run_can_name_it(self) -> None:
        check_is_named(self.model, ListModel, LIST_MODELS)

    def test_every_document_gets_a_finite_score_and_two_calls_give_the_same(self) -> None:
        lists = new_lists()
        first, second = self.scores(lists), self.scores(lists)
        assert first.shape == lists.grades.shape, f"there must be a score per document, got {tuple(first.shape)}"
        assert first.isfinite().all(), "scores must be finite"
        identical(first, second, "two calls must give the same scores to the last bit; noise belongs in score_batch")

    def test_a_list_alone_is_scored_as_among_others(self) -> None:
        lists = new_lists()
        among = self.scores(lists)
        for query in (0, 7, len(lists) - 1):
            mine = among[int(lists.indptr[query]) : int(lists.indptr[query + 1])]
            self.close(self.scores(lists.select(torch.tensor([query]))), mine, "other lists must change no score")

    def test_documents_in_another_order_get_their_own_scores(self) -> None:
        lists = new_lists().select(torch.tensor([2]))
        order = torch.randperm(lists.grades.numel(), generator=torch.Generator().manual_seed(0))
        mixed = GradedLists(lists.features[order], lists.grades[order], lists.indptr)
        self.close(self.scores(mixed), self.scores(lists)[order], "the order of a list must not matter")

    def test_scores_leave_the_features_alone(self) -> None:
        lists = new_lists()
        before = lists.features.clone()
        self.scores(lists)
        identical(lists.features, before, "score must not write to the features")

    def test_lists_without_documents_are_no_harm(self) -> None:
        lists = new_lists()
        gap = torch.cat([lists.indptr[:3], lists.indptr[2:]])
        with_gap = GradedLists(lists.features, lists.grades, gap)
        self.close(self.scores(with_gap), self.scores(lists), "a list without documents must change no score")

    def test_it_learns_an_order(self) -> None:
        found = self.fitted().test.mean()["ndcg@3"]
        assert found > 0.8, f"grades that follow from the features must be ranked, got NDCG@3 {found:.3f}; set train"

    def test_a_step_moves_every_parameter(self) -> None:
        self.only_trained()
        config, task = resolve(self.config()), RankingTask(planted_lists())
        model = task.model(config)
        trainer = Trainer(task.objective(config, model, "train"), config)
        before = {key: value.clone() for key, value in model.named_parameters()}
        trainer._step(next(iter(trainer.batches.epoch(stream(0)))), 1, 0)
        for key, value in model.named_parameters():
            assert value.isfinite().all(), f"a step must keep {key} finite"
            is_free = value.grad is not None and bool(value.grad.abs().max() > 0)
            assert not is_free or not torch.equal(value, before[key]), f"a step must move {key}"
        assert any(not torch.equal(value, before[key]) for key, value in model.named_parameters())

    def test_the_same_seed_gives_the_same_weights_to_the_bit(self) -> None:
        first, second = (fit(self.config(epochs=2), planted_lists()).model for _ in range(2))
        promise = "the same seed must give the same weights to the last bit; draw from torch's global generator"
        identical(dict(first.state_dict()), dict(second.state_dict()), promise)

    @pytest.mark.parametrize("refit", [False, True])
    def test_a_saved_model_ranks_the_same_when_loaded(self, refit: bool, tmp_path: Path) -> None:
        done = fit(self.config(epochs=2, refit=refit), planted_lists(), out=tmp_path / "run")
        ranker, documents = Ranker.load(tmp_path / "run"), planted_lists().test
        lists = graded_lists(documents)
        with torch.no_grad():
            expected = done.model.score(lists.features, lists.indptr)
        promise = "scores must be the same after saving and loading: all that was learned must be in state_dict"
        identical(ranker.scores(documents), expected, promise)


@functools.cache
def planted_lists() -> RankingData:
    """Grades 0 to 3 that follow from three of five features, one of them with a long tail; every list has an order."""
    random = np.random.default_rng(0)
    lengths = random.integers(3, 12, N_QUERIES)
    features = random.normal(size=(int(lengths.sum()), N_FEATURES)).astype(np.float32)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    features[indptr[:-1], :3], features[indptr[:-1] + 1, :3] = (2.5, 0, 0), (-2.5, 0, 0)
    signal = features[:, 0] - 0.5 * features[:, 1] + features[:, 2]
    features[:, 1] = np.exp(features[:, 1])
    grades = np.clip(signal.round(), 0, 3).astype(np.float32)
    names = tuple(f"feature {j}" for j in range(N_FEATURES))
    return split_documents(Documents(features, grades, indptr, np.arange(N_QUERIES)), names, name="planted")


def new_lists() -> GradedLists:
    """Lists that no model was trained on."""
    return graded_lists(planted_lists().test)


@functools.cache
def _fitted(model: type[ListModel], loss: str, settings: str) -> Fitted:
    contract = ListModelContract()
    contract.model, contract.loss = model, loss
    contract.settings, contract.train = json.loads(settings)
    return fit(contract.config(), planted_lists())
