"""Titles from files of the reader's own."""

from __future__ import annotations

import pandas as pd
import polars as pl
import pytest

from topshelf.data import IdMap
from topshelf.data.titles import read_titles
from topshelf.errors import DataError

ITEMS = IdMap(pl.Series([3, 7, 12]))
EXPECTED = ["Alien", "7", "Brazil, the film"]


def written(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", 'movieId,title,genre\n3,Alien,x\n99,Other,y\n12,"Brazil, the film",z\n'),
        ("t.csv", 'genre,Product Name,SKU\nx,Alien,3\nz,"Brazil, the film",12\n'),
        ("t.tsv", "3\tAlien\n12\tBrazil, the film\n"),
        ("t.item", "item_id:token\tmovie_title:token_seq\n3\tAlien\n12\tBrazil, the film\n"),
        ("t.csv", "id|name\n3|Alien\n12|Brazil, the film\n12|twice\n"),
        (
            "t.csv",
            "\ufeffKunden-Nr;Kundenname;Ware;Warenbezeichnung;Preis\r\n"
            '1;Ann;3;Alien;1,5\r\n2;Ben;12;"Brazil, the film";2\r\n1;Ann;3;x;1\r\n',
        ),
        ("t.csv", 'Ware,Text\n3,Alien\n12,"Brazil, the film"\n'),
    ],
    ids=["csv", "other order", "no header", "RecBole", "bars and a repeat", "purchases", "unknown names"],
)
def test_files_of_titles_are_read_by_their_columns(tmp_path, name, text):
    assert read_titles(written(tmp_path / name, text), ITEMS) == EXPECTED


def test_frames_and_mappings_are_titles_too(tmp_path):
    rows = {"item": [3, 12, 99], "title": ["Alien", "Brazil, the film", "Other"]}
    pl.DataFrame(rows).write_parquet(tmp_path / "t.parquet")
    sources = [pl.DataFrame(rows), pd.DataFrame(rows), dict(zip(*rows.values(), strict=True)), tmp_path / "t.parquet"]
    for source in sources:
        assert read_titles(source, ITEMS) == EXPECTED


def test_what_has_no_title_keeps_the_one_it_had():
    assert read_titles({3: "Alien"}, ITEMS, ["a", "b", "c"]) == ["Alien", "b", "c"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("movieId,title\n98,Alien\n99,Brazil\n", "such as 3, 7, 12; it has 2 others, 98, 99"),
        ("title\nAlien\n", "must have two columns"),
        ("", "is empty"),
    ],
)
def test_files_without_a_title_of_ours_are_refused(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_titles(written(tmp_path / "t.csv", text), ITEMS)


def test_a_file_that_is_not_there_or_no_table_is_refused(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        read_titles(tmp_path / "none.csv", ITEMS)
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match=r"x\.parquet"):
        read_titles(tmp_path / "x.parquet", ITEMS)
