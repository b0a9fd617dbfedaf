"""Gradient-boosted trees of LightGBM, XGBoost and CatBoost, fitted by those libraries and scored without them."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from topshelf.errors import ConfigError, DataError, at_least, positive
from topshelf.graded_lists import GradedLists, ListContext
from topshelf.models.list_base import ListModel
from topshelf.models.tree_imports import trees_of_catboost, trees_of_lightgbm, trees_of_xgboost
from topshelf.models.trees import TreeBuilder, TreeSum
from topshelf.registry import SearchSpace

LARGEST_GRADE = 30  # of LightGBM's table of gains


class Boosting(ListModel):
    """Base of the boosting models; a subclass has :meth:`grow`. Features need no scale, so there is no transform."""

    is_closed_form: ClassVar[bool] = True
    package: ClassVar[str]
    ranges: ClassVar[SearchSpace] = {
        "model.learning_rate": (0.02, 0.05, 0.1),
        "model.leaves": (7, 15, 31, 63),
        "model.least_in_leaf": (5, 20, 50),
    }

    def __init__(self, n_features: int, trees: int, learning_rate: float, patience: int, k: int, seed: int) -> None:
        super().__init__(n_features)
        self.trees, self.learning_rate = at_least("trees", trees, 1), positive("learning_rate", learning_rate)
        self.patience, self.k, self.seed = at_least("patience", patience, 0), at_least("k", k, 1), seed
        self.sum = TreeSum(n_features)
        self._chosen: int | None = None  # the number of trees that validation chose

    def fit(self, context: ListContext) -> None:
        """Without a validation part, as many trees as the last fit with one has chosen, or ``trees``."""
        library = self._library()
        _check_grades(context.train)
        has_valid = context.valid is not None and len(context.valid) > 0 and self.patience > 0
        built = self.grow(library, context, self.trees if has_valid else self._chosen or self.trees, has_valid)
        self.sum.set(built)
        if has_valid:
            self._chosen = len(self.sum)

    def grow(self, library: ModuleType, context: ListContext, trees: int, has_valid: bool) -> TreeBuilder:
        """Fit with the library, and give its trees."""
        raise NotImplementedError

    def score(self, features: Tensor, indptr: Tensor) -> Tensor:  # noqa: ARG002  one document at a time
        return self.sum(features)

    def derived(self) -> dict[str, float]:
        return {"trees": float(len(self.sum))}

    def _library(self) -> ModuleType:
        try:
            return importlib.import_module(self.package)
        except ImportError:
            extra = "'topshelf[ranking]'" if self.package == "lightgbm" else self.package
            raise ConfigError(
                f"{type(self).__name__} needs {self.package}, which is not installed: pip install {extra}"
            ) from None


class LambdaMART(Boosting):
    r"""LambdaMART of LightGBM: boosted trees on the gradients of LambdaRank.

    Settings: ``trees``, at most; ``leaves`` per tree; ``learning_rate``; ``least_in_leaf``, documents in a leaf at
        least; ``l2``; ``feature_share``, the share of features per tree; ``truncation``, places whose pairs count;
        ``patience``, stop after so many trees without a better validation NDCG@``k`` (0: never); ``seed``.
    Use when: always try it first; on tables of features it is hard to beat, and it takes seconds.
    Cost: seconds for a million documents per ten trees; scores cost ``trees`` walks per document.
    Paper: Burges, From RankNet to LambdaRank to LambdaMART, 2010; Ke et al., LightGBM, NIPS 2017.
    Relations: the ``lambdarank`` loss on trees in place of a network.
    """

    package = "lightgbm"

    def __init__(
        self,
        n_features: int,
        *,
        trees: int = 500,
        leaves: int = 15,
        learning_rate: float = 0.05,
        least_in_leaf: int = 20,
        l2: float = 0.0,
        feature_share: float = 1.0,
        truncation: int = 30,
        patience: int = 50,
        k: int = 10,
        seed: int = 0,
    ) -> None:
        super().__init__(n_features, trees, learning_rate, patience, k, seed)
        self.leaves, self.least_in_leaf = at_least("leaves", leaves, 2), at_least("least_in_leaf", least_in_leaf, 1)
        self.l2, self.truncation = at_least("l2", l2, 0.0), at_least("truncation", truncation, 1)
        if not 0 < feature_share <= 1:
            raise ConfigError(f"feature_share must be above 0 and at most 1, got {feature_share!r}")
        self.feature_share = feature_share

    def parameters_of_lightgbm(self, highest_grade: int) -> dict[str, Any]:
        """What LightGBM is called with: its own defaults but for these."""
        return {
            "objective": "lambdarank",
            "metric": "ndcg",
            "eval_at": [self.k],
            "label_gain": [2**grade - 1 for grade in range(highest_grade + 1)],
            "learning_rate": self.learning_rate,
            "num_leaves": self.leaves,
            "min_data_in_leaf": self.least_in_leaf,
            "lambda_l2": self.l2,
            "feature_fraction": self.feature_share,
            "lambdarank_truncation_level": self.truncation,
            "seed": self.seed,
            "num_threads": torch.get_num_threads(),
            "deterministic": True,
            "force_row_wise": True,
            "use_missing": False,  # 0 is a value, and NaN is refused
            "verbose": -1,
        }

    def grow(self, library: ModuleType, context: ListContext, trees: int, has_valid: bool) -> TreeBuilder:
        highest = max(_check_grades(lists) for lists in context if lists is not None and len(lists))
        train = _lightgbm_data(library, context.train)
        held_out, callbacks = [], []
        if has_valid:
            assert context.valid is not None
            held_out = [_lightgbm_data(library, context.valid, reference=train)]
            callbacks = [library.early_stopping(self.patience, verbose=False)]
        parameters = self.parameters_of_lightgbm(int(highest))
        booster = library.train(parameters, train, trees, valid_sets=held_out, callbacks=callbacks)
        best = booster.best_iteration if has_valid and booster.best_iteration > 0 else None
        return trees_of_lightgbm(booster.dump_model(num_iteration=best))


class XGBoostRanker(Boosting):
    """LambdaMART of XGBoost.

    Settings: ``trees``, ``leaves``, ``learning_rate``, ``l2``, ``patience``, ``k``, ``seed`` as in LambdaMART;
        ``least_in_leaf``, the sum of second derivatives in a leaf at least (XGBoost's min_child_weight).
    Use when: XGBoost is what the rest of your system runs.
    Cost: that of LambdaMART, within a factor of two.
    Paper: Chen and Guestrin, XGBoost, KDD 2016.
    Relations: another implementation of :class:`LambdaMART`.
    """

    package = "xgboost"

    def __init__(
        self,
        n_features: int,
        *,
        trees: int = 500,
        leaves: int = 15,
        learning_rate: float = 0.05,
        least_in_leaf: float = 1.0,
        l2: float = 1.0,
        patience: int = 50,
        k: int = 10,
        seed: int = 0,
    ) -> None:
        super().__init__(n_features, trees, learning_rate, patience, k, seed)
        self.leaves, self.least_in_leaf = at_least("leaves", leaves, 2), at_least("least_in_leaf", least_in_leaf, 0.0)
        self.l2 = at_least("l2", l2, 0.0)

    def grow(self, library: ModuleType, context: ListContext, trees: int, has_valid: bool) -> TreeBuilder:
        parameters = {
            "objective": "rank:ndcg",
            "eval_metric": f"ndcg@{self.k}",
            "eta": self.learning_rate,
            "grow_policy": "lossguide",
            "max_leaves": self.leaves,
            "max_depth": 0,
            "min_child_weight": self.least_in_leaf,
            "lambda": self.l2,
            "tree_method": "hist",
            "seed": self.seed,
            "nthread": torch.get_num_threads(),
            "verbosity": 0,
        }
        train = _xgboost_data(library, context.train)
        if not has_valid:
            return trees_of_xgboost(library.train(parameters, train, trees))
        assert context.valid is not None
        held_out = [(_xgboost_data(library, context.valid), "valid")]
        booster = library.train(
            parameters, train, trees, evals=held_out, early_stopping_rounds=self.patience, verbose_eval=False
        )
        return trees_of_xgboost(booster[: booster.best_iteration + 1])


class CatBoostRanker(Boosting):
    """YetiRank of CatBoost, on symmetric trees.

    Settings: ``trees``, ``learning_rate``, ``l2``, ``patience``, ``k``, ``seed`` as in LambdaMART; ``depth`` of a tree.
    Use when: there is time to train; on small data it is often the best of the three.
    Cost: several times that of LambdaMART.
    Paper: Prokhorenkova et al., CatBoost, NeurIPS 2018; Gulin et al., YetiRank, 2011.
    Relations: trees as in :class:`LambdaMART`, another loss.
    """

    package = "catboost"
    ranges: ClassVar[SearchSpace] = {"model.learning_rate": (0.02, 0.05, 0.1), "model.depth": (4, 6, 8)}

    def __init__(
        self,
        n_features: int,
        *,
        trees: int = 500,
        depth: int = 6,
        learning_rate: float = 0.05,
        l2: float = 3.0,
        patience: int = 50,
        k: int = 10,
        seed: int = 0,
    ) -> None:
        super().__init__(n_features, trees, learning_rate, patience, k, seed)
        self.depth, self.l2 = at_least("depth", depth, 1), at_least("l2", l2, 0.0)

    def grow(self, library: ModuleType, context: ListContext, trees: int, has_valid: bool) -> TreeBuilder:
        booster = library.CatBoost(
            {
                "loss_function": "YetiRank",
                "eval_metric": f"NDCG:top={self.k};type=Exp",
                "iterations": trees,
                "depth": self.depth,
                "learning_rate": self.learning_rate,
                "l2_leaf_reg": self.l2,
                "random_seed": self.seed,
                "thread_count": torch.get_num_threads(),
                "allow_writing_files": False,
                "logging_level": "Silent",
            }
        )
        more: dict[str, Any] = {}
        if has_valid:
            assert context.valid is not None
            more = {"eval_set": _catboost_data(library, context.valid), "early_stopping_rounds": self.patience}
        booster.fit(_catboost_data(library, context.train), **more)
        return trees_of_catboost(booster)


def _check_grades(lists: GradedLists) -> float:
    """The highest grade; boosting libraries take whole ones only."""
    grades = lists.grades
    odd = grades[(grades.frac() != 0) | (grades > LARGEST_GRADE)]
    if odd.numel():
        raise DataError(
            f"gradient boosting takes whole grades from 0 to {LARGEST_GRADE}, got {float(odd[0]):g}. Round them, or "
            "use --model transformer"
        )
    return float(grades.max()) if grades.numel() else 0.0


def _arrays(lists: GradedLists) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return lists.features.cpu().numpy(), lists.grades.cpu().numpy(), lists.lengths.cpu().numpy()


def _lightgbm_data(library: ModuleType, lists: GradedLists, reference: Any = None) -> Any:
    features, grades, lengths = _arrays(lists)
    return library.Dataset(features, grades, group=lengths[lengths > 0], reference=reference)


def _xgboost_data(library: ModuleType, lists: GradedLists) -> Any:
    features, grades, lengths = _arrays(lists)
    data = library.DMatrix(features, grades)
    data.set_group(lengths[lengths > 0])
    return data


def _catboost_data(library: ModuleType, lists: GradedLists) -> Any:
    features, grades, lengths = _arrays(lists)
    return library.Pool(features, grades, group_id=np.repeat(np.arange(lengths.size), lengths))
