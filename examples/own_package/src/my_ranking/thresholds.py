"""A threshold estimator: exact thresholds, followed slowly."""

from __future__ import annotations

import torch
from torch import Tensor

from topshelf.ragged import Ragged
from topshelf.thresholds import exact_thresholds
from topshelf.training.thresholding import Estimator


class Smoothed(Estimator):
    """Moves each threshold a share ``rate`` of the way to the exact one, in every refresh."""

    def __init__(self, *, rate: float = 0.5) -> None:
        self.rate = rate

    def refresh(
        self,
        now: Tensor,
        queries: Tensor,
        items: Tensor,
        positives: Ragged,  # noqa: ARG002  exact thresholds need no lists
        k: int,
        generator: torch.Generator,  # noqa: ARG002  and no draws
    ) -> Tensor:
        return now + self.rate * (exact_thresholds(queries, items, k) - now)
