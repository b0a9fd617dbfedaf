"""Hostile inputs: each one is read right, or refused with an error of ours; never a traceback, never a crash.

The counts below are cited by docs/data.md. The long form: pytest tests/faults/test_hostile_inputs.py -m slow
"""

from __future__ import annotations

import gzip
import random
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse

from faults.hostile import FILES, ROWS, spoiled, written
from topshelf.data import Interactions, load_split, memory, read
from topshelf.data.readers import read_interactions
from topshelf.errors import TopshelfError

MUTATED_FILES, MUTATED_SPLITS, DIALECTS, FRAMES, MATRICES, BOMBS = 900, 225, 300, 200, 150, 24
CASES = MUTATED_FILES + MUTATED_SPLITS + DIALECTS + FRAMES + MATRICES + BOMBS
LONG_CASES = 10_000

hostile = settings(deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))


def sound(data: Interactions) -> None:
    """What every reader must keep."""
    assert data.indptr[0] == 0
    assert data.indptr[-1] == len(data.indices) > 0
    assert (np.diff(data.indptr) >= 0).all()
    assert ((data.indices >= 0) & (data.indices < data.n_items)).all()
    assert data.users.values.null_count() == data.items.values.null_count() == 0
    for values in (data.weight, data.timestamp):
        assert values is None or (len(values) == len(data) and np.isfinite(values).all())


def is_read(action) -> bool:
    """Whether the action gave sound data; else it must have raised an error of ours."""
    try:
        sound(action())
    except TopshelfError:
        return False
    return True


def attack(path: Path) -> bool:
    def load() -> Interactions:
        split = load_split(path).split if path.suffix == ".zip" else None
        return read_interactions(path) if split is None else split.train

    return is_read(load)


def mutate(folder: Path, names: list[str], count: int, seed: int) -> int:
    draw, n_read = random.Random(seed), 0
    for case in range(count):
        name = names[case % len(names)]
        path = folder / name
        path.write_bytes(spoiled(draw, FILES[name]))
        n_read += attack(path)
    return n_read


