"""SVMlight text: values against Python's own, every rule, packed files, and the cache."""

from __future__ import annotations

import gzip
import io
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_svmlight_file

from topshelf.data import letor
from topshelf.data.letor import Text, read_letor
from topshelf.errors import DataError


def read(tmp_path, text, **settings):
    path = tmp_path / "lists.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_letor(Text(path), **settings).check(str(path))


def test_lines_become_documents_of_queries(tmp_path):
    found = read(tmp_path, "2 qid:7 1:0.5 3:-1e2 # doc 1\n\n# a comment\n0 qid:7 2:3\r\n1.5 qid:-9 1:+.25 2:1 3:2.")
    np.testing.assert_array_equal(found.features, np.float32([[0.5, 0, -100], [0, 3, 0], [0.25, 1, 2]]))
    assert found.grades.tolist() == [2, 0, 1.5]
    assert found.indptr.tolist() == [0, 2, 3]
    assert found.query_ids.tolist() == [7, -9]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.floats(allow_nan=False, allow_infinity=False, width=32)
        | st.decimals(-1000, 1000, allow_nan=False).map(float)
        | st.integers(-(10**22), 10**22).map(float),
        min_size=1,
        max_size=6,
    )
)
def test_numbers_are_what_python_reads(tmp_path_factory, numbers):
    line = " ".join(f"{j + 1}:{value!r}" for j, value in enumerate(numbers))
    found = read(tmp_path_factory.mktemp("numbers"), f"0 qid:1 {line}\n").features[0]
    np.testing.assert_allclose(found, np.float32(numbers), rtol=1.2e-7, atol=1e-45)


def test_it_reads_what_scikit_learn_reads(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        f"{rng.integers(5)} qid:{q} " + " ".join(f"{j + 1}:{rng.normal():.6f}" for j in range(9) if rng.random() < 0.6)
        for q in range(20)
        for _ in range(1 + rng.integers(8))
    ]
    content = "\n".join(rows).encode()
    found = read(tmp_path, content, n_features=9)
    features, grades, queries = load_svmlight_file(io.BytesIO(content), n_features=9, query_id=True)
    np.testing.assert_allclose(found.features, features.toarray(), rtol=1e-6)
    assert found.grades.tolist() == grades.tolist()
    assert np.repeat(found.query_ids, found.lengths).tolist() == queries.tolist()


def test_pieces_of_any_size_give_the_same(tmp_path, monkeypatch):
    text = "".join(f"{n % 3} qid:{n // 4} 1:{n / 7:.4f} 2:{n}\n" for n in range(200))
    whole = read(tmp_path, text)
    monkeypatch.setattr(letor, "CHUNK", 64)
    cut = read(tmp_path, text)
    assert cut.fingerprint() == whole.fingerprint()
    assert len(whole) == 50


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x qid:1 1:2\n", "line 1: its grade must be a number, got 'x'"),
        ("nan qid:1 1:2\n", "grade must be a number"),
        ("-1 qid:1 1:2\n", "grade must be >= 0, got '-1'"),
        ("1 qid:1 1:2\n1 1:2\n", "line 2: after the grade must come qid:"),
        ("1 qid:a 1:2\n", "id of its query must be a whole number"),
        ("1 qid:1.5 1:2\n", "id of its query must be a whole number"),
        ("1 qid:1 0:2\n", "begin at 1, got '0:2'"),
        ("1 qid:1 2:2 1:3\n", "must ascend, each at most once, got '1:3'"),
        ("1 qid:1 2:2 2:3\n", "must ascend"),
        ("1 qid:1 1=2\n", "must be written as index:value"),
        ("1 qid:1 1:2x\n", "value of a feature must be a number"),
        ("1 qid:1 1:\n", "value of a feature must be a number"),
        ("1 qid:1 1:nan\n", "finite numbers, got '1:nan'"),
        ("1 qid:1 1:-Infinity\n", "a number"),
        ("1 qid:1 1:inf\n", "finite numbers"),
        ("1 qid:1 1:1e999\n", "finite numbers"),
        ("1 qid:1 9999999:1\n", "at most"),
        ("", "holds no documents"),
        ("# nothing\n\n", "holds no documents"),
        ("1 qid:1 1:1\n0 qid:2 1:1\n0 qid:1 1:1\n", "query 1 appears again at document 3"),
        ("1 qid:1 1:1 2:1\n0 qid:1 1:1 2:1 3:1\n", "line 2 has 3 features, and the lines before it have 2"),
        ("1 qid:1 1:1 2:1\n# c\n0 qid:1 1:1\n", "line 3 has 1 features, and the lines before it have 2"),
        (b"\xff\xfe\x00", "must be a number"),
        ("1 qid:1", ""),
    ],
)
def test_bad_lines_are_refused_by_number_and_rule(tmp_path, text, message):
    if not message:
        assert read(tmp_path, text, n_features=2).features.tolist() == [[0, 0]]
        return
    with pytest.raises(DataError, match=message):
        read(tmp_path, text)


