"""Splits lose nothing but what they count, and the split by time does not leak."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from data.strategies import interactions, modest, pairs_of
from topshelf.data import IdMap, Interactions, Split, generate, make_split, splits, through_refit
from topshelf.data.splits import carve_validation, last_split, ratio_split, time_split
from topshelf.errors import ConfigError, DataError


def timed(rows, cols, times, n_users=3, n_items=6) -> Interactions:
    arrays = (np.array(values) for values in (rows, cols))
    return Interactions.from_indices(*arrays, IdMap.range(n_users), IdMap.range(n_items), timestamp=np.array(times))


def assert_parts(whole: Interactions, *parts: Interactions, dropped: int = 0) -> None:
    sets = [pairs_of(part) for part in parts]
    assert sum(map(len, sets)) == len(set().union(*sets)) == len(whole) - dropped
    assert set().union(*sets) <= pairs_of(whole)
    assert all(part.users is whole.users and part.items is whole.items for part in parts)


@modest
@given(interactions(), st.integers(0, 3), st.sampled_from([0.1, 0.2, 0.5]))
def test_ratio_split_follows_the_papers_recipe(data, seed, fraction):
    train, test = ratio_split(data, test_fraction=fraction, seed=seed)
    random.seed(seed)
    expected: set[tuple[int, int]] = set()
    for user in range(data.n_users):
        items = data.indices[data.indptr[user] : data.indptr[user + 1]].tolist()
        random.shuffle(items)
        expected |= {(user, item) for item in items[: max(1, int((1 - fraction) * len(items) + 1e-9))]}
    assert pairs_of(train) == expected
    known = {item for _, item in expected}
    assert pairs_of(test) == {pair for pair in pairs_of(data) - expected if pair[1] in known}


@pytest.mark.parametrize("n", [*range(1, 60), 100, 1000])
def test_the_train_share_is_the_floor_without_float_error(n):
    data = Interactions.from_csr(np.ones((2, n)))
    assert len(ratio_split(data)[0]) == 2 * max(1, n * 8 // 10)
    assert len(ratio_split(data, test_fraction=0.9)[0]) == 2 * max(1, n // 10)


@modest
@given(interactions(with_time=True), st.integers(1, 3))
def test_last_split_takes_each_users_latest(data, last_n):
    train, test = last_split(data, last_n=last_n)
    keys = sorted(zip(data.rows(), data.timestamp, data.indices, strict=True))
    expected = set()
    for user in range(data.n_users):
        events = [(user, item) for owner, _, item in keys if owner == user]
        expected |= set(events[-last_n:]) if len(events) > last_n else set()
    assert pairs_of(train) == pairs_of(data) - expected
    known = set(train.indices.tolist())
    assert pairs_of(test) == {pair for pair in expected if pair[1] in known}


@modest
@given(interactions(with_time=True), st.sampled_from([0.1, 0.2, 0.5, 0.9]))
def test_time_split_does_not_leak(data, fraction):
    assume(len(set(data.timestamp.tolist())) > 1)
    train, test = time_split(data, test_fraction=fraction)
    assert len(train) > 0
    assert not len(test) or train.timestamp.max() < test.timestamp.min()
    cut = min(time for time in data.timestamp if time > train.timestamp.max())
    late = {pair for pair, time in zip(sorted(pairs_of(data)), data.timestamp, strict=True) if time >= cut}
    users, items = set(train.rows().tolist()), set(train.indices.tolist())
    assert pairs_of(train) == pairs_of(data) - late
    assert pairs_of(test) == {(user, item) for user, item in late if user in users and item in items}


@modest
@given(interactions(with_time=True), st.sampled_from(["ratio", "last", "time"]), st.integers(0, 2))
def test_no_interaction_is_lost_or_doubled_but_the_counted(data, kind, seed):
    try:
        split = make_split(data, kind=kind, valid_fraction=0.3, seed=seed)
    except DataError:  # too little to split: refused, so nothing is lost
        return
    dropped = split.notes["dropped_test"] + split.notes["dropped_valid"]
    assert_parts(data, split.train, split.valid, split.test, dropped=dropped)
    if kind == "time" and len(split.valid):
        assert split.train.timestamp.max() < split.valid.timestamp.min()
        assert split.valid.timestamp.max() < split.test.timestamp.min()


def test_the_test_part_depends_on_the_split_seed_alone():
    data = generate(60, 40)
    first, other_seed, other_split = (
        make_split(data, seed=seed, split_seed=split_seed) for seed, split_seed in ((0, 0), (1, 0), (0, 1))
    )
    assert pairs_of(first.test) == pairs_of(other_seed.test) == pairs_of(ratio_split(data, seed=0)[1])
    assert pairs_of(first.valid) != pairs_of(other_seed.valid)
    assert pairs_of(first.test) != pairs_of(other_split.test) == pairs_of(ratio_split(data, seed=1)[1])


def test_equal_times_fall_on_the_same_side():
    train, test = time_split(timed([0, 0, 0, 1, 1], [0, 1, 2, 0, 1], [1, 1, 1, 2, 2]), test_fraction=0.5)
    assert train.timestamp.tolist() == [1, 1, 1]
    assert len(test) == 0  # user 1 is new


def test_one_moment_cannot_be_split_by_time():
    with pytest.raises(DataError, match="at least two different timestamps, got only 5"):
        time_split(timed([0, 1], [0, 1], [5, 5]))


def test_a_split_by_time_without_times_names_the_option():
    with pytest.raises(DataError, match="--time-column"):
        make_split(generate(20, 20), kind="time")


def test_auto_is_by_time_when_there_are_times():
    assert make_split(generate(50, 30)).kind == "ratio"
    assert make_split(generate(50, 30, timestamps=True)).kind == "time"


def test_a_split_without_test_interactions_is_refused():
    with pytest.raises(DataError, match="time split leaves no test interactions"):
        make_split(timed([0, 0, 1, 1], [0, 1, 2, 3], [1, 2, 8, 9]), kind="time", test_fraction=0.5)
    with pytest.raises(DataError, match="ratio split leaves no test interactions: no user has enough items"):
        make_split(timed([0, 1, 2], [0, 1, 2], [1, 2, 3]), kind="ratio")


@modest
@given(interactions(), st.sampled_from([0.1, 0.3, 0.5]), st.integers(0, 3))
def test_random_validation_takes_its_share_of_each_user(data, fraction, seed):
    train, valid = carve_validation(data, fraction=fraction, seed=seed)
    assert_parts(data, train, valid)
    expected = [max(int(fraction * n + 1e-9), 1) if n >= 2 else 0 for n in data.counts]
    assert valid.counts.tolist() == expected
    assert pairs_of(carve_validation(data, fraction=fraction, seed=seed)[1]) == pairs_of(valid)


def test_every_item_is_equally_likely_in_validation():
    data = Interactions.from_csr(np.ones((4000, 5)))
    counts = carve_validation(data, fraction=0.2)[1].item_counts
    assert counts.sum() == 4000
    assert abs(counts - 800).max() < 5 * np.sqrt(800)


def test_no_validation_is_possible():
    split = make_split(generate(30, 20), valid_fraction=0)
    assert len(split.valid) == 0
    assert split.valid.n_users == 30


def test_last_validation_comes_after_train():
    data = timed([0, 0, 0, 0], [0, 1, 2, 3], [4, 3, 2, 1])
    train, valid = carve_validation(data, kind="last", last_n=2)
    assert (train.indices.tolist(), valid.indices.tolist()) == ([2, 3], [0, 1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "weekly"}, "split must be one of auto, ratio, last, time, got 'weekly'"),
        ({"test_fraction": 1.0}, "test_fraction must be < 1, got 1.0"),
        ({"test_fraction": -0.1}, "test_fraction must be > 0"),
        ({"valid_fraction": -0.1}, "valid_fraction must be > 0"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        make_split(generate(30, 20), **settings)


def test_what_is_seen_grows_by_parts_and_is_made_once():
    data = generate(60, 40, interactions_per_user=5, timestamps=True)
    split = replace(make_split(data), below=Interactions.from_indices(*below_of(data), data.users, data.items))
    assert all(len(part) for part in split.parts.values())
    pairs = {name: pairs_of(part) for name, part in split.parts.items()}
    expected = {
        "train": pairs["train"],
        "valid": pairs["train"] | pairs["valid"],
        "all": pairs_of(data),
        "below": pairs_of(data) | pairs["below"],
    }
    for through, wanted in expected.items():
        seen = split.seen(through)
        assert set(zip(seen.owner().tolist(), seen.indices.tolist(), strict=True)) == wanted
        assert split.seen(through) is seen
        seen.check(40, through, n_lists=60, unique=True)
    assert split.lists("valid") is split.lists("valid")
    assert split.seen("train") is split.lists("train")
    assert [through_refit(refit) for refit in (False, True, "all")] == ["train", "valid", "all"]
    with pytest.raises(ConfigError, match="part must be one of train, valid, test, left_out, below, got 'all'"):
        split.lists("all")


def below_of(data: Interactions) -> tuple[np.ndarray, np.ndarray]:
    """For each user, an item that the user does not have."""
    items = [int(np.setdiff1d(np.arange(40), data.indices[slice(*data.indptr[u : u + 2])])[0]) for u in range(60)]
    return np.arange(60), np.array(items)


def test_parts_that_are_not_given_are_empty():
    data = Interactions.from_csr(np.eye(3))
    split = Split(data, data.none(), data.none(), "given")
    assert (len(split.left_out), len(split.below)) == (0, 0)
    assert split.seen("below") is split.lists("train")
    assert split.check() is split


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_parts_that_share_an_interaction_are_named(at_once, monkeypatch):
    monkeypatch.setattr(splits, "USERS_AT_ONCE", at_once)
    data = Interactions.from_csr(np.eye(3))
    shared = data.where(np.array([False, False, True]))
    with pytest.raises(DataError, match="train and left_out must not share an interaction, got item 2 of user 2 in"):
        Split(data, data.none(), data.none(), "given", left_out=shared).check()
