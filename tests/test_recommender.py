"""The estimator that a person imports."""

from __future__ import annotations

import doctest
import shutil

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse

from topshelf import artifact
from topshelf import recommender as module
from topshelf.data import Dataset, IdMap, Interactions, Split, generate, load_split, make_split
from topshelf.errors import CheckpointError, ConfigError, DataError, TopshelfError
from topshelf.recommender import Recommender
from vectors import vectors_of

SHORT = {"epochs": 2, "batch_size": 64}


def small(**settings) -> Recommender:
    return Recommender(k=5, train=SHORT, **settings)


@pytest.fixture(scope="module")
def table() -> pl.DataFrame:
    """Names for ids, with ratings and times."""
    frame = generate(50, 40, interactions_per_user=8, timestamps=True, seed=2).to_frame()
    return frame.select(
        customer_id=pl.format("u{}", "user"),
        product_id=pl.format("i{}", "item"),
        rating=(pl.col("item") % 5 + 1).cast(pl.Float64),
        timestamp="timestamp",
    )


NAMES = {"user": "customer_id", "item": "product_id"}


@pytest.fixture(scope="module")
def fitted(table) -> Recommender:
    return small(data={"split": "ratio", **NAMES}).fit(table)


def test_the_example_in_the_docstring_runs():
    failed, tried = doctest.testmod(module)
    assert tried > 2
    assert failed == 0


def kinds(table, tmp_path):
    plain = Interactions.from_frame(table, **NAMES)
    matrix = scipy.sparse.csr_array((np.ones(len(plain)), plain.indices, plain.indptr), shape=(50, plain.n_items))
    path = tmp_path / "clicks.csv"
    table.write_csv(path)
    return {
        "polars": table,
        "lazy": table.lazy(),
        "pandas": pd.DataFrame(table.to_dict(as_series=False)),
        "csr": matrix,
        "numpy": matrix.toarray(),
        "path": path,
        "text": str(path),
        "interactions": plain,
        "split": make_split(plain, kind="ratio"),
        "dataset": Dataset("mine", make_split(plain, kind="ratio")),
    }


@pytest.mark.parametrize("kind", ["polars", "lazy", "pandas", "csr", "numpy", "path", "text", "interactions", "split",
                                  "dataset"])  # fmt: skip
def test_every_kind_of_data_gives_the_same_lists(kind, table, fitted, tmp_path):
    data = kinds(table, tmp_path)[kind]
    settings = {} if kind in ("split", "dataset") else {"data": {"split": "ratio", **NAMES}}
    found = small(**settings).fit(data).recommend()
    expected = fitted.recommend()
    if kind in ("csr", "numpy"):  # ids are the row and column numbers
        users, items = fitted.fitted.dataset.split.users, fitted.fitted.dataset.split.items
        assert users.ids(found["user"].to_numpy()) == expected["user"].to_list()
        assert items.ids(found["item"].to_numpy()) == expected["item"].to_list()
    else:
        assert found.equals(expected)


def test_a_named_dataset_is_loaded_by_its_name():
    assert small().fit("synthetic").fitted.dataset.split.n_users == 1000


def seen_of(fitted, *parts):
    split = fitted.fitted.dataset.split
    return {pair for part in parts for pair in getattr(split, part).to_frame().select("user", "item").iter_rows()}


def test_lists_hold_external_ids_in_order_and_nothing_seen(fitted, table):
    found = fitted.recommend(k=7)
    assert found.columns == ["user", "rank", "item", "score"]
    assert set(found["user"]) == set(table["customer_id"])
    assert set(found["item"]) <= set(table["product_id"])
    assert found["rank"].to_list() == list(range(1, 8)) * 50
    pairs = set(found.select("user", "item").iter_rows())
    assert len(pairs) == len(found)
    assert not pairs & seen_of(fitted, "train", "valid", "test")


def test_seen_items_may_be_wanted(fitted):
    pairs = set(fitted.recommend(k=7, filter_seen=False).select("user", "item").iter_rows())
    assert pairs & seen_of(fitted, "train")


def test_some_users_get_the_lists_they_get_among_all_in_the_order_asked_for(fitted):
    everybody = fitted.recommend()
    found = fitted.recommend(["u7", "u3"], k=5)
    assert found["user"].to_list() == ["u7"] * 5 + ["u3"] * 5
    for user in ("u7", "u3"):
        one, same = (frame.filter(pl.col("user") == user).drop("score") for frame in (found, everybody))
        assert one.equals(same)
    assert fitted.recommend([]).is_empty()


