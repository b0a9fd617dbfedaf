"""Both protocols on a hand-worked example, and what an evaluation must refuse.

Query vectors are rows of the identity, so that column u of the items (I, U) holds the scores of user u.
"""

from __future__ import annotations

import json
import math
from functools import partial
from math import log2

import numpy as np
import polars as pl
import pytest
import scipy.sparse
import torch
from torch import Tensor

from lists import ragged
from topshelf import measurement
from topshelf.cli import show
from topshelf.data import IdMap, Interactions
from topshelf.errors import ConfigError, DataError, TopshelfError
from topshelf.evaluation import PROTOCOLS, Evaluation, check_json, compare, conditions, evaluate, ndcg
from topshelf.metrics import METRICS
from topshelf.ragged import Ragged, merge, ragged_from_pairs

# Every user likes item 0 best and item 5 least. User 1 has nothing to find.
QUERIES = torch.eye(3)
ITEMS = torch.tensor([6.0, 5.0, 4.0, 3.0, 2.0, 1.0]).unsqueeze(1).repeat(1, 3)
TRAIN = ragged([0], [2], [])
VALID = ragged([1], [], [0])
TEST = ragged([2, 5], [], [1])


def hand_worked(protocol: str, **options: object) -> Evaluation:
    return evaluate(QUERIES, ITEMS, TEST, train=TRAIN, valid=VALID, protocol=protocol, cutoffs=(2, 4), **options)


def assert_values(found: Evaluation, expected: dict[str, list[float]]) -> None:
    for name, values in expected.items():
        assert found.per_user[name].tolist() == pytest.approx(values, rel=1e-14, nan_ok=True), name


def test_standard_protocol_by_hand():
    # user 0 sees 2 3 4 5 and finds the first and the last; user 2 sees 1 2 3 4 5 and finds the first
    found = hand_worked("standard")
    assert found.users.tolist() == [0, 2]
    assert found.n_skipped == 1
    ideal = 1 + 1 / log2(3)
    assert_values(
        found,
        {
            "ndcg@2": [1 / ideal, 1],
            "ndcg@4": [(1 + 1 / log2(5)) / ideal, 1],
            "recall@2": [1 / 2, 1],
            "recall@4": [2 / 2, 1],
            "precision@2": [1 / 2, 1 / 2],
            "precision@4": [2 / 4, 1 / 4],
            "hit_rate@2": [1, 1],
            "mrr@2": [1, 1],
            "map@2": [1 / 2, 1],
            "map@4": [(1 / 1 + 2 / 4) / 2, 1],
            "f1@2": [2 / (2 + 2), 2 * 1 / (2 + 1)],
            "auc": [2 / 4, 4 / 4],
        },
    )


def test_paper_protocol_by_hand():
    # user 0 sees 1 2 3 4 5, user 1 sees 0 1 3 4 5, user 2 sees 0 1 2 3 4 5: validation items are misses
    found = hand_worked("paper")
    assert found.users.tolist() == [0, 1, 2]
    assert found.n_skipped == 0
    ideal = 1 + 1 / log2(3)
    assert_values(
        found,
        {
            "ndcg@2": [1 / log2(3) / ideal, 0, 1 / log2(3)],
            "ndcg@4": [1 / log2(3) / ideal, 0, 1 / log2(3)],
            "recall@4": [1 / 2, 0, 1],
            "precision@4": [1 / 4, 0, 1 / 4],
            "hit_rate@2": [1, 0, 1],
            "mrr@2": [1 / 2, 0, 1 / 2],
            "map@4": [1 / 2 / 2, 0, 1 / 2],
            "f1@4": [2 * 1 / (4 + 2), 0, 2 * 1 / (4 + 1)],
            "auc": [2 / 6, math.nan, 4 / 5],
        },
    )


def test_means_are_over_the_users_of_the_protocol():
    assert hand_worked("standard").mean()["recall@2"] == pytest.approx((1 / 2 + 1) / 2)
    assert hand_worked("paper").mean()["recall@2"] == pytest.approx((1 / 2 + 0 + 1) / 3)


def test_an_undefined_auc_is_left_out_of_its_mean():
    assert hand_worked("paper").mean()["auc"] == pytest.approx((2 / 6 + 4 / 5) / 2)


