"""Every row of a source is an event: in order, repeats and all, through reading, splitting and prepared folders."""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from data.strategies import event_rows, modest, table_of
from topshelf.data import Events, IdMap, Interactions, concatenate, generate, load_split, make_split, prepare
from topshelf.data.given import read_given, write_split
from topshelf.data.splits import PARTS, carve_validation, time_split
from topshelf.errors import DataError

ROWS = [(1, 5, 30, 2.0), (0, 5, 20, 1.0), (1, 5, 10, 4.0), (1, 7, 10, 3.0), (1, 5, 40, 5.0)]
COLUMNS = ("timestamp", "rating")


def events_of(data: Interactions) -> list[tuple]:
    return data.to_frame(events=True).rows()


def counted(*parts: Interactions) -> Counter:
    return Counter(row for part in parts for row in events_of(part))


def test_events_are_all_rows_by_user_and_time_and_pairs_the_first_row():
    data = Interactions.from_frame(table_of(ROWS, *COLUMNS))
    assert events_of(data) == [(0, 5, 1.0, 20), (1, 5, 4.0, 10), (1, 7, 3.0, 10), (1, 5, 2.0, 30), (1, 5, 5.0, 40)]
    assert data.to_frame().rows() == [(0, 5, 1.0, 20), (1, 5, 2.0, 30), (1, 7, 3.0, 10)]
    assert data.events.indptr.tolist() == [0, 1, 5]
    assert data.events.indices.dtype == np.int32
    assert data.notes.repeats == 2


def test_without_times_events_are_in_the_order_of_the_file(tmp_path):
    table_of(ROWS).write_csv(tmp_path / "clicks.csv")
    (tmp_path / "train.txt").write_text("1 7 5 7 6\n2 6 8\n")
    (tmp_path / "test.txt").write_text("1 8\n")
    data = load_split(tmp_path / "clicks.csv", test_fraction=0, valid_fraction=0).split.train
    assert events_of(data) == [(0, 5), (1, 5), (1, 5), (1, 7), (1, 5)]
    assert events_of(read_given(tmp_path).train) == [(1, 7), (1, 5), (1, 7), (1, 6), (2, 6), (2, 8)]


@pytest.mark.parametrize("times", [[3.5, 1.25, 2.0], [4 * 10**18, -(4 * 10**18), 0]])
def test_times_of_any_kind_are_an_order(times):
    data = Interactions.from_frame(pl.DataFrame({"user": [1, 1, 1], "item": [1, 2, 3], "time": times}))
    assert data.events.timestamp.tolist() == sorted(times)
    assert data.events.indices.tolist() == [1, 2, 0]


@modest
@given(event_rows(), st.randoms())
def test_a_shuffled_file_has_the_same_events_but_for_equal_times(rows, random):
    shuffled = list(rows)
    random.shuffle(shuffled)
    one, other = (Interactions.from_frame(table_of(some, *COLUMNS)).events for some in (rows, shuffled))
    assert one.timestamp.tolist() == other.timestamp.tolist()
    assert one.indptr.tolist() == other.indptr.tolist()
    moments = [sorted(zip(e.rows(), e.timestamp, e.indices, e.weight, strict=True)) for e in (one, other)]
    assert moments[0] == moments[1]
    expected = sorted(range(len(rows)), key=lambda place: (rows[place][0], rows[place][2], place))
    data = Interactions.from_frame(table_of(rows, *COLUMNS))
    assert events_of(data) == [(rows[p][0], rows[p][1], rows[p][3], rows[p][2]) for p in expected]


@modest
@given(event_rows(), st.sampled_from(["ratio", "last", "time"]), st.sampled_from([0.0, 0.3]))
def test_no_event_is_lost_or_doubled_by_a_split(rows, kind, valid_fraction):
    data = Interactions.from_frame(table_of(rows, *COLUMNS))
    try:
        split = make_split(data, kind=kind, valid_fraction=valid_fraction)
    except DataError:  # too little to split
        return
    assert counted(*split.parts.values()) == counted(data)
    together = concatenate(*split.parts.values())
    assert counted(together) == counted(data)
    assert together.to_frame().equals(data.to_frame())
    if kind == "ratio":
        for part in split.parts.values():
            assert {row[:2] for row in events_of(part)} == set(part.to_frame().select("user", "item").iter_rows())


