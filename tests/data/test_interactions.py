"""Interactions and id maps."""

from __future__ import annotations

import uuid
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from data.strategies import interactions, modest, pairs_of
from topshelf.data import IdMap, Interactions, concatenate
from topshelf.errors import DataError

UUIDS = [uuid.UUID(int=value) for value in (7, 3, 11)]


@pytest.mark.parametrize("ids", [[30, 4, 100], ["b", "a", "10"], UUIDS], ids=["integers", "text", "uuids"])
def test_ids_come_back_as_they_went_in(ids):
    data = Interactions.from_frame(pl.DataFrame({"user": ids, "item": ids[::-1]}))
    stored = [str(value) if isinstance(value, uuid.UUID) else value for value in ids]
    assert data.users.values.to_list() == sorted(stored)
    assert data.users.ids(data.users.index(ids)) == stored
    assert set(data.to_frame().iter_rows()) == set(zip(stored, stored[::-1], strict=True))
    assert all(data.users.get(value) == data.users.index([value])[0] for value in ids)


def test_integers_sort_by_value_and_text_by_character():
    assert IdMap.sorted_from(pl.Series([10, 9, 100])).values.to_list() == [9, 10, 100]
    assert IdMap.sorted_from(pl.Series(["10", "9", "100"])).values.to_list() == ["10", "100", "9"]


def test_unknown_ids_are_named():
    ids = IdMap(pl.Series([1, 2, 3]))
    with pytest.raises(DataError, match=r"2 of 3 ids are unknown, such as 9, 'x'"):
        ids.index([1, 9, "x"])
    assert ids.get(9) is None
    assert ids.get("x") is None
    assert ids.get("2") == 1


@pytest.mark.parametrize("id", ["1_0", "010", "+10", " 10", "10 ", "１０", "1e1", b"1_0"])
def test_text_is_an_integer_id_only_as_it_is_written(id):
    ids = IdMap(pl.Series([1, 10]))
    assert ids.get(id) is None
    with pytest.raises(DataError, match="1 of 1 ids are unknown"):
        ids.index([id])
    if isinstance(id, str):
        with pytest.raises(DataError, match="1 of 2 ids are unknown, such as"):
            ids.index(pl.Series(["1", id]))
    assert ids.index(pl.Series(["10", "1"])).tolist() == [1, 0]
    assert ids.get("10") == ids.get(b"10") == ids.get(np.int64(10)) == 1


@pytest.mark.parametrize(
    "id", [4.9, np.float32(4.5), float("nan"), float("inf"), "4.9", "4_0", 2**63, uuid.UUID(int=4), None]
)
def test_what_is_no_whole_number_is_an_unknown_id(id):
    ids = IdMap(pl.Series([3, 4, 40]))
    assert ids.get(id) is None
    with pytest.raises(DataError, match="1 of 2 ids are unknown, such as"):
        ids.index([3, id])


def test_arrays_with_unknown_ids_are_refused():
    for wanted in (np.array([4.9, 4.0]), np.array([2**63, 4], dtype=np.uint64), pl.Series([4.9, 4.0])):
        with pytest.raises(DataError, match="1 of 2 ids are unknown"):
            IdMap(pl.Series([3, 4])).index(wanted)


def test_numpy_and_single_ids_are_found():
    numbers, names = IdMap(pl.Series([3, 4])), IdMap(pl.Series(["3", "14"]))
    assert numbers.index([np.int64(4), np.uint8(3), 4.0, np.float32(3)]).tolist() == [1, 0, 1, 0]
    assert numbers.index(np.array([4.0, 3.0])).tolist() == [1, 0]
    assert numbers.index(id for id in (4, "3")).tolist() == [1, 0]
    assert [numbers.index(id).tolist() for id in (np.int64(4), 4, "4")] == [[1], [1], [1]]
    assert names.index("14").tolist() == names.index(np.int64(14)).tolist() == [1]
    assert numbers.get(np.int64(4)) == names.get(np.int64(14)) == 1


