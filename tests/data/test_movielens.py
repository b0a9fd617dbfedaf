"""The recipe, applied to the registry's MovieLens 100K, is the paper's split."""

from __future__ import annotations

import hashlib

import pytest

from topshelf.data import Interactions, load_split, read_interactions
from topshelf.data.given import read_given
from topshelf.data.movielens import (
    WHEEL_SHA256,
    fetch_movielens_from_registry,
    read_ratings,
    read_titles,
    read_wheel,
)
from topshelf.errors import DataError

# Of the lines "user<TAB>item\n" (original ids, dense order) of the paper's movielens-100k.zip (4ab66c07...).
TRAIN_DIGEST = "f0fe0acc20ea6892acceb00c4b5e4909e2e8dbbd6654b8861d3c6776a8eea19e"
TEST_DIGEST = "6e75cf765373f2d718c763910dfd9b6b49ec3694e0ab5de009769ca83348531f"


def digest(data: Interactions) -> str:
    rows = data.to_frame().select("user", "item").iter_rows()
    return hashlib.sha256("".join(f"{user}\t{item}\n" for user, item in rows).encode()).hexdigest()


def test_the_recipe_gives_the_papers_split(wheel):
    given, _ = read_wheel(wheel)
    assert (given.train.n_users, given.train.n_items) == (939, 1016)
    assert (len(given.train), len(given.test)) == (63_944, 16_449)
    assert (digest(given.train), digest(given.test)) == (TRAIN_DIGEST, TEST_DIGEST)


def test_the_papers_zip_has_the_pinned_digests(paper_data):
    given = read_given(paper_data / "movielens-100k.zip")
    assert (digest(given.train), digest(given.test)) == (TRAIN_DIGEST, TEST_DIGEST)


def test_both_ways_to_movielens_are_one_dataset(wheel, paper_data, cache):
    by_zip = load_split("movielens-100k")
    assert by_zip.titles is None
    cache.mkdir()
    (cache / wheel.name).symlink_to(wheel)
    titled = load_split("movielens-100k")
    assert titled.titles[:2] == ["Toy Story (1995)", "Richard III (1995)"]
    given, titles = read_wheel(wheel)
    assert titled.titles == titles
    for part in (given.train, given.test):
        assert part.weight is None
    assert by_zip.split.test.to_frame().equals(given.test.to_frame())


def test_titles_follow_the_dense_items(wheel):
    given, titles = read_wheel(wheel)
    assert len(titles) == 1016
    assert titles[given.train.items.get("50")] == "Star Wars (1977)"
    assert read_titles(wheel, given.train.items) == titles


def test_all_ratings_are_read_with_their_times(wheel):
    data = Interactions.from_canonical(read_ratings(wheel))
    assert (data.n_users, data.n_items, len(data)) == (943, 1682, 100_000)
    assert (data.weight.min(), data.weight.max()) == (1, 5)
    assert data.timestamp.dtype.kind == "i"


def test_the_extracted_file_reads_the_same(wheel, tmp_path):
    ratings = read_ratings(wheel)
    named = ratings.rename({"user": "user_id:token", "item": "item_id:token", "weight": "rating:float"})
    named.write_csv(tmp_path / "ml-100k.inter", separator="\t")
    assert (
        read_interactions(tmp_path / "ml-100k.inter").to_frame().equals(Interactions.from_canonical(ratings).to_frame())
    )


def test_a_changed_wheel_is_not_used(tmp_path):
    (tmp_path / "fake.whl").write_bytes(b"x")
    with pytest.raises(DataError, match=f"must have sha256 {WHEEL_SHA256}"):
        read_wheel(tmp_path / "fake.whl")


@pytest.mark.network
def test_the_registry_hands_out_the_wheel_once(tmp_path):
    path = fetch_movielens_from_registry(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert fetch_movielens_from_registry(tmp_path) == path
