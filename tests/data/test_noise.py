"""False positives: as many as asked, never a positive, seeded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.strategies import interactions, modest, pairs_of
from topshelf.data import Interactions, add_false_positives, generate, split_interactions
from topshelf.errors import ConfigError


@modest
@given(interactions(), st.sampled_from([0, 1, 2, 5, 10, 30]), st.integers(0, 3))
def test_each_user_gains_its_share_of_negatives(data, tenths, seed):
    noisy = add_false_positives(data, tenths / 10, seed)
    wanted = [-(-tenths * n // 10) for n in data.counts.tolist()]  # ceil in whole numbers
    free = data.n_items - data.counts
    assert (noisy.counts - data.counts).tolist() == np.minimum(wanted, free).tolist()
    assert pairs_of(data) <= pairs_of(noisy)
    assert pairs_of(noisy) == pairs_of(add_false_positives(data, tenths / 10, seed))


def test_negatives_are_equally_likely():
    data = Interactions.from_csr(np.eye(1, 21).repeat(4000, axis=0))
    added = add_false_positives(data, 1.0).item_counts[1:]
    assert added.sum() == 4000
    assert abs(added - 200).max() < 5 * np.sqrt(200)


@modest
@given(interactions(), st.sampled_from([0, 1, 5, 10, 30]), st.integers(0, 3))
def test_excluded_interactions_are_never_drawn(data, tenths, seed):
    is_train = np.random.default_rng(seed).random(len(data)) < 0.6
    train, held_out = data.where(is_train), data.where(~is_train)
    noisy = add_false_positives(train, tenths / 10, seed, exclude=held_out)
    wanted = [-(-tenths * n // 10) for n in train.counts.tolist()]
    assert (noisy.counts - train.counts).tolist() == np.minimum(wanted, data.n_items - data.counts).tolist()
    assert pairs_of(train) <= pairs_of(noisy)
    assert not pairs_of(noisy) & pairs_of(held_out)


@pytest.mark.parametrize("ratio", [0.05, 0.1, 0.15, 0.2])
@pytest.mark.parametrize("kind", ["ratio", "last", "time"])
def test_the_parts_of_a_noisy_split_stay_disjoint(ratio, kind):
    data = generate(200, 60, timestamps=True)
    clean = split_interactions(data, name="table", split=kind).split
    noisy = split_interactions(data, name="table", split=kind, noise=ratio).split
    assert not pairs_of(noisy.train) & (pairs_of(noisy.valid) | pairs_of(noisy.test))
    added = noisy.train.counts - clean.train.counts
    assert added.tolist() == np.ceil(ratio * clean.train.counts - 1e-9).tolist()


def test_seeds_differ():
    data = generate(50, 40)
    assert pairs_of(add_false_positives(data, 0.2, 0)) != pairs_of(add_false_positives(data, 0.2, 1))


def test_a_negative_ratio_is_refused():
    with pytest.raises(ConfigError, match="ratio must be >= 0"):
        add_false_positives(generate(5, 5, blocks=1), -0.1)
