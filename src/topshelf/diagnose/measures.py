"""Thresholds, scores, weights, hits, the bound of theorem 3.2, and lambda weights, on a sample of users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from topshelf.diagnose.sample import Sample
from topshelf.drawing import draw_negatives, sampled_scores
from topshelf.losses import slatk_loss
from topshelf.losses.lambda_loss import lambda_weights
from topshelf.training.thresholding import drawn_thresholds

LOW, HIGH = 0.05, 0.95  # a weight outside is saturated: its slope is under a fifth of the steepest
SMALL_LAMBDA = 0.005  # the paper's "nearly vanishes"
# Labels of the estimators that draw.
ESTIMATES = {
    "sampled": "sampled (with the trick)",
    "iid": "iid (without it)",
    "weighted": "weighted (with it, counted)",
}
_DRAW_BLOCK = 16  # users that share a draw: fewer than in training, so that the mean error averages over draws
_DENSITY_SAMPLE = 20_000
PLOTTED = 4000  # values that a density is made of
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Estimate:
    """Thresholds by one estimator, against the exact ones of the same users."""

    name: str
    n: int | None  # items drawn; None if none are
    exact: np.ndarray  # (U,)
    estimate: np.ndarray  # (U,)
    weight_shift: float | None = None  # mean change of w by the error; None for a loss without weights

    @property
    def error(self) -> np.ndarray:
        return self.estimate - self.exact

    def to_json(self) -> dict[str, Any]:
        error = self.error
        return {
            "name": self.name,
            "n": self.n,
            "users": len(error),
            "error_mean": float(error.mean()),
            "error_std": float(error.std()),
            "error_mean_absolute": float(np.abs(error).mean()),
            "error_quantiles": quantiles(error),
            "weight_shift": self.weight_shift,
        }


@dataclass(frozen=True)
class Scores:
    """Scores of the sample's positives and of as many of their other items, with the exact thresholds."""

    positive: np.ndarray
    negative: np.ndarray
    threshold: np.ndarray

    def to_json(self) -> dict[str, Any]:
        return {
            name: {"mean": float(values.mean()), "std": float(values.std()), "quantiles": quantiles(values)}
            for name, values in vars(self).items()
        }


@dataclass(frozen=True)
class Weights:
    """The weights w of SL@K for the sample's positives, with exact thresholds."""

    tau_weight: float
    distance: np.ndarray  # (P,), s - beta
    values: np.ndarray  # (P,)

    @property
    def low(self) -> float:
        return float((self.values < LOW).mean())

    @property
    def high(self) -> float:
        return float((self.values > HIGH).mean())

    @property
    def range(self) -> float:
        """Between the 5th and the 95th percentile."""
        return float(np.subtract(*np.quantile(self.values, (0.95, 0.05))))

    def to_json(self) -> dict[str, Any]:
        return {
            "tau_weight": self.tau_weight,
            "share_below_0.05": self.low,
            "share_above_0.95": self.high,
            "range_5_to_95": self.range,
            "quantiles": quantiles(self.values),
            "distance_quantiles": quantiles(self.distance),
        }


@dataclass(frozen=True)
class Bound:
    """Theorem 3.2 after an epoch: shares of users by their hits, and the gap of the bound."""

    epoch: int
    no_hit: float
    one_hit: float
    more_hits: float
    holds: float | None  # share of users with a hit and -log DCG@K <= SL@K
    broken: int  # users with H > 1 that violate it: by the theorem, none
    gap: dict[str, float] | None  # SL@K + log DCG@K of users with H > 1


def thinned(values: np.ndarray, n: int) -> np.ndarray:
    """At most ``n`` of the values, in equal steps of their order."""
    return values if len(values) <= n else values[np.linspace(0, len(values) - 1, n).astype(int)]


def quantiles(values: np.ndarray) -> dict[str, float]:
    return {f"{q:.0%}": float(np.quantile(values, q)) for q in _QUANTILES}


@torch.no_grad()
def exact(queries: Tensor, items: Tensor, sample: Sample, k: int) -> Tensor:
    """The K-th best score per user of the sample, (U,)."""
    return torch.cat([scores.topk(k, dim=1).values[:, -1] for _, scores in sample.scored(queries, items)])


@torch.no_grad()
def estimates(
    queries: Tensor, items: Tensor, sample: Sample, k: int, n: int, generator: torch.Generator
) -> list[Estimate]:
    """Monte Carlo thresholds of ``n`` drawn items, by every estimator that draws."""
    truth, mine, result = exact(queries, items, sample, k).cpu().numpy(), queries[sample.rows], []
    for name, label in ESTIMATES.items():
        drawn = drawn_thresholds(name, mine, items, sample.positives, k, n, generator, block=_DRAW_BLOCK)
        result.append(Estimate(label, n, truth, drawn.cpu().numpy()))
    return result


