"""Ready-made splits: the paper's files and prepared folders."""

from __future__ import annotations

import zipfile
from pathlib import Path

import polars as pl
import pytest

from data.strategies import pairs_of
from topshelf.data import generate, make_split, unpack
from topshelf.data.given import read_given, write_split
from topshelf.data.summary import describe_split
from topshelf.errors import CheckpointError, DataError

FILES = {
    "train.tsv": "user_procid\titem_procid\n0\t0\n0\t2\n1\t1\n",
    "test.tsv": "user_procid\titem_procid\n1\t2\n",
    "user_list.tsv": "user_orgid\tuser_procid\n1\t0\n10\t1\n",
    "item_list.tsv": "item_orgid\titem_procid\n10\t0\n100\t1\n9\t2\n",
}


@pytest.fixture
def make_zip(tmp_path):
    def make(**changes: str | None):
        path = tmp_path / "paper.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in (FILES | {f"{key}.tsv": value for key, value in changes.items()}).items():
                if content is not None:
                    archive.writestr(name, content)
        return path

    return make


def test_the_papers_zip_keeps_its_indices_and_original_ids(make_zip):
    given = read_given(make_zip())
    assert pairs_of(given.train) == {(0, 0), (0, 2), (1, 1)}
    assert pairs_of(given.test) == {(1, 2)}
    assert not len(given.valid)
    assert given.train.users.values.to_list() == [1, 10]  # in order as numbers
    assert given.train.items.values.to_list() == ["10", "100", "9"]  # in order as text only


def test_a_folder_of_the_same_files_is_the_same(make_zip, tmp_path):
    with zipfile.ZipFile(make_zip()) as archive:
        archive.extractall(tmp_path / "folder")
    assert pairs_of(read_given(tmp_path / "folder").train) == pairs_of(read_given(make_zip()).train)


def test_without_lists_text_in_one_file_makes_all_ids_text(make_zip):
    given = read_given(make_zip(user_list=None, item_list=None, test="user\titem\nx\t1\n"))
    assert given.test.to_frame().rows() == [("x", 1)]
    assert given.train.users.values.to_list() == ["0", "1", "x"]


def test_without_lists_the_numbers_are_the_ids(make_zip):
    given = read_given(make_zip(user_list=None, item_list=None, test="user\titem\n7\t30\n"))
    assert given.test.to_frame().rows() == [(7, 30)]
    assert given.train.users.values.to_list() == [0, 1, 7]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test": None}, r"has no test.tsv. A ready-made split holds train.tsv and test.tsv"),
        ({"test": "user\titem\n1\t3\n"}, r"test.tsv: item index 3 is outside the 3 known items"),
        ({"test": "user\titem\nx\t1\n"}, r"test.tsv: user column must hold dense"),
        ({"train": ""}, r"train.tsv is empty"),
        ({"user_list": "id\tnew\n5\t0\n6\t2\n"}, r"user_list.tsv must number its 2 ids from 0 without gaps"),
        ({"user_list": "id\n5\n"}, r"user_list.tsv must have 2 columns"),
    ],
)
def test_unsound_contents_are_refused(changes, message, make_zip):
    with pytest.raises(DataError, match=message):
        read_given(make_zip(**changes))


def test_garbage_is_no_zip(tmp_path):
    (tmp_path / "garbage.zip").write_bytes(b"this is not a zip at all")
    with pytest.raises(DataError, match=r"garbage.zip is not a sound zip file.*Fetch it again"):
        read_given(tmp_path / "garbage.zip")


def test_huge_members_are_not_unpacked(make_zip, monkeypatch):
    monkeypatch.setattr(unpack, "MEMBER_LIMIT", 10)
    with pytest.raises(DataError, match=r"train.tsv must be <= 10 bytes unpacked, got 36"):
        read_given(make_zip())


def test_a_written_split_comes_back_whole(tmp_path):
    split = make_split(generate(60, 40, timestamps=True), kind="time")
    write_split(split, tmp_path / "[o]ut", {"split": "time"})  # a name that could be taken for a pattern
    given = read_given(tmp_path / "[o]ut")
    for name in ("train", "valid", "test"):
        assert getattr(given, name).to_frame().equals(getattr(split, name).to_frame())
    assert given.train.users.values.equals(split.users.values)
    assert given.train.items.values.equals(split.items.values)