@modest
@given(event_rows(), st.sampled_from([0.2, 0.5]))
def test_no_event_of_a_part_is_later_than_its_cut(rows, fraction):
    data = Interactions.from_frame(table_of(rows, *COLUMNS))
    assume(len(set(data.timestamp.tolist())) > 1)
    rest, test = time_split(data, test_fraction=fraction)
    cut = min(time for time in data.timestamp if time > rest.timestamp.max())
    assert rest.events.timestamp.max() < cut
    later = {row[:2] for row in events_of(test) if row[3] >= cut}
    pairs, dropped = set(rest.to_frame().select("user", "item").iter_rows()), data.without(rest, test)
    for user, item, _, time in events_of(data):  # each goes to the part of its pair, or of its moment if that is later
        if (user, item) in pairs and time >= cut:
            assert (user, item) in later
    assert counted(rest, test, dropped) == counted(data)
    if len(set(rest.timestamp.tolist())) > 1:
        train, valid = carve_validation(rest, fraction=fraction, kind="time")
        second = min(time for time in rest.timestamp if time > train.timestamp.max())
        assert train.events.timestamp.max() < second
        assert not len(valid.events) or valid.events.timestamp.max() < cut


def test_a_repeat_after_the_cut_belongs_to_its_moment():
    rows = [(0, 0, 1, 5.0), (0, 1, 2, 5.0), (0, 2, 3, 5.0), (1, 0, 1, 5.0), (1, 2, 3, 5.0), (0, 0, 9, 5.0)]
    rows += [(1, 1, 8, 5.0), (0, 1, 4, 5.0)]
    data = Interactions.from_frame(table_of(rows, "timestamp"))
    split = make_split(data, kind="time", test_fraction=0.15, valid_fraction=0.4)  # cuts at 8 and at 3
    assert events_of(split.train) == [(0, 0, 1), (0, 1, 2), (1, 0, 1)]
    assert set(events_of(split.left_out)) == {(0, 2, 3), (1, 2, 3)}  # item 2 is new in validation
    assert events_of(split.valid) == [(0, 1, 4)]  # of a pair in train
    assert events_of(split.test) == [(0, 0, 9), (1, 1, 8)]
    assert split.test.to_frame().rows() == [(1, 1, 8)]


@modest
@given(event_rows(), st.integers(0, 3))
def test_a_part_and_its_rest_make_the_whole_events_again(rows, seed):
    data = Interactions.from_frame(table_of(rows, *COLUMNS))
    mask = np.random.default_rng(seed).random(len(data)) < 0.5
    part, rest = data.where(mask), data.where(~mask)
    assert counted(part, rest) == counted(data)
    assert events_of(data.without(part)) == events_of(rest)
    whole = concatenate(part, rest).events
    assert whole.timestamp.tolist() == data.events.timestamp.tolist()
    assert len(data.none().events) == 0


def test_sets_without_events_give_none_but_empty_sets_do_not_matter():
    data = Interactions.from_frame(table_of(ROWS, *COLUMNS))
    bare = Interactions(data.indptr, data.indices, data.users, data.items)
    assert concatenate(data.none(), bare).events is None
    assert events_of(concatenate(data, bare.none())) == events_of(data)
    with pytest.raises(DataError, match="have no events"):
        bare.to_frame(events=True)


def test_what_has_no_order_has_no_events():
    assert Interactions.from_csr(np.eye(3)).events is None
    assert generate(20, 10).events is None
    assert len(generate(20, 10, timestamps=True).events) == len(generate(20, 10, timestamps=True))
    assert load_split("synthetic", noise=0.1).split.train.events is None


