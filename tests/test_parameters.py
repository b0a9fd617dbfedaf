"""scikit-learn's tools work on a Recommender."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, ParameterGrid

from topshelf import Recommender
from topshelf.data import generate
from topshelf.errors import ConfigError, DataError
from topshelf.losses import SoftmaxLoss

PAGE = Path(__file__).parents[1] / "docs" / "python.md"
SHORT = {"epochs": 1, "validate_every": 1}


@pytest.fixture(scope="module")
def frame():
    return generate(150, 60, interactions_per_user=12, seed=2).to_frame().select("user", "item")


def test_parameters_are_kept_as_given():
    train, loss = {"epochs": 5}, SoftmaxLoss(tau=0.3)
    recommender = Recommender(k=7, loss=loss, train=train)
    shallow = recommender.get_params(deep=False)
    assert shallow == {"k": 7, "model": None, "loss": loss, "seed": 0, "task": "interactions", "train": train}
    assert shallow["train"] is train
    assert shallow["loss"] is loss
    assert recommender.get_params() == {**shallow, "train__epochs": 5}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"k": 3, "seed": 4, "model": "ease"},
        {"loss": {"name": "softmax", "tau": 0.3}, "train": {"epochs": 3}, "data": {"core": 2}},
        {"loss": SoftmaxLoss(tau=0.3)},
        {"task": "sequences", "model": "gru4rec"},
    ],
)
def test_a_clone_has_the_same_settings_and_is_not_fitted(given):
    recommender = Recommender(**given)
    twin = clone(recommender)
    assert twin is not recommender
    assert twin._config("x") == recommender._config("x")
    assert "not fitted yet" in repr(twin)


def test_set_params_changes_a_key_of_a_section_and_keeps_the_others():
    recommender = Recommender(train={"epochs": 5, "patience": 2})
    assert recommender.set_params(k=9, train__epochs=8, loss__tau=0.3, model__dim=8, model="mf") is recommender
    config = recommender._config("x")
    assert (config.k, config.train.epochs, config.train.patience) == (9, 8, 2)
    assert config.loss.model_dump() == {"name": "slatk", "tau": 0.3, "tau_weight": "auto"}
    assert config.model.settings == {"dim": 8}
    recommender.set_params(loss="softmax")
    assert recommender._config("x").loss.name == "softmax"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train__epoch": 3}, "train.epoch is not a setting.*did you mean epochs"),
        ({"epochs": 3}, "did you mean train.epochs"),
        ({"loss__tau": 0.1}, "loss__tau sets a key of loss, which must then be a name or settings"),
        ({"k": 0}, "k"),
    ],
)
def test_a_wrong_parameter_is_refused_and_changes_nothing(change, message):
    recommender = Recommender(loss=SoftmaxLoss(tau=0.3))
    before = recommender.get_params()
    with pytest.raises(ConfigError, match=message):
        recommender.set_params(**change)
    assert recommender.get_params() == before


def test_a_fitted_model_stays_until_the_next_fit(frame):
    recommender = Recommender(k=5, model="ease").fit(frame)
    lists = recommender.recommend()
    recommender.set_params(k=3)
    assert recommender.recommend().equals(lists)
    assert recommender.fit(frame).recommend().height < lists.height


def test_the_score_is_ndcg_on_the_test_part_or_on_rows_that_fit_has_not_seen(frame):
    recommender = Recommender(k=5, model="ease").fit(frame)
    assert recommender.score() == pytest.approx(recommender.evaluate(cutoffs=(5,)).mean()["ndcg@5"])
    rows = np.random.default_rng(0).permutation(frame.height)
    train, held_out = frame[rows[300:]], frame[rows[:300]]
    fitted = Recommender(k=5, model="ease", data={"test_fraction": 0.0}).fit(train)
    perfect = fitted.recommend(k=1).select("user", "item")
    assert fitted.score(perfect) == 1.0
    unknown = pl.DataFrame({"user": [10**6], "item": [10**6]}).cast(dict(frame.schema))
    assert 0 < fitted.score(held_out) < 1
    assert fitted.score(pl.concat([held_out, unknown, train])) == fitted.score(held_out)
    with pytest.raises(DataError, match="got none among"):
        fitted.score(unknown)


def test_the_score_agrees_with_an_evaluation_of_the_lists(frame):
    from topshelf import evaluate_lists
    from topshelf.data import Interactions

    rows = np.random.default_rng(1).permutation(frame.height)
    train, held_out = frame[rows[300:]], frame[rows[:300]]
    fitted = Recommender(k=5, model="itemknn", data={"test_fraction": 0.0}).fit(train)
    users = held_out["user"].unique().to_list()
    lists = fitted.recommend([user for user in users if fitted.artifact.users.get(user) is not None])
    known = held_out.filter(
        pl.col("user").is_in(train["user"].implode()) & pl.col("item").is_in(train["item"].implode())
    )
    found = evaluate_lists(lists, Interactions.from_frame(known), cutoffs=(5,))
    assert fitted.score(held_out) == pytest.approx(found.mean()["ndcg@5"])


def test_a_loop_over_a_grid(frame):
    base, scores = Recommender(k=5, train=SHORT), {}
    for values in ParameterGrid({"train__learning_rate": [1e-4, 0.1], "loss": ["softmax", "slatk"]}):
        scores[tuple(values.values())] = clone(base).set_params(**values).fit(frame).score()
    assert len(scores) == 4
    assert len(set(scores.values())) > 1


@pytest.mark.parametrize("library", ["polars", "pandas"])
def test_grid_search_with_one_split_of_a_frame(frame, library):
    rows = np.random.default_rng(0).permutation(frame.height)
    table = frame if library == "polars" else pd.DataFrame(frame.to_dict(as_series=False))
    search = GridSearchCV(
        Recommender(k=5, model="ease", data={"test_fraction": 0.0}),
        {"model__l2": [1.0, 1e6]},
        cv=[(rows[300:], rows[:300])],
        error_score="raise",
    )
    search.fit(table)
    scores = search.cv_results_["mean_test_score"]
    assert search.best_params_["model__l2"] == [1.0, 1e6][int(np.argmax(scores))]
    assert scores[0] != scores[1]
    assert search.best_estimator_.recommend(k=2).height == 2 * 150


@pytest.mark.parametrize(
    "block", re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
)
def test_the_code_on_the_page_runs(block, capsys):
    exec(compile(block, str(PAGE), "exec"), {})
    assert capsys.readouterr().out