@torch.no_grad()
def scores(queries: Tensor, items: Tensor, sample: Sample, k: int, generator: torch.Generator) -> Scores:
    """Scores for density plots; at most some thousands of each kind."""
    positive = _positive(queries, items, sample)
    each = max(1, min(200, _DENSITY_SAMPLE // sample.rows.numel()))
    drawn = draw_negatives(sample.positives, each, sample.n_items, generator)
    negative = sampled_scores(queries[sample.rows], items, drawn).flatten()
    kept = torch.randperm(positive.numel(), generator=generator)[:_DENSITY_SAMPLE].to(positive.device)
    return Scores(positive[kept].cpu().numpy(), negative.cpu().numpy(), exact(queries, items, sample, k).cpu().numpy())


@torch.no_grad()
def distances(queries: Tensor, items: Tensor, sample: Sample, threshold: np.ndarray) -> np.ndarray:
    """s - beta of the sample's positives, (P,)."""
    positive = _positive(queries, items, sample)
    return (positive - torch.from_numpy(threshold).to(positive)[sample.owner]).cpu().numpy()


def _positive(queries: Tensor, items: Tensor, sample: Sample) -> Tensor:
    return (queries[sample.rows][sample.owner] * items[sample.positives.indices]).sum(1)


def weights_of(distance: np.ndarray, tau_weight: float) -> np.ndarray:
    """The sigmoid weight of SL@K at a distance s - beta."""
    return torch.sigmoid(torch.from_numpy(distance) / tau_weight).numpy()


def weight_shift(estimate: Estimate, distance_of: Callable[[np.ndarray], np.ndarray], tau_weight: float) -> float:
    """Mean change of the weights of positives by the estimator's error."""
    right, wrong = (weights_of(distance_of(values), tau_weight) for values in (estimate.exact, estimate.estimate))
    return float(np.abs(right - wrong).mean())


@torch.no_grad()
def bound(
    queries: Tensor, items: Tensor, sample: Sample, k: int, *, tau: float, tau_weight: float, epoch: int
) -> Bound:
    """Hits among training positives, and the gap of -log DCG@K <= SL@K with the sum over the whole catalogue."""
    parts = [
        _hits_and_losses(row_scores, positives.owner(), positives.indices, k, tau, tau_weight)
        for positives, row_scores in sample.scored(queries, items)
    ]
    hits, dcg, loss = (torch.cat(part) for part in zip(*parts, strict=True))
    gap = loss + torch.log(dcg)  # -inf without a hit
    many, any_hit = hits > 1, hits > 0
    # Both sides are sums of some dozens of float32 logarithms.
    slack = 1e-4 * (1 + loss.abs())
    holds = gap >= -slack
    n = hits.numel()
    return Bound(
        epoch=epoch,
        no_hit=float((hits == 0).sum()) / n,
        one_hit=float((hits == 1).sum()) / n,
        more_hits=float(many.sum()) / n,
        holds=float(holds[any_hit].float().mean()) if bool(any_hit.any()) else None,
        broken=int((many & ~holds).sum()),
        gap={**quantiles(gap[many].cpu().numpy()), "mean": float(gap[many].mean())} if bool(many.any()) else None,
    )


def _hits_and_losses(
    table: Tensor, owner: Tensor, item: Tensor, k: int, tau: float, tau_weight: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Hits, DCG@K and SL@K per row of scores (B, I), with the positives (owner, item)."""
    best = table.topk(min(k + 1, table.size(1)), dim=1).values  # one more, to detect ties at the end of the list
    positive = table[owner, item]
    rank = (best[owner] >= positive.unsqueeze(1)).sum(1)  # right up to K, else more than K
    is_hit = (rank <= k).to(table.dtype)
    losses = slatk_loss(
        positive,
        owner=owner,
        threshold=best[:, min(k, table.size(1)) - 1],
        tau=tau,
        tau_weight=tau_weight,
        log_partition=(table / tau).logsumexp(1),
    )
    gains = is_hit / torch.log2(rank + 1.0)
    return tuple(table.new_zeros(table.size(0)).index_add(0, owner, x) for x in (is_hit, gains, losses))  # type: ignore[return-value]


def lambda_table(first: np.ndarray, second: np.ndarray, k: int) -> np.ndarray:
    """The weights of LambdaLoss@K for pairs of places, which broadcast; NaN where both are the same place."""
    weights = lambda_weights(torch.from_numpy(first).double(), torch.from_numpy(second).double(), k=k).numpy()
    return np.where(first == second, np.nan, weights)


def small_lambda_share(n_items: int, k: int) -> float:
    """Share of all pairs of different places with a lambda weight below 0.005."""
    if n_items < 2:
        return 0.0
    large = 0
    for apart in range(1, n_items):
        last = np.arange(apart + 1, n_items + 1)
        count = int((lambda_table(last, last - apart, k) >= SMALL_LAMBDA).sum())
        if not count:
            break  # weights decrease with the distance
        large += 2 * count
    return 1 - large / (n_items * (n_items - 1))