def test_repeated_ids_are_refused():
    with pytest.raises(DataError, match="unique"):
        IdMap(pl.Series([1, 1]))


def test_the_first_of_repeated_pairs_is_kept():
    frame = pl.DataFrame({"user": [1, 0, 1], "item": [5, 5, 5], "rating": [2.0, 1.0, 4.0], "time": [9, 8, 7]})
    data = Interactions.from_frame(frame)
    assert data.to_frame().rows() == [(0, 5, 1.0, 8), (1, 5, 2.0, 9)]


def test_counts_rows_and_ragged_agree():
    data = Interactions.from_indices(np.array([2, 0, 2]), np.array([1, 3, 0]), IdMap.range(3), IdMap.range(4))
    assert data.counts.tolist() == [1, 0, 2]
    assert data.item_counts.tolist() == [1, 1, 0, 1]
    assert data.rows().tolist() == [0, 2, 2]
    assert data.indices.tolist() == [3, 0, 1]
    assert data.ragged().owner().tolist() == [0, 2, 2]
    assert data.ragged().indices.tolist() == [3, 0, 1]


@modest
@given(interactions(with_time=True))
def test_a_part_and_its_rest_make_the_whole(data):
    mask = np.random.default_rng(0).random(len(data)) < 0.5
    whole = concatenate(data.where(mask), data.where(~mask))
    assert whole.to_frame().equals(data.to_frame())


@pytest.mark.parametrize("shape", [sparse.csr_matrix, sparse.coo_array, sparse.csc_array, np.asarray])
def test_matrices_of_every_kind_are_read(shape):
    dense = np.array([[0, 1, 0], [2, 0, 3]])
    data = Interactions.from_csr(shape(dense))
    assert pairs_of(data) == {(0, 1), (1, 0), (1, 2)}
    assert data.weight.tolist() == [1.0, 2.0, 3.0]
    assert (data.n_users, data.n_items) == (2, 3)


def test_a_matrix_of_ones_has_no_weights():
    assert Interactions.from_csr(np.eye(2)).weight is None


def test_empty_and_misshapen_matrices_are_refused():
    with pytest.raises(DataError, match="at least one interaction"):
        Interactions.from_csr(np.zeros((2, 2)))
    with pytest.raises(DataError, match="2 dimensions"):
        Interactions.from_csr(np.zeros(3))


def test_pandas_frames_equal_polars_frames():
    columns = {"userId": ["b", "a"], "movieId": [2, 1], "rating": [4.0, 5.0]}
    times = pd.to_datetime(["2020-01-02", "2020-01-01"])
    from_pandas = Interactions.from_frame(pd.DataFrame({**columns, "date": times}))
    from_polars = Interactions.from_frame(pl.LazyFrame({**columns, "date": times.to_list()}))
    assert from_pandas.to_frame().equals(from_polars.to_frame())
    assert from_pandas.timestamp.tolist() == [1577836800, 1577923200]


def test_pandas_columns_that_pandas_cannot_look_through_are_read_or_refused():
    frame = pd.DataFrame([["a", "x", "2020"], ["b", "y", "2021"]], dtype=object)
    frame.columns = pd.Index(["user", "item", ["no", "name"]], dtype=object)
    assert len(Interactions.from_frame(frame)) == 2
    with pytest.raises(DataError, match=r"column 'item' must not hold Decimal\('sNaN'\)"):
        Interactions.from_frame(pd.DataFrame({"user": [1, 2], "item": [Decimal("sNaN"), None]}))


def test_pandas_times_in_a_zone_and_in_seconds_are_read():
    moments = pd.to_datetime(["2020-01-01", "2020-07-01"])
    for times, seconds in (
        (moments.tz_localize("Europe/Paris"), [1577833200, 1593554400]),
        (moments.astype("datetime64[s]"), [1577836800, 1593561600]),
    ):
        data = Interactions.from_frame(pd.DataFrame({"user": [1, 2], "item": [1, 2], "date": times}))
        assert data.timestamp.tolist() == seconds


