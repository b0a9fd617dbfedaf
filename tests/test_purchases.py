"""The path of a new user with a purchase file: real timestamps, lists for everybody, then the next week's file."""

from __future__ import annotations

import json
from contextlib import nullcontext

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from command_line import run_topshelf
from runs import StopAfter
from topshelf.config import make_config, merged
from topshelf.data import Dataset, Interactions, generate, make_split
from topshelf.data.movielens import read_ratings
from topshelf.errors import ConfigError, DataError, TopshelfWarning
from topshelf.models import MODELS
from topshelf.models.describe import takes_new_users
from topshelf.recommender import Recommender
from topshelf.training import StoppedEarly, fit, load
from topshelf.training import phases as phases_module

SHORT = ("--k", 10, "--quiet", "--set", "train.epochs=4", "--set", "train.validate_every=2")


@pytest.fixture(scope="module")
def shop(wheel, tmp_path_factory):
    """MovieLens-100K as a shop's files: all but the last purchases, and a week that follows."""
    folder = tmp_path_factory.mktemp("shop")
    table = read_ratings(wheel).sort("timestamp", maintain_order=True)
    moments = pl.from_epoch("timestamp").dt.strftime("%Y-%m-%d %H:%M:%S").alias("purchased_at")
    table = table.select(pl.col("user").alias("customer"), pl.col("item").alias("sku"), moments)
    table.head(95_000).write_csv(folder / "purchases.csv")
    table.tail(5_000).write_csv(folder / "week.csv")
    table.write_csv(folder / "everything.csv")
    return folder


def pairs(path) -> set[tuple[str, str]]:
    table = pl.read_csv(path, infer_schema=False)
    user, item = ("customer", "sku") if "sku" in table.columns else ("user", "item")
    return set(zip(table[user], table[item], strict=True))


@pytest.mark.parametrize("model", ["mf", "ease"])
def test_refit_on_everything_lists_nothing_owned_and_scores_everybody(shop, tmp_path, model):
    """The issue: 23,199 of 100,000 left out, 1,141 of 9,430 rows owned, 246 of 943 customers without scores."""
    out, lists = tmp_path / "run", tmp_path / "lists.csv"
    data = ("--data", shop / "everything.csv")
    shown, _ = run_topshelf("train", *data, "--model", model, *SHORT, "--set", "train.refit=all", "--out", out)
    assert "split time" in shown
    assert "was trained on all 100,000 interactions" in shown
    run_topshelf("recommend", out, "--out", lists)
    found = pl.read_csv(lists)
    assert found.height == 9_430
    assert found["user"].n_unique() == 943
    assert not pairs(lists) & pairs(shop / "everything.csv")
    assert found["score"].null_count() == 0


def test_the_next_week_is_joined_to_what_customers_have(shop, tmp_path):
    out, lists = tmp_path / "run", tmp_path / "lists.csv"
    data = ("--data", shop / "purchases.csv")
    run_topshelf("train", *data, "--model", "ease", *SHORT, "--set", "train.refit=all", "--out", out)
    _, errors = run_topshelf("recommend", out, "--new", shop / "week.csv", "--out", lists)
    week, before = pl.read_csv(shop / "week.csv"), pl.read_csv(shop / "purchases.csv")
    unknown = week.join(before.select("sku").unique(), on="sku", how="anti")
    assert unknown["sku"].n_unique() > 0
    assert f"{unknown.height} of 5,000 interactions are skipped" in errors
    assert f"({unknown['sku'].n_unique()} items)" in errors
    found = pl.read_csv(lists)
    assert set(found["user"]) == set(week["customer"])
    known = set(before["customer"]) & set(week["customer"])
    assert 20 < len(known) < found["user"].n_unique()  # both kinds are there
    assert not pairs(lists) & (pairs(shop / "purchases.csv") | pairs(shop / "week.csv"))
    assert found["score"].null_count() == 0


@pytest.fixture(scope="module")
def late():
    """Data whose time split leaves out late users and items."""
    made = generate(120, 60, interactions_per_user=8, timestamps=True, seed=2)
    times = made.timestamp.copy()
    rows = made.rows()
    times[rows < 20] += 400 * 24 * 3600  # twenty users came last
    return Interactions(made.indptr, made.indices, made.users, made.items, timestamp=times)