def test_scores_are_those_of_the_model(fitted):
    queries, items = vectors_of(fitted.fitted.model)
    scores = (queries @ items.T).detach().numpy()
    split = fitted.fitted.dataset.split
    found = fitted.recommend()
    expected = scores[split.users.index(found["user"]), split.items.index(found["item"])]
    np.testing.assert_allclose(found["score"].to_numpy(), expected, rtol=1e-5, atol=1e-6)


def test_a_user_with_few_items_left_gets_a_shorter_list():
    """User 0 has all but two items."""
    taken = np.tile(np.eye(8, dtype=np.int64), (3, 1)) | np.roll(np.eye(8, dtype=np.int64).repeat(3, 0), 1, 1)
    taken[0] = [1, 1, 1, 1, 1, 1, 0, 0]
    recommender = Recommender(k=4, train={"epochs": 1}).fit(taken)
    split = recommender.fitted.dataset.split
    left = 2
    assert split.n_items == 8
    found = recommender.recommend([0], k=8)
    assert found["rank"].to_list() == list(range(1, left + 1))
    assert len(set(found["item"])) == left < 8


def test_an_unknown_user_or_item_is_named(fitted):
    with pytest.raises(DataError, match="1 of 2 ids are unknown, such as 'nobody'"):
        fitted.recommend(["u3", "nobody"])
    with pytest.raises(DataError, match="such as 'i999'"):
        fitted.similar_items(["i999"])


@pytest.mark.parametrize("k", [0, -1])
def test_a_list_of_impossible_length_is_refused(fitted, k):
    with pytest.raises(ConfigError, match=f"k must be .*got {k}"):
        fitted.recommend(k=k)
    with pytest.raises(ConfigError, match=f"k must be .*got {k}"):
        fitted.similar_items(["i3"], k=k)


@pytest.fixture(scope="module")
def ease(table) -> Recommender:
    return small(model={"name": "ease", "l2": 5.0}, data={"split": "ratio", **NAMES}).fit(table)


def test_new_users_are_served_from_their_items_and_get_others(ease):
    found = ease.recommend_new({"anna": ["i3", "i7"], "ben": ("i0",)}, k=4)
    assert found.columns == ["user", "rank", "item", "score"]
    assert found["user"].to_list() == ["anna"] * 4 + ["ben"] * 4
    assert found["rank"].to_list() == [1, 2, 3, 4] * 2
    items = ease.fitted.dataset.split.items
    weights = ease.fitted.model.weights.numpy()
    for name, has in (("anna", ["i3", "i7"]), ("ben", ["i0"])):
        scores = weights[items.index(has)].sum(0)
        scores[items.index(has)] = -np.inf
        mine, best = found.filter(pl.col("user") == name), np.argsort(-scores)[:4]
        assert mine["item"].to_list() == items.ids(best)
        np.testing.assert_allclose(mine["score"], scores[best], rtol=1e-5)


def test_lists_without_names_are_named_by_their_places_and_an_item_counts_once(ease):
    named = ease.recommend_new({0: ["i3", "i7"], 1: ["i0"]})
    assert named["user"].dtype == pl.Int64
    for histories in (
        [["i3", "i7"], ["i0"]],
        (np.array(["i7", "i3", "i7"]), pl.Series(["i0"])),
        iter([["i7", "i3"], ["i0"]]),
    ):
        assert ease.recommend_new(histories).equals(named)
    assert ease.recommend_new({"0": ["i3", "i7"], 1: ["i0"]})["user"].unique(maintain_order=True).to_list() == [
        "0",
        "1",
    ]


def test_a_new_user_may_want_what_it_has_and_as_long_a_list_as_there_is(ease):
    n_items = ease.fitted.dataset.split.n_items
    assert ease.recommend_new([["i3"]], k=n_items + 1).height == n_items - 1
    assert ease.recommend_new([["i3"]], k=n_items + 1, filter_seen=False).height == n_items
    assert ease.recommend_new([["i3"]]).height == 5  # the run's K
    with pytest.raises(ConfigError, match=r"k must be .*got 0"):
        ease.recommend_new([["i3"]], k=0)


def test_a_new_user_who_has_nothing_gets_the_most_popular_items(ease):
    found = ease.recommend_new({"anna": [], "ben": ["i3"]}, k=3)
    train = ease.fitted.dataset.split.train
    counts = np.bincount(train.indices, minlength=train.n_items)
    assert found["item"].to_list()[:3] == train.items.ids(np.argsort(-counts, kind="stable")[:3])
    assert found["score"].to_list()[:3] == [None] * 3
    assert found["score"][3:].is_finite().all()
    assert found.filter(pl.col("user") == "ben").equals(ease.recommend_new({"ben": ["i3"]}, k=3))