def test_there_are_more_than_a_thousand_cases():
    assert CASES >= 1_000
    text = " ".join((Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8").split())
    assert f"reads {CASES:,} hostile inputs" in text
    assert f"reads {LONG_CASES:,} more" in text


@pytest.mark.parametrize("name", FILES)
def test_the_files_are_sound_before_they_are_spoiled(name, tmp_path):
    (tmp_path / name).write_bytes(FILES[name])
    assert attack(tmp_path / name)


TEXTS = [name for name in FILES if not name.endswith(".zip")]
ZIPS = [name for name in FILES if name.endswith(".zip")]


def test_mutated_files_are_read_or_refused(tmp_path, record_property):
    n_read = mutate(tmp_path, TEXTS, MUTATED_FILES, 0)
    record_property("cases", MUTATED_FILES)
    assert 0 < n_read < MUTATED_FILES


def test_mutated_splits_are_read_or_refused(tmp_path, record_property):
    n_read = mutate(tmp_path, ZIPS, MUTATED_SPLITS, 1)
    record_property("cases", MUTATED_SPLITS)
    assert 0 < n_read < MUTATED_SPLITS


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_more_mutated_files_are_read_or_refused(part, tmp_path, record_property):
    mutate(tmp_path, list(FILES), LONG_CASES // 4, 100 + part)
    record_property("cases", LONG_CASES // 4)


def test_sound_files_of_every_dialect_are_read_right(tmp_path, record_property):
    draw, n_read = random.Random(2), 0
    for case in range(DIALECTS):
        raw, rows = written(draw)
        path = tmp_path / ("file.csv.gz" if case % 3 == 0 else "file.csv")
        path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
        try:
            found = read(path).rows()
        except TopshelfError:
            continue
        assert [(str(user), str(item), rating) for user, item, rating in found] == rows, raw
        n_read += 1
    record_property("cases", DIALECTS)
    assert n_read > 0.8 * DIALECTS  # a column of nothing but numbers and "NaN" has missing ids, and is refused


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.integers(),
    st.floats(),
    st.text(st.characters(exclude_categories=()), max_size=5),
    st.binary(max_size=4),
    st.datetimes(),
    st.dates(),
    st.decimals(),
    st.complex_numbers(),
    st.uuids(),
    st.tuples(st.integers(), st.text(max_size=2)),
    st.lists(st.integers(), max_size=2),
    st.sampled_from([float("nan"), pd.NA, pd.NaT, np.float32(1), np.int8(3), np.datetime64("NaT"), object()]),
)
columns = st.one_of(
    st.lists(scalars, min_size=3, max_size=3),
    st.lists(st.integers(-3, 3), min_size=3, max_size=3),
    st.lists(st.floats(), min_size=3, max_size=3),
    st.lists(st.text(st.characters(exclude_categories=()), max_size=3), min_size=3, max_size=3),
)
labels = st.one_of(st.sampled_from(["user", "item", "rating", "time", "purchased_at", "sku", "User"]), scalars)


@settings(hostile, max_examples=FRAMES)
@given(st.lists(st.tuples(labels, columns), min_size=2, max_size=5), columns, columns, st.booleans())
def test_frames_of_anything_are_read_or_refused(extra, users, items, is_polars):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries, while we build the frame
        series = [pd.Series(values, dtype=object) for values in (users, items, *(values for _, values in extra))]
        frame = pd.concat(series, axis=1)
        frame.columns = pd.Index(["user", "item", *(label for label, _ in extra)], dtype=object)
        if is_polars:
            frame = pl.DataFrame(
                {
                    f"{place} {label!a}": pl.Series(list(column), dtype=pl.Object)
                    for place, (label, column) in enumerate(zip(frame.columns, series, strict=True))
                }
            ).rename({"0 'user'": "user", "1 'item'": "item"})
    is_read(lambda: Interactions.from_frame(frame))


cells = st.one_of(st.floats(), st.integers(-3, 3), st.sampled_from([np.nan, np.inf, -np.inf, 1e300, 0.0, -0.0]))


@settings(hostile, max_examples=MATRICES)
@given(
    st.lists(st.lists(cells, min_size=3, max_size=3), min_size=1, max_size=4),
    st.sampled_from(
        [np.asarray, sparse.csr_array, sparse.coo_array, sparse.csc_matrix, sparse.dok_array, np.array, list]
    ),
    st.sampled_from(["f8", "f4", "f2", "O", "c16", "i8"]),
)
def test_matrices_of_anything_are_read_or_refused(rows, kind, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NumPy, while we build the matrix
        try:
            matrix = kind(np.array(rows).astype(dtype))
        except (OverflowError, ValueError, TypeError):
            return
    known = np.array(rows, dtype=np.float64)
    if is_read(lambda: Interactions.from_csr(matrix)) and dtype == "f8":
        assert len(Interactions.from_csr(matrix)) == int(((known != 0) & ~np.isnan(known)).sum())


@pytest.mark.parametrize("pattern", [b"1,2\n", b"\n", b"1", b"a,b,", b'"', b"1 2 3 4 5 6 7 8\n"])
@pytest.mark.parametrize("ending", ["bomb.csv.gz", "bomb.txt.gz"])
@pytest.mark.parametrize("header", [b"", b"user,item\n"])
def test_bombs_are_refused_before_they_fill_the_memory(pattern, ending, header, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 4_000_000)
    (tmp_path / ending).write_bytes(gzip.compress(header + pattern * (5_000_000 // len(pattern)), 1))
    with pytest.raises(TopshelfError, match="does not fit into memory"):
        read(tmp_path / ending)


def test_giant_fields_and_many_columns_are_read_right(tmp_path):
    giant = "x" * 3_000_000
    (tmp_path / "giant.csv").write_text(f"user,item\n{giant},1\ny,2\n")
    assert read(tmp_path / "giant.csv")["user"].to_list() == [giant, "y"]
    names = ",".join(f"c{place}" for place in range(5_000))
    (tmp_path / "wide.csv").write_text(f"user,item,{names}\n1,2,{names}\n")
    assert read(tmp_path / "wide.csv").rows() == [(1, 2)]


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
@pytest.mark.parametrize("last", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_line_ends_and_marks_change_nothing(end, last, bom, tmp_path):
    rows = [b"user,item,rating,timestamp", *(b"%d,%d,%.1f,%d" % row for row in ROWS)]
    (tmp_path / "file.csv").write_bytes(bom + b"\r\n".join(rows[:20]) + end + b"\n".join(rows[20:]) + last)
    assert read(tmp_path / "file.csv").rows() == ROWS


@pytest.mark.parametrize("name", ["a\0b", "x" * 5_000, "", ".", "\ud800"])
def test_names_that_are_no_files_are_refused(name):
    with pytest.raises(TopshelfError):
        read(name)
    with pytest.raises(TopshelfError):
        load_split(name)