def test_a_user_without_irrelevant_candidates_has_no_auc():
    found = evaluate(torch.eye(1), ITEMS[:2, :1], ragged([1]), train=ragged([0]), cutoffs=(1,))
    assert math.isnan(found.per_user["auc"][0])
    assert math.isnan(found.intervals()["auc"][0])
    assert found.to_json()["mean"]["auc"] is None


def test_lists_as_a_whole_by_hand():
    # 2 3 and 1 2 at two places, 2 3 4 5 and 1 2 3 4 at four; items 0 and 2 have one training user each
    found = hand_worked("standard").extras
    assert found["coverage@2"] == pytest.approx(3 / 6)
    assert found["coverage@4"] == pytest.approx(5 / 6)
    assert found["popularity_lift@2"] == pytest.approx((2 * 1 / 4) / (2 / 6))
    assert found["popularity_lift@4"] == pytest.approx((2 * 1 / 8) / (2 / 6))


def test_popularity_may_be_counted_elsewhere():
    found = hand_worked("standard", item_counts=torch.tensor([0, 0, 8, 4, 0, 0])).extras
    assert found["popularity_lift@2"] == pytest.approx(((2 * 8 + 4) / 4) / (12 / 6))


def test_validation_is_evaluated_with_only_training_items_masked():
    found = evaluate(QUERIES, ITEMS, VALID, train=TRAIN, cutoffs=(2,))
    assert found.users.tolist() == [0, 2]
    assert found.mean()["ndcg@2"] == 1


def random_problem(seed: int = 0) -> tuple[Tensor, Tensor, Ragged, Ragged, Ragged]:
    generator = torch.Generator().manual_seed(seed)
    queries, items = torch.randn(50, 4, generator=generator), torch.randn(80, 4, generator=generator)
    kind = torch.rand(50, 80, generator=generator)
    kind[::7, :] = 1.0  # some users have nothing at all
    bounds = [(0.0, 0.1), (0.1, 0.15), (0.15, 0.2)]
    parts = [ragged_from_pairs(*((kind >= low) & (kind < high)).nonzero(as_tuple=True), 50) for low, high in bounds]
    return queries, items, *parts


def test_the_fast_ndcg_equals_the_full_evaluation():
    queries, items, train, valid, test = random_problem()
    full = evaluate(queries, items, test, train=train, valid=valid, cutoffs=(10,))
    assert ndcg(queries, items, test, merge(train, valid), 10) == pytest.approx(full.mean()["ndcg@10"])


def test_one_ranking_gives_the_same_as_each_cutoff_alone():
    queries, items, train, valid, test = random_problem()
    together = evaluate(queries, items, test, train=train, valid=valid, cutoffs=(20, 3, 3))
    assert together.cutoffs == (3, 20)
    for k in (3, 20):
        alone = evaluate(queries, items, test, train=train, valid=valid, cutoffs=(k,))
        for name in METRICS:
            assert torch.equal(together.per_user[f"{name}@{k}"], alone.per_user[f"{name}@{k}"])
        for name in ("coverage", "popularity_lift"):
            assert together.extras[f"{name}@{k}"] == alone.extras[f"{name}@{k}"]


class RowGiver:
    def __init__(self, table: Tensor) -> None:
        self.table = table

    def __len__(self) -> int:
        return self.table.size(0)

    def __getitem__(self, rows: Tensor) -> Tensor:
        return self.table[rows]


