"""Generated data have the structure they promise."""

from __future__ import annotations

import numpy as np
import pytest

from topshelf.data import generate, synthetic
from topshelf.errors import ConfigError


def test_the_same_arguments_give_the_same_data():
    first, second = generate(200, 100, timestamps=True), generate(200, 100, timestamps=True)
    assert first.to_frame().equals(second.to_frame())
    assert not first.to_frame().equals(generate(200, 100, timestamps=True, seed=1).to_frame())


def test_rows_are_sorted_and_about_as_long_as_asked():
    data = generate(2000, 500, interactions_per_user=20)
    inside = np.diff(data.rows()) == 0
    assert (np.diff(data.indices)[inside] > 0).all()
    assert abs(data.counts.mean() - 20) < 1


def test_users_are_made_some_at_a_time(monkeypatch):
    monkeypatch.setattr(synthetic, "USERS_AT_ONCE", 7)  # the last part is shorter
    data = generate(50, 200, interactions_per_user=20, timestamps=True)
    assert len(data.indptr) == 51
    assert data.indptr[-1] == len(data.indices) == len(data.timestamp)
    inside = np.diff(data.rows()) == 0
    assert (np.diff(data.indices)[inside] > 0).all()
    assert data.counts.min() >= 1
    assert abs(data.counts.mean() - 20) < 4


def test_users_of_one_block_share_their_items():
    data = generate(400, 200, interactions_per_user=20, blocks=4, skew=0.0)
    dense = np.zeros((400, 200))
    dense[data.rows(), data.indices] = 1
    spectrum = np.linalg.svd(dense, compute_uv=False)
    # The mean and three contrasts between four blocks stand out; the rest is noise.
    assert spectrum[3] > 2 * spectrum[4]


def test_skew_makes_few_items_popular():
    def top_share(skew: float) -> float:
        counts = np.sort(generate(500, 200, interactions_per_user=4, skew=skew).item_counts)
        return counts[-20:].sum() / counts.sum()

    assert top_share(1.0) > 2 * top_share(0.0)


@pytest.mark.parametrize("n_items", [7, 11, 23])
def test_blocks_need_not_divide_the_items(n_items):
    data = generate(300, n_items, interactions_per_user=5, blocks=4)
    assert (data.item_counts > 0).all()


def test_wrong_settings_are_refused():
    with pytest.raises(ConfigError, match=r"blocks must be between 1 and n_items \(5\), got 10"):
        generate(5, 5)
    with pytest.raises(ConfigError, match="n_users must be >= 1"):
        generate(0, 50)
