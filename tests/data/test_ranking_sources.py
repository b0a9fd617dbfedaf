"""Sources of documents: tables, folders, zips, folds, splits by query, and named datasets."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from topshelf.data.documents import Documents, RankingData
from topshelf.data.ranking_datasets import RANKING_DATASETS
from topshelf.data.ranking_sources import has_order, load_ranking, read_documents
from topshelf.data.ranking_tables import TableColumns
from topshelf.errors import ConfigError, DataError

DATA = Path(os.environ.get("TOPSHELF_DATA", "missing"))


def table(n_queries=10, per_query=4, first=0):
    rng = np.random.default_rng(n_queries + first)
    n = n_queries * per_query
    return pl.DataFrame(
        {
            "qid": np.repeat(np.arange(first, first + n_queries), per_query),
            "a": rng.normal(size=n),
            "label": np.tile([0, 2, 1, 0][:per_query], n_queries),
            "b": rng.integers(0, 9, n),
            "title": ["x"] * n,
        }
    )


def letor(frame):
    rows = frame.select("label", "qid", "a", "b").rows()
    return "".join(f"{grade} qid:{query} 1:{a:.5f} 2:{b}\n" for grade, query, a, b in rows)


def test_a_table_is_split_by_query(tmp_path):
    frame = table(30)
    for name, write in (("t.parquet", frame.write_parquet), ("t.csv", frame.write_csv)):
        write(tmp_path / name)
        data = load_ranking(tmp_path / name)
        assert data.feature_names == ("a", "b")
        assert [len(part) for part in data.parts.values()] == [19, 5, 6]
        ids = np.concatenate([part.query_ids for part in data.parts.values()])
        assert sorted(ids.tolist()) == list(range(30))
        row = data.test.features[: data.test.lengths[0]]
        expected = frame.filter(pl.col("qid") == int(data.test.query_ids[0]))["a"].to_numpy()
        np.testing.assert_allclose(row[:, 0], expected, rtol=1e-6)
    same, other = load_ranking(tmp_path / "t.csv", seed=1), load_ranking(tmp_path / "t.csv", split_seed=1)
    assert same.test.fingerprint() == data.test.fingerprint() != other.test.fingerprint()
    assert same.valid.fingerprint() != data.valid.fingerprint()
    assert not len(load_ranking(tmp_path / "t.csv", test_fraction=0).test)


def test_columns_are_named(tmp_path):
    table().rename({"qid": "who", "label": "how"}).write_csv(tmp_path / "t.csv")
    with pytest.raises(DataError, match="no column looks like that of the query"):
        load_ranking(tmp_path / "t.csv")
    data = load_ranking(tmp_path / "t.csv", query="who", grade="how", features=("b",))
    assert data.feature_names == ("b",)
    assert data.highest_grade == 2
    with pytest.raises(DataError, match=r"no column 'when' \(data.query\)"):
        load_ranking(tmp_path / "t.csv", query="when")
    with pytest.raises(DataError, match="has no 'c'"):
        load_ranking(tmp_path / "t.csv", query="who", grade="how", features=("b", "c"))
    with pytest.raises(DataError, match="cannot be a feature"):
        load_ranking(tmp_path / "t.csv", query="who", grade="how", features=("how",))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": pl.lit(-1)}, "negative grade"),
        ({"label": pl.lit("good")}, "must hold grades, numbers >= 0; got String, such as 'good'"),
        ({"label": pl.lit(float("nan"))}, "grade that is not a finite number"),
        ({"label": pl.lit(1e9)}, "grade above"),
        ({"label": pl.lit(None, pl.Int64)}, "has no grade in row 1"),
        ({"a": pl.lit(float("nan"))}, "feature 1 of document 1 must be a finite number"),
        ({"a": pl.lit(float("inf"))}, "feature 1 of document 1 must be a finite number"),
        ({"a": pl.when(pl.int_range(pl.len()) == 2).then(None).otherwise(pl.col("a"))}, "'a' is missing in row 3"),
        ({"qid": pl.int_range(pl.len()) % 2}, "query 0 appears again at document 3"),
        ({"qid": pl.lit(1.5)}, "must hold query ids"),
        ({"qid": pl.lit(None, pl.Int64)}, "no query id in row 1"),
        ({"qid": pl.lit(3)}, "one query only"),
        ({"label": pl.lit(1)}, "nothing to learn"),
    ],
)
def test_bad_tables_are_refused(tmp_path, change, message):
    table().with_columns(**change).write_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match=message):
        load_ranking(tmp_path / "t.parquet")


@pytest.mark.parametrize("word", ["n/a", "nan"])
def test_a_feature_with_a_word_in_it_is_refused_and_not_left_out(tmp_path, word):
    texts = table()["a"].cast(pl.String).to_list()
    texts[2] = word
    table().with_columns(a=pl.Series(texts)).write_csv(path := tmp_path / "d.csv")
    message = rf"feature 'a' must hold finite numbers, got '{word}' in row 3"
    with pytest.raises(DataError, match=message + r".*list the features without it \(data.features\)"):
        load_ranking(path)
    with pytest.raises(DataError, match=message):
        load_ranking(path, features=("a", "b"))
    assert load_ranking(path, features=("b",)).feature_names == ("b",)


@pytest.mark.parametrize("setting", [{"query": "qid"}, {"grade": "label"}, {"features": ("a",)}])
def test_columns_are_refused_where_there_are_none(tmp_path, setting):
    (path := tmp_path / "q.txt").write_text(letor(table()))
    with pytest.raises(ConfigError, match=rf"data.{next(iter(setting))} names columns, and q.txt is SVMlight text"):
        load_ranking(path, **setting)


def test_svmlight_text_is_no_source_of_features_with_names(tmp_path):
    table().write_csv(train := tmp_path / "d.csv")
    (other := tmp_path / "q.txt").write_text(letor(table(first=50)))
    with pytest.raises(DataError, match=r"SVMlight text, whose features have numbers only.* such as 'a'"):
        load_ranking(train, test=other)
    with pytest.raises(DataError, match="SVMlight text, whose features have numbers only"):
        read_documents(other, TableColumns(features=("a", "b")))


def test_a_table_without_rows_is_refused_as_such(tmp_path):
    table().clear().write_csv(path := tmp_path / "d.csv")
    with pytest.raises(DataError, match="it has columns but no rows"):
        load_ranking(path)


def test_text_ids_and_packed_tables_are_read(tmp_path):
    frame = table().with_columns(pl.format("q-{}", "qid").alias("qid"))
    frame.write_csv(tmp_path / "t.csv.gz", compression="gzip")
    data = load_ranking(tmp_path / "t.csv.gz", test_fraction=0)
    assert set(data.train.query_ids) | set(data.valid.query_ids) == {f"q-{n}" for n in range(10)}


def test_a_folder_or_zip_of_parts(tmp_path):
    (tmp_path / "d").mkdir()
    texts = {
        name: letor(table(n, first=first)) for name, n, first in (("Train", 9, 0), ("vali", 3, 50), ("test", 4, 90))
    }
    for name, text in texts.items():
        (tmp_path / "d" / f"{name}.txt").write_text(text)
    (tmp_path / "d" / "readme.txt").write_text("not data")
    with zipfile.ZipFile(tmp_path / "d.zip", "w") as archive:
        for name, text in texts.items():
            archive.writestr(f"x/{name}.txt", text)
    found = [
        load_ranking(tmp_path / "d"),
        load_ranking(tmp_path / "d.zip"),
        load_ranking(tmp_path / "d" / "Train.txt", valid=tmp_path / "d" / "vali.txt", test=tmp_path / "d" / "test.txt"),
    ]
    for data in found:
        assert [len(part) for part in data.parts.values()] == [9, 3, 4]
        assert data.fingerprints() == found[0].fingerprints()
    unread = load_ranking(tmp_path / "d", with_test=False)
    assert not len(unread.test)
    assert unread.train.fingerprint() == found[0].train.fingerprint()
    (tmp_path / "d" / "test.txt").write_text("rubbish")
    load_ranking(tmp_path / "d", with_test=False)
    with pytest.raises(ConfigError, match=r"data.source must be the file for training where data.test is given"):
        load_ranking(tmp_path / "d", test=tmp_path / "d" / "test.txt")


def test_folds(tmp_path):
    for fold in (1, 2):
        (tmp_path / f"Fold{fold}").mkdir()
        for name in ("train", "vali", "test"):
            (tmp_path / f"Fold{fold}" / f"{name}.txt").write_text(letor(table(5, first=100 * fold)))
    assert load_ranking(tmp_path, fold=2).train.query_ids[0] == 200
    with pytest.raises(ConfigError, match=r"data.fold must be one of \[1, 2\]"):
        load_ranking(tmp_path, fold=3)


def test_five_sections_are_rotated(tmp_path):
    for part in range(1, 6):
        (tmp_path / f"S{part}.txt").write_text(letor(table(2, first=10 * part)))
    data = load_ranking(tmp_path, fold=4)
    assert [part.query_ids.tolist() for part in data.parts.values()] == [[40, 41, 50, 51, 10, 11], [20, 21], [30, 31]]
    with pytest.raises(ConfigError, match=r"data.fold must be 1 to 5"):
        load_ranking(tmp_path, fold=6)
    (tmp_path / "S5.txt").write_text(letor(table(2, first=10)))
    with pytest.raises(DataError, match="query 10 is in more than one of"):
        load_ranking(tmp_path, fold=4)


def test_other_parts_must_have_the_features_of_train(tmp_path):
    (tmp_path / "train.txt").write_text(letor(table(5)))
    (tmp_path / "test.txt").write_text("1 qid:1 1:1 2:2 3:3\n")
    with pytest.raises(DataError, match="has feature 3, but there must be 2 features"):
        load_ranking(tmp_path)


def test_sources_that_are_none(tmp_path):
    for source, message in (
        ("nowhere", "neither a file nor a named dataset"),
        (tmp_path, "holds no files of documents"),
    ):
        with pytest.raises(DataError, match=message):
            load_ranking(source)
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(letor(table(2)))
    with pytest.raises(DataError, match="one file for train"):
        load_ranking(tmp_path)


def columns(*features):
    return TableColumns(features=features)


def test_new_queries_have_the_features_of_the_model(tmp_path):
    frame = table(3)
    frame.drop("label").write_csv(tmp_path / "new.csv")
    (tmp_path / "new.txt").write_text(letor(frame))
    for name in ("new.csv", "new.txt"):
        found = read_documents(tmp_path / name, columns("b") if name == "new.csv" else columns("1", "2"))
        np.testing.assert_array_equal(found.features[:, -1], frame["b"].to_numpy())
    with pytest.raises(DataError, match="looks like that of the grade"):
        read_documents(tmp_path / "new.csv", columns("b"), needs_grades=True)
    with pytest.raises(DataError, match="must have the 2 features"):
        read_documents(tmp_path / "new.csv", columns("b", "zz"))


def test_queries_of_one_grade_have_no_order():
    documents = Documents(
        np.zeros((5, 1), np.float32), np.float32([1, 1, 0, 1, 2]), np.array([0, 2, 4, 4, 5]), np.arange(4)
    )
    assert has_order(documents).tolist() == [False, True, False, False]
    with pytest.raises(DataError, match="every part must have the 2 features"):
        RankingData("x", documents, documents, documents, ("a", "b"))


@pytest.mark.parametrize("name", RANKING_DATASETS)
def test_a_named_dataset_has_its_counts_or_says_where_to_get_it(name, monkeypatch, tmp_path):
    info = RANKING_DATASETS[name]
    if not any((folder / file).exists() for folder in (DATA, DATA / "ltr") for file in info.files):
        monkeypatch.setenv("TOPSHELF_DATA", str(tmp_path))
        monkeypatch.setenv("TOPSHELF_CACHE", str(tmp_path))
        with pytest.raises(DataError, match=f"{name} .* is not here"):
            load_ranking(name)
        return
    monkeypatch.setenv("TOPSHELF_DATA", str(DATA))
    data = load_ranking(name, fold=info.folds)
    assert sum(len(part) for part in data.parts.values()) == info.queries
    assert sum(part.n_documents for part in data.parts.values()) == info.documents
    assert data.n_features == info.features
    assert info.grades.endswith(f"to {data.highest_grade:g}")
    with pytest.raises(ConfigError, match=r"data.query must be left out"):
        load_ranking(name, query="q")