@pytest.mark.parametrize(
    ("histories", "message"),
    [
        ([["i999"], ["x"]], "none of the 2 items is in the run's data, got 'i999', 'x'"),
        (["i3", "i7"], "the history of user 0 must be a list of item ids, got 'i3'"),
        ({"anna": 3}, "the history of user 'anna' must be a list of item ids, got 3"),
        ("i3", "histories must map each user to a list of item ids.*got str"),
        (3, "histories must map each user to a list of item ids.*got int"),
        (pl.DataFrame({"user": [1], "item": ["i3"]}), "got DataFrame.*group_by"),
        ({1: ["i3"], "1": ["i3"]}, "ids must be unique"),
    ],
)
def test_histories_that_cannot_be_served_are_named(ease, histories, message):
    with pytest.raises(DataError, match=message):
        ease.recommend_new(histories)


def test_a_model_with_something_of_each_user_says_what_to_do_for_new_ones(fitted):
    with pytest.raises(
        ConfigError, match=r"MF has vectors for the users of its training only.*Train again.*topshelf models"
    ):
        fitted.recommend_new([["i3"]])


def test_a_loaded_recommender_serves_new_users_the_same(ease, tmp_path):
    ease.save(tmp_path / "run")
    assert Recommender.load(tmp_path / "run").recommend_new([["i3"]]).equals(ease.recommend_new([["i3"]]))


@pytest.mark.parametrize("model", ["mf", "ease", "popularity"])
def test_similar_items_point_the_same_way_and_are_others(table, model):
    fitted = small(model=model, data={"split": "ratio", **NAMES}).fit(table)
    found = fitted.similar_items(["i3", "i0"], k=6)
    assert found.columns == ["item", "rank", "similar", "score"]
    assert found["item"].to_list() == ["i3"] * 6 + ["i0"] * 6
    assert (found["item"] != found["similar"]).all()
    vectors = vectors_of(fitted.fitted.model)[1].detach().double().numpy()
    lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    cosines = (vectors / lengths) @ (vectors / lengths).T
    row = fitted.fitted.dataset.split.items.index(["i3"])[0]
    best = np.sort(np.delete(cosines[row], row))[::-1][:6]
    np.testing.assert_allclose(found["score"].to_numpy()[:6], best, atol=1e-5)


@pytest.mark.parametrize("model", ["mf", "ease", "popularity"])
def test_similar_items_are_the_same_by_blocks_of_any_size(table, model, monkeypatch):
    fitted = small(model=model, data={"split": "ratio", **NAMES}).fit(table)
    items = fitted.fitted.dataset.split.items.values
    whole = [fitted.similar_items(items, k=k) for k in (7, 100)]
    width = vectors_of(fitted.fitted.model)[1].size(1)
    for block in (1, 3, 17):
        monkeypatch.setattr(artifact, "_UNIT_BLOCK", 4 * width * block)
        for k, expected in zip((7, 100), whole, strict=True):
            found = fitted.similar_items(items, k=k)
            assert found.drop("score").equals(expected.drop("score"))
            np.testing.assert_allclose(found["score"], expected["score"], rtol=1e-5, atol=1e-6)


def test_titles_are_told_where_there_are_any(fitted):
    dataset = fitted.fitted.dataset
    titles = [f"title of {item}" for item in dataset.split.items.values]
    found = small().fit(Dataset("titled", dataset.split, titles)).recommend(["u1"])
    assert found["title"].to_list() == [f"title of {item}" for item in found["item"]]


@pytest.mark.parametrize("call", ["recommend", "recommend_new", "evaluate", "fitted", "save", "similar_items"])
def test_before_it_is_fitted_it_says_so(call, tmp_path):
    with pytest.raises(TopshelfError, match=r"not fitted yet: call fit\(data\) or Recommender\.load\(path\)"):
        {
            "recommend": lambda r: r.recommend(),
            "recommend_new": lambda r: r.recommend_new([[1]]),
            "evaluate": lambda r: r.evaluate(),
            "fitted": lambda r: r.fitted,
            "save": lambda r: r.save(tmp_path / "run"),
            "similar_items": lambda r: r.similar_items([1]),
        }[call](Recommender())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 5}, "epochs is not a setting; accepted here: task, seed, k, data"),
        ({"train": {"epoch": 5}}, r"train\.epoch is not a setting"),
        ({"k": 0}, "k: "),
        ({"model": "mff"}, r"model\.name must be one of mf, .*ease, .*popularity.*got 'mff'"),
        ({"loss": "sl"}, r"loss\.name must be one of .*got 'sl'"),
        ({"loss": {"temperature": 1}}, r"loss\.temperature is not a setting; accepted here: k, tau"),
        ({"model": {"name": "mf", "width": 1}}, r"model\.width is not a setting; accepted here: dim"),
    ],
)
def test_wrong_settings_are_refused_at_construction(settings, message):
    with pytest.raises(ConfigError, match=message):
        Recommender(**settings)