def assert_same(first: Evaluation, second: Evaluation) -> None:
    assert torch.equal(first.users, second.users)
    assert first.extras == second.extras
    for name, values in first.per_user.items():
        torch.testing.assert_close(second.per_user[name], values, equal_nan=True, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_small_tiles_of_users_change_nothing(protocol, monkeypatch):
    queries, items, train, valid, test = random_problem()
    options = {"train": train, "valid": valid, "protocol": protocol, "cutoffs": (5, 10)}
    whole = evaluate(queries, items, test, **options)
    monkeypatch.setattr(measurement, "ranked_tiles", partial(measurement.ranked_tiles, workspace=4 * 80 * 3))
    assert_same(whole, evaluate(queries, items, test, **options))


def test_queries_may_be_anything_that_gives_rows():
    queries, items, train, valid, test = random_problem()
    options = {"train": train, "valid": valid, "cutoffs": (5, 10)}
    assert_same(evaluate(queries, items, test, **options), evaluate(RowGiver(queries), items, test, **options))


def test_the_order_of_misses_does_not_matter():
    swapped = ITEMS.clone()
    swapped[[3, 4]] = swapped[[4, 3]]
    options = {"train": TRAIN, "valid": VALID, "cutoffs": (2, 4)}
    first, second = (evaluate(QUERIES, items, TEST, **options) for items in (ITEMS, swapped))
    assert first.mean() == second.mean()


def test_a_list_cut_short_by_the_mask_still_counts_k_places():
    found = evaluate(torch.eye(1), ITEMS[:4, :1], ragged([2]), train=ragged([0, 1]), cutoffs=(4,), auc=False)
    assert found.mean()["precision@4"] == 1 / 4
    assert found.mean()["ndcg@4"] == 1
    assert "auc" not in found.per_user


def test_empty_places_never_hit_the_item_of_the_row_before():
    # User 0 finds the last item; user 1 has nothing left, and -1 must not be read as that item.
    found = evaluate(
        torch.eye(2), ITEMS[:2, :2], ragged([1], []), train=ragged([0], [0, 1]), cutoffs=(2,), protocol="paper"
    )
    assert found.per_user["hit_rate@2"].tolist() == [1, 0]


def test_intervals_hold_their_means_and_follow_the_seed():
    queries, items, train, valid, test = random_problem()
    found = evaluate(queries, items, test, train=train, valid=valid, protocol="paper", cutoffs=(5, 10))
    intervals = found.intervals(seed=3)
    assert list(intervals) == list(found.per_user)
    for name, mean in found.mean().items():
        assert intervals[name][0] < mean < intervals[name][1]
    assert intervals == found.intervals(seed=3)
    assert intervals != found.intervals(seed=4)
    narrow = found.intervals(level=0.5, seed=3)
    assert all(intervals[name][0] < narrow[name][0] < narrow[name][1] < intervals[name][1] for name in narrow)


def test_json_holds_means_intervals_and_counts():
    found = hand_worked("paper").to_json()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["protocol"], found["empty"], found["gain"]) == ("paper", "zero", "binary")
    assert found["cutoffs"] == [2, 4]
    assert (found["n_evaluated"], found["n_skipped"]) == (3, 0)
    assert found["mean"]["recall@2"] == pytest.approx((1 / 2 + 0 + 1) / 3)
    assert len(found["interval"]["recall@2"]) == 2
    assert found["extras"]["coverage@2"] == pytest.approx(3 / 6)


def test_json_is_checked_and_files_of_earlier_versions_are_accepted():
    written = hand_worked("paper").to_json()
    check_json(written)
    check_json({key: value for key, value in written.items() if key not in ("empty", "gain")})
    check_json({**written, "protocol": "given"})
    for key, value in {"empty": "nothing", "gain": "log", "protocol": "mine"}.items():
        with pytest.raises(ConfigError, match=f"{key} must be one of .*, got '{value}'"):
            check_json({**written, key: value})
    with pytest.raises(ValueError, match="numbers for each of them"):
        check_json({**written, "mean": written["mean"] | {"ndcg@2": "high"}})


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        ({"protocol": "standard"}, "protocol standard; users with nothing to find are left out"),
        ({"protocol": "paper"}, "protocol paper; users with nothing to find count as 0"),
        ({"protocol": "paper", "empty": "one"}, "protocol paper; users with nothing to find count as 1"),
        (
            {"protocol": "given", "empty": "skip", "gain": "exponential"},
            "protocol given; users with nothing to find are left out; NDCG of exponential gains",
        ),
    ],
)
def test_a_number_is_shown_with_its_protocol_and_what_empty_users_are_worth(shown, text):
    assert conditions(shown) == text


def test_the_table_on_the_terminal_names_both(capsys):
    show.evaluation(hand_worked("paper").to_json(n_resamples=10), "a model")
    shown = " ".join(capsys.readouterr().out.split())
    assert "protocol paper; users with nothing to find count as 0" in shown


