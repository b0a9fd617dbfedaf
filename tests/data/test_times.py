"""Times in text: read right, or asked about."""

from __future__ import annotations

from datetime import UTC, datetime

import polars as pl
import pytest

from topshelf.data import Interactions, load_split, read, read_interactions
from topshelf.data.times import looks_like_time, may_hold_times, seconds_since_1970
from topshelf.errors import DataError


def seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def table(values: list) -> pl.DataFrame:
    return pl.DataFrame({"user": range(len(values)), "item": range(len(values)), "date": values}, strict=False)


def visits() -> pl.DataFrame:
    return pl.DataFrame({"user": [n % 6 for n in range(60)], "item": [n % 11 for n in range(60)]})


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
        (["20200131T101010Z", "20200131T101010+0200"], ["2020-01-31 10:10:10", "2020-01-31 08:10:10"]),
        (["20200131T1010", "20200131T101010.5"], ["2020-01-31 10:10", "2020-01-31 10:10:10"]),
        (["Wed Jan 01 10:00:00 2020", "01/Jan/2020:10:00:00 +0000"], ["2020-01-01 10:00", "2020-01-01 10:00"]),
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
        (["1/2/20", "1/3/20"], r"years of fewer than four digits, such as '1/2/20'.*--time-column none"),
        (["13/02/2020", "01/02/20"], r"years of fewer than four digits, such as '01/02/20'"),
        (["2020-01-02", "20-1-5"], r"such as '20-1-5'"),
        (["20-1-5"], r"such as '20-1-5'"),
        (["3 Jan 20"], r"such as '3 Jan 20'"),
        (["Jan 3, 20 10:00"], r"such as 'Jan 3, 20 10:00'"),
        (["03-JAN-20", "04-JAN-20"], r"such as '03-JAN-20'"),
        (["05 3, 14"], r"such as '05 3, 14'"),
        (["1/2/202"], r"such as '1/2/202'"),
        (["2020-01-02", "0001-01-01"], r"1 missing or unreadable value\(s\), first in data row 2"),
        ([datetime(2020, 1, 2), datetime(1, 1, 1)], r"1 missing or unreadable value\(s\), first in data row 2"),
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
        (["12/31/19 8:26", "1/2/20"], True),
        (["20200131T101010"], True),
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


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("purchased_at", ["01/02/20", "03/02/20"], r"years of fewer than four digits, such as '01/02/20'"),
        ("order_date", ["12/31/19 8:26", "1/1/20 9:30"], r"years of fewer than four digits, such as '12/31/19 8:26'"),
        (
            "order_date",
            ["n/a", "2020-01-02"],
            r"column 'order_date' has 30 missing or unreadable value",
        ),
    ],
)
def test_a_file_with_times_that_cannot_be_read_is_not_split_at_random(name, values, message, tmp_path):
    path = tmp_path / "shop.csv"
    visits().with_columns(pl.Series(name, values * 30)).write_csv(path)
    with pytest.raises(DataError, match=f"{message}.*--time-column none"):
        load_split(path)
    assert load_split(path, timestamp="none", core=1).split.kind == "ratio"


def test_a_file_with_compact_times_is_split_by_time(tmp_path):
    moments = [f"202001{1 + n // 2:02}T{10 + n % 2}1010" for n in range(60)]
    visits().with_columns(purchased_at=pl.Series(moments)).write_csv(tmp_path / "shop.csv")
    dataset = load_split(tmp_path / "shop.csv", core=1)
    assert dataset.split.kind == "time"
    assert dataset.notes == ()


@pytest.mark.parametrize(
    ("values", "claim"),
    [
        (["Shop A", "Market 24"], False),
        (["Shop A", "7 Days"], False),
        (["n/a", "20200131T101010"], True),
        (["n/a", "1/2/20"], True),
        (["unknown", "3 Jan 2020"], True),
        (["unknown", "Jan 3, 2020"], True),
        (["n/a", "17"], True),
        ([None, None], False),
    ],
)
def test_one_date_is_enough_in_a_column_with_the_name_of_a_time(values, claim):
    assert may_hold_times(pl.Series(values, dtype=pl.String)) is claim


def test_codes_are_no_times_whatever_they_look_like():
    assert not looks_like_time("order_id", pl.Series([1_600_000_000]))
    assert not looks_like_time("phone", pl.Series(["1600000000"]))
    assert looks_like_time("valid_at", pl.Series([17]))  # by its name


def test_a_number_is_a_time_in_the_unit_in_which_it_is_plausible():
    moment = 1_756_677_735
    for factor in (1, 10**3, 10**6, 10**9):
        assert seconds_since_1970(moment * factor) == moment
    assert seconds_since_1970(-500_000_000) == -500_000_000  # 1954
    assert seconds_since_1970(20200131) is seconds_since_1970(3) is seconds_since_1970(float("inf")) is None
