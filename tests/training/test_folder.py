"""The data of a run folder: every event and what was rated too low come back, and old folders still open."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from topshelf.config import make_config
from topshelf.data import Dataset, generate, load_split, split_interactions
from topshelf.errors import CheckpointError, TopshelfWarning
from topshelf.recommender import Recommender
from topshelf.training import checkpoint, fit, load
from topshelf.training.folder import RunFolder

SETTINGS = {"k": 5, "model": {"name": "ease"}}


@pytest.fixture(scope="module")
def ratings(tmp_path_factory):
    """A file with ratings, times and repeats."""
    generator = np.random.default_rng(0)
    frame = generate(60, 40, interactions_per_user=8, timestamps=True).to_frame()
    frame = frame.with_columns(rating=pl.Series(generator.integers(1, 6, size=len(frame)).astype(float)))
    again = frame.sample(100, seed=0).with_columns(pl.col("timestamp") + 3_000_000)
    path = tmp_path_factory.mktemp("data") / "ratings.csv"
    pl.concat([frame, again]).write_csv(path)
    return path


@pytest.fixture(scope="module")
def dataset(ratings) -> Dataset:
    return load_split(ratings, min_rating=3)


@pytest.fixture
def folder(dataset, tmp_path) -> RunFolder:
    with RunFolder.whole(tmp_path / "run", make_config(SETTINGS), lambda new: new.save_dataset(dataset)):
        pass
    return RunFolder(tmp_path / "run")


def test_every_part_comes_back_with_its_events(dataset, folder):
    kept = folder.load_dataset().split
    assert len(dataset.split.below) > 50
    for name, part in dataset.split.parts.items():
        assert np.array_equal(kept.parts[name].keys(), part.keys())
        assert kept.parts[name].to_frame(events=True).equals(part.to_frame(events=True))
    assert len(kept.train.events) > len(kept.train)
    assert len(kept.test.events) > len(kept.test)  # repeats of what is in train


def test_a_folder_of_an_earlier_version_has_no_events(dataset, folder):
    state = checkpoint.load(folder.interactions)
    for name in ("train", "valid", "test", "left_out"):
        del state[name]["events"]
    del state["below"]
    checkpoint.save(folder.interactions, state)
    folder.identity_file.unlink()  # which has the checksums
    kept = RunFolder(folder.path).load_dataset().split
    assert kept.train.events is None
    assert not len(kept.below)
    assert np.array_equal(kept.train.keys(), dataset.split.train.keys())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda events: events["indices"].fill_(40), "the events of test names item 40"),
        (lambda events: events["timestamp"].neg_(), "the events of test must be in the order of their times"),
        (lambda events: events.pop("indptr"), "indptr"),
        (lambda events: events.update(extra=None), "extra"),
    ],
)
def test_damaged_events_are_refused(change, message, folder):
    state = checkpoint.load(folder.interactions)
    change(state["test"]["events"])
    checkpoint.save(folder.interactions, state)
    folder.identity_file.unlink()
    with pytest.raises(CheckpointError, match=f"its data do not fit together: .*{message}"):
        RunFolder(folder.path).load_dataset()


@pytest.mark.parametrize("refit", [False, "all"])
def test_what_was_rated_low_is_never_listed_and_changes_no_number(refit, dataset, tmp_path):
    config = make_config({**SETTINGS, "train": {"refit": refit}})
    without = replace(dataset, split=replace(dataset.split, below=dataset.split.train.none()))
    done, plain = fit(config, dataset, out=tmp_path / "run"), fit(config, without)
    assert done.test_json() == plain.test_json()
    assert done.valid_score == plain.valid_score
    below = set(dataset.split.below.to_frame().select("user", "item").iter_rows())
    listed = [
        set(some.recommend(k=15).select("user", "item").iter_rows())
        for some in (Recommender.of(plain), Recommender.of(done), Recommender.of(load(tmp_path / "run")))
    ]
    assert listed[0] & below
    assert not listed[1] & below
    assert listed[1] == listed[2]
    user, item = next(iter(below))
    new = Recommender.of(done).recommend_new({user: []}, k=40)
    assert item not in new["item"].to_list()


def test_a_table_in_memory_keeps_what_was_rated_low(ratings, dataset):
    with pytest.warns(TopshelfWarning, match="100 of 600 rows repeat"):
        recommender = Recommender(**SETTINGS, data={"min_rating": 3}).fit(pl.read_csv(ratings))
    split = recommender.fitted.dataset.split
    assert np.array_equal(split.below.keys(), dataset.split.below.keys())
    assert split.test.to_frame(events=True).equals(dataset.split.test.to_frame(events=True))
    assert not len(split_interactions(split.train, name="again", split="ratio").split.below)
