"""A run that is updated: every model, week after week, in folders that every command takes."""

from __future__ import annotations

import json
import shutil
import warnings

import polars as pl
import pytest
import torch
from torch.testing import assert_close

from command_line import run_topshelf
from topshelf import Recommender, blend, load
from topshelf.config import make_config
from topshelf.data.drift import WEEK, drifting
from topshelf.errors import CheckpointError, ConfigError, DataError, TopshelfWarning
from topshelf.files import read_sealed, write_sealed
from topshelf.models import MODELS
from topshelf.queries import Context
from topshelf.ragged import Ragged
from topshelf.training.folder import RunFolder
from topshelf.versions import forget, learning, next_name, update
from topshelf.versions.learning import keep_queries, keep_rows

FRAME = drifting(80, 60, weeks=8, per_week=3.0, blocks=4)
START = FRAME["timestamp"].min()


def weeks(first: int, last: int) -> pl.DataFrame:
    times = pl.col("timestamp") - START
    return FRAME.filter((times >= first * WEEK) & (times < last * WEEK))


def recommender(model="mf", **more) -> Recommender:
    return Recommender(k=5, model=model, **{"train": {"epochs": 3, "validate_every": 1}, **more})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "clicks"
    recommender().fit(weeks(0, 6), out=folder)
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_updated_with_new_users_and_items_again_and_again(name, tmp_path):
    first = recommender(name).fit(weeks(0, 6))
    known = len(first.artifact.users), len(first.artifact.items)
    second = update(first.fitted, weeks(6, 7))
    third = update(second, weeks(7, 8), out=tmp_path / "third")
    loaded = Recommender.load(tmp_path / "third")
    assert len(loaded.artifact.users) == FRAME["user"].n_unique() > known[0]
    assert len(loaded.artifact.items) == FRAME["item"].n_unique() > known[1]
    lists = loaded.recommend(FRAME["user"].unique().to_list())
    assert lists.group_by("user").len()["len"].eq(5).all()
    seen = set(FRAME.select("user", "item").rows())
    assert not seen & set(lists.select("user", "item").rows())
    assert set(FRAME.select("user", "item").rows()) == {
        tuple(pair) for pair in load(tmp_path / "third").dataset.interactions().to_frame().select("user", "item").rows()
    }
    assert [step["kind"] for step in loaded.fitted.origin.lineage] == ["update", "update"]
    assert 0 < third.measured["mean"]["ndcg@5"] <= 1


def test_the_same_update_is_the_same_to_the_last_bit_and_learns(run):
    one, other = update(run, weeks(6, 8)), update(run, weeks(6, 8))
    for name, value in one.model.state_dict().items():
        assert_close(value, other.model.state_dict()[name], rtol=0, atol=0)
    old = load(run)
    n = old.model.n_queries
    assert not torch.equal(one.model.query_vectors[:n], old.model.query_vectors)
    cosines = torch.cosine_similarity(one.model.query_vectors[:n], old.model.query_vectors)
    assert cosines.mean() > 0.5  # from the old vectors, not from the start


def test_the_old_model_is_measured_on_what_is_new_before_it_learns_it(run):
    old = load(run)
    learned = old.dataset.split.train.to_frame()["user"]  # the lists of others are the popular one, not the model's
    week = weeks(6, 7).filter(pl.col("user").is_in(learned.implode()))
    updated = update(run, week)
    known = week.filter(pl.col("user").is_in(old.dataset.split.users.values.implode()))
    known = known.filter(pl.col("item").is_in(old.dataset.split.items.values.implode()))
    assert updated.measured["n_evaluated"] == known["user"].n_unique()
    assert Recommender.of(old).score(known) == pytest.approx(updated.measured["mean"]["ndcg@5"], abs=1e-6)
    with pytest.raises(ConfigError, match="refitted on everything"):
        updated.evaluate()


