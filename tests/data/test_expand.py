"""Fractal expansions: larger data whose counts and common choices are those of the original."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from scipy import sparse
from scipy.sparse.linalg import svds

from topshelf.data import IdMap, Interactions, generate
from topshelf.data.expand import Expansion, balanced, expand
from topshelf.data.prepared import prepare_folder
from topshelf.errors import ConfigError

BASE = generate(150, 120, interactions_per_user=24, blocks=4, skew=1.0, seed=3)


def gini(counts: np.ndarray) -> float:
    """How uneven counts are: 0 if all are equal, near 1 if one has everything."""
    ordered = np.sort(counts.astype(np.float64))
    n = len(ordered)
    return float(2 * (np.arange(1, n + 1) * ordered).sum() / (n * ordered.sum()) - (n + 1) / n)


def share_of_most(counts: np.ndarray, share: float = 0.05) -> float:
    ordered = np.sort(counts)[::-1]
    return float(ordered[: max(1, int(share * len(counts)))].sum() / counts.sum())


def common_taste(users: np.ndarray, items: np.ndarray, shape: tuple[int, int]) -> float:
    """The second singular value of the matrix divided by the roots of its sums; what chance gives is far lower."""
    matrix = sparse.coo_array((np.ones(len(users)), (users, items)), shape=shape).tocsr()
    by_user, by_item = (np.maximum(matrix.sum(axis), 1) ** -0.5 for axis in (1, 0))
    scaled = sparse.diags_array(by_user) @ matrix @ sparse.diags_array(by_item)
    return float(np.sort(svds(scaled, k=2, return_singular_vectors=False, v0=np.ones(min(shape))))[0])


@pytest.fixture(scope="module")
def expanded() -> pl.DataFrame:
    return pl.concat(list(Expansion(BASE, 900, 600, 40_000, seed=1).parts()))


def test_counts_are_about_those_wanted(expanded):
    assert expanded.n_unique() == len(expanded)  # no pair twice
    assert abs(len(expanded) / 40_000 - 1) < 0.02
    assert expanded["user"].n_unique() == 900
    assert expanded["user"].max() == 899
    assert expanded["item"].max() < 600
    assert expanded["item"].n_unique() > 550


def test_popularity_and_activity_keep_their_shape(expanded):
    users = np.bincount(expanded["user"], minlength=900)
    items = np.bincount(expanded["item"], minlength=600)
    for own, real in ((users, BASE.counts), (items, BASE.item_counts)):
        assert abs(gini(own) - gini(real)) < 0.05
        assert abs(share_of_most(own) - share_of_most(real)) < 0.05
    assert gini(items) > 0.3  # far from even


def test_what_is_taken_together_stays_real(expanded):
    users, items = expanded["user"].to_numpy(), expanded["item"].to_numpy()
    real = common_taste(BASE.rows(), BASE.indices, (150, 120))
    own = common_taste(users, items, (900, 600))
    chance = common_taste(users, np.random.default_rng(0).permutation(items), (900, 600))
    assert own > chance + 0.5 * (real - chance)


def test_the_seed_decides_every_part():
    first, again, other = (Expansion(BASE, 400, 300, 9000, seed=seed) for seed in (5, 5, 6))
    assert first.part(0).equals(again.part(0))
    assert not first.part(0).equals(other.part(0))


def test_a_part_does_not_depend_on_those_before(monkeypatch):
    monkeypatch.setattr("topshelf.data.expand.ROWS", 2000)
    whole, alone = Expansion(BASE, 400, 300, 9000), Expansion(BASE, 400, 300, 9000)
    parts = list(whole.parts())
    assert len(parts) == 5
    assert alone.part(3).equals(parts[3])
    users = [set(part["user"].to_list()) for part in parts]
    assert sum(map(len, users)) == len(set().union(*users)) == 400


def test_users_without_interactions_and_tiny_data_expand():
    lone = Interactions.from_indices(np.array([2]), np.array([0]), IdMap.range(3), IdMap.range(1))
    made = pl.concat(list(Expansion(lone, 6, 5, 6).parts()))
    assert sorted(made["user"].to_list()) == list(range(6))


def test_sums_of_a_balanced_matrix_are_equal():
    matrix = balanced(np.random.default_rng(0).random((7, 4)) + 0.01)
    for axis in (0, 1):
        np.testing.assert_allclose(matrix.mean(axis), 1.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"users": 10}, "users must be at least 150"),
        ({"items": 10}, "items must be at least 120"),
        ({"interactions": 100}, "interactions must be at least one for each"),
        ({"interactions": 10**9}, "at most a quarter of all pairs"),
        ({"users": 0}, "users must be >= 1"),
    ],
)
def test_sizes_that_cannot_be_are_refused(wanted, message):
    with pytest.raises(ConfigError, match=message):
        Expansion(BASE, **{"users": 300, "items": 240, "interactions": 5000, **wanted})


def test_a_folder_of_parts_is_data(tmp_path):
    facts = expand("synthetic", tmp_path / "big", users=2000, items=1000, interactions=20_000, seed=2)
    assert pl.scan_parquet(tmp_path / "big" / "part-*.parquet").collect().height == facts["interactions"]
    summary = prepare_folder(tmp_path / "big", tmp_path / "prepared", mapped=True, core=2)
    assert summary["train"] > 10_000
