"""How sure a mean over users is, and whether two models differ on the same users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from topshelf.errors import ConfigError, DataError, at_least

Array: TypeAlias = NDArray[np.float64]

MAX_DRAWS = 1 << 21  # random draws held at once: 16 MiB of weights


@dataclass(frozen=True)
class PairedResult:
    """Mean of ``a - b`` over the same ``n`` users, its bootstrap interval, and the two-sided p-value."""

    difference: float
    low: float
    high: float
    p_value: float
    n: int


def bootstrap_interval(
    values: ArrayLike, level: float = 0.95, n_resamples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean: users (n,) are drawn with replacement, n at a time."""
    column = _column("values", values)
    low, high = bootstrap_intervals(column[:, None], level, n_resamples, seed)
    return float(low[0]), float(high[0])


def bootstrap_intervals(
    values: Array, level: float = 0.95, n_resamples: int = 1000, seed: int = 0
) -> tuple[Array, Array]:
    """:func:`bootstrap_interval` of every column of (n, M), over the same resamples: low (M,) and high (M,).

    Cost: n * n_resamples draws for all columns together; memory O(MAX_DRAWS + n M).
    """
    if not 0 < level < 1:
        raise ConfigError(f"level must lie between 0 and 1, got {level!r}")
    at_least("n_resamples", n_resamples, 1)
    rng = np.random.default_rng(seed)
    n = values.shape[0]
    means = np.empty((n_resamples, values.shape[1]))
    step = max(1, MAX_DRAWS // n)
    for start in range(0, n_resamples, step):
        stop = min(start + step, n_resamples)
        # How often each user was drawn: one product then resamples all columns.
        draws = rng.integers(0, n, size=(stop - start, n)) + n * np.arange(stop - start)[:, None]
        weights = np.bincount(draws.ravel(), minlength=(stop - start) * n).reshape(-1, n)
        means[start:stop] = weights.astype(np.float64) @ values / n
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def mean_interval(values: ArrayLike, level: float = 0.95) -> tuple[float, float]:
    """Student's interval of the mean of a few values, such as one per seed; at least two are needed."""
    column = _column("values", values)
    if column.size < 2:
        raise DataError(f"an interval needs at least two values, got {column.size}")
    from scipy.stats import t  # slow to import

    half = float(t.ppf((1 + level) / 2, column.size - 1)) * float(column.std(ddof=1)) / column.size**0.5
    return float(column.mean()) - half, float(column.mean()) + half


def holm(p_values: ArrayLike) -> list[float]:
    """Holm's adjusted p-values, in the order given: they may be compared with one level for all tests together."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.maximum.accumulate(p[order] * (p.size - np.arange(p.size)))
    result = np.empty(p.size)
    result[order] = np.minimum(adjusted, 1.0)
    return result.tolist()


def paired_test(
    a: ArrayLike,
    b: ArrayLike,
    *,
    n_permutations: int = 10_000,
    level: float = 0.95,
    n_resamples: int = 1000,
    seed: int = 0,
) -> PairedResult:
    """Sign-flip permutation test of the mean difference between two models on the same users.

    Under the null hypothesis each user's difference is as likely to have the other sign. The two-sided
    p-value is (1 + number of flips at least as extreme) / (1 + n_permutations); identical inputs give 1.
    """
    first, second = _column("a", a), _column("b", b)
    if first.size != second.size:
        raise DataError(f"a and b must hold the same users, got {first.size} and {second.size} values")
    difference = first - second
    low, high = bootstrap_interval(difference, level, n_resamples, seed)
    p_value = _sign_flip_p(difference, at_least("n_permutations", n_permutations, 1), seed)
    return PairedResult(float(difference.mean()), low, high, p_value, difference.size)


def _sign_flip_p(difference: Array, n_permutations: int, seed: int) -> float:
    difference = difference[difference != 0]  # a flip of zero changes nothing
    n = difference.size
    if n == 0:
        return 1.0
    rng = np.random.default_rng(seed)
    total = difference.sum()
    # Flipped sums that are equal on paper differ in the last bits; those must count as extreme.
    extreme = abs(total) - 1e-12 * np.abs(difference).sum()
    n_extreme, step = 0, max(1, MAX_DRAWS // n)
    for start in range(0, n_permutations, step):
        n_rows = min(step, n_permutations - start)
        random_bytes = np.frombuffer(rng.bytes(n_rows * -(-n // 8)), dtype=np.uint8).reshape(n_rows, -1)
        keeps = np.unpackbits(random_bytes, axis=1, count=n)  # (n_rows, n): 1 keeps the sign, 0 flips it
        flipped = 2 * (keeps.astype(np.float64) @ difference) - total
        n_extreme += int((np.abs(flipped) >= extreme).sum())
    return (1 + n_extreme) / (1 + n_permutations)


def _column(name: str, values: ArrayLike) -> Array:
    column = np.asarray(values, dtype=np.float64)
    if column.ndim != 1 or column.size == 0:
        raise DataError(f"{name} must be a list of at least one value, got shape {column.shape}")
    if not np.isfinite(column).all():
        raise DataError(f"{name} must be finite, got {column[~np.isfinite(column)][0]}; leave such users out")
    return column
