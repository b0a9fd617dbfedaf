"""Finding and checking the columns of a table."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import polars as pl
import pytest

from topshelf.data import Interactions
from topshelf.data.columns import whole_numbers
from topshelf.data.names import Columns, resolve
from topshelf.errors import DataError


@pytest.mark.parametrize(
    ("user", "item", "rating", "time"),
    [
        ("user_id", "item_id", "rating", "timestamp"),
        ("userId", "movieId", "rating", "timestamp"),
        ("user_id:token", "item_id:token", "rating:float", "timestamp:float"),
        ("reviewerID", "asin", "overall", "unixReviewTime"),
        ("User ID", "Product", "Stars", "Date"),
        ("UID", "location", "score", "datetime"),
        ("user_procid", "item_procid", "value", "ts"),
        ("user_id", "business_id", "weight", "time"),
    ],
)
def test_common_names_are_guessed(user, item, rating, time):
    found = resolve(["extra", time, item, rating, user], Columns(), "file")
    assert found == {"user": user, "item": item, "weight": rating, "timestamp": time}


def test_a_failed_guess_lists_the_columns_and_the_option():
    with pytest.raises(DataError, match=r"holds the users; the columns are 'who', 'item'.*--user-column.*user="):
        resolve(["who", "item"], Columns(), "file")


def test_named_columns_win_and_must_exist():
    assert resolve(["user", "who", "item"], Columns(user="who"), "file")["user"] == "who"
    with pytest.raises(DataError, match=r"no item column 'thing'; the columns are 'user', 'item'.*--item-column"):
        resolve(["user", "item"], Columns(item="thing"), "file")


def test_none_leaves_a_column_out():
    assert "weight" not in resolve(["user", "item", "rating"], Columns(weight="none"), "file")


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        ([3, 4], [3, 4]),
        ([0.5, 1.5], [0.5, 1.5]),
        ([date(1970, 1, 2), date(1970, 1, 3)], [86400, 172800]),
        ([datetime(1970, 1, 1, 1), datetime(1970, 1, 1, 2)], [3600, 7200]),
        (["1970-01-01 01:00:00", "1970-01-01 02:00:00"], [3600, 7200]),
        (["1970-01-02", "1970-01-03"], [86400, 172800]),
        (["1970-01-01T01:00:00Z", "1970-01-01T02:00:00Z"], [3600, 7200]),
        (
            [
                datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
                datetime(1970, 1, 1, 2, tzinfo=UTC),
            ],
            [0, 7200],
        ),
    ],
)
def test_times_become_seconds(times, seconds):
    data = Interactions.from_frame(pl.DataFrame({"user": [1, 2], "item": [1, 2], "time": times}))
    assert data.timestamp.tolist() == seconds


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        (
            "rating",
            ["good", "bad"],
            r"weight column 'rating' must hold numbers, got String.*--rating-column none",
        ),
        ("rating", [1.0, float("nan")], r"column 'rating' has 1 missing .* first in data row 2"),
        ("time", ["soon", "late"], r"column 'time' has 2 missing or unreadable .*--time-column none"),
        ("time", ["2020-01-01", "late"], r"column 'time' has 1 missing .* first in data row 2"),
        ("time", [[1], [2]], r"timestamp column 'time' must hold numbers, dates or times, got List"),
        (
            "user",
            [1.0, float("nan")],
            r"column 'user' has 1 missing .* first in data row 2 .*Remove these rows",
        ),
        ("user", ["a", None], r"column 'user' has 1 missing .* first in data row 2 .*Remove these rows"),
        ("user", ["a", ""], r"column 'user' has 1 missing .* first in data row 2 .*Remove these rows"),
        ("user", [1.0, 2.5], r"column 'user' must hold ids, whole and below 2\^63, got 2.5"),
        ("user", [1.0, float("inf")], r"column 'user' must hold ids, whole and below 2\^63, got inf"),
        ("item", [1.0, 2.0**63], r"column 'item' must hold ids, whole and below 2\^63, got 9.22"),
        ("user", [[1], [2]], r"user column 'user' must hold whole numbers or text, got List"),
        ("rating", [1.0, float("inf")], r"weight column 'rating' must hold finite .* got inf in data row 2.*none"),
        ("rating", [-1e39, 1.0], r"must hold finite numbers up to 3.4e\+38, got -1e\+39 in data row 1"),
        ("time", [1.0, float("-inf")], r"timestamp column 'time' must hold finite .* got -inf in data row 2.*none"),
        ("user", [b"a", b"\xff"], r"user column 'user' holds bytes that are not UTF-8 .*\\xff' in data row 2"),
    ],
)
def test_values_that_cannot_be_used_are_refused(column, values, message):
    frame = pl.DataFrame({"user": [1, 2], "item": [1, 2]}).with_columns(pl.Series(column, values))
    with pytest.raises(DataError, match=message):
        Interactions.from_frame(frame)


def test_whole_floats_are_integer_ids():
    data = Interactions.from_frame(pl.DataFrame({"user": [2.0, 1.0], "item": [1, 2]}))
    assert data.users.values.to_list() == [1, 2]


@pytest.mark.parametrize("dtype", [pl.UInt64, pl.Int128])
def test_ids_too_large_for_64_bits_become_text(dtype):
    frame = pl.DataFrame({"user": pl.Series([2**63 + 1, 7], dtype=dtype), "item": pl.Series([3, 4], dtype=dtype)})
    data = Interactions.from_frame(frame)
    assert data.users.values.to_list() == ["7", str(2**63 + 1)]
    assert data.items.values.to_list() == [3, 4]
    assert data.users.index([2**63 + 1, 7]).tolist() == [1, 0]


def test_times_in_a_zone_become_utc_seconds():
    local = pl.Series("time", [datetime(2020, 1, 1), datetime(2020, 7, 1)]).dt.replace_time_zone("Europe/Paris")
    data = Interactions.from_frame(pl.DataFrame({"user": [1, 2], "item": [1, 2], "time": local}))
    assert data.timestamp.tolist() == [1577833200, 1593554400]


def test_a_table_without_rows_is_refused():
    with pytest.raises(DataError, match="is empty"):
        Interactions.from_frame(pl.DataFrame({"user": [], "item": []}))


def test_text_ids_become_numbers_only_when_nothing_is_lost():
    assert whole_numbers(pl.Series(["1", "20"])).to_list() == [1, 20]
    assert whole_numbers(pl.Series(["007", "7"])).to_list() == ["007", "7"]
    assert whole_numbers(pl.Series(["7", "x"])).to_list() == ["7", "x"]


@pytest.mark.parametrize("word", ["NaN", "nan", "NULL", "null", "None", ""])
def test_words_for_nothing_are_missing_among_numbers_and_names_among_text(word):
    assert whole_numbers(pl.Series(["7", word, "8"])).to_list() == [7, None, 8]
    assert whole_numbers(pl.Series(["7", word, "x"])).to_list() == ["7", word, "x"]
    assert whole_numbers(pl.Series(["007", word])).to_list() == ["007", word]
