"""Text files that used to be misread in silence: decimal commas, headers with numbers, quotes, blanks."""

from __future__ import annotations

import polars as pl
import pytest

from topshelf.data import read
from topshelf.errors import DataError


@pytest.fixture
def rows(tmp_path):
    def of(content: str, name: str = "file.csv", **options):
        path = tmp_path / name
        path.write_bytes(content.encode())
        return read(path, **options).rows()

    return of


@pytest.mark.parametrize("mark", [";", "|", " ", "\t"])
@pytest.mark.parametrize("header", ["", "user{0}item{0}rating\n"])
def test_decimal_commas_are_read_as_decimals(mark, header, rows):
    content = header.format(mark) + f"1{mark}2{mark}3,5\n1{mark}4{mark}4,0\n"
    assert rows(content) == [(1, 2, 3.5), (1, 4, 4.0)]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("1;2;3,5\n1;4;4\n", [(1, 2, 3.5), (1, 4, 4.0)]),
        ("a;b;3,5\nc;d;4,5\n", [("a", "b", 3.5), ("c", "d", 4.5)]),
        ("1;2;3,5;1600000000\n1;4;4,5;1600000001\n", [(1, 2, 3.5, 1600000000), (1, 4, 4.5, 1600000001)]),
        ('"1";"2";"3,5"\n"1";"4";"4,5"\n', [(1, 2, 3.5), (1, 4, 4.5)]),
        ('user,item,rating\n1,2,"3,5"\n', [(1, 2, 3.5)]),
        ("1,5;7\n2,6;8\n", [(1, "5;7"), (2, "6;8")]),  # here the commas are between ids
        ("1,2,a b\n3,4,c d\n", None),
        ("user,item\n1,2;3\n", [(1, "2;3")]),
        ("user;item;rating\n1;2;1,234\n3;4;2,5\n", [(1, 2, 1.234), (3, 4, 2.5)]),
    ],
)
def test_commas_are_told_apart(content, expected, rows):
    if expected is None:
        with pytest.raises(DataError, match="column 'rating' has 2 missing or unreadable"):
            rows(content)
    else:
        assert rows(content) == expected


@pytest.mark.parametrize("values", [("1,234", "2,500"), ("3,5", "4.5")])
def test_commas_of_decimals_or_thousands_are_asked_about(values, rows):
    content = "user;item;rating\n" + "".join(f"{row};{row};{value}\n" for row, value in enumerate(values))
    with pytest.raises(DataError, match=r"column 'rating' has numbers such as '\d,\d+', .*decimals or thousands"):
        rows(content)


@pytest.mark.parametrize("body", ["1,2,3\n3,4,5\n", "a,b,3\nc,d,5\n"])
def test_a_header_may_hold_a_number(body, rows):
    assert rows("user,item,2023\n" + body) == [row[:2] for row in rows("1,2,3\n3,4,5\n" if body[0] == "1" else body)]


def test_a_word_above_numbers_is_a_header(rows):
    with pytest.raises(DataError, match="the columns are 'who', 'what', '2023'"):
        rows("who,what,2023\n17,5,3\n")
    assert rows("who,what,2023\n17,x,3\n", user="who", item="what") == [(17, "x")]
    assert rows("AH2L,0001501348,5.0\nAZ0I,X,4.0\n") == [("AH2L", "0001501348", 5.0), ("AZ0I", "X", 4.0)]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('"1"\t"2"\n"3"\t"4"\n', [(1, 2), (3, 4)]),
        ('"user"\t"item"\n"3"\t"4 ""x"""\n"3"\t"5"\n', [(3, '4 "x"'), (3, "5")]),
        ('user\titem\n1\t"Heroes"\n2\tLow\n', [(1, '"Heroes"'), (2, "Low")]),  # a title of somebody else's
        ('user\titem\n1\t"Weird Al" and "x"\n2\t"""q"""\n', [(1, '"Weird Al" and "x"'), (2, '"q"')]),
        ('user\titem\n1\t12" disc\n2\t"open\n', [(1, '12" disc'), (2, '"open')]),
        ('user\titem\n1\t""\n', None),
    ],
)
def test_quotes_between_tabs_go_if_a_program_put_them_there(content, expected, rows):
    if expected is None:
        with pytest.raises(DataError, match="column 'item' has 1 missing"):
            rows(content, "file.tsv")
    else:
        assert rows(content, "file.tsv") == expected


