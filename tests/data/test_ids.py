"""One id or many, numbers or text: the same answers by every way of looking them up."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topshelf.data import IdMap, ids
from topshelf.data.ids import UNKNOWN

texts = st.text(alphabet="ab0147_.é", max_size=4)
numbers = st.integers(-30, 300)


def slow_find(known: list, wanted: list) -> list[int]:
    return [known.index(value) if value in known else UNKNOWN for value in wanted]


@given(st.lists(numbers, min_size=1, max_size=60, unique=True), st.lists(numbers, max_size=5))
def test_numbers_are_found_by_every_way(known: list[int], wanted: list[int]) -> None:
    found = slow_find(known, wanted)
    assert IdMap(pl.Series(known)).find(wanted).tolist() == found
    assert IdMap(pl.Series(known)).find(np.array(wanted, dtype=np.int64)).tolist() == found
    assert IdMap(pl.Series(known)).find([str(value) for value in wanted]).tolist() == found


@given(st.lists(texts, min_size=1, max_size=60, unique=True), st.lists(texts, max_size=5))
def test_text_is_found_by_every_way(known: list[str], wanted: list[str]) -> None:
    found = slow_find(known, wanted)
    assert IdMap(pl.Series(known, dtype=pl.String)).find(wanted).tolist() == found
    assert IdMap(pl.Series(known, dtype=pl.String)).find(pl.Series(wanted, dtype=pl.String)).tolist() == found


@pytest.mark.parametrize("wanted", [["007"], [4.9], ["4_0"], [None], [b"\xff"], [2**70], ["x"]])
def test_what_is_not_an_id_is_unknown_however_many_are_known(wanted: list) -> None:
    for n in (8, 200):
        assert IdMap.range(n).find(wanted).tolist() == [UNKNOWN]


def test_too_many_ids_for_a_table_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "_TABLE", 100)
    many = IdMap.range(200)
    assert many.find([3, 199, 200]).tolist() == [3, 199, UNKNOWN]
    assert "_places" not in vars(many)


@pytest.mark.parametrize("known", [[30, 10, 20], ["c", "a", "b"]])
def test_ids_of_places_are_a_column_of_the_same_type(known: list) -> None:
    taken = IdMap(pl.Series(known)).take(np.array([2, 0, 2]))
    assert taken.to_list() == [known[2], known[0], known[2]]
    assert taken.dtype == pl.Series(known).dtype


@pytest.mark.parametrize("n", [3, 300])
def test_repeated_ids_are_refused(n: int) -> None:
    with pytest.raises(ids.DataError, match="unique"):
        IdMap(pl.Series([*range(n), 0]))