def config(**more):
    small = {"k": 5, "train": {"epochs": 4, "batch_size": 64, "validate_every": 2}}
    return make_config(merged(small, more))


def test_a_split_keeps_what_no_part_has(late):
    split = make_split(late)
    assert split.notes["dropped_test"] > 100
    assert len(split.left_out) == split.notes["dropped_test"] + split.notes["dropped_valid"]
    everything = [getattr(split, name).keys() for name in ("train", "valid", "test", "left_out")]
    assert np.array_equal(np.sort(np.concatenate(everything)), late.keys())


@pytest.mark.parametrize("model", sorted(MODELS))
def test_all_means_all_for_every_model(late, tmp_path, model):
    dataset = Dataset("late", make_split(late))
    done = fit(config(model={"name": model}, train={"refit": "all"}), dataset, out=tmp_path / "run")
    owned = set(late.keys().tolist())
    for recommender in (Recommender.of(done), Recommender.load(tmp_path / "run")):
        found = recommender.recommend()
        keys = found["user"].to_numpy() * late.n_items + found["item"].to_numpy()
        assert not owned & set(keys.tolist())
        assert found["score"].null_count() == 0
        assert found["user"].n_unique() == 120


def test_without_a_refit_nothing_owned_is_listed_either(late):
    found = Recommender.of(fit(config(model={"name": "ease"}), Dataset("late", make_split(late)))).recommend()
    keys = found["user"].to_numpy() * late.n_items + found["item"].to_numpy()
    assert not set(late.keys().tolist()) & set(keys.tolist())


@pytest.mark.parametrize("model", ["mf", "ease"])
@pytest.mark.parametrize("refit", [False, True, "all"])
def test_those_who_want_no_test_get_none(late, tmp_path, model, refit):
    settings = {"model": {"name": model}, "train": {"refit": refit}, "data": {"test_fraction": 0.0}}
    split = make_split(late, test_fraction=0.0)
    assert len(split.test) == 0
    fit(config(**settings), Dataset("late", split), out=tmp_path / "run")
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["test"] is None
    assert metrics["valid"]["ndcg@5"] > 0
    with pytest.raises(ConfigError, match=r"no test part \(data.test_fraction = 0\)"):
        load(tmp_path / "run").evaluate()
    assert Recommender.load(tmp_path / "run").recommend([3]).height == 5


def test_no_test_part_on_the_command_line(late, tmp_path):
    late.to_frame().write_csv(tmp_path / "late.csv")
    none = ("--set", "data.test_fraction=0", "--set", "train.refit=all")
    shown, _ = run_topshelf("train", "--data", tmp_path / "late.csv", *SHORT, *none, "--out", tmp_path / "run")
    assert "no test part (data.test_fraction = 0); validation ndcg@10" in shown
    assert f"was trained on all {len(late):,} interactions" in shown


def test_an_empty_test_part_that_nobody_asked_for_is_refused(late):
    split = make_split(late, test_fraction=0.0)
    with pytest.raises(DataError, match="the test part of the time split is empty"):
        fit(config(), Dataset("late", split))


@pytest.mark.parametrize("model", sorted(name for name in MODELS if takes_new_users(MODELS[name])))
def test_a_known_user_keeps_the_history_and_gains_the_new_items(late, model):
    recommender = Recommender.of(
        fit(config(model={"name": model}, train={"refit": "all"}), Dataset("late", make_split(late)))
    )
    has = late.to_frame().filter(pl.col("user") == 7)["item"].to_list()
    new = [item for item in range(60) if item not in has][:2]
    joined = recommender.recommend_new({7: new})
    assert joined["user"].unique().to_list() == [7]
    assert not {*has, *new} & set(joined["item"])
    by_hand = recommender.recommend_new([[*has, *new]])
    assert joined.drop("user").equals(by_hand.drop("user"))


