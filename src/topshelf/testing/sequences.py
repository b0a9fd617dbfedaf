"""What every model that reads sequences promises, beside what all models do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor

from topshelf.config import SequenceConfig, make_config, merged, of_task
from topshelf.data import Interactions
from topshelf.data.sequence_data import SequenceData, cut
from topshelf.item_table import products
from topshelf.models import Model
from topshelf.queries import QuerySet
from topshelf.ragged import Ragged
from topshelf.recommender import Recommender
from topshelf.registry import named
from topshelf.training import Fitted, fit, load

N_ITEMS = 24
_SMALL = {
    "task": "sequences",
    "k": 3,
    "train": {"epochs": 40, "batch_size": 16, "learning_rate": 0.01, "validate_every": 10},
    "evaluate": {"cutoffs": [3]},
}


class SequenceModelContract:
    """Inherit it and name the model::

        class TestMyModel(topshelf.testing.SequenceModelContract):
            model = MyModel

    settings   of the model, such as {"dim": 16}; its defaults are tested when left out
    train      settings of the training, such as {"learning_rate": 0.01}
    loss       the loss that it is trained with
    is_causal  False for a model of which items go together, that cannot tell what came before from what comes next
    tolerance  how far the vectors of a sequence alone may be from those among others
    """

    model: type[Model]
    settings: Mapping[str, Any] = {}
    train: Mapping[str, Any] = {}
    loss: str = "slatk"
    is_causal: bool = True
    tolerance: float = 1e-5

    def config(self, **train: Any) -> SequenceConfig:
        from topshelf.models import SEQUENCE_MODELS

        described = named(self.model, SEQUENCE_MODELS, Model, "model")
        values = merged(_SMALL, {"model": {**described, **self.settings}, "loss": {"name": self.loss, "tau": 0.1}})
        return of_task(make_config(merged(values, {"train": {**self.train, **train}})), SequenceConfig, "the contract")

    def fitted(self, **train: Any) -> Fitted:
        return fit(self.config(**train), _circle())

    def test_what_comes_next_is_learned(self) -> None:
        if not self.is_causal:
            pytest.skip("it cannot tell what came before from what comes next")
        model = self.fitted().model
        for start in (0, 9, 17):
            items = [(start + step) % N_ITEMS for step in range(4)]
            scores = _scores(model, items)[0]
            scores[items] = -torch.inf  # as in lists
            best = scores.topk(2).indices.tolist()
            wanted = (start + 4) % N_ITEMS
            assert wanted in best, f"after {items} comes {wanted}, and it must be among the best two, got {best}"

    def test_sequences_are_scored_alone_as_among_others(self) -> None:
        model, some = self.fitted(epochs=1).model, [[1], [2, 3, 4, 5, 6, 7], [], [8, 8], [9, 10, 11]]
        together = _scores(model, *some)
        for row, items in enumerate(some):
            torch.testing.assert_close(
                together[row],
                _scores(model, items)[0],
                rtol=self.tolerance,
                atol=self.tolerance,
                msg=f"other sequences in a call must not change the scores of {items}",
            )
        assert not together[2].any(), "an empty sequence must have scores of 0"

    def test_the_last_items_decide_and_their_order_matters(self) -> None:
        model = self.fitted().model
        forth, back = _scores(model, [3, 4, 5], [5, 4, 3])
        assert not torch.allclose(forth, back), "the order of the items must matter"

    def test_known_users_are_their_sequences(self) -> None:
        fitted = self.fitted(epochs=1)
        fitted.model.attach(fitted.task.context("train"))
        sequences = fitted.dataset.split.sequences("train").slice(5, 6)
        with torch.no_grad():
            items = fitted.model.encode_items()
            known = fitted.model.encode_queries(QuerySet(rows=torch.tensor([5])))[torch.tensor([0])] @ items.T
        torch.testing.assert_close(_dense(known)[0], _scores(fitted.model, sequences.indices.tolist())[0])

    def test_a_run_is_kept_and_recommends_the_same(self, tmp_path: Path) -> None:
        first = fit(self.config(epochs=2), _circle(), out=tmp_path / "run")
        assert load(tmp_path / "run").evaluate().mean() == first.evaluate().mean(), "metrics must be the same"
        saved, loaded = Recommender.of(first), Recommender.load(tmp_path / "run")
        assert loaded.recommend().equals(saved.recommend()), "lists must be the same after loading"
        news = [[1, 2, 3], [3, 2, 1]]
        assert loaded.recommend_new(news).equals(saved.recommend_new(news)), "lists of new users must be the same"

    def test_the_same_seed_gives_the_same_weights_to_the_bit(self) -> None:
        if self.model.is_closed_form:
            pytest.skip("it is fitted in closed form")
        first, second = (self.fitted(epochs=2).model.state_dict() for _ in range(2))
        for name, value in first.items():
            assert torch.equal(value, second[name]), f"{name} must be the same to the last bit"


def _circle() -> SequenceData:
    """Users who go round a circle of items."""
    rows = [(user, (user * 5 + step) % N_ITEMS, step) for user in range(60) for step in range(5 + user % 6)]
    frame = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
    return cut(Interactions.from_frame(frame), "circle")


def _scores(model: Model, *some: list[int]) -> Tensor:
    indptr = torch.tensor([0, *(len(items) for items in some)]).cumsum(0)
    lists = Ragged(indptr, torch.tensor([item for items in some for item in items], dtype=torch.int64))
    with torch.no_grad():
        queries, items = model.encode(QuerySet(sequence=lists))
        return _dense(products(queries[torch.arange(len(some))], items))


def _dense(scores: Tensor) -> Tensor:
    return scores if scores.layout == torch.strided else scores.to_dense()
