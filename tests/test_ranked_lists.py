"""Lists from anywhere, measured as our own rankings are."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from lists import ragged
from topshelf import Recommender, measurement
from topshelf.data import IdMap, Interactions, generate
from topshelf.errors import ConfigError, DataError, TopshelfWarning
from topshelf.evalset import EvalSet
from topshelf.evaluation import Evaluation, compare, evaluate, evaluate_lists, evaluate_set
from topshelf.queries import QuerySet
from topshelf.ragged import Ragged
from topshelf.ranking import top_k
from vectors import vectors_of

USERS, ITEMS = IdMap(pl.Series(["ann", "bob", "cem", "dee"])), IdMap(pl.Series([10, 20, 30, 40, 50]))
LISTS = {"ann": [30, 10, 50], "bob": [20], "cem": [40, 50, 10], "dee": [10, 20, 30, 40, 50]}
TABLE = [(user, item, place + 1, 1 / (place + 1)) for user, items in LISTS.items() for place, item in enumerate(items)]


def interactions(*lists: list[int]) -> Interactions:
    given = ragged(*lists)
    return Interactions(given.indptr.numpy(), given.indices.numpy(), USERS, ITEMS)


TEST = interactions([0, 3], [1], [], [4])  # ann: 10 and 40, bob: 20, cem: nothing, dee: 50
TRAIN = interactions([1], [0], [2], [])


def frame(*columns: str) -> pl.DataFrame:
    table = pl.DataFrame(TABLE, schema=["user", "item", "rank", "score"], orient="row")
    return table.sample(fraction=1, shuffle=True, seed=3).select(columns)


def assert_same(first: Evaluation, second: Evaluation) -> None:
    """To the last bit."""
    assert torch.equal(first.users, second.users)
    assert first.extras == second.extras
    assert first.fingerprint == second.fingerprint
    names = [name for name in first.per_user if name != "auc"]
    assert names == [name for name in second.per_user if name != "auc"]
    for name in names:
        assert torch.equal(first.per_user[name], second.per_user[name]), name


def test_lists_by_hand():
    ours = evaluate_lists(LISTS, TEST, cutoffs=(2, 5))
    assert (ours.protocol, ours.empty, ours.n_skipped) == ("given", "skip", 1)
    assert ours.users.tolist() == [0, 1, 3]
    assert ours.per_user["recall@5"].tolist() == [1 / 2, 1, 1]
    assert ours.per_user["mrr@5"].tolist() == [1 / 2, 1, 1 / 5]
    assert ours.per_user["precision@5"].tolist() == [1 / 5, 1 / 5, 1 / 5]
    assert ours.per_user["hit_rate@2"].tolist() == [1, 1, 0]
    assert ours.extras == {"coverage@2": 3 / 5, "coverage@5": 1}
    assert "auc" not in ours.per_user


@pytest.mark.parametrize(
    "lists",
    [
        frame("user", "item", "rank"),
        frame("user", "item", "score"),
        frame("user", "item", "rank", "score").with_columns(score=pl.lit(None)),
        frame("user", "item", "rank").lazy(),
        pd.DataFrame(TABLE, columns=["user", "item", "rank", "score"])[["item", "score", "user"]],
        {user: np.array(items) for user, items in LISTS.items()},
        {user: [str(item) for item in items] for user, items in LISTS.items()},
        Ragged(torch.tensor([0, 3, 4, 7, 12]), torch.tensor([2, 0, 4, 1, 3, 4, 0, 0, 1, 2, 3, 4])),
        np.array([[2, 0, 4, -1, -1], [1, -1, -1, -1, -1], [3, 4, 0, -1, -1], [0, 1, 2, 3, 4]]),
        torch.tensor([[2, 0, 4, -1, -1], [1, -1, -1, -1, -1], [3, 4, 0, -1, -1], [0, 1, 2, 3, 4]], dtype=torch.int32),
    ],
    ids=["rank", "score", "rank before score", "lazy", "pandas", "arrays", "texts", "ragged", "numpy", "torch"],
)
def test_every_form_of_the_same_lists_gives_the_same_numbers(lists):
    options = {"train": TRAIN, "protocol": "paper", "cutoffs": (1, 3, 5)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TopshelfWarning)  # dee's list and cem's hold training items
        assert_same(evaluate_lists(LISTS, TEST, **options), evaluate_lists(lists, TEST, **options))


def test_equal_scores_come_in_item_order():
    table = pl.DataFrame({"user": ["dee"] * 3, "item": [50, 20, 10], "score": [0.5, 0.5, 0.5]})
    with pytest.warns(TopshelfWarning, match="2 of 3 users have no list"):
        ours = evaluate_lists(table, TEST, cutoffs=(3,))
    assert float(ours.per_user["mrr@3"][2]) == 1 / 3


@pytest.mark.parametrize("protocol", ["standard", "paper"])
@pytest.mark.parametrize("n_users", [40, 200])
def test_our_own_lists_give_the_numbers_of_our_own_evaluation_to_the_last_bit(protocol, n_users, monkeypatch):
    monkeypatch.setattr(measurement, "BLOCK", 64)  # several blocks of users
    draw = torch.Generator().manual_seed(n_users)
    queries, items = torch.randn(n_users, 8, generator=draw), torch.randn(300, 8, generator=draw)
    kind = torch.rand(n_users, 300, generator=draw)
    kind[::7] = 1.0
    parts = [
        ragged(*[row.nonzero().flatten().tolist() for row in (kind >= low) & (kind < low + 0.05)])
        for low in (0.0, 0.05, 0.1)
    ]
    masked = ragged(*[row.nonzero().flatten().tolist() for row in kind < (0.1 if protocol == "standard" else 0.05)])
    options = {"train": parts[0], "valid": parts[1], "protocol": protocol, "cutoffs": (5, 20, 100)}
    ours = evaluate(queries, items, parts[2], **options)
    lists = top_k(queries, items, 100, exclude=masked)[1]
    theirs = evaluate_lists(lists, parts[2], **options, n_items=300)
    assert_same(ours, theirs)
    assert compare(ours, theirs, "ndcg@20").difference == 0


def test_the_lists_of_a_recommender_give_the_numbers_of_its_evaluation_to_the_last_bit():
    recommender = Recommender(k=10, model="ease").fit("synthetic")
    split = recommender.fitted.dataset.split
    with torch.no_grad():
        queries, items = vectors_of(recommender.fitted.model)
    nothing = split.train.none()
    ours = evaluate(queries, items, split.test, train=nothing, item_counts=split.train.item_counts)
    theirs = evaluate_lists(
        recommender.recommend(k=50, filter_seen=False),
        split.test,
        train=nothing,
        item_counts=split.train.item_counts,
    )
    assert_same(ours, theirs)


def test_sets_are_measured_by_lists_too():
    graded = EvalSet(QuerySet.known(2), ragged([0, 1], [2]), grades=torch.tensor([1, 3, 1]), empty="one")
    scores = torch.tensor([[1.0, 3.0], [2.0, 2.0], [3.0, 1.0]])
    ours = evaluate_set(torch.eye(2), scores, graded, (1, 3), auc=False)
    assert_same(ours, evaluate_lists(np.array([[2, 1, 0], [0, 1, 2]]), graded, cutoffs=(1, 3), n_items=3))


def test_users_without_a_list_find_nothing_and_are_counted():
    with pytest.warns(TopshelfWarning, match="evaluate_lists: 2 of 3 users have no list and find nothing$"):
        ours = evaluate_lists({"ann": [10], "cem": [10]}, TEST, cutoffs=(1,))
    assert ours.per_user["hit_rate@1"].tolist() == [1, 0, 0]


def test_unknown_items_take_their_places_as_misses_and_are_counted():
    lists = {**LISTS, "ann": [99, "x", 10], "bob": [None, 20]}
    with pytest.warns(TopshelfWarning, match="evaluate_lists: 3 places hold items that are not in the catalogue"):
        ours = evaluate_lists(lists, TEST, cutoffs=(5,))
    assert ours.per_user["mrr@5"].tolist() == [1 / 3, 1 / 2, 1 / 5]
    by_index = np.array([[7, 8, 0], [9, 1, -1], [0, 1, 2], [4, 1, 0]])
    with pytest.warns(TopshelfWarning, match="3 places hold items"):
        assert evaluate_lists(by_index, TEST, cutoffs=(3,)).per_user["mrr@3"].tolist() == [1 / 3, 1 / 2, 1]


def test_lists_of_unknown_users_are_left_out_and_counted():
    table = pl.concat([frame("user", "item", "rank"), pl.DataFrame({"user": "eve", "item": [10, 20], "rank": [1, 1]})])
    for lists in ({**LISTS, "eve": [10, 10]}, table):
        with pytest.warns(TopshelfWarning, match="evaluate_lists: 1 users of the lists are not in relevant"):
            assert_same(evaluate_lists(lists, TEST, cutoffs=(5,)), evaluate_lists(LISTS, TEST, cutoffs=(5,)))


def test_masked_items_in_a_list_are_misses_and_are_counted():
    with pytest.warns(TopshelfWarning, match="evaluate_lists: 1 places hold items that the protocol masks"):
        evaluate_lists({**LISTS, "bob": [10, 20]}, TEST, train=TRAIN, cutoffs=(5,))


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({**LISTS, "bob": [20, 30, 20]}, "a list must name an item once, got item 20 twice for user 'bob'"),
        (np.array([[0, 0], [1, 2], [0, 1], [0, 1]]), "got item 10 twice for user 'ann'"),
        (np.array([[0], [1]]), r"lists must have one list per query \(4\), got 2"),
        (np.array([[-2], [1], [1], [1]]), "lists must hold item indices, or -1 at an empty place, got -2"),
        (np.array([[0.5], [1], [1], [1]]), r"lists must be a frame, .* got float64 of shape \(4, 1\)"),
        ([[1], [2]], "lists must be a frame, .* got list"),
        (ragged([1], [2]), r"lists must have one list per query \(4\), got 2 lists"),
        (Ragged(torch.tensor([0, 1, 1, 1, 9]), torch.tensor([1])), "lists.indptr must ascend"),
        (frame("user", "item"), "columns user, item, and rank or score, got user, item; rename them"),
        (frame("user", "rank"), "columns user, item, and rank or score, got user, rank"),
        (
            frame("user", "item", "score").with_columns(score=pl.lit(None, pl.Float64)),
            "lists must have a score in every row, got none in row 0",
        ),
        (
            pl.DataFrame({"user": ["bob", "bob"], "item": [10, 20], "rank": [1, 1]}),
            "ranks must differ within a list, got rank 1 twice for user 'bob'",
        ),
    ],
)
def test_lists_that_cannot_be_read_are_refused(lists, message):
    with pytest.raises(DataError, match=message):
        evaluate_lists(lists, TEST, cutoffs=(1,))


def test_ids_need_interactions_and_indices_need_the_size_of_the_catalogue():
    with pytest.raises(DataError, match="relevant must be Interactions where lists are named by ids"):
        evaluate_lists(LISTS, TEST.ragged(), cutoffs=(1,), n_items=5)
    with pytest.raises(ConfigError, match="n_items must be given where relevant is not Interactions"):
        evaluate_lists(np.zeros((4, 1), int), TEST.ragged(), cutoffs=(1,))
    with pytest.raises(ConfigError, match=r"number of items \(5\), got 6"):
        evaluate_lists(LISTS, TEST, cutoffs=(6,))


def test_options_that_would_mean_nothing_are_refused():
    with pytest.raises(ConfigError, match=r"protocol must be left out here \(it needs train\), got 'paper'"):
        evaluate_lists(LISTS, TEST, protocol="paper", cutoffs=(1,))
    given = EvalSet(QuerySet.known(4), TEST.ragged())
    with pytest.raises(ConfigError, match=r"empty must be left out here \(an EvalSet has its own\), got 'one'"):
        evaluate_lists(np.zeros((4, 1), int), given, empty="one", n_items=5, cutoffs=(1,))


@pytest.mark.parametrize("items", ["12", None, {"a": 1}, 3])
def test_a_list_that_is_no_list_is_refused(items):
    known = generate(20, 15, seed=0)
    with pytest.raises(DataError, match=r"the list of user .* must be item ids in order"):
        evaluate_lists({known.users.ids([0])[0]: items}, known, cutoffs=(5,))


def test_ranks_that_are_text_are_refused():
    known = generate(20, 15, seed=0)
    frame = pl.DataFrame({"user": known.users.ids([0]), "item": known.items.ids([1]), "rank": ["first"]})
    with pytest.raises(DataError, match="the column rank must hold numbers, got String"):
        evaluate_lists(frame, known, cutoffs=(5,))