def test_a_cutoff_beyond_the_catalogue_is_refused_with_both_numbers():
    with pytest.raises(ConfigError, match=r"number of items \(6\), got 7"):
        evaluate(QUERIES, ITEMS, TEST, train=TRAIN, cutoffs=(2, 7))


@pytest.mark.parametrize("cutoffs", [(), (0,), (5, -1)])
def test_cutoffs_below_one_are_refused(cutoffs):
    with pytest.raises(ConfigError, match="cutoffs must"):
        evaluate(QUERIES, ITEMS, TEST, train=TRAIN, cutoffs=cutoffs)


def test_an_unknown_protocol_is_refused():
    with pytest.raises(ConfigError, match="one of standard, paper, got 'leave-one-out'"):
        hand_worked("leave-one-out")


@pytest.mark.parametrize(("train", "valid"), [([[2], [], []], None), ([[], [], []], [[2], [], []])])
def test_a_masked_relevant_item_is_refused(train, valid):
    with pytest.raises(DataError, match="item 2 of query 0"):
        evaluate(QUERIES, ITEMS, TEST, train=ragged(*train), valid=ragged(*valid) if valid else None, cutoffs=(1,))


def test_training_items_among_the_validation_items_are_refused():
    with pytest.raises(DataError, match="item 2 in both for query 1"):
        evaluate(QUERIES, ITEMS, TEST, train=TRAIN, valid=ragged([], [2], []), cutoffs=(1,))


@pytest.mark.parametrize("name", ["relevant", "train", "valid"])
def test_lists_of_other_queries_are_refused(name):
    given = {"relevant": TEST, "train": TRAIN, "valid": VALID} | {name: ragged([3], [3])}
    with pytest.raises(DataError, match=f"{name} must have one list per query"):
        evaluate(QUERIES, ITEMS, given["relevant"], train=given["train"], valid=given["valid"], cutoffs=(1,))


def test_relevant_items_outside_the_catalogue_are_refused():
    with pytest.raises(DataError, match="relevant names item 6 in list 0, but there are 6 items"):
        evaluate(QUERIES, ITEMS, ragged([6], [], []), train=TRAIN, cutoffs=(1,))


@pytest.mark.parametrize("name", ["relevant", "train", "valid"])
@pytest.mark.parametrize(
    ("indptr", "indices", "message"),
    [
        ([0, 1, 1, 1], [6], "names item 6 in list 0, but there are 6 items"),
        ([0, 1, 1, 1], [-1], "names item -1 in list 0"),
        ([0, 1, 1, 1], [2**40], f"names item {2**40} in list 0"),
        ([0, 1, 1, 9], [3], "indptr must ascend from 0 to the number of indices"),
        ([0, 2, 2, 2], [4, 3], "but the items of a list must ascend without repeats"),
        ([0, 2, 2, 2], [3, 3], "but the items of a list must ascend without repeats"),
    ],
)
def test_every_list_is_checked_before_compiled_code_sees_it(name, indptr, indices, message):
    wrong = Ragged(torch.tensor(indptr), torch.tensor(indices))
    given = {"relevant": TEST, "train": TRAIN, "valid": VALID} | {name: wrong}
    with pytest.raises(DataError, match=f"{name}.*{message}"):
        evaluate(QUERIES, ITEMS, given["relevant"], train=given["train"], valid=given["valid"], cutoffs=(1,))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_interactions_and_numpy_arrays_serve_as_lists_and_vectors(dtype):
    users, items = IdMap.range(3), IdMap.range(6)

    def interactions(lists: Ragged) -> Interactions:
        return Interactions(lists.indptr.numpy(), lists.indices.numpy(), users, items)

    parts = [interactions(lists) for lists in (TEST, TRAIN, VALID)]
    found = evaluate(
        QUERIES.numpy().astype(dtype),
        ITEMS.numpy().astype(dtype),
        parts[0],
        train=parts[1],
        valid=parts[2],
        cutoffs=(2, 4),
        item_counts=np.ones(6),
    )
    expected = hand_worked("standard", item_counts=torch.ones(6))
    assert found.mean() == expected.mean()
    assert found.extras == expected.extras
    assert found.fingerprint == expected.fingerprint


