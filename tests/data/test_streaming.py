"""Data larger than memory: streamed into mapped arrays, the result is that of the path in memory."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.strategies import event_rows, table_of
from topshelf.data import IdMap, shards, shuffles
from topshelf.data.datasets import load_split
from topshelf.data.given import read_given
from topshelf.data.interactions import Interactions
from topshelf.data.prepared import prepare_folder
from topshelf.data.shards import ranges_of
from topshelf.data.shuffles import Shuffles
from topshelf.data.splits import PARTS, cut_moment
from topshelf.data.streaming import moment_of
from topshelf.errors import TopshelfError, TopshelfWarning

modest = settings(deadline=None, max_examples=40)


def same(one: np.ndarray | None, other: np.ndarray | None) -> None:
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        np.testing.assert_array_equal(one, other)
        assert one.dtype.kind == other.dtype.kind


def same_part(one: Interactions, other: Interactions) -> None:
    for name in ("indptr", "indices", "weight", "timestamp"):
        same(getattr(one, name), getattr(other, name))
    for ids in ("users", "items"):
        assert getattr(one, ids).values.equals(getattr(other, ids).values)
    assert (one.events is None) == (other.events is None)
    if one.events is not None and other.events is not None:
        for name in ("indptr", "indices", "weight", "timestamp"):
            same(getattr(one.events, name), getattr(other.events, name))


def both(path: Path, **options: Any) -> tuple[Any, Any]:
    """What each way makes of a file: its split and notes, or the message that refuses it."""
    out = path.parent / "prepared"

    def streamed() -> tuple[Any, Any]:
        summary = prepare_folder(path, out, mapped=True, rows_at_once=7, **options)
        return read_given(out), (summary["notes"], {name: summary[name] for name in ("dropped_test", "dropped_valid")})

    def in_memory() -> tuple[Any, Any]:
        dataset = load_split(path, **options)
        return dataset.split, (list(dataset.notes), dataset.split.notes)

    results = []
    for way in (in_memory, streamed):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TopshelfWarning)
            try:
                results.append(way())
            except TopshelfError as error:
                results.append((str(error), type(error)))
    return results[0], results[1]


def check_same(path: Path, **options: Any) -> None:
    (split, notes), (streamed, streamed_notes) = both(path, **options)
    assert notes == streamed_notes
    if isinstance(split, str):
        assert streamed == split
        return
    for name in PARTS:
        same_part(getattr(streamed, name), getattr(split, name))


@modest
@given(
    event_rows(),
    st.sets(st.sampled_from(["rating", "timestamp"])),
    st.sampled_from(["int", "text", "float"]),
    st.sampled_from(["auto", "ratio", "last", "time"]),
    st.sampled_from([0, 2]),
    st.sampled_from([None, 2.0]),
    st.integers(0, 3),
)
def test_the_split_is_that_of_the_path_in_memory(rows, columns, ids, kind, core, floor, seed):
    table = table_of(rows, *sorted(columns))
    types: dict[str, Any] = {"int": pl.Int64, "text": pl.String, "float": pl.Float64}
    table = table.with_columns(pl.col("user").cast(types[ids]), pl.col("item").cast(types[ids]))
    options = {"split": kind, "core": core, "seed": seed, "split_seed": seed + 1, "test_fraction": 0.3}
    with TemporaryDirectory() as folder:
        for suffix, write in ((".parquet", table.write_parquet), (".csv", table.write_csv)):
            path = Path(folder) / f"rows{suffix}"
            write(path)
            check_same(path, min_rating=floor if "rating" in columns else None, **options)


@pytest.mark.parametrize("kind", ["ratio", "last", "time"])
def test_thousands_of_rows_are_split_alike(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(shuffles, "COMPILED", 1000)  # some ranges by Python's loop, then compiled code
    generator = np.random.default_rng(5)
    n = 4000
    table = pl.DataFrame(
        {
            "user": [f"u{number}" for number in generator.zipf(1.3, n) % 300],
            "item": generator.zipf(1.4, n) % 200,
            "rating": generator.integers(1, 6, n),
            "timestamp": generator.random(n) * 1000,
        }
    )
    table.write_parquet(tmp_path / "rows.parquet")
    check_same(tmp_path / "rows.parquet", split=kind, core=2, min_rating=2)
    assert len(read_given(tmp_path / "prepared").train) > 500


def test_parts_of_a_table_are_one_table(tmp_path):
    table = table_of([(user, user % 5 + item, user + item, 4.0) for user in range(9) for item in range(4)], "timestamp")
    (tmp_path / "parts").mkdir()
    for number, some in enumerate(table.iter_slices(10)):
        some.write_parquet(tmp_path / "parts" / f"part-{number:05}.parquet")
    table.write_parquet(tmp_path / "whole.parquet")
    check_same(tmp_path / "parts", split="time")
    parts, whole = load_split(tmp_path / "parts").split, load_split(tmp_path / "whole.parquet").split
    for name in PARTS:
        same_part(getattr(parts, name), getattr(whole, name))


BAD = {
    "missing user": "user,item\n1,2\n,3\n",
    "missing item and rating": "user,item,rating\n1,,3\n1,2,\n",
    "half ids": "user,item\n1.5,2\n,3\n",
    "mixed dates": "user,item,timestamp\n1,2,13/01/2020\n1,3,01/13/2020\n",
    "infinite rating": "user,item,rating\n1,2,1e39\n,3,2\n",
    "no rows": "user,item\n",
    "seconds and milliseconds": "user,item,timestamp\n1,2,1600000000\n2,,1600000000000\n",
    "one moment": "user,item,timestamp\n1,2,5\n2,2,5\n",
    "no test": "user,item\n1,2\n2,2\n",
    "no column": "a,b,c\nx,y,z\n",
}


@pytest.mark.parametrize("name", BAD)
def test_bad_rows_are_refused_with_the_same_words(tmp_path, name):
    path = tmp_path / "rows.csv"
    path.write_text(BAD[name])
    (message, kind), streamed = both(path)
    assert isinstance(message, str)
    assert streamed == (message, kind)
    assert not (tmp_path / "prepared").exists()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rows.csv"]


@pytest.mark.parametrize("name", ["missing user", "half ids"])
def test_bad_ids_of_parquet_are_refused_with_the_same_words(tmp_path, name):
    pl.read_csv(BAD[name].encode()).write_parquet(tmp_path / "rows.parquet")
    (message, kind), streamed = both(tmp_path / "rows.parquet")
    assert isinstance(message, str)
    assert streamed == (message, kind)


@given(st.lists(st.integers(-40, 40), min_size=1), st.sampled_from([1, 2**40]), st.sampled_from([0, 10**6]))
def test_ids_by_a_table_are_those_of_the_map(values, apart, at_least):
    column = pl.Series([value * apart for value in values])
    known = IdMap.sorted_from(column)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shards, "ROWS", at_least)
        index = shards._indexer(known)
    assert index(column).tolist() == known.index(column).tolist()
    for unknown in (41 * apart, -41 * apart, next(number for number in range(99) if number not in values)):
        with pytest.raises(TopshelfError, match="1 of 1 ids are unknown"):
            index(pl.Series([unknown]))


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(1, 12))
def test_ranges_cover_all_users_and_are_small(counts, n):
    ranges = ranges_of(np.array(counts, dtype=np.int64), n)
    assert [user for start, stop in ranges for user in range(start, stop)] == list(range(len(counts)))
    assert all(stop - start == 1 or sum(counts[start:stop]) <= n for start, stop in ranges)


@given(st.lists(st.integers(-5, 5), min_size=2) | st.lists(st.floats(-1e6, 1e6), min_size=2), st.floats(0.01, 0.99))
def test_the_moment_is_found_without_sorting(values, fraction):
    times = np.array(values)
    if len(set(values)) < 2:
        with pytest.raises(TopshelfError, match="at least two different timestamps"):
            moment_of(times, fraction, at_once=3)
        return
    assert moment_of(times, fraction, at_once=3) == cut_moment(times, fraction)
    before = times.max()
    if len(set(times[times < before].tolist())) > 1:
        assert moment_of(times, fraction, before=before, at_once=3) == cut_moment(times[times < before], fraction)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.integers(0, 2**40), st.integers(0, 30))
@modest
def test_shuffles_are_pythons(counts, seed, at):
    indptr = np.concatenate([[0], np.cumsum(counts)])
    share = np.array(counts) * 2 // 3
    generator, wanted = random.Random(seed), np.zeros(indptr[-1], dtype=bool)
    for user, n in enumerate(share.tolist()):
        positions = list(range(indptr[user], indptr[user + 1]))
        generator.shuffle(positions)
        wanted[positions[:n]] = True
    drawn, least = Shuffles(seed), shuffles.COMPILED
    try:
        shuffles.COMPILED = 100
        masks = (
            [drawn.first(indptr[: at + 1], share[:at]), drawn.first(indptr[at:], share[at:])]
            if at < len(counts)
            else [drawn.first(indptr, share)]
        )
    finally:
        shuffles.COMPILED = least
    np.testing.assert_array_equal(np.concatenate(masks), wanted)


@modest
@given(
    event_rows(), st.sets(st.sampled_from(["rating", "timestamp"])), st.booleans(), st.sampled_from(["tables", "bare"])
)
def test_a_given_split_is_that_of_the_path_in_memory(rows, columns, is_text, kind):
    """As `data prepare` writes it, or only two tables without lists of ids and events."""
    table = table_of(list(dict.fromkeys(rows)), *sorted(columns)).unique(["user", "item"], maintain_order=True)
    table = table.with_columns(pl.col("user").cast(pl.String if is_text else pl.Int64))
    with TemporaryDirectory() as place:
        folder, out = Path(place) / "given", Path(place) / "prepared"
        table.write_parquet(Path(place) / "rows.parquet")
        try:
            prepare_folder(Path(place) / "rows.parquet", folder, split="ratio", test_fraction=0.3)
        except TopshelfError:
            return  # too few rows for a split
        if kind == "bare":
            for path in folder.iterdir():
                if path.name not in ("train.parquet", "test.parquet"):
                    path.unlink()
        split = load_split(folder).split
        prepare_folder(folder, out, mapped=True, rows_at_once=7)
        for name in PARTS:
            same_part(getattr(read_given(out), name), getattr(split, name))


def test_parts_that_share_an_interaction_are_refused(tmp_path):
    (tmp_path / "given").mkdir()
    for name in ("train", "test"):
        pl.DataFrame({"user": [1, 2], "item": [3, 4]}).write_parquet(tmp_path / "given" / f"{name}.parquet")
    with pytest.raises(TopshelfError, match="train and test must not share an interaction, got item 3 of user 1"):
        prepare_folder(tmp_path / "given", tmp_path / "prepared", mapped=True, valid_fraction=0.1)
    assert not (tmp_path / "prepared").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"core": 3}, "core must be left out for"),
        ({"separator": ";"}, "separator must be left out for"),
        ({"split": "last"}, "split must be 'auto' where the test part is given"),
        ({"valid_fraction": 0.3}, "valid_fraction must be 0.1 where the validation part is given"),
    ],
)
def test_settings_that_change_nothing_of_a_given_split_are_refused_alike(tmp_path, options, message):
    rows = [(user, (user + item) % 9, 0, 1.0) for user in range(8) for item in range(5)]
    table_of(rows).write_parquet(tmp_path / "rows.parquet")
    prepare_folder(tmp_path / "rows.parquet", tmp_path / "given")
    for mapped in (False, True):
        with pytest.raises(TopshelfError, match=message):
            prepare_folder(tmp_path / "given", tmp_path / "prepared", mapped=mapped, **options)
