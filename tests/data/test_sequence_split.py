"""Sequences cut into train, validation and test."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from topshelf.data import Interactions
from topshelf.data.sequence_data import load_sequences
from topshelf.data.sequence_split import as_sets, split_sequences
from topshelf.errors import ConfigError, DataError


def interactions(rows: list[tuple], *, times: bool = True) -> Interactions:
    names = ["user", "item", "timestamp"] if times else ["user", "item"]
    return Interactions.from_frame(pl.DataFrame(rows, schema=names, orient="row"))


EVENTS = [(1, 10, 5), (1, 11, 1), (1, 10, 3), (1, 12, 9), (2, 11, 2), (2, 10, 4), (3, 12, 1), (3, 12, 2), (3, 11, 8)]


def in_ids(split, lists) -> list[list[int]]:
    return [split.items.ids(lists.slice(u, u + 1).indices.tolist()) for u in range(len(lists))]


def test_the_last_event_is_test_and_the_one_before_validation_with_repeats():
    split = split_sequences(interactions(EVENTS)).check()
    assert in_ids(split, split.sequences("train")) == [[11, 10], [11, 10], [12]]
    assert in_ids(split, split.sequences("valid")) == [[11, 10, 10], [11, 10], [12, 12]]
    assert in_ids(split, split.sequences("all")) == [[11, 10, 10, 12], [11, 10], [12, 12, 11]]
    valid, test = split.asked("valid"), split.asked("test")
    assert valid.rows.tolist() == test.rows.tolist() == [0, 2]
    assert split.items.ids(valid.item.tolist()) == [10, 12]  # both are repeats
    assert split.items.ids(test.item.tolist()) == [12, 11]
    assert in_ids(split, split.before(test)) == [[11, 10, 10], [12, 12]]
    assert in_ids(split, split.before(valid)) == [[11, 10], [12]]
    assert split.notes == {"short": 1, "one": 1, "none": 0, "new": 0}
    assert in_ids(split, split.sets("all")) == [[10, 11, 12], [10, 11], [11, 12]]


def test_one_moment_cuts_all_users():
    events = [(user, item, 10 * t + user) for user in range(4) for t, item in enumerate([1, 2, 3, 4, 5, 1, 2, 3, 4, 5])]
    data = interactions([*events, (9, 1, 95), (9, 2, 96), (0, 99, 98)])
    split = split_sequences(data, kind="time", test_fraction=0.2, valid_fraction=0.25).check()
    moments = data.events.timestamp
    rows, place = data.events.rows(), np.arange(len(data.events)) - data.events.indptr[:-1][data.events.rows()]
    train, valid = place < split.train_end[rows], place < split.valid_end[rows]
    assert moments[train].max() < moments[~train].min()
    assert moments[valid].max() < moments[~valid].min()
    assert 0.7 < valid.mean() < 0.9
    first, each = split.asked("test"), split.asked("test", "each")
    assert first.rows.tolist() == [0, 1, 2, 3]
    assert (first.place == split.valid_end[:4]).all()
    assert len(each.rows) > len(first.rows)
    assert split.items.index(pl.Series([99]))[0] not in each.item  # train does not know it
    assert split.notes["none"] == 1  # user 9 came after
    assert split.notes["new"] == 1


def test_without_the_test_part_its_events_are_not_there():
    split = split_sequences(interactions(EVENTS)).without_test().check()
    assert in_ids(split, split.sequences("all")) == [[11, 10, 10], [11, 10], [12, 12]]
    assert not len(split.asked("test").rows)


def test_events_in_the_order_of_the_file():
    rows = [(1, 3), (1, 2), (1, 1), (1, 3)]
    split = split_sequences(interactions(rows, times=False), is_ordered=True)
    assert in_ids(split, split.sequences("all")) == [[3, 2, 1, 3]]


@pytest.mark.parametrize(
    ("rows", "times", "settings", "message"),
    [
        ([(1, 3), (1, 2), (1, 1)], False, {}, "sequences need an order"),
        ([(1, 3, 1), (2, 2, 2)], True, {}, "no user has the 3 events"),
        ([(1, 3, 1), (1, 2, 2), (1, 1, 3)], True, {}, "no user with 2 events in train"),
        ([(1, 3), (1, 2), (1, 1)], False, {"is_ordered": True, "kind": "time"}, "needs times"),
        ([(1, 3, 1), (1, 2, 1), (1, 1, 1)], True, {"kind": "time"}, "three different moments"),
    ],
)
def test_what_cannot_be_cut_is_refused(rows, times, settings, message):
    with pytest.raises(DataError, match=message):
        split_sequences(interactions(rows, times=times), **settings)


def test_wrong_settings_are_refused():
    with pytest.raises(ConfigError, match="split must be one of last, time"):
        split_sequences(interactions(EVENTS), kind="ratio")
    with pytest.raises(ConfigError, match="test_fraction must be < 1"):
        split_sequences(interactions(EVENTS), kind="time", test_fraction=1.5)


@pytest.mark.parametrize("name", ["train_end", "valid_end", "left_out"])
def test_a_damaged_split_is_refused(name):
    from dataclasses import replace

    split = split_sequences(interactions(EVENTS))
    with pytest.raises(DataError):
        replace(split, **{name: getattr(split, name) + 2}).check()
    with pytest.raises(DataError, match=name):
        replace(split, **{name: getattr(split, name)[:-1]}).check()


def test_sets_have_each_item_once():
    split = split_sequences(interactions(EVENTS))
    sets = as_sets(split.sequences("all"), split.n_items).check(split.n_items, "sets", unique=True)
    assert sets.counts.tolist() == [3, 2, 2]


def test_lines_that_may_be_rows_are_refused_with_the_setting_that_decides(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{user} {user + 1} {user + 2} {user + 3}\n" for user in range(9)))
    with pytest.raises(DataError, match=r"cannot tell .* set data.format = 'lines'"):
        load_sequences(path)


def test_errors_of_a_csv_file_say_nothing_of_lines(tmp_path):
    (path := tmp_path / "clicks.csv").write_text("user,item,time\nanna,3,2024-01-01\nanna,4,yesterday\n")
    with pytest.raises(DataError, match=r"unreadable value.* in data row 2") as error:
        load_sequences(path)
    assert "data.format" not in str(error.value)