def test_parts_with_other_ids_are_refused():
    parts = [
        Interactions.from_frame(pl.DataFrame({"user": [1, 2, 3], "item": items})) for items in ([1, 2, 3], [2, 3, 9])
    ]
    with pytest.raises(DataError, match="train must have the items of relevant, got other ids"):
        evaluate(torch.eye(3), torch.eye(3), parts[0], train=parts[1], cutoffs=(1,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"items": [[1.0]]}, r"items must be a tensor or an array \(I, d\), got list"),
        ({"queries": [[1.0]]}, r"queries must be a tensor or an array \(U, d\), got list"),
        ({"queries": 3}, r"queries must be a tensor or an array \(U, d\), got int"),
        ({"queries": np.array([["a"]])}, "queries must be numbers, got an array of <U1"),
        ({"items": np.ones(3)}, r"items must have two axes, one row per vector, got shape \(3,\)"),
        ({"relevant": [[1], [], []]}, "relevant must be Interactions or a Ragged, got list; Interactions.from_frame"),
        ({"train": np.zeros((3, 6))}, "train must be Interactions or a Ragged, got ndarray"),
        ({"valid": scipy.sparse.csr_array((3, 6))}, "valid must be Interactions or a Ragged, got csr_array"),
    ],
)
def test_what_is_neither_vectors_nor_lists_is_refused_by_name(changes, message):
    given = {"queries": QUERIES, "items": ITEMS, "relevant": TEST, "train": TRAIN, "valid": VALID, "cutoffs": (1,)}
    with pytest.raises(DataError, match=message):
        evaluate(**{**given, **changes})


def test_nothing_to_find_at_all_is_refused():
    nothing = ragged([], [], [])
    with pytest.raises(DataError, match="at least one item"):
        evaluate(QUERIES, ITEMS, nothing, train=TRAIN, cutoffs=(1,))
    with pytest.raises(DataError, match="at least one item"):
        ndcg(QUERIES, ITEMS, nothing, None, 1)


def test_diverged_vectors_are_refused():
    with pytest.raises(TopshelfError, match="NaN for query 0"):
        evaluate(QUERIES, ITEMS * math.nan, TEST, train=TRAIN, cutoffs=(1,))


def plain_evaluation(users: list[int], values: list[float], protocol: str = "standard") -> Evaluation:
    return Evaluation(protocol, (1,), torch.tensor(users), {"ndcg@1": torch.tensor(values, dtype=torch.float64)})


def test_comparison_pairs_the_users_whatever_their_order():
    first = plain_evaluation([2, 0, 5], [0.2, 0.0, 0.5])
    second = plain_evaluation([0, 2, 5], [0.0, 0.1, 0.4])
    found = compare(first, second, "ndcg@1")
    assert found.n == 3
    assert found.difference == pytest.approx((0.0 + 0.1 + 0.1) / 3)


def test_comparison_leaves_out_users_without_a_value():
    first, second = hand_worked("paper"), hand_worked("paper")
    found = compare(first, second, "auc")
    assert (found.n, found.difference, found.p_value) == (2, 0, 1)


def test_comparison_passes_its_options_on():
    first, second = plain_evaluation([0, 1], [1.0, 1.0]), plain_evaluation([0, 1], [0.0, 0.0])
    assert compare(first, second, "ndcg@1", n_permutations=3, seed=1).p_value in {1 / 4, 2 / 4, 3 / 4, 1}


def test_other_users_other_protocols_and_unknown_metrics_are_not_compared():
    first = plain_evaluation([0, 1], [0.1, 0.2])
    with pytest.raises(DataError, match="same users, got 2 and 2"):
        compare(first, plain_evaluation([0, 2], [0.1, 0.2]), "ndcg@1")
    with pytest.raises(DataError, match="same users, got 2 and 1"):
        compare(first, plain_evaluation([0], [0.1]), "ndcg@1")
    with pytest.raises(DataError, match="'standard' and 'paper'"):
        compare(first, plain_evaluation([0, 1], [0.1, 0.2], "paper"), "ndcg@1")
    with pytest.raises(ConfigError, match="metric must be one of ndcg@1, got 'ndcg@2'"):
        compare(first, first, "ndcg@2")