def test_an_empty_validation_part_is_carved_anew(tmp_path):
    write_split(make_split(generate(60, 40), valid_fraction=0), tmp_path / "out", {})
    assert not len(read_given(tmp_path / "out").valid)


def test_a_prepared_folder_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    for seed in (0, 1):
        split = make_split(generate(60, 40, seed=seed))
        write_split(split, tmp_path / "out", {**describe_split(split), "seed": seed})
    assert '"seed": 1' in (tmp_path / "out" / "summary.json").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_foreign_folder_is_never_overwritten(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(DataError, match="was not made by `topshelf data prepare`"):
        write_split(make_split(generate(60, 40)), tmp_path, {})
    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("thesis.txt", "years of work"),
        ("summary.json", '{"accuracy": 0.9}'),
        ("summary.json", "[]"),
        ("summary.json", "\udc80 no json"),
    ],
)
def test_a_folder_that_only_looks_like_ours_stays_untouched(name, content, tmp_path):
    split, out = make_split(generate(60, 40)), tmp_path / "out"
    write_split(split, out, describe_split(split))
    (out / name).write_text(content, errors="surrogateescape")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(DataError, match="was not made by `topshelf data prepare`"):
        write_split(split, out, describe_split(split))
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_under_the_name_of_a_file_of_ours_is_foreign(tmp_path):
    split, out = make_split(generate(60, 40)), tmp_path / "out"
    write_split(split, out, describe_split(split))
    (out / "valid.parquet").unlink()
    (out / "valid.parquet").mkdir()
    with pytest.raises(DataError, match="was not made by"):
        write_split(split, out, describe_split(split))


def test_places_that_cannot_be_written_are_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for place in (tmp_path / "file" / "out", Path("/proc/nowhere/out")):
        with pytest.raises(CheckpointError, match=rf"cannot make the folder {place}: .*choose another --out"):
            write_split(make_split(generate(60, 40)), place, {})


