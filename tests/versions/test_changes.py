"""Two versions of a run compared, by a slow reference over the lists of both."""

from __future__ import annotations

import json

import polars as pl
import pytest

from command_line import run_topshelf
from topshelf import Recommender
from topshelf.data.drift import WEEK, drifting
from topshelf.errors import ConfigError, DataError
from topshelf.versions import changes
from topshelf.versions import changes as module

FRAME = drifting(40, 30, weeks=6, per_week=2.0, blocks=3)
OLD = FRAME.filter(FRAME["timestamp"] - FRAME["timestamp"].min() < 4 * WEEK)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("versions")
    old = Recommender(k=4, model="ease", data={"test_fraction": 0.0}).fit(OLD, out=folder / "old")
    old.update(FRAME.join(OLD, on=["user", "item"], how="anti"), out=folder / "new")
    return folder / "old", folder / "new"


def lists_of(run, k) -> dict:
    table = Recommender.load(run).recommend(k=k)
    return dict(table.group_by("user", maintain_order=True).agg("item").iter_rows())


@pytest.mark.parametrize("k", [1, 4, 100])
def test_it_is_what_a_slow_count_says(runs, k):
    found = changes(*runs, k=k, people=5)
    old, new = lists_of(runs[0], found.k), lists_of(runs[1], found.k)
    both = [user for user in new if user in old]
    assert found.users == len(both)
    overlap = {user: len(set(old[user]) & set(new[user])) / max(len(old[user]), len(new[user]), 1) for user in both}
    assert found.shares["overlap"] == pytest.approx(sum(overlap.values()) / len(both))
    assert found.shares["unchanged"] == sum(old[user] == new[user] for user in both) / len(both)
    pairs = set(FRAME.select("user", "item").rows())
    left = [(user, item) for user in both for item in old[user] if item not in new[user]]
    assert found.shares["taken"] == pytest.approx(sum(pair in pairs for pair in left) / max(1, len(left)))
    fresh = set(FRAME["item"]) - set(OLD["item"])
    places = [item for user in both for item in new[user]]
    assert found.shares["fresh"] == pytest.approx(sum(item in fresh for item in places) / len(places))
    assert found.facts["listed_items"] == (len({i for u in both for i in old[u]}), len(set(places)))
    assert found.facts["known_items"] == (OLD["item"].n_unique(), FRAME["item"].n_unique())
    assert found.people["overlap"].to_list() == pytest.approx(sorted(overlap.values())[:5])
    for user, _, came, gone in found.people.iter_rows():
        assert came == [str(item) for item in new[user] if item not in old[user]]
        assert gone == [str(item) for item in old[user] if item not in new[user]]


def test_blocks_of_users_add_up(runs, monkeypatch):
    whole = changes(*runs)
    monkeypatch.setattr("topshelf.versions.comparing._BLOCK", 8)
    parts = changes(*runs)
    assert parts.shares == pytest.approx(whole.shares)
    assert parts.facts == whole.facts
    assert parts.people.equals(whole.people)


def test_a_run_is_the_same_as_itself(runs):
    same = module(runs[0], runs[0])
    assert same.shares["overlap"] == same.shares["unchanged"] == 1.0
    assert same.shares["taken"] == same.shares["fresh"] == 0.0
    assert "overlap" in repr(same)
    assert "<table" in same._repr_html_()


def test_versions_without_a_common_user_and_bad_numbers_are_refused(runs):
    other = Recommender(k=4, model="popularity").fit(OLD.with_columns(OLD["user"] + 1000))
    with pytest.raises(DataError, match="must share users"):
        changes(runs[0], other.artifact)
    with pytest.raises(ConfigError, match="k must be >= 1"):
        changes(*runs, k=0)


def test_the_command_line_shows_titles(runs, tmp_path):
    titles = tmp_path / "items.csv"
    titles.write_text("item,title\n" + "".join(f"{item},Thing {item}\n" for item in range(30)))
    output, _ = run_topshelf("changes", *runs, "--people", 2, "--titles", titles)
    assert "overlap" in output
    assert "Thing" in output
    text, _ = run_topshelf("changes", *runs, "--json", "--k", 2)
    assert json.loads(text)["k"] == 2
    assert json.loads(text)["coverage"]["old"] > 0
    assert len(json.loads(text)["people"]) == 5


def test_versions_without_any_listed_item_have_finite_numbers():
    """Every user has every item: all lists are empty."""
    pairs = [(user, item) for user in range(6) for item in range(5)]
    frame = pl.DataFrame(pairs, schema=["user", "item"], orient="row")
    run = Recommender(k=3, model="popularity", data={"test_fraction": 0.0}, train={"refit": True}).fit(frame)
    found = changes(run.artifact, run.artifact)
    assert found.facts["listed_items"] == (0.0, 0.0)
    assert found.facts["popularity"] == (0.0, 0.0)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["fresh"] == 0.0