def test_the_folder_says_where_it_comes_from_and_the_old_one_stays(run, tmp_path):
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    update(run, weeks(6, 7), out=tmp_path / "second")
    assert before == {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    (step,) = load(tmp_path / "second").origin.lineage
    assert step["parent"] == RunFolder(run).run
    new = weeks(6, 7)
    assert step["interactions"] == len(new)
    assert step["users"] == len(set(new["user"]) - set(weeks(0, 6)["user"]))
    metrics = json.loads((tmp_path / "second" / "metrics.json").read_text())
    assert metrics["refit"] == "all"
    assert metrics["test_users"]["evaluated"] > 0


@pytest.mark.parametrize(
    "call", [lambda run, out: update(run, weeks(6, 7), out=out), lambda run, out: forget(run, [1], out=out)]
)
def test_a_folder_that_is_there_is_refused_before_the_work(call, run, tmp_path, monkeypatch):
    monkeypatch.setattr("topshelf.versions.updating.load", lambda path: pytest.fail("the run was opened"))
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    with pytest.raises(ConfigError, match=r"must be a new or empty folder, and .*there holds something else"):
        call(run, tmp_path / "there")


def test_a_run_is_replaced_at_once_and_keeps_its_old_content_if_that_fails(run, tmp_path, monkeypatch):
    shutil.copytree(run, tmp_path / "run")
    identity = RunFolder(tmp_path / "run").run
    monkeypatch.setattr(RunFolder, "save_metrics", lambda *_: (_ for _ in ()).throw(CheckpointError("disk full")))
    with pytest.raises(CheckpointError, match="disk full"):
        update(tmp_path / "run", weeks(6, 7), replaced=True)
    assert RunFolder(tmp_path / "run").run == identity
    load(tmp_path / "run")
    monkeypatch.undo()
    update(tmp_path / "run", weeks(6, 7), replaced=True)
    assert RunFolder(tmp_path / "run").run != identity
    assert len(load(tmp_path / "run").origin.lineage) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_blend_is_updated_part_by_part_also_from_its_folder(tmp_path):
    fits = [recommender(name).fit(weeks(0, 6)).fitted for name in ("mf", "ease")]
    blend(fits, weights=[1.0, 0.5], out=tmp_path / "blend")
    updated = update(tmp_path / "blend", weeks(6, 8), out=tmp_path / "second")
    assert [part.best_epoch for part in updated.origin.parts] == [fits[0].best_epoch, 0]
    assert updated.config.model.settings["weights"] == [1.0, 0.5]
    alone = update(fits[0], weeks(6, 8))
    assert_close(updated.model.parts[0].query_vectors, alone.model.query_vectors, rtol=0, atol=0)
    assert len(Recommender.load(tmp_path / "second").recommend([int(FRAME["user"].max())])) == 5
    update(tmp_path / "second", weeks(0, 1).with_columns(pl.lit(1000).alias("user")))


def test_a_blend_that_does_not_know_its_trained_parts_is_refused_with_a_remedy(tmp_path):
    fits = [recommender(name).fit(weeks(0, 6)).fitted for name in ("mf", "ease", "itemknn")]
    made = blend(fits[:2], weights=[1.0, 1.0])
    object.__setattr__(made, "origin", type(made.origin)())  # as an earlier version left it
    with pytest.raises(ConfigError, match="Make it again from its runs"):
        update(made, weeks(6, 7))
    closed = blend(fits[1:], weights=[1.0, 1.0])
    object.__setattr__(closed, "origin", type(closed.origin)())
    assert len(update(closed, weeks(6, 7)).origin.parts) == 2  # nothing needs to be known of them


def test_a_damaged_origin_is_refused(tmp_path):
    fits = [recommender(name).fit(weeks(0, 6)).fitted for name in ("mf", "ease")]
    blend(fits, weights=[1.0, 1.0], out=tmp_path / "blend")
    path = tmp_path / "blend" / "origin.json"
    content = read_sealed(path)
    write_sealed(path, {**content, "parts": content["parts"][:1]})
    with pytest.raises(CheckpointError, match="checksum is not the one in"):
        load(tmp_path / "blend")


@pytest.mark.parametrize(
    ("data", "error", "match"),
    [
        (weeks(0, 1), DataError, "all known"),
        (weeks(0, 1).rename({"user": "a", "item": "b"}).select("a", "b"), DataError, "column"),
        ("nowhere.csv", DataError, "is not a file"),
    ],
)
def test_bad_data_are_refused(run, data, error, match):
    with pytest.raises(error, match=match):
        update(run, data)


def test_other_tasks_and_unfinished_runs_are_refused_with_a_remedy(tmp_path, run):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TopshelfWarning)  # of short sequences
        sequences = Recommender(k=5, task="sequences", model="popularity").fit(FRAME)
    with pytest.raises(ConfigError, match="topshelf train --task sequences"):
        update(sequences.fitted, weeks(6, 7))
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "metrics.json").unlink()
    with pytest.raises(CheckpointError, match="is not finished"):
        update(tmp_path / "run", weeks(6, 7))
    with pytest.raises(ConfigError, match="not a folder"):
        update(load(run), weeks(6, 7), replaced=True)


def test_titles_of_new_items_are_their_ids_or_those_given(run):
    first = load(run)
    titles = {item: f"Thing {item}" for item in FRAME["item"].unique()}
    named = update(first, weeks(6, 7), titles=titles)
    later = update(named, weeks(7, 8))
    new = later.dataset.split.items.ids(range(named.model.n_items, later.model.n_items))
    assert later.dataset.titles[: named.model.n_items] == [
        f"Thing {id}" for id in named.dataset.split.items.ids(range(named.model.n_items))
    ]
    assert later.dataset.titles[named.model.n_items :] == [str(id) for id in new]


def test_names_of_versions_follow_each_other(tmp_path):
    assert next_name(tmp_path / "clicks").name == "clicks-2"
    (tmp_path / "clicks-2").mkdir()
    assert next_name(tmp_path / "clicks").name == "clicks-3"
    assert next_name(tmp_path / "clicks-2").name == "clicks-3"
    assert next_name(tmp_path / "2026-05").name == "2026-05-2"