def test_fewer_features_are_padded_where_their_number_is_given_and_more_are_refused(tmp_path):
    text = "1 qid:1 1:1\n0 qid:1 1:1 2:1\n"
    assert read(tmp_path, text, n_features=4).features.shape == (2, 4)
    with pytest.raises(DataError, match="has feature 2, but there must be 1 features"):
        read(tmp_path, text, n_features=1)


def test_numbers_beyond_float32_become_its_largest_one(tmp_path):
    found = read(tmp_path, "1 qid:1 1:1.79769313486231570e+308 2:-1e39\n")
    assert found.features.tolist() == [[np.finfo(np.float32).max, np.finfo(np.float32).min]]


def test_packed_files_are_read(tmp_path):
    text = b"1 qid:1 1:1 2:2\n0 qid:2 1:3 2:4\n"
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("in/a.txt", text)
    plain = read(tmp_path, text)
    for packed in (Text(tmp_path / "a.txt.gz"), Text(tmp_path / "a.zip", "in/a.txt")):
        assert read_letor(packed).fingerprint() == plain.fingerprint()
    (tmp_path / "cut.gz").write_bytes(gzip.compress(text)[:-9])
    with pytest.raises(DataError, match="damaged"):
        read_letor(Text(tmp_path / "cut.gz"))
    with pytest.raises(DataError, match="no member 'b'"):
        read_letor(Text(tmp_path / "a.zip", "b"))
    with pytest.raises(DataError, match="cannot be read"):
        read_letor(Text(tmp_path / "missing.txt"))


def test_a_large_file_is_cached_until_it_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("TOPSHELF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(letor, "CACHED_FROM", 100)
    monkeypatch.setattr(letor, "CHUNK", 512)
    text = "".join(f"{n % 3} qid:{n // 4} {'1:1' if n < 99 else '2:1 3:3'}\n" for n in range(200))
    first = read(tmp_path, text)
    (folder,) = (tmp_path / "cache" / "letor").iterdir()
    assert len(list(folder.glob("*.parquet"))) > 3
    parsed = []
    monkeypatch.setattr(letor, "parse_blocks", lambda *args: parsed.append(args) or iter(()))
    assert read_letor(Text(tmp_path / "lists.txt")).fingerprint() == first.fingerprint()
    assert not parsed
    monkeypatch.undo()
    monkeypatch.setenv("TOPSHELF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(letor, "CACHED_FROM", 100)
    assert read(tmp_path, text.replace("qid:49", "qid:77")).query_ids[-1] == 77
    next(folder.glob("*.parquet")).write_bytes(b"damaged")
    assert read(tmp_path, text).fingerprint() == first.fingerprint()


def test_a_file_that_is_refused_leaves_nothing_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TOPSHELF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(letor, "CACHED_FROM", 10)
    with pytest.raises(DataError, match="line 2"):
        read(tmp_path, "1 qid:1 1:1\n-1 qid:1 1:1\n")
    assert not any((tmp_path / "cache" / "letor").iterdir())
