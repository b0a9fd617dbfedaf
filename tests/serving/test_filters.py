"""Filters: the grammar against a slow reference, what it refuses, and the tables that it reads."""

from __future__ import annotations

import operator

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topshelf.data import IdMap
from topshelf.errors import ConfigError, DataError, TopshelfError
from topshelf.serving.attributes import Attributes, Selections, read_attributes
from topshelf.serving.filters import parse

ROWS = [
    {"price": 5.0, "category": "a", "sold": True, "n": 1, "tags": ["x", "y"], "day": "2026-01-01"},
    {"price": None, "category": "b", "sold": False, "n": 2, "tags": [], "day": "2026-01-02"},
    {"price": 7.5, "category": None, "sold": None, "n": None, "tags": None, "day": None},
    {"price": -1.0, "category": "it's", "sold": True, "n": -3, "tags": ["it's"], "day": "2026-02-01"},
    {"price": 5.0, "category": "A", "sold": False, "n": 2**53 + 1, "tags": ["y"], "day": "2025-12-31"},
]
TABLE = pl.DataFrame(ROWS).with_columns(pl.col("day").str.to_date())
OF = {
    "price": st.sampled_from([5, -1, 7.5, 0, 1e3]),
    "n": st.sampled_from([1, 2, -3, 2**53 + 1, 2**53]),
    "category": st.sampled_from(["a", "b", "A", "it's", ""]),
    "day": st.sampled_from(["2026-01-01", "2026-01-02", "2026-01-31"]),
    "sold": st.booleans(),
}
SIGNS = {"=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def literal(value):
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if not isinstance(value, str) else "'" + value.replace("'", "''") + "'"


def negated(value):
    return None if value is None else not value


@st.composite
def conditions(draw, depth=0):
    """A text, and what it says of a row: true, false, or None where a value is missing."""
    kinds = ["compare", "in", "between", "null", "alone", "has"] + ["and", "or", "not", "()"] * (depth < 3)
    kind = draw(st.sampled_from(kinds))
    if kind in ("and", "or"):
        (one, says), (other, tells) = draw(conditions(depth + 1)), draw(conditions(depth + 1))

        def both(row, decisive=kind == "or"):
            values = says(row), tells(row)
            return decisive if decisive in values else None if None in values else not decisive

        return f"({one}) {kind.upper()} ({other})", both
    if kind in ("not", "()"):
        one, says = draw(conditions(depth + 1))
        return (f"not ({one})", lambda row: negated(says(row))) if kind == "not" else (f"({one})", says)
    return draw(comparisons(kind))


@st.composite
def comparisons(draw, kind):
    if kind == "alone":
        return "sold", lambda row: row["sold"]
    if kind == "has":
        value = draw(st.sampled_from(["x", "y", "it's"]))
        return f"tags has {literal(value)}", lambda row: None if row["tags"] is None else value in row["tags"]
    name = draw(st.sampled_from(list(OF) if kind != "between" else ["price", "n", "category", "day"]))
    if kind == "null":
        is_not = draw(st.booleans())
        return f"{name} is {'not ' * is_not}null", lambda row: (row[name] is None) != is_not
    values = [draw(OF[name]) for _ in range({"compare": 1, "between": 2}.get(kind, draw(st.integers(1, 3))))]
    texts, is_not = [literal(value) for value in values], draw(st.booleans())

    def says(test):
        def told(row):
            value = None if row[name] is None else bool(test(row[name]))
            return negated(value) if is_not and kind != "compare" else value

        return told

    word = f'"{name}"' + " not" * is_not if kind != "compare" else name
    if kind == "in":
        return f"{word} in ({', '.join(texts)})", says(lambda value: value in values)
    if kind == "between":
        return f"{word} between {texts[0]} and {texts[1]}", says(lambda value: values[0] <= value <= values[1])
    sign = draw(st.sampled_from(["=", "!="] if name == "sold" else list(SIGNS)))
    return f"{name} {sign}{texts[0]}", says(lambda value: SIGNS[sign](value, values[0]))


def selected(text, table=TABLE):
    return table.select(parse(text, table.schema).fill_null(False)).to_series().to_list()


@settings(max_examples=300, deadline=None)
@given(conditions())
def test_a_condition_selects_what_a_slow_reading_of_it_selects(condition):
    text, says = condition
    assert selected(text) == [says(row) is True for row in ROWS], text


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("price < 6 and n = 1 or sold", "(price < 6 and n = 1) or sold"),
        ("not sold and price = 5", "(not sold) and price = 5"),
        ("category = 'it''s'", "category in ('it''s')"),
        ("price == 5", "price <> 4 and price = 5.0"),
        ("PRICE = 1 OR TRUE".replace("PRICE", "price").replace(" OR TRUE", ""), "price = 1"),
    ],
)
def test_and_binds_more_than_or_and_signs_have_two_forms(text, same):
    assert selected(text) == selected(same)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "filter must have a column here, got its end"),
        ("price", "filter must have a comparison of column 'price'"),
        ("prize < 3", "'prize' is not a column of the attributes; there are price, category.*did you mean price"),
        ("price < 'x'", "must have a number for column 'price' here, got \"'x'\" at character 9"),
        ("price <", "must have a number for column 'price' here, got its end"),
        ("category = 3", "must have 'text' for column 'category'"),
        ("sold < true", "column 'sold' is true or false and has no order, got <"),
        ("sold = 1", "must have true or false for column 'sold'"),
        ("tags = 'x'", "column 'tags' has lists: ask for a value with has, got ="),
        ("tags in ('x')", "column 'tags' has lists"),
        ("price has 3", "has is for columns of lists"),
        ("day = 'soon'", "column 'day' takes dates such as '2026-01-31', got 'soon'"),
        ("(price < 3", "must have '\\)' here, got its end"),
        ("price < 3)", "must have 'and', 'or' or its end here, got '\\)' at character 10"),
        ("price not < 3", "must have 'in', 'between' or 'has'"),
        ("price in ()", "must have a number"),
        ("price between 1 or 2", "must have 'and' here"),
        ("price is 3", "must have 'null' here"),
        ("price ~ 3", "must have .* here, got '~ 3'"),
        ("category = 'open", "must have a column, a value or a sign here"),
        ("price < 3; drop table items", "must have a column, a value or a sign here, got '; drop table items'"),
        ("read_csv('/etc/passwd')", "'read_csv' is not a column"),
        ("(" * 50 + "sold" + ")" * 50, "nested at most 32 levels deep"),
        ("not " * 50 + "sold", "nested at most 32 levels deep"),
        ("price < 3 or " * 200 + "sold", "must have at most 2000 characters, got 2604"),
    ],
)
def test_what_is_not_in_the_grammar_is_refused_with_its_place(text, message):
    with pytest.raises(ConfigError, match=message):
        parse(text, TABLE.schema)


