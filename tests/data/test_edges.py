"""Edge lists of every kind that a user may have, and those that are refused."""

from __future__ import annotations

import gzip

import polars as pl
import pytest

from topshelf.data.edges import node_ids, read_edges
from topshelf.errors import DataError


def rows(path, **settings):
    return read_edges(path, **settings).frame.rows()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "source,target\n1,2\n3,4\n"),
        ("a.tsv", "src\tdst\n1\t2\n3\t4\n"),
        ("a.txt", "1 2\n3 4\n"),
        ("a.txt", "1\t2\n3\t4\n"),
        ("a.csv", "weight;to;from\n5;2;1\n5;4;3\n"),
        ("a.txt", "# Nodes: 4 Edges: 2\n# FromNodeId\tToNodeId\n1\t2\n3\t4\n"),
        ("a.csv", '"Source","Target"\r\n"1","2"\r\n"3","4"\r\n'),
        ("a.csv", "\ufeffu,v,time\n1,2,9\n3,4,9\n"),
        ("a.txt", "1 2 77\n3 4 78\n"),
    ],
)
def test_text_files_are_read(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert rows(path) == [(1, 2), (3, 4)]
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert rows(packed) == [(1, 2), (3, 4)]


def test_columns_can_be_named(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("who,whom,source,target\n1,2,3,4\n")
    assert rows(path, source="who", target="whom") == [(1, 2)]
    assert rows(path) == [(3, 4)]


def test_parquet_and_text_ids_are_read(tmp_path):
    pl.DataFrame({"head": ["a", "b"], "tail": ["b", "ä"], "x": [1, 2]}).write_parquet(tmp_path / "a.parquet")
    assert rows(tmp_path / "a.parquet") == [("a", "b"), ("b", "ä")]
    pl.DataFrame({"source": [1, 2], "target": ["b", "c"]}).write_parquet(tmp_path / "b.parquet")
    assert rows(tmp_path / "b.parquet") == [("1", "b"), ("2", "c")]
    assert node_ids(read_edges(tmp_path / "b.parquet").frame).values.to_list() == ["1", "2", "b", "c"]


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("", {}, "is empty"),
        ("a,b\nc,d\n", {}, "cannot tell whether its first line"),
        ("source\n1\n", {}, "two at least"),
        ("a,b,c\n1,2,3\n", {}, "cannot tell which columns hold the edges.* --set data.source_column=COLUMN"),
        ("source,target\n1,2\n", {"source": "nope"}, r"data.source_column must be one of its columns"),
        ("source,target\n1,2\n", {"source": "target"}, "must differ"),
        ("source,target\n1,2\n,3\n", {}, "missing or unreadable"),
        ("source,target\n1,2\n3,4,5\n", {}, "same number of fields"),
    ],
)
def test_files_that_are_no_edge_list_are_refused(tmp_path, text, settings, message):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_edges(path, **settings)


def test_files_of_other_kinds_are_refused(tmp_path):
    with pytest.raises(DataError, match="is not a file"):
        read_edges(tmp_path / "nothing.csv")
    path = tmp_path / "a.csv"
    path.write_bytes(b"source,target\n\xff\xfe,2\n")
    with pytest.raises(DataError, match="UTF-8"):
        read_edges(path)
    path.write_bytes(b"\x00\x01\x02")
    with pytest.raises(DataError, match="not a text file"):
        read_edges(path)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError):
        read_edges(tmp_path / "a.parquet")
