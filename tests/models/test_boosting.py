"""Boosting: our walk through the trees gives what the libraries give."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from topshelf.errors import ConfigError, DataError
from topshelf.graded_lists import GradedLists, ListContext
from topshelf.models.boosting import CatBoostRanker, LambdaMART, XGBoostRanker
from topshelf.models.tree_imports import trees_of_catboost, trees_of_lightgbm, trees_of_xgboost
from topshelf.models.trees import TreeBuilder, TreeSum


def lists(n_queries=60, seed=0, width=6):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 15, (n_queries,), generator=generator)
    n = int(lengths.sum())
    features = torch.randn(n, width, generator=generator).round(decimals=2)
    signal = features[:, 0] + features[:, 1] * features[:, 2]
    grades = (signal + 0.3 * torch.randn(n, generator=generator)).clamp(0, 3).round()
    return GradedLists(features, grades, torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]))


def test_lambdamart_scores_as_lightgbm_does_to_the_bit():
    lightgbm = pytest.importorskip("lightgbm")
    train, new = lists(), lists(seed=1)
    model = LambdaMART(6, trees=30, patience=0, least_in_leaf=5)
    model.fit(ListContext(train))
    data = lightgbm.Dataset(train.features.numpy(), train.grades.numpy(), group=train.lengths.numpy())
    booster = lightgbm.train(model.parameters_of_lightgbm(3), data, 30)
    np.testing.assert_array_equal(model.score(new.features, new.indptr).numpy(), booster.predict(new.features.numpy()))
    assert model.derived() == {"trees": 30}


def test_validation_chooses_the_number_of_trees_and_a_refit_keeps_it():
    pytest.importorskip("lightgbm")
    model = LambdaMART(6, trees=400, patience=5, least_in_leaf=5, learning_rate=0.3)
    model.fit(ListContext(lists(), lists(seed=1)))
    chosen = len(model.sum)
    assert 0 < chosen < 400
    model.fit(ListContext(lists(90, seed=2)))
    assert len(model.sum) == chosen


def test_a_saved_model_scores_the_same_without_the_library(monkeypatch):
    pytest.importorskip("lightgbm")
    model, new = LambdaMART(6, trees=9, least_in_leaf=5), lists(seed=1)
    model.fit(ListContext(lists()))
    kept = save(model.state_dict())
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    again = LambdaMART(6, trees=9)
    again.load_state_dict(load(kept))
    assert torch.equal(again.score(new.features, new.indptr), model.score(new.features, new.indptr))
    with pytest.raises(ConfigError, match=r"pip install 'topshelf\[ranking\]'"):
        again.fit(ListContext(lists()))


@pytest.mark.parametrize("model", [XGBoostRanker, CatBoostRanker])
def test_a_missing_library_is_named_with_its_command(model, monkeypatch):
    monkeypatch.setitem(sys.modules, model.package, None)
    with pytest.raises(ConfigError, match=f"needs {model.package}, .* pip install {model.package}"):
        model(6).fit(ListContext(lists()))


def test_xgboost_gives_the_same_order():
    xgboost = pytest.importorskip("xgboost")
    train, new = lists(), lists(seed=1)
    model = XGBoostRanker(6, trees=20, patience=0)
    model.fit(ListContext(train))
    kept = []

    class Spy:
        DMatrix = xgboost.DMatrix

        @staticmethod
        def train(*args, **more):
            kept.append(xgboost.train(*args, **more))
            return kept[-1]

    trees = TreeSum(6)
    trees.set(model.grow(Spy, ListContext(train), 20, False))
    expected = kept[0].predict(xgboost.DMatrix(new.features.numpy()), output_margin=True)
    difference = trees(new.features).numpy() - expected
    np.testing.assert_allclose(difference, difference.mean(), atol=1e-5)
    assert len(trees_of_xgboost(kept[0]).roots) == 20
    model.patience = 3
    model.fit(ListContext(train, new))
    assert 0 < len(model.sum) <= 20


def test_catboost_gives_the_same_scores():
    catboost = pytest.importorskip("catboost")
    train, new = lists(), lists(seed=1)
    model = CatBoostRanker(6, trees=20, depth=3)
    model.fit(ListContext(train, new))
    assert 0 < len(model.sum) <= 20
    pool = catboost.Pool(
        train.features.numpy(), train.grades.numpy(), group_id=np.repeat(np.arange(60), train.lengths.numpy())
    )
    settings = {"loss_function": "YetiRank", "iterations": 20, "depth": 3, "allow_writing_files": False}
    booster = catboost.CatBoost({**settings, "logging_level": "Silent"}).fit(pool)
    trees = TreeSum(6)
    trees.set(trees_of_catboost(booster))
    np.testing.assert_allclose(trees(new.features).numpy(), booster.predict(new.features.numpy()), atol=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"left": [0, -1, -1]}, "two children that come after it"),
        ({"left": [9, -1, -1]}, "two children that come after it"),
        ({"right": [-1, -1, -1]}, "two children that come after it"),
        ({"feature": [6, 0, 0]}, "features 0 to 5"),
        ({"feature": [-1, 0, 0]}, "features 0 to 5"),
        ({"roots": [3]}, "begin at one of 3 nodes"),
        ({"level": [0.0]}, "one number per node"),
    ],
)
def test_trees_that_compiled_code_could_not_walk_are_refused(change, message):
    built = TreeBuilder([0], [0, 0, 0], [0.5, 0, 0], [1, -1, -1], [2, -1, -1], [0, -1.0, 1.0])
    trees = TreeSum(6)
    trees.set(built)
    assert trees(torch.tensor([[0.5, 0, 0, 0, 0, 0], [0.6, 0, 0, 0, 0, 0]])).tolist() == [-1, 1]
    state = trees.state_dict() | {
        name: torch.tensor(value, dtype=trees.state_dict()[name].dtype) for name, value in change.items()
    }
    with pytest.raises(DataError, match=message):
        TreeSum(6).load_state_dict(state)


def test_splits_of_another_kind_and_grades_that_are_not_whole_are_refused():
    split = {"split_feature": 0, "decision_type": "==", "threshold": "1||2"}
    with pytest.raises(DataError, match="kind '=='"):
        trees_of_lightgbm({"tree_info": [{"tree_structure": split}]})
    pytest.importorskip("lightgbm")
    data = lists()
    with pytest.raises(DataError, match=r"whole grades from 0 to 30, got 1\.5"):
        LambdaMART(6).fit(ListContext(GradedLists(data.features, data.grades + 0.5, data.indptr)))
    with pytest.raises(DataError, match="got 40"):
        LambdaMART(6).fit(ListContext(GradedLists(data.features, data.grades * 0 + 40, data.indptr)))