WORDS = ["price", "category", "(", ")", "and", "or", "not", "in", "3", "'x'", "<", "=", ",", '"', "has"]


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60) | st.lists(st.sampled_from(WORDS)).map(" ".join))
def test_any_text_selects_or_is_refused(text):
    try:
        found = selected(text)
    except ConfigError:
        return
    assert len(found) == len(ROWS)


def test_a_table_is_read_by_item_and_missing_items_have_no_attributes(tmp_path):
    path = tmp_path / "items.csv"
    path.write_text("product_id,price,added,index\n7,3,2026-01-02,x\n9,4.5,2026-01-03,y\n1,2,2026-01-04,z\n")
    found = Attributes(*read_attributes(path)[:2], IdMap(pl.Series([1, 7, 8])), "items")
    assert found.columns == ["price", "added", "index"]
    assert found.table["price"].to_list() == [2.0, 3.0, None]
    assert found.select("added >= '2026-01-03'").tolist() == [True, False, False]
    assert found.select("price is null").tolist() == [False, False, True]
    assert found.n_missing == 1


def test_types_beyond_the_grammar_are_read_as_those_of_it():
    table = pl.DataFrame(
        {
            "item": [1, 2],
            "at": pl.Series(["2026-01-01T10:00:00+02:00", "2026-01-01T12:00:00Z"]).str.to_datetime(time_zone="UTC"),
            "nan": [float("nan"), 1.0],
            "kind": pl.Series(["a", "b"], dtype=pl.Categorical),
        }
    )
    found = Attributes(table, "item", IdMap(pl.Series([1, 2])), "items")
    assert found.select("at < '2026-01-01T09:00:00'").tolist() == [True, False]
    assert found.select("at <= '2026-01-01T10:00:00+02:00'").tolist() == [True, False]
    assert found.select("nan is null").tolist() == [True, False]
    assert found.select("kind = 'b'").tolist() == [False, True]


@pytest.mark.parametrize(
    ("text", "item", "message"),
    [
        ("item,price\n5,1\n", None, "must name items of the run, such as 1, 2; it has 1 others"),
        ("item,price\n1,1\n1,2\n", None, "each item must have one row"),
        ("item,price\n1,1\n", "id", "has no column 'id' of items; it has item, price"),
        ("", None, "is empty"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path, text, item, message):
    path = tmp_path / "items.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        Attributes(*read_attributes(path, item)[:2], IdMap(pl.Series([1, 2])), str(path))
    with pytest.raises(DataError, match="does not exist"):
        read_attributes(tmp_path / "nothing.csv")


def test_a_filter_is_evaluated_once_and_the_memory_for_them_is_bounded(monkeypatch):
    table = pl.DataFrame({"item": range(1000), "n": range(1000)})
    attributes = Attributes(table, "item", IdMap.range(1000), "items")
    calls = []
    select = attributes.select
    monkeypatch.setattr(attributes, "select", lambda text: (calls.append(text), select(text))[1])
    selections = Selections(attributes, most_bytes=3500)
    for _ in range(3):
        assert selections.of("n < 10").sum() == 10
    assert calls == ["n < 10"]
    for n in range(20):
        np.testing.assert_array_equal(selections.of(f"n < {n}"), np.arange(1000) < n)
    assert len(selections._kept) == 3
    assert selections._bytes == 3000
    with pytest.raises(TopshelfError):
        selections.of("m < 3")