def test_pandas_ids_too_large_for_64_bits_become_text():
    for ids in (np.array([5, 2**64 - 1], dtype=np.uint64), pd.array([5, 2**64 - 1], dtype="UInt64")):
        data = Interactions.from_frame(pd.DataFrame({"user": ids, "item": [1, 2]}))
        assert data.users.values.to_list() == [str(2**64 - 1), "5"]


def test_pandas_columns_with_holes_are_refused_by_row():
    with pytest.raises(DataError, match=r"column 'user' has 1 missing .* data row 2"):
        Interactions.from_frame(pd.DataFrame({"user": [1, None], "item": [1, 2]}))
    with pytest.raises(DataError, match=r"column 'user' has 1 missing .* data row 1"):
        Interactions.from_frame(pd.DataFrame({"user": [None, "a"], "item": [1, 2]}))


def test_pandas_uuids_become_text():
    data = Interactions.from_frame(pd.DataFrame({"user": UUIDS, "item": [1, 2, 3]}))
    assert data.users.values.to_list() == sorted(map(str, UUIDS))


def test_something_else_than_a_frame_is_refused():
    with pytest.raises(DataError, match="Polars or pandas frame, got list"):
        Interactions.from_frame([1, 2])


def test_indices_outside_the_maps_are_refused():
    with pytest.raises(DataError, match=r"item index 4 is outside the 4 known items \(0 to 3\)"):
        Interactions.from_indices(np.array([0]), np.array([4]), IdMap.range(1), IdMap.range(4))


@pytest.mark.parametrize(
    ("rows", "cols", "extra", "message"),
    [
        ([0, -1], [0, 0], {}, "user index -1 is outside the 2 known users"),
        ([0, 2], [0, 0], {}, "user index 2 is outside"),
        ([0.7], [0], {}, "user indices must be whole numbers in one dimension, got float64"),
        ([[0]], [0], {}, "user indices must be whole numbers in one dimension, got int64 of shape"),
        ([0], [0, 1], {}, "rows and cols must be of the same length, got 1 and 2"),
        (np.array([2**63], dtype=np.uint64), [0], {}, "user index 9223372036854775808 is outside"),
        ([0, 1], [0, 1], {"weight": [1.0]}, "weight must have one value for each of the 2 interactions"),
        ([0, 1], [0, 1], {"weight": [1.0, np.nan]}, "weight must be finite, got nan in place 1"),
        ([0, 1], [0, 1], {"timestamp": [np.inf, 1.0]}, "timestamp must be finite, got inf in place 0"),
    ],
)
def test_indices_and_values_are_checked_where_they_enter(rows, cols, extra, message):
    with pytest.raises(DataError, match=message):
        Interactions.from_indices(rows, cols, IdMap.range(2), IdMap.range(4), **extra)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array, sparse.coo_array, sparse.csc_matrix, sparse.lil_array])
def test_nan_cells_are_unknown(kind):
    data = Interactions.from_csr(kind(np.array([[5, np.nan, 3], [np.nan, 4, np.nan]])))
    assert len(data) == 3
    assert pairs_of(data) == {(0, 0), (0, 2), (1, 1)}
    assert data.weight.tolist() == [5.0, 3.0, 4.0]
    assert data.notes.unknown_cells == 3


def test_masked_cells_are_unknown():
    assert pairs_of(Interactions.from_csr(np.ma.masked_equal([[5, 9], [9, 4]], 9))) == {(0, 0), (1, 1)}