def test_quoted_names_between_tabs_can_be_named(rows):
    assert rows('"who"\t"what"\n"a"\t"b"\n', "file.tsv", user="who", item="what") == [("a", "b")]


def test_blanks_after_the_separator_are_no_part_of_the_ids(rows):
    assert rows("user, item, rating\n1, 2, 3\n3, x, 5\n") == [(1, "2", 3.0), (3, "x", 5.0)]


@pytest.mark.parametrize("times", [(1600000000, 1600000001), (1600000000000, 1600000000001)])
def test_without_a_header_a_third_column_of_times_is_the_time(times, rows):
    assert rows("".join(f"1,{item},{time}\n" for item, time in enumerate(times))) == [
        (1, 0, times[0]),
        (1, 1, times[1]),
    ]
    swapped = rows("".join(f"1,{item},{time},{item}\n" for item, time in enumerate(times)))
    assert swapped == [(1, 0, 0.0, times[0]), (1, 1, 1.0, times[1])]
    assert rows("1,2,2020-01-02\n3,4,2020-01-01\n")[0][2] == 1577923200


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("user,user,item\n1,2,3\n", "has 2 columns named 'user'"),
        ("user,item\r1,2\r3,4\r", "ends its lines with carriage returns alone"),
        ("user,item,rating\n1,2,inf\n", r"column 'rating' must hold finite numbers .* got inf in data row 1.*none"),
        ("user,item,rating\n1,2,3\n1,3,-1e400\n", r"got -inf in data row 2"),
        ("user,item,rating\n1,2,1e39\n", r"finite numbers up to 3.4e\+38, got 1e\+39 in data row 1"),
        ("user,item,time\n1,2,Infinity\n", r"column 'time' must hold finite numbers .* got inf in data row 1"),
    ],
)
def test_contents_that_cannot_be_used_say_why(content, message, rows):
    with pytest.raises(DataError, match=message):
        rows(content)


def test_other_encodings_are_named(tmp_path):
    (tmp_path / "excel.txt").write_bytes("user\titem\n1\t2\n".encode("utf-16"))
    with pytest.raises(
        DataError, match=r"excel.txt is not UTF-8 text but UTF-16.*iconv -f utf-16 -t utf-8 .*excel.txt >"
    ):
        read(tmp_path / "excel.txt")


def test_infinite_values_in_parquet_name_their_row(tmp_path):
    frame = pl.DataFrame({"user": [1, 2], "item": [1, 2], "rating": [1.0, float("inf")]})
    frame.write_parquet(tmp_path / "f.parquet")
    with pytest.raises(DataError, match=r"f.parquet: weight column 'rating' .* got inf in data row 2"):
        read(tmp_path / "f.parquet")


def test_a_separator_inside_quotes_does_not_make_the_blanks_of_dates_one(tmp_path):
    lines = ['\ufeff"Käufer ID";"Produkt";"Datum"', '"007";"A;1";"31.12.2025 10:00"', '"7";"B";"01.01.2026 11:00"', ""]
    (tmp_path / "orders.csv").write_bytes("\r\n".join(lines).encode())
    table = read(tmp_path / "orders.csv")
    assert table["user"].to_list() == ["007", "7"]
    assert table["item"].to_list() == ["A;1", "B"]
    assert table["timestamp"].to_list() == [1_767_175_200, 1_767_265_200]