def test_settings_of_model_and_loss_reach_the_run(fitted):
    recommender = small(model={"dim": 8}, loss={"name": "softmax", "tau": 0.5}).fit(fitted.fitted.dataset)
    config = recommender.fitted.config
    assert (config.model.name, config.model.settings["dim"]) == ("mf", 8)
    assert (config.loss.name, config.loss.settings["tau"]) == ("softmax", 0.5)


@pytest.mark.parametrize("as_file", [False, True])
def test_the_data_section_prepares_a_table_as_it_does_a_file(table, as_file, tmp_path):
    settings = {**NAMES, "min_rating": 2.0, "core": 3, "noise": 0.5, "split": "last"}
    path = tmp_path / "clicks.csv"
    table.write_csv(path)
    split = small(data=settings).fit(path if as_file else table).fitted.dataset.split
    expected = load_split(path, **settings).split
    for part in ("train", "valid", "test"):
        assert getattr(split, part).to_frame().equals(getattr(expected, part).to_frame())


def test_settings_that_come_too_late_for_a_split_are_refused(fitted):
    with pytest.raises(ConfigError, match=r"left out for split data, got {'noise': 0\.5}"):
        small(data={"noise": 0.5}).fit(fitted.fitted.dataset.split)


def test_something_that_is_no_table_is_refused():
    with pytest.raises(DataError, match="must be a Polars or pandas frame, got dict"):
        small().fit({"user": [1], "item": [2]})


def test_saved_and_loaded_it_recommends_and_evaluates_the_same(fitted, tmp_path):
    fitted.save(tmp_path / "run")
    again = Recommender.load(tmp_path / "run")
    assert again.recommend().equals(fitted.recommend())
    assert again.similar_items(["i3"]).equals(fitted.similar_items(["i3"]))
    assert again.evaluate(cutoffs=(3,)).mean() == fitted.evaluate(cutoffs=(3,)).mean()


def test_a_run_kept_while_fitting_is_the_one_fitted(table, tmp_path):
    recommender = small(data=NAMES).fit(table, out=tmp_path / "run")
    assert Recommender.load(tmp_path / "run").recommend().equals(recommender.recommend())


def test_a_list_longer_than_the_catalogue_is_as_long_as_can_be(fitted):
    n_items = fitted.fitted.dataset.split.n_items
    user = fitted.fitted.dataset.split.users.ids([0])
    assert fitted.recommend(user, k=n_items + 1, filter_seen=False).height == n_items
    item = fitted.fitted.dataset.split.items.ids([0])
    assert fitted.similar_items(item, k=n_items + 1).height == n_items - 1


def test_a_single_id_stands_for_a_list_of_one(fitted):
    user = fitted.fitted.dataset.split.users.ids([0])[0]
    assert fitted.recommend(user, k=3).equals(fitted.recommend([user], k=3))


def test_a_loaded_recommender_fits_again_with_its_own_settings(tmp_path):
    first = Recommender(k=3, loss={"name": "softmax", "tau": 0.4}, seed=5, train={"epochs": 3}).fit("synthetic")
    first.save(tmp_path / "run")
    again = Recommender.load(tmp_path / "run").fit("synthetic")
    assert again.fitted.config == first.fitted.config
    assert again.recommend([1, 2]).equals(first.recommend([1, 2]))


def test_a_user_the_model_knows_nothing_of_gets_the_most_popular_items():
    train = np.zeros((6, 8), dtype=np.int64)
    for user, items in enumerate([(0, 1, 2), (0, 1, 3), (0, 2, 4), (0, 1, 5), (0, 3, 6)]):
        train[user, items] = 1
    users, items = IdMap.range(6), IdMap.range(8)
    parts = [Interactions.from_indices(*np.nonzero(train), users, items)]
    parts += [Interactions.from_indices(np.array([0]), np.array([item]), users, items) for item in (6, 7)]
    recommender = Recommender(k=2, train={"epochs": 1}).fit(Split(*parts, kind="given"))
    found = recommender.recommend([5], k=3)
    assert found["item"].to_list() == [0, 1, 2]
    assert found["score"].to_list() == [None, None, None]
    assert recommender.recommend([], k=3).height == 0
    assert recommender.recommend(np.int64(5), k=3).equals(found)


def test_a_folder_that_holds_another_run_by_now_is_not_taken_for_the_first(table, tmp_path):
    for folder in ("first", "second"):
        small(model="popularity", data={"split": "ratio", **NAMES}).fit(table, out=tmp_path / folder)
    recommender = module.Recommender.load(tmp_path / "first")
    shutil.rmtree(tmp_path / "first")
    (tmp_path / "second").rename(tmp_path / "first")
    with pytest.raises(CheckpointError, match="holds another run"):
        recommender.evaluate()
