"""Times in text: read right, or asked about."""

from __future__ import annotations

from datetime import UTC, datetime

import polars as pl
import pytest

from topshelf.data import Interactions, read, read_interactions
from topshelf.data.times import looks_like_time
from topshelf.errors import DataError


def seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def table(values: list) -> pl.DataFrame:
    return pl.DataFrame({"user": range(len(values)), "item": range(len(values)), "date": values}, strict=False)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["12/01/2020", "13/02/2020"], ["2020-01-12", "2020-02-13"]),  # a day above 12 decides for all
        (["12/01/2020", "02/13/2020"], ["2020-12-01", "2020-02-13"]),
        (["12-01-2020", "13-02-2020"], ["2020-01-12", "2020-02-13"]),
        (["12.01.2020", "11.02.2020 08:30"], ["2020-01-12", "2020-02-11 08:30"]),  # dots: the day comes first
        (["12.31.2020", "1.2.2020"], ["2020-12-31", "2020-01-02"]),
        (["01/01/2020", "02/02/2020"], ["2020-01-01", "2020-02-02"]),  # either way the same
        (["12/1/2010 8:26", "12/13/2010 17:05"], ["2010-12-01 08:26", "2010-12-13 17:05"]),
        (["1/2/2020 1:05 PM", "1/13/2020 12:05 AM"], ["2020-01-02 13:05", "2020-01-13 00:05"]),
        (["31/12/2020, 10:00", "01/12/2020, 11:00"], ["2020-12-31 10:00", "2020-12-01 11:00"]),
        (["2020-01-01", "13/01/2020"], ["2020-01-01", "2020-01-13"]),
        (["2020-01-01", "2020-01-01 10:00"], ["2020-01-01", "2020-01-01 10:00"]),
        (["2020-01-01T10:00:00+02:00", "2020-01-01 10:00"], ["2020-01-01 08:00", "2020-01-01 10:00"]),
        (["2020-01-01T10:00:00Z", "2020-01-01 10:00:00 UTC"], ["2020-01-01 10:00", "2020-01-01 10:00"]),
        (["2020-01-01 10:00:00.25-0300", " 2020/01/02 "], ["2020-01-01 13:00", "2020-01-02"]),
        (["Jan 5, 2020", "November 12, 2020"], ["2020-01-05", "2020-11-12"]),
        (["05-Jan-2020 10:00:00", "6 March 2020"], ["2020-01-05 10:00", "2020-03-06"]),
        (
            ["Wed, 01 Jan 2020 10:00:00 +0200", "Thu, 02 Jan 2020 10:00:00 GMT"],
            ["2020-01-01 08:00", "2020-01-02 10:00"],
        ),
        (["05 3, 2014", "06 13, 2014"], ["2014-05-03", "2014-06-13"]),  # Amazon's reviewTime
    ],
)
def test_dates_are_read_in_the_order_that_they_show(values, expected):
    assert Interactions.from_frame(table(values)).timestamp.tolist() == [seconds(text) for text in expected]


@pytest.mark.parametrize("values", [["12/01/2020", "11/02/2020"], ["1-2-2020 10:00", "3-4-2020 11:00"]])
def test_an_order_that_nothing_shows_is_asked_for(values, tmp_path):
    with pytest.raises(DataError, match=r"column 'date' has dates such as '1.*day or the month.*--dates day-first"):
        Interactions.from_frame(table(values))
    path = tmp_path / "dates.csv"
    table(values).write_csv(path)
    day, month = (read(path, dates=order)["timestamp"].to_list() for order in ("day-first", "month-first"))
    assert day != month
    assert read_interactions(path, dates="month-first").timestamp.tolist() == month
    assert Interactions.from_frame(table(values), dates="day-first").timestamp.tolist() == day
    with pytest.raises(DataError, match=r"dates must be one of day-first, month-first, got 'year'"):
        read(path, dates="year")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            ["31/12/2020", "12/31/2020"],
            r"the day first and dates with the month first, such as '31/12/2020' and '12/31",
        ),
        (["1/2/20", "1/3/20"], r"years of two digits, such as '1/2/20'"),
        (["1600000000", "2020-01-01"], r"1 missing or unreadable value\(s\), first in data row 1"),
        (["2020-01-01", "2020-02-30"], r"1 missing or unreadable value\(s\), first in data row 2"),
        (["2020-01-01", "10:30"], r"first in data row 2"),
        ([1_600_000_000, 1_600_000_000_000], r"mixes seconds \(data row 1: 1600000000\) and milliseconds \(data row 2"),
        ([1.6e15, 1.6e9], r"mixes seconds \(data row 2: 1600000000.0\) and microseconds \(data row 1"),
        ([1.0, float("inf")], r"column 'date' must hold finite numbers .* got inf in data row 2.*--time-column none"),
        ([float("-inf"), 1.0], r"got -inf in data row 1"),
        ([float("nan"), float("nan")], r"column 'date' has 2 missing"),
    ],
)
def test_times_that_cannot_be_ordered_are_refused(values, message):
    with pytest.raises(DataError, match=message):
        Interactions.from_frame(table(values))


@pytest.mark.parametrize("values", [[1, 99_999_999_999_999_999], [1_600_000_000_000, 1_600_000_000_001], [3, 4]])
def test_numbers_of_one_unit_are_kept_as_they_are(values):
    assert Interactions.from_frame(table(values)).timestamp.tolist() == values


@pytest.mark.parametrize(
    ("values", "claim"),
    [
        (["2020-01-01", "2020-01-02"], True),
        (["1/2/2020", None], True),
        (["Jan 5, 2020"], True),
        ([1_600_000_000, 1_500_000_000], True),
        (["1600000000000"], True),
        ([1.6e9], True),
        ([20200131, 20191231], True),
        ([20200199], False),
        ([datetime(2020, 1, 1)], True),
        ([3, 4], False),
        (["red", "2020-01-01"], False),
        ([True, False], False),
        ([None], False),
    ],
)
def test_values_that_look_like_times_are_known(values, claim):
    assert looks_like_time("colour", pl.Series(values)) is claim


def test_codes_are_no_times_whatever_they_look_like():
    assert not looks_like_time("order_id", pl.Series([1_600_000_000]))
    assert not looks_like_time("phone", pl.Series(["1600000000"]))
    assert looks_like_time("valid_at", pl.Series([17]))  # by its name