@modest
@given(event_rows(), st.sampled_from([None, 2.0]), st.integers(0, 2))
def test_cleaning_keeps_the_events_of_what_it_keeps(rows, floor, core):
    data = Interactions.from_frame(table_of(rows, *COLUMNS))
    try:
        kept, below = prepare(data, min_rating=floor, core=core)
    except DataError:
        return
    for part in (kept, below):
        pairs = set(part.to_frame().select("user", "item").iter_rows())
        assert counted(part) == Counter(row for row in events_of(data) if row[:2] in pairs)


@pytest.mark.parametrize("kind", ["time", "ratio"])
def test_a_prepared_folder_keeps_events(kind, tmp_path):
    generator = np.random.default_rng(0)
    rows = [(*map(int, generator.integers(12, size=2)), int(time), 3.0) for time in generator.permutation(400)]
    table_of(rows, *COLUMNS).write_csv(tmp_path / "clicks.csv")
    split = load_split(tmp_path / "clicks.csv", split=kind).split
    write_split(split, tmp_path / "out", {})
    again = load_split(tmp_path / "out").split
    assert len(split.train.events) > len(split.train)
    for name in PARTS:
        if len(split.parts[name]):
            assert events_of(again.parts[name]) == events_of(split.parts[name])
    (tmp_path / "out" / "train_events.parquet").unlink()  # as earlier versions wrote it
    assert load_split(tmp_path / "out").split.train.events is None


def test_the_events_of_test_are_not_opened_where_test_is_not_wanted(tmp_path):
    write_split(make_split(generate(60, 40, timestamps=True)), tmp_path / "out", {})
    (tmp_path / "out" / "test_events.parquet").write_bytes(b"not a table")
    assert len(load_split(tmp_path / "out", test=False).split.train.events)
    with pytest.raises(DataError, match=r"test_events\.parquet"):
        load_split(tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indices": np.array([0, 4, 1], np.int32)}, "names item 4 in list 0"),
        ({"indices": np.array([0.0, 1.0, 1.0])}, "one finite number per event in indices, got float64"),
        ({"indptr": np.array([0, 2, 4])}, "indptr must ascend"),
        ({"indptr": np.array([0, 3])}, "one list per query"),
        ({"timestamp": np.array([1, 2])}, r"per event in timestamp, got int64 of shape \(2,\)"),
        ({"timestamp": np.array([1, np.inf, 1])}, "one finite number per event in timestamp"),
        ({"timestamp": np.array([2, 1, 1])}, "in the order of their times"),
        ({"weight": np.array([1, 1, 1])}, "per event in weight, got int64"),
    ],
)
def test_events_from_files_are_checked(changes, message):
    good = {"indices": np.array([0, 1, 1], np.int32), "indptr": np.array([0, 2, 3]), "timestamp": np.array([1, 2, 1])}
    Events(**good).check(2, 2, "the events of train")
    with pytest.raises(DataError, match=f"the events of train.*{message}"):
        Events(**good | changes).check(2, 2, "the events of train")


def test_many_items_keep_64_bit_indices():
    events = Events.in_time(np.array([0, 1]), np.array([2**31]), None, None)
    assert events.indices.tolist() == [2**31]
    few = Interactions.from_indices(np.array([0]), np.array([1]), IdMap.range(1), IdMap.range(2))
    assert few.events.indices.dtype == np.int32


def test_no_event_of_train_happened_after_a_test_item_of_its_user():
    """User 1 took item 0 again after what is held out; user 2 has one item and keeps it."""
    frame = pl.DataFrame(
        {"user": [1, 1, 1, 1, 2, 3, 3, 3], "item": [0, 5, 0, 5, 0, 5, 0, 5], "timestamp": [1, 5, 9, 10, 3, 1, 2, 7]}
    )
    split = make_split(Interactions.from_frame(frame), kind="last", valid_fraction=0.0)
    train, test = split.train.events, split.test.events
    for user in range(split.n_users):
        held_out = split.test.where(split.test.rows() == user)
        if len(held_out):
            mine = train.rows() == user
            assert (train.timestamp[mine] <= held_out.timestamp.min()).all()
    assert len(train) + len(test) == len(frame)