def test_a_disk_that_fails_leaves_the_old_folder_alone(tmp_path, monkeypatch):
    split, out = make_split(generate(60, 40)), tmp_path / "out"
    write_split(split, out, describe_split(split))

    def fail(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", fail)
    with pytest.raises(CheckpointError, match=r"cannot write .*/out/train\.parquet: No space left on device"):
        write_split(split, out, describe_split(split))
    assert len(read_given(out).test) == len(split.test)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_empty_folder_is_filled(tmp_path):
    split = make_split(generate(60, 40))
    write_split(split, tmp_path, describe_split(split))
    assert len(read_given(tmp_path).test) == len(split.test)


@pytest.mark.parametrize(
    ("test", "pairs"),
    [
        ("1 8\n2 9 5\n3\n", {(1, 8), (2, 9), (2, 5)}),
        ("1 8 9\n2 9 5\n", {(1, 8), (1, 9), (2, 9), (2, 5)}),  # alone it could be a table of ratings
        ("1 8\n2 9\n", {(1, 8), (2, 9)}),
        ("1 8\n1 9\n", {(1, 8), (1, 9)}),
    ],
)
def test_lightgcns_folder_is_a_given_split(test, pairs, tmp_path):
    (tmp_path / "train.txt").write_text("1 5 6 7\n2 6 8\n3 9\n")
    (tmp_path / "test.txt").write_text(test)
    given = read_given(tmp_path)
    assert set(given.train.to_frame().rows()) == {(1, 5), (1, 6), (1, 7), (2, 6), (2, 8), (3, 9)}
    assert set(given.test.to_frame().rows()) == pairs
    assert not len(given.valid)
    (tmp_path / "valid.txt").write_text("3 5 6 7 8\n")
    assert read_given(tmp_path).valid.to_frame().rows() == [(3, 5), (3, 6), (3, 7), (3, 8)]


def test_a_folder_of_text_tables_is_a_given_split(tmp_path):
    (tmp_path / "train.txt").write_text("user item rating\n1 5 3\n2 6 4\n")
    (tmp_path / "test.txt").write_text("user item rating\n1 6 5\n")
    assert read_given(tmp_path).test.to_frame().rows() == [(1, 6, 5.0)]


@pytest.mark.parametrize(
    ("test", "message"),
    [
        (None, "has no test.txt beside its train.txt"),
        ("user item\n1 6\n", "test.txt must hold a user and then its items"),
        ("1 5 9\n2 7\n", "train and test must not share an interaction, got item 5 of user 1 in both"),
    ],
)
def test_an_unsound_folder_of_lists_is_refused(test, message, tmp_path):
    (tmp_path / "train.txt").write_text("1 5 6 7\n2 6 8\n")
    if test is not None:
        (tmp_path / "test.txt").write_text(test)
    with pytest.raises(DataError, match=message):
        read_given(tmp_path)


def test_a_folder_without_a_split_says_what_it_needs(tmp_path):
    with pytest.raises(DataError, match=r"has no train.tsv"):
        read_given(tmp_path)


def test_parts_that_share_an_interaction_are_refused(tmp_path):
    split = make_split(generate(60, 40))
    write_split(split, tmp_path / "out", {})
    split.train.to_frame().write_parquet(tmp_path / "out" / "test.parquet")
    with pytest.raises(
        DataError, match=r"out: train and test must not share an interaction, got item \d+ of user \d+ in both"
    ):
        read_given(tmp_path / "out")


def test_a_test_part_left_unread_is_neither_needed_nor_looked_at(make_zip, tmp_path):
    whole = read_given(make_zip())
    for test in (None, "not\ta\ttable\n"):
        given = read_given(make_zip(test=test), test=False)
        assert not len(given.test)
        assert pairs_of(given.train) == pairs_of(whole.train)
        assert given.train.items.values.equals(whole.train.items.values)  # of the list: items of test alone too
    listed = read_given(make_zip(user_list=None, item_list=None, test="user\titem\n7\t30\n"), test=False)
    assert listed.train.users.values.to_list() == [0, 1]  # those of train alone


@pytest.mark.parametrize("has_valid", [False, True])
def test_a_folder_without_its_test_file_is_read_where_none_is_wanted(has_valid, tmp_path):
    (tmp_path / "train.txt").write_text("0 1 2 3\n1 0 2\n")
    if has_valid:
        (tmp_path / "valid.txt").write_text("1 1\n")
    given = read_given(tmp_path, test=False)
    assert pairs_of(given.train) == {(0, 1), (0, 2), (0, 3), (1, 0), (1, 2)}
    assert not len(given.test)
    assert pairs_of(given.valid) == ({(1, 1)} if has_valid else set())
    with pytest.raises(DataError, match=r"has no test\.txt"):
        read_given(tmp_path)


def test_a_prepared_folder_without_its_test_file_is_read_where_none_is_wanted(tmp_path):
    split = make_split(generate(30, 20, seed=1))
    write_split(split, tmp_path / "out", describe_split(split))
    (tmp_path / "out" / "test.parquet").unlink()
    given = read_given(tmp_path / "out", test=False)
    assert not len(given.test)
    assert pairs_of(given.train) == pairs_of(split.train)
    assert pairs_of(given.valid) == pairs_of(split.valid)
    with pytest.raises(DataError, match=r"no interactions in test\.parquet"):
        read_given(tmp_path / "out")


def test_lists_of_ids_are_checked_too(make_zip, tmp_path):
    with pytest.raises(DataError, match=r"user_list.tsv: ids must be unique and present"):
        read_given(make_zip(user_list="id\tnew\n5\t0\n5\t1\n"))
    with pytest.raises(DataError, match=r"train.tsv: user index -1 is outside the 2 known users"):
        read_given(make_zip(train="user\titem\n-1\t0\n"))
    quoted = read_given(make_zip(item_list='id\tnew\n"a"\t"0"\n"b"\t"1"\n"c"\t"2"\n'))
    assert quoted.train.items.values.to_list() == ["a", "b", "c"]


def test_prepared_folders_with_foreign_ids_are_refused(tmp_path):
    write_split(make_split(generate(60, 40)), tmp_path / "out", {})
    for ids, message in ((["x"], r"unknown"), ([[1], [2]], r"users.parquet"), ([None], r"users.parquet: ids must be")):
        pl.DataFrame({"id": ids}).write_parquet(tmp_path / "out" / "users.parquet")
        with pytest.raises(DataError, match=message):
            read_given(tmp_path / "out")
    pl.DataFrame({"other": [1]}).write_parquet(tmp_path / "out" / "users.parquet")
    with pytest.raises(DataError, match=r"users.parquet cannot be read as a table"):
        read_given(tmp_path / "out")