def broken(name: str, place: int, value: int) -> sparse.csr_array:
    matrix = sparse.csr_array(np.eye(3))
    getattr(matrix, name)[place] = value
    return matrix


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.array([[5, np.inf], [0, 1]]), r"finite numbers .* got inf in row 0, column 1. Put NaN"),
        (sparse.csr_array(np.array([[5, 0], [-np.inf, 1]])), r"got -inf in row 1, column 0"),
        (np.array([[1e300]]), r"up to 3.4e\+38, got 1e\+300 in row 0, column 0"),
        (np.array([["a", "b"]]), "must hold real numbers, got <U1"),
        (np.array([[1j]]), "must hold real numbers, got complex128"),
        (np.array([[None, 1]]), "must hold real numbers, got object"),
        ([[1, 2], [3]], "matrix cannot be read"),
        (np.array([[np.nan, 0.0]]), "at least one interaction"),
        (broken("indices", 0, 77), "indices must be < 3"),
        (broken("indices", 0, -5), "indices must be >= 0"),
        (broken("indptr", 1, 99_999), "matrix cannot be read"),
        (sparse.coo_array(([1.0], ([0], [0])), shape=(2**45, 3)), "more ids than fit into memory"),
    ],
)
def test_matrices_that_cannot_be_used_are_refused(matrix, message):
    with pytest.raises(DataError, match=message):
        Interactions.from_csr(matrix)


def test_only_sets_over_the_same_ids_are_concatenated():
    one = Interactions.from_csr(np.eye(2))
    assert len(concatenate(one, Interactions.from_csr(np.eye(2)))) == 2
    with pytest.raises(DataError, match="only interactions over the same users can be concatenated"):
        concatenate(one, Interactions.from_csr(np.eye(3)))


@pytest.mark.parametrize("library", [pl.DataFrame, pd.DataFrame])
def test_bytes_are_text(library):
    data = Interactions.from_frame(library({"user": [b"a", "b\u00e9".encode()], "item": [1, 2]}))
    assert data.users.values.to_list() == ["a", "b\u00e9"]


def test_polars_objects_of_bytes_are_text():
    frame = pl.DataFrame({"user": pl.Series([b"a", "b"], dtype=pl.Object), "item": [1, 2]})
    assert Interactions.from_frame(frame).users.values.to_list() == ["a", "b"]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame([[1, 2, 3]], columns=["user", "user", "item"]), "the table has 2 columns named 'user'"),
        (pd.DataFrame([[1, 2, 3]], columns=["user", "item", "item"]), "the table has 2 columns named 'item'"),
        (
            pd.DataFrame({"user": pd.Series(["\ud800"], dtype=object), "item": [1]}),
            r"column 'user' .*UTF-8 .*'\\ud800'",
        ),
        (
            # An object index: with pyarrow installed, pandas would keep the names as Arrow text, and refuse this one.
            pd.DataFrame([[1, 1]], columns=pd.Index(["us\ud800er", "item"], dtype=object)),
            r"column names must hold text that UTF-8 can write",
        ),
        (pd.DataFrame({"user": [b"\xff"], "item": [1]}), r"column 'user' must hold text that UTF-8 can write"),
        (pd.DataFrame({"user": pd.array([1, None], dtype="Int64"), "item": [1, 2]}), "'user' has 1 missing"),
    ],
)
def test_pandas_frames_that_cannot_be_used_are_refused(frame, message):
    with pytest.raises(DataError, match=message):
        Interactions.from_frame(frame)


def test_pandas_columns_may_be_numbered():
    assert len(Interactions.from_frame(pd.DataFrame({0: [1, 2], 1: [3, 4]}), user="0", item="1")) == 2
    assert len(Interactions.from_frame(pd.DataFrame({"user": [1, 2], "": [3, 4], "item": [5, 6]}))) == 2


def test_integers_of_any_size_are_ids():
    data = Interactions.from_frame(pd.DataFrame({"user": pd.Series([2**200, 1], dtype=object), "item": [2, 2]}))
    assert data.users.values.to_list() == ["1", str(2**200)]


@modest
@given(interactions(), st.booleans())
def test_a_csr_matrix_comes_back_as_it_went_out(data, has_weights):
    weight = np.arange(2, len(data) + 2, dtype=np.float32) if has_weights else None
    data = replace(data, weight=weight)
    matrix = data.to_csr()
    again = Interactions.from_csr(matrix)
    assert matrix.shape == (data.n_users, data.n_items)
    assert matrix.has_sorted_indices
    assert again.to_frame().equals(data.to_frame())
    matrix.data[:] = 0  # of its own
    assert again.to_frame().equals(data.to_frame())
    assert weight is None or data.weight.all()
