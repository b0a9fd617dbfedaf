"""Features of documents brought to a common scale, by statistics of the training data that the model keeps."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from topshelf.errors import one_of

Transform = Literal["none", "standardise", "log1p", "quantile"]
TRANSFORMS = ("none", "standardise", "log1p", "quantile")
N_QUANTILES = 129
_MOST_ROWS = 1 << 18  # rows that quantiles are taken of, spread evenly over the data
_BLOCK = 1 << 15
_SPREAD = 12**0.5  # one over the standard deviation of a uniform variable


class FeatureTransform(nn.Module):
    """Features (D, f) on a common scale. Its statistics are buffers, so they are saved with the model.

    none         as they are
    standardise  minus the mean, over the standard deviation
    log1p        sign(x) log(1 + |x|), then standardised: for counts and other long tails
    quantile     the share of training documents below the value, as a uniform variable of mean 0 and deviation 1
    """

    center: Tensor  # (f,)
    scale: Tensor  # (f,)
    levels: Tensor  # (f, N_QUANTILES)

    def __init__(self, n_features: int, kind: Transform = "log1p") -> None:
        super().__init__()
        self.kind: Transform = one_of("transform", kind, TRANSFORMS)
        if kind in ("standardise", "log1p"):
            self.register_buffer("center", torch.zeros(n_features))
            self.register_buffer("scale", torch.ones(n_features))
        if kind == "quantile":
            self.register_buffer("levels", torch.zeros(n_features, N_QUANTILES))

    @torch.no_grad()
    def fit(self, features: Tensor) -> None:
        """Take the statistics of the training documents, (D, f)."""
        if self.kind == "quantile":
            step = -(-features.size(0) // _MOST_ROWS)
            rows = features[::step].cpu().numpy()
            shares = np.linspace(0, 1, N_QUANTILES)
            levels = np.stack([np.quantile(column, shares) for column in rows.T.astype(np.float64)])
            self.levels.copy_(torch.from_numpy(levels.astype(np.float32)))
        elif self.kind != "none":
            self._fit_moments(features)

    def _fit_moments(self, features: Tensor) -> None:
        # In blocks and float64: a second copy of all documents may not fit, and a float32 sum of millions is inexact.
        n, width = features.shape
        total = torch.zeros(width, dtype=torch.float64, device=features.device)
        for block in features.split(_BLOCK):
            total += self._shaped(block).double().sum(0)
        mean, square = total / n, torch.zeros_like(total)
        for block in features.split(_BLOCK):
            square += (self._shaped(block).double() - mean).square().sum(0)
        deviation = (square / n).sqrt()
        # A feature that is constant in training says nothing; what it is elsewhere stays within bounds.
        is_constant = deviation <= 1e-7 * mean.abs().clamp(min=1e-30)
        self.center.copy_(mean)
        self.scale.copy_(torch.where(is_constant, torch.ones_like(deviation), deviation))

    def _shaped(self, features: Tensor) -> Tensor:
        return features.sign() * features.abs().log1p() if self.kind == "log1p" else features

    def forward(self, features: Tensor) -> Tensor:
        if self.kind == "none":
            return features
        if self.kind == "quantile":
            return self._share_below(features)
        return (self._shaped(features) - self.center) / self.scale

    def _share_below(self, features: Tensor) -> Tensor:
        """Between two levels by interpolation; of equal levels the middle."""
        columns, levels = features.T.contiguous(), self.levels
        low = torch.searchsorted(levels, columns, right=False).clamp(1, N_QUANTILES - 1)
        high = torch.searchsorted(levels, columns, right=True).clamp(1, N_QUANTILES - 1)
        first, last = levels[:, :1], levels[:, -1:]
        shares = self._between(columns, low).masked_fill(columns <= first, 0.0)
        shares = (shares + self._between(columns, high).masked_fill(columns >= last, 1.0)) / 2
        return (shares.masked_fill(columns < first, 0.0).masked_fill(columns > last, 1.0).T - 0.5) * _SPREAD

    def _between(self, columns: Tensor, place: Tensor) -> Tensor:
        below, above = self.levels.gather(1, place - 1), self.levels.gather(1, place)
        width = above - below
        part = ((columns - below) / torch.where(width > 0, width, torch.ones_like(width))).clamp(0, 1)
        return (place - 1 + part) / (N_QUANTILES - 1)