def test_rows_of_tables_keep_their_places_and_others_are_new():
    config = {"dim": 4}
    small, large = (MODELS["mf"](n, n + 1, **config) for n in (5, 8))
    fresh = large.query_vectors.detach().clone()
    keep_rows(small, large)
    assert_close(large.query_vectors[:5], small.query_vectors)
    assert_close(large.query_vectors[5:], fresh[5:])
    fewer = MODELS["mf"](3, 9, **config)
    keep_queries(large, fewer, torch.tensor([0, 2, 7]))
    assert_close(fewer.query_vectors, large.query_vectors[[0, 2, 7]])
    assert_close(fewer.item_vectors, large.item_vectors)


def test_new_rows_start_among_what_they_met():
    lists = Ragged(torch.tensor([0, 2, 3, 5, 5]), torch.tensor([0, 2, 2, 1, 2]))  # user 2 and item 2 are new
    model = MODELS["mf"](4, 3, dim=4)
    old = {name: value.clone() for name, value in model.state_dict().items()}
    model.place_new(2, 2, Context(lists, 3))
    assert_close(model.query_vectors[[0, 1, 3]], old["query_vectors"][[0, 1, 3]])  # user 3 has met nothing
    assert_close(model.item_vectors[:2], old["item_vectors"][:2])
    met = torch.nn.functional.normalize(old["query_vectors"][:2], dim=1).sum(0)
    assert torch.cosine_similarity(model.item_vectors[2], met, dim=0) > 0.9999
    assert_close(model.item_vectors[2].norm(), old["item_vectors"][:2].norm(dim=1).mean())
    items = torch.nn.functional.normalize(model.item_vectors.detach(), dim=1)
    assert torch.cosine_similarity(model.query_vectors[2], items[1] + items[2], dim=0) > 0.9999


def test_new_items_of_a_history_model_start_among_their_users():
    lists = Ragged(torch.tensor([0, 3, 4]), torch.tensor([0, 1, 2, 2]))  # item 2 is new, and all that user 1 has
    model = MODELS["history"](2, 3, dim=4)
    old = {name: value.clone() for name, value in model.state_dict().items()}
    model.place_new(1, 2, Context(lists, 3))
    met = old["history_vectors"][:2].sum(0)
    for name, rows in model.state_dict().items():
        assert_close(rows[:2], old[name][:2])
        assert torch.cosine_similarity(rows[2], met, dim=0) > 0.9999


def test_a_learning_rate_that_has_decayed_is_not_raised_again(monkeypatch):
    rates = []
    trained = learning._run
    monkeypatch.setattr(
        learning, "_run", lambda trainer, *more: (rates.append(trainer.settings), trained(trainer, *more))
    )
    config = {"epochs": 4, "validate_every": 4, "learning_rate": 0.1, "decay_every": 1, "decay_factor": 0.5}
    first = recommender(train=config).fit(weeks(0, 6)).fitted
    update(first, weeks(6, 7))
    assert first.best_epoch == 4
    assert rates[0].learning_rate == pytest.approx(0.1 * 0.5**3)
    assert rates[0].epochs == 1


@pytest.mark.parametrize("estimator", ["sampled", "regression"])
def test_thresholds_of_all_estimators_are_there_from_the_first_step(estimator):
    first = recommender(threshold={"estimator": estimator, "n": 20}).fit(weeks(0, 6)).fitted
    assert update(first, weeks(6, 7)).model.query_vectors.isfinite().all()


def test_the_command_line_updates_a_run_from_a_file(run, tmp_path):
    weeks(6, 7).rename({"user": "who"}).write_csv(tmp_path / "week.csv")
    output, _ = run_topshelf(
        "update", run, "--data", tmp_path / "week.csv", "--user-column", "who", "--out", tmp_path / "b", "--quiet"
    )
    assert "the old model on them, before it saw them: ndcg@5" in output
    assert f"topshelf changes {run} {tmp_path / 'b'}" in output
    weeks(7, 8).write_csv(tmp_path / "next.csv")
    text, _ = run_topshelf("update", tmp_path / "b", "--data", tmp_path / "next.csv", "--json", "--quiet")
    result = json.loads(text)
    assert result["run"] == str(tmp_path / "b-2")
    assert result["interactions"] == len(weeks(7, 8))
    assert "ndcg@5" in result["measured"]
    run_topshelf("recommend", result["run"], "--user", FRAME["user"].max(), "--k", 3)
    run_topshelf("report", result["run"], "-o", tmp_path / "page.html")
    assert "give --data FILE" in run_topshelf("update", run, code=2)[1]
    both = ("update", run, "--data", tmp_path / "week.csv", "--replace", "--out", tmp_path / "c")
    assert "not both" in run_topshelf(*both, code=2)[1]
    assert "already holds a run" in run_topshelf("update", run, "--data", "x.csv", "--out", tmp_path / "b", code=2)[1]


def test_a_recommender_updates_itself(run):
    loaded = Recommender.load(run)
    user = int(weeks(6, 8)["user"].max())
    assert loaded.update(weeks(6, 8)) is loaded
    assert len(loaded.recommend([user])) == 5
    assert make_config(loaded.fitted.config.model_dump(exclude_none=True)).train.refit == "all"