def test_a_model_that_cannot_learn_from_them_says_so_and_still_leaves_them_out(late):
    recommender = Recommender.of(
        fit(config(model={"name": "mf"}, train={"refit": "all"}), Dataset("late", make_split(late)))
    )
    first = recommender.recommend([7], k=3)
    with pytest.warns(TopshelfWarning, match="MF cannot use new interactions without training"):
        again = recommender.recommend_new({7: [first["item"][0]]}, k=2)
    assert again["item"].to_list() == first["item"][1:].to_list()
    assert again["score"].to_list() == pytest.approx(first["score"][1:].to_list())
    with pytest.warns(TopshelfWarning, match="1 new users get the most popular items, without scores"):
        both = recommender.recommend_new({7: [3], "zoe": [3]}, k=2)
    assert both.filter(pl.col("user") == "zoe")["score"].null_count() == 2
    assert both.filter(pl.col("user") == "7")["score"].null_count() == 0


def test_unknown_items_are_counted_named_and_skipped(late):
    recommender = Recommender.of(fit(config(model={"name": "ease"}), Dataset("late", make_split(late))))
    with pytest.warns(TopshelfWarning, match=r"3 of 5 interactions are skipped.*\(2 items\): 'vase', 999"):
        found = recommender.recommend_new([[3, "vase"], [4, 999, "vase"]])
    assert found.equals(recommender.recommend_new([[3], [4]]))
    with pytest.raises(
        DataError, match="none of the 1 items is in the run's data, got 'vase'; its items look like 0, 1, 2"
    ):
        recommender.recommend_new([["vase"]])


@pytest.mark.filterwarnings("ignore:.*is not finished")
def test_an_unfinished_refit_does_not_score_whom_its_model_has_not_seen(late, tmp_path, monkeypatch):
    calls = iter([StopAfter(10_000), StopAfter(1)])  # the first phase ends, the refit does not
    monkeypatch.setattr(phases_module, "stop_on_signals", lambda: nullcontext(next(calls)))
    dataset = Dataset("late", make_split(late))
    with pytest.raises(StoppedEarly):
        fit(config(train={"refit": "all", "patience": 0}), dataset, out=tmp_path / "run")
    monkeypatch.undo()
    recommender = Recommender.load(tmp_path / "run")
    unseen = dataset.split.train.counts == 0
    scores = {user: rows["score"].null_count() for (user,), rows in recommender.recommend().group_by("user")}
    assert unseen.sum() >= 20
    assert all((scores[user] > 0) == bool(unseen[user]) for user in scores)


def test_ids_that_a_spreadsheet_has_changed_are_named(late):
    frame = late.to_frame().with_columns(pl.col("user").cast(pl.String).str.zfill(5))
    recommender = Recommender(k=5, model="ease").fit(frame)
    with pytest.warns(TopshelfWarning, match=r"2 of 3 new users may be known users.*such as '7' for '00007'"):
        recommender.recommend_new({"7": [3], "8.0": [4], "zoe": [5]})


def test_prepared_data_without_a_test_part_are_refused_with_the_remedy(late, tmp_path):
    late.to_frame().write_csv(tmp_path / "late.csv")
    prepare = ("data", "prepare", tmp_path / "late.csv", "--out", tmp_path / "out", "--test-fraction", 0)
    assert "--set data.test_fraction=0" in run_topshelf(*prepare, code=2)[1]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("users", [3.0, np.float64(3), np.int32(3), torch.tensor(3), [3], (3,), np.array([3])])
def test_one_user_of_any_kind_of_number(late, users):
    recommender = Recommender.of(fit(config(model={"name": "popularity"}), Dataset("late", make_split(late))))
    assert recommender.recommend(users).equals(recommender.recommend([3]))
    for k in (1.5, "3", True, float("nan")):
        with pytest.raises(ConfigError, match="k must be a whole number"):
            recommender.recommend([3], k=k)


def test_large_ids_beside_floats_stay_different():
    users = [2**53 + 1, 2**53 + 2, 5.0, 5]
    frame = pd.DataFrame({"user": pd.Series(users, dtype=object), "item": [1, 2, 3, 4]})
    assert Interactions.from_frame(frame).users.values.to_list() == [5, 2**53 + 1, 2**53 + 2]


def test_a_file_without_a_header_that_begins_with_dates_is_asked_about(tmp_path):
    (tmp_path / "x.csv").write_text("2020-01-01,1,2\n2020-01-02,2,3\n2020-01-03,2,4\n")
    assert (
        "column 1 looks like a time, such as '2020-01-01'. Add a header line"
        in run_topshelf("data", "show", tmp_path / "x.csv", code=2)[1]
    )
