"""A weighted sum of the scores of fitted models, made from runs (:mod:`topshelf.blending`) and never trained."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from topshelf.config import complete
from topshelf.errors import ConfigError
from topshelf.item_table import ItemTable, ItemVectors
from topshelf.models import MODELS, Model
from topshelf.models.base import JoinedRows
from topshelf.queries import Context, QuerySet
from topshelf.ranking import QueryVectors
from topshelf.registry import lookup

NOT_TRAINED = (
    "a blend is made from fitted models. Train them, then blend their runs: topshelf blend RUN RUN --out FOLDER"
)
# Sums are in float32: values beyond these would overflow or dominate all others.
MOST_WEIGHT = 1e6
LEAST_SCALE = 1e-20
_GIVEN = ("n_queries", "n_items")


class Blend(Model):
    r"""The weighted sum of the scores of fitted models.

    .. math:: s_{ui} = \sum_k \frac{w_k}{\sigma_k} s^k_{ui}

    Settings: ``weights`` w_k, at least 0; ``parts``, the name and the settings of each model; ``scales`` σ_k, the
        standard deviation of the scores of each, so that weights are comparable; default 1. A part of weight 0 is not
        computed.
    Use when: two good models make different mistakes, as a trained model and an item-item model do.
    Cost: vectors as long as those of all parts together, and a copy of the item vectors while they are concatenated.
        The root of a part's factor is in the queries and in the items, so that it counts between two items too.
    """

    is_closed_form: ClassVar[bool] = True
    parts: Any  # nn.ModuleList, of models

    def __init__(
        self,
        n_queries: int,
        n_items: int,
        *,
        weights: list[float],
        parts: list[dict[str, Any]],
        scales: list[float] | None = None,
    ) -> None:
        super().__init__(n_queries, n_items)
        weights = checked_weights("model.weights", weights, len(parts))
        scales = [1.0] * len(parts) if scales is None else scales
        if len(scales) != len(parts) or not all(LEAST_SCALE <= scale < math.inf for scale in scales):
            raise ConfigError(
                f"model.scales must be a number > 0 for each of the {len(parts)} parts (at least {LEAST_SCALE:g}), "
                f"got {scales}"
            )
        self.factors = [weight / scale for weight, scale in zip(weights, scales, strict=True)]
        self.parts = nn.ModuleList(_part(n_queries, n_items, at, part) for at, part in enumerate(parts))

    def encode_queries(self, queries: QuerySet) -> QueryVectors:
        return _side_by_side([(root, part.encode_queries(queries)) for root, part in self._asked()])

    def encode_items(self) -> ItemVectors:
        return _joined([(root, part.encode_items()) for root, part in self._asked()])

    def encode(self, queries: QuerySet) -> tuple[QueryVectors, ItemVectors]:
        encoded = [(root, *part.encode(queries)) for root, part in self._asked()]
        return _side_by_side([some[:2] for some in encoded]), _joined([(root, items) for root, _, items in encoded])

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset.intersection(*(part.kinds for _, part in self._asked()))

    def check_takes(self, kind: str) -> None:
        for _, part in self._asked():
            part.check_takes(kind)

    def fit(self, context: Context) -> None:  # noqa: ARG002  there is nothing to fit
        raise ConfigError(NOT_TRAINED)

    def attach(self, context: Context) -> None:
        for part in self.parts:
            part.attach(context)

    def _asked(self) -> list[tuple[float, Model]]:
        """The parts of weight above 0, each with the root of its factor."""
        return [(math.sqrt(factor), part) for factor, part in zip(self.factors, self.parts, strict=True) if factor > 0]


def checked_weights(name: str, weights: Sequence[float], n_parts: int) -> list[float]:
    """One weight per part, none below 0 and at least one above."""
    given = list(weights) if isinstance(weights, Iterable) else [weights]
    if len(given) != n_parts or n_parts == 0 or not all(isinstance(weight, Real) for weight in given):
        raise ConfigError(f"{name} must hold one number for each of the {n_parts} parts, got {given}")
    if not all(0 <= weight <= MOST_WEIGHT for weight in given) or not any(given):
        raise ConfigError(f"{name} must be numbers >= 0, at most {MOST_WEIGHT:g} and not all 0, got {given}")
    return [float(weight) for weight in given]


def _side_by_side(parts: list[tuple[float, QueryVectors]]) -> QueryVectors:
    tables = [factor * queries for factor, queries in parts if isinstance(queries, Tensor)]
    return torch.cat(tables, 1) if len(tables) == len(parts) else JoinedRows(parts)


def _joined(tables: list[tuple[float, ItemVectors]]) -> ItemVectors:
    dense = [(root, items) for root, items in tables if isinstance(items, Tensor)]
    if len(dense) < len(tables):
        return ItemTable.joined(tables)
    roots = torch.cat([items.new_full((items.size(1),), root) for root, items in dense])
    return torch.cat([items for _, items in dense], 1).mul_(roots)


def _part(n_queries: int, n_items: int, at: int, settings: dict[str, Any]) -> Model:
    where, name = f"model.parts.{at}", settings.get("name")
    if not isinstance(name, str):
        raise ConfigError(f"{where} must have the name of a model, got {settings}")
    cls: type[Model] = lookup(f"{where}.name", name, MODELS, Model)
    given = {key: value for key, value in settings.items() if key != "name" and value is not None}
    return cls(n_queries, n_items, **complete(where, cls, given, _GIVEN))
