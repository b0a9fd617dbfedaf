"""Splits that grow and shrink: ids keep their places, nothing is counted twice, times stay in order."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topshelf.data import Dataset, Interactions, generate, make_split, prepare, split_interactions
from topshelf.data.drift import WEEK, drifting
from topshelf.data.growth import grown, without_users
from topshelf.errors import ConfigError, DataError, TopshelfWarning


def dataset(frame, **columns) -> Dataset:
    return Dataset("table", make_split(Interactions.from_frame(frame, **columns)))


def pairs_of(split, *names) -> set[tuple]:
    found = [split.parts[name].to_frame().select("user", "item").rows() for name in names]
    return {tuple(map(str, pair)) for rows in found for pair in rows}


BASE = pl.DataFrame({"user": [1, 1, 1, 2, 2, 2, 3, 3, 3], "item": [5, 6, 7, 5, 6, 8, 6, 7, 8]})
PAIRS = st.lists(st.tuples(st.integers(1, 6), st.integers(4, 11)), min_size=1, max_size=30)


@settings(max_examples=40, deadline=None)
@given(PAIRS)
def test_a_grown_split_holds_every_pair_once_and_old_ids_keep_their_places(new):
    old = dataset(BASE)
    known = set(BASE.rows())
    table = pl.DataFrame({"user": [pair[0] for pair in new], "item": [pair[1] for pair in new]})
    if set(new) <= known:
        with pytest.raises(DataError, match="all known"):
            grown(old, table)
        return
    growth = grown(old, table)
    split = growth.split.check()
    everything = {tuple(map(str, pair)) for pair in known | set(new)}
    assert pairs_of(split, *split.parts) == everything
    assert split.users.ids(range(3)) == [1, 2, 3]
    assert split.items.ids(range(4)) == [5, 6, 7, 8]
    measured = {(u, i) for u, i in set(new) - known if u <= 3 and i in (5, 6, 7, 8)}
    assert pairs_of(split, "test") == {tuple(map(str, pair)) for pair in measured}
    assert pairs_of(growth.held_out.check(), "test") == pairs_of(split, "test")
    assert growth.counts["interactions"] == len(set(new) - known)
    assert growth.counts["repeats"] == len(set(new) & known)
    assert growth.counts["users"] == len({pair[0] for pair in new} - {1, 2, 3})


def test_events_of_known_pairs_are_kept_and_all_are_in_the_order_of_time():
    frame = BASE.with_columns(pl.Series("timestamp", range(9)))
    table = pl.DataFrame({"user": [1, 1, 9], "item": [5, 8, 8], "timestamp": [100, 101, 102]})
    split = grown(dataset(frame), table).split
    events = split.events("all")
    assert len(events) == 12  # the pair (1, 5) happened twice
    row = split.users.index([1])[0]
    items = split.items.ids(events.indices[events.indptr[row] : events.indptr[row + 1]])
    assert items == [5, 6, 7, 5, 8]
    events.check(split.n_users, split.n_items, "events")


def test_new_rows_without_times_come_last_and_it_is_said():
    frame = BASE.with_columns(pl.Series("timestamp", [10.5 + at for at in range(9)]))
    with pytest.warns(TopshelfWarning, match="placed after all others"):
        split = grown(dataset(frame), pl.DataFrame({"user": [1], "item": [8]})).split
    events = split.events("all")
    assert split.items.ids(events.indices[events.indptr[0] : events.indptr[1]]) == [5, 6, 7, 8]
    assert events.timestamp.max() == 18.5


def test_numbers_stay_numbers_and_become_text_with_the_first_text():
    old = dataset(BASE)
    texts = grown(old, pl.DataFrame({"user": ["1", "44"], "item": ["8", "5"]})).split
    assert texts.users.ids(range(4)) == [1, 2, 3, 44]
    mixed = grown(old, pl.DataFrame({"user": ["1", "anna"], "item": ["8", "5"]})).split
    assert mixed.users.ids(range(4)) == ["1", "2", "3", "anna"]
    assert pairs_of(mixed, "test") == {("1", "8")}


def test_ids_that_look_like_known_ones_are_named():
    with pytest.warns(TopshelfWarning, match=r"new users may be known users .*'007' for '7'"):
        grown(
            dataset(BASE.with_columns(pl.col("user").cast(pl.String).replace("1", "7"))),
            pl.DataFrame({"user": ["007"], "item": [5]}),
        )


def rated(rows) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=["user", "item", "weight"], orient="row").with_columns(
        pl.col("weight").cast(float)
    )


def test_low_ratings_are_seen_and_a_higher_one_later_makes_a_positive():
    base = rated([(u, i, 5) for u, i in BASE.rows()] + [(1, 8, 1), (2, 7, 1)])
    kept, below = prepare(Interactions.from_frame(base), min_rating=3)
    old = split_interactions(kept, name="table", below=below)
    new = rated([(1, 8, 5), (3, 5, 2), (3, 6, 1), (9, 5, 1), (9, 99, 1)])
    growth = grown(old, new, min_rating=3)
    split = growth.split.check()
    assert pairs_of(split, "test") == {("1", "8")}
    assert pairs_of(split, "below") == {("2", "7"), ("3", "5")}  # (3, 6) was a positive; nobody knows user 9
    assert split.n_users == 3
    with pytest.raises(DataError, match="no rows rated 3 or higher among 1"):
        grown(old, rated([(1, 5, 2)]), min_rating=3)
    with pytest.raises(ConfigError, match="must have ratings"):
        grown(old, new.drop("weight"), min_rating=3)


@settings(max_examples=30, deadline=None)
@given(st.sets(st.integers(0, 11), min_size=1, max_size=11))
def test_without_users_nothing_of_them_is_left_and_others_stay_as_they_were(rows):
    split = make_split(generate(12, 20, timestamps=True))
    rest = without_users(split, np.array(sorted(rows))).check()
    stay = [row for row in range(12) if row not in rows]
    assert rest.users.ids(range(len(stay))) == split.users.ids(stay)
    for name in split.parts:
        before, after = split.lists(name), rest.lists(name)
        for place, row in enumerate(stay):
            assert before.slice(row, row + 1).indices.tolist() == after.slice(place, place + 1).indices.tolist()
    events, old = rest.events("all"), split.events("all")
    for place, row in enumerate(stay):
        one, other = old.indptr[row : row + 2], events.indptr[place : place + 2]
        assert old.indices[one[0] : one[1]].tolist() == events.indices[other[0] : other[1]].tolist()


def test_some_users_must_stay():
    with pytest.raises(DataError, match="Delete the run folder"):
        without_users(make_split(generate(4, 10)), np.arange(4))


def test_drifting_data_are_the_same_again_and_grow_and_change():
    frame = drifting(60, 40, weeks=8)
    assert frame.equals(drifting(60, 40, weeks=8))
    assert not frame.equals(drifting(60, 40, weeks=8, seed=1))
    assert frame["timestamp"].is_sorted()
    assert frame.select("user", "item").is_unique().all()
    week = (frame["timestamp"] - 1_700_000_000) // WEEK
    early, late = frame.filter(week < 4), frame.filter(week >= 4)
    assert set(late["item"]) - set(early["item"])
    assert set(late["user"]) - set(early["user"])
    with pytest.raises(ConfigError, match="drift must be <= 1"):
        drifting(5, 5, drift=2.0, blocks=2)


def test_measured_users_keep_their_ids_when_others_are_forgotten():
    split = make_split(generate(30, 20, interactions_per_user=8)).measure_some(10)
    gone = np.array([0, int(split.measured[3]), 29])
    left = without_users(split, gone).check()
    kept = [user for user in split.measured.tolist() if user not in gone.tolist()]
    assert left.users.ids(left.measured) == split.users.ids(kept)
