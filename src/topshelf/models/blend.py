"""A weighted sum of the scores of fitted models. It is made of runs (:mod:`topshelf.blending`), never trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from topshelf.config import Component, complete
from topshelf.errors import ConfigError
from topshelf.models import MODELS, Model
from topshelf.ragged import Ragged
from topshelf.ranking import Queries

NOT_TRAINED = (
    "a blend is made of models that are fitted already. Train them, then blend their runs: "
    "topshelf blend RUN RUN --out FOLDER"
)
_GIVEN = ("n_queries", "n_items")


class Blend(Model):
    r"""The weighted sum of what fitted models score.

    .. math:: s_{ui} = \sum_k \frac{w_k}{\sigma_k} s^k_{ui}

    Settings: ``weights`` w_k, at least 0; ``parts``, the name and the settings of each model; ``scales`` σ_k, how far
        the scores of each spread, so that weights can be compared; 1 when left out. A part of weight 0 is not asked.
    Use when: two good models err in different places, as one that is trained and an item-item model do.
    Cost: vectors as long as those of all parts together, with a copy of the items' when they are put side by side.
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
        if len(scales) != len(parts) or not all(0 < scale < math.inf for scale in scales):
            raise ConfigError(f"model.scales must be a number > 0 for each of the {len(parts)} parts, got {scales}")
        self.factors = [weight / scale for weight, scale in zip(weights, scales, strict=True)]
        self.parts = nn.ModuleList(_part(n_queries, n_items, at, part) for at, part in enumerate(parts))

    def encode(self, rows: Tensor | None = None) -> tuple[Queries, Tensor]:
        encoded = [(factor, *part.encode(rows)) for factor, part in self._asked()]
        queries = _side_by_side([(factor, queries) for factor, queries, _ in encoded])
        return queries, torch.cat([items for *_, items in encoded], 1)

    def queries_of(self, histories: Ragged) -> Queries:
        return _side_by_side([(factor, part.queries_of(histories)) for factor, part in self._asked()])

    def fit(self, positives: Ragged) -> None:  # noqa: ARG002  there is nothing to fit
        raise ConfigError(NOT_TRAINED)

    def attach(self, positives: Ragged) -> None:
        for part in self.parts:
            part.attach(positives)

    def _asked(self) -> list[tuple[float, Model]]:
        return [(factor, part) for factor, part in zip(self.factors, self.parts, strict=True) if factor > 0]


class BlendRows:
    """Queries whose vectors are those of several models, each times a factor, side by side; made where indexed."""

    def __init__(self, parts: Sequence[tuple[float, Queries]]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts[0][1])

    def __getitem__(self, rows: Tensor) -> Tensor:
        return torch.cat([factor * queries[rows] for factor, queries in self.parts], 1)


def checked_weights(name: str, weights: Sequence[float], n_parts: int) -> list[float]:
    """One weight a part, none below 0 and one above."""
    if len(weights) != n_parts or n_parts == 0:
        raise ConfigError(f"{name} must hold one number for each of the {n_parts} parts, got {list(weights)}")
    if not all(0 <= weight < math.inf for weight in weights) or not any(weights):
        raise ConfigError(f"{name} must be numbers >= 0, at least one of them above, got {list(weights)}")
    return [float(weight) for weight in weights]


def _side_by_side(parts: list[tuple[float, Queries]]) -> Queries:
    tables = [factor * queries for factor, queries in parts if isinstance(queries, Tensor)]
    return torch.cat(tables, 1) if len(tables) == len(parts) else BlendRows(parts)


def _part(n_queries: int, n_items: int, at: int, settings: dict[str, Any]) -> Model:
    where = f"model.parts.{at}"
    if not isinstance(settings.get("name"), str):
        raise ConfigError(f"{where} must have the name of a model, got {settings}")
    checked = complete(where, MODELS, Component.model_validate(settings), _GIVEN)
    return MODELS[settings["name"]](n_queries, n_items, **checked)
