"""Cleaning: repeated pairs, rating floor, k-core."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.strategies import interactions, modest, pairs_of
from topshelf.data import Interactions, prepare
from topshelf.data.prepare import core_mask
from topshelf.errors import ConfigError, DataError

FRAME = pl.DataFrame({"user": ["a", "a", "b", "a"], "item": [1, 2, 1, 1], "weight": [2.0, 5.0, 3.0, 5.0]})
DATA = Interactions.from_frame(FRAME)


def slow_core(pairs: set[tuple[int, int]], core: int) -> set[tuple[int, int]]:
    """Remove one poor user or item at a time until there is none."""
    while True:
        names = [("user", user) for user, _ in pairs] + [("item", item) for _, item in pairs]
        poor = next((name for name in names if names.count(name) < core), None)
        if poor is None:
            return pairs
        pairs = {pair for pair in pairs if pair[0 if poor[0] == "user" else 1] != poor[1]}


@modest
@given(interactions(), st.integers(1, 4))
def test_the_core_equals_one_by_one_removal(data, core):
    mask = core_mask(data.rows(), data.indices, core)
    assert pairs_of(data.where(mask)) == slow_core(pairs_of(data), core)


@modest
@given(interactions(), st.integers(2, 3))
def test_the_core_of_a_core_is_itself(data, core):
    kept = data.where(core_mask(data.rows(), data.indices, core))
    assert core_mask(kept.rows(), kept.indices, core).all()
    assert not len(kept) or min(kept.counts[kept.counts > 0]) >= core


def test_the_first_of_repeated_pairs_decides_before_the_floor():
    assert prepare(DATA, min_rating=3)[0].to_frame().rows() == [("a", 2, 5.0), ("b", 1, 3.0)]


def test_the_core_is_applied_after_the_floor():
    frame = pl.DataFrame({"user": [1, 1, 2, 2], "item": [1, 2, 1, 2], "rating": [5, 5, 5, 1]})
    data = Interactions.from_frame(frame)
    assert len(prepare(data, core=2)[0]) == 4
    with pytest.raises(DataError, match=r"the 2-core is empty.*there were 3 interactions before"):
        prepare(data, core=2, min_rating=3)


def test_a_floor_above_all_ratings_says_so():
    with pytest.raises(DataError, match=r"no rating reaches min_rating 6; the highest is 5.0"):
        prepare(DATA, min_rating=6)


def test_a_floor_without_ratings_is_a_wrong_setting():
    with pytest.raises(ConfigError, match="min_rating must be left out"):
        prepare(Interactions.from_frame(FRAME.drop("weight")), min_rating=3)


def test_a_negative_core_is_a_wrong_setting():
    with pytest.raises(ConfigError, match="core must be >= 0, got -1"):
        prepare(DATA, core=-1)


def test_no_pairs_have_an_empty_core():
    assert not core_mask(np.array([0]), np.array([0]), 2).any()


def test_what_is_below_the_floor_comes_back_over_what_is_kept():
    rows = [("a", 1, 5.0), ("a", 2, 5.0), ("a", 3, 1.0), ("b", 1, 4.0), ("b", 2, 2.0), ("c", 1, 1.0)]
    data = Interactions.from_frame(pl.DataFrame(rows, schema=["user", "item", "rating"], orient="row"))
    kept, below = prepare(data, min_rating=3)
    assert kept.to_frame().rows() == [("a", 1, 5.0), ("a", 2, 5.0), ("b", 1, 4.0)]
    assert below.to_frame().rows() == [("b", 2, 2.0)]  # no positives of item 3 and user c
    assert below.users is kept.users
    assert below.items is kept.items
    assert not len(prepare(data, core=1)[1])


def test_a_floor_is_compared_as_ratings_are_kept():
    frame = pl.DataFrame({"user": [1, 2], "item": [1, 1], "rating": [0.7, 0.6]})
    assert len(prepare(Interactions.from_frame(frame), min_rating=0.7)[0]) == 1  # 0.7 is not a float32
