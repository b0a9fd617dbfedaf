"""Sets of queries: graded, over candidates, and with each rule for queries with nothing to find."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lists import ragged
from topshelf.errors import ConfigError, DataError
from topshelf.evalset import EMPTY, EvalSet, protocol_set
from topshelf.evaluation import compare, evaluate, evaluate_set
from topshelf.metrics import METRICS
from topshelf.queries import QuerySet
from topshelf.ragged import Ragged

# Every query scores item 0 best and item 5 least, and may be given anything. Query 1 has nothing to find.
QUERIES = torch.eye(3)
ITEMS = torch.tensor([6.0, 5.0, 4.0, 3.0, 2.0, 1.0]).unsqueeze(1).repeat(1, 3)
RELEVANT = ragged([2, 5], [], [1])
SET = EvalSet(QuerySet.known(3), RELEVANT)


@pytest.mark.parametrize(("empty", "worth"), [("zero", 0.0), ("one", 1.0)])
def test_queries_with_nothing_to_find_count_as_the_rule_says(empty, worth):
    skipped = evaluate_set(QUERIES, ITEMS, SET, (2, 4))
    counted = evaluate_set(QUERIES, ITEMS, replace(SET, empty=empty), (2, 4))
    assert (skipped.empty, skipped.n_skipped, skipped.users.tolist()) == ("skip", 1, [0, 2])
    assert (counted.empty, counted.n_skipped, counted.users.tolist()) == (empty, 0, [0, 1, 2])
    for name, values in counted.per_user.items():
        assert torch.equal(values[[0, 2]], skipped.per_user[name])
        assert float(values[1]) == worth if name != "auc" else math.isnan(values[1])


@pytest.mark.parametrize(("protocol", "own"), [("standard", "skip"), ("paper", "zero")])
def test_a_protocol_has_a_rule_that_can_be_overridden(protocol, own):
    options = {"train": ragged([], [], []), "protocol": protocol, "cutoffs": (2,)}
    assert evaluate(QUERIES, ITEMS, RELEVANT, **options).empty == own
    means = {empty: evaluate(QUERIES, ITEMS, RELEVANT, **options, empty=empty).mean()["hit_rate@2"] for empty in EMPTY}
    assert means == pytest.approx({"skip": 1 / 2, "zero": 1 / 3, "one": 2 / 3})


def test_evaluations_under_other_rules_or_gains_are_not_compared():
    rules = [evaluate_set(QUERIES, ITEMS, replace(SET, empty=empty), (2,)) for empty in ("zero", "one")]
    with pytest.raises(DataError, match="both evaluations must have the same empty, got 'zero' and 'one'"):
        compare(*rules, "ndcg@2")
    graded = replace(SET, grades=torch.ones(3))
    gains = [evaluate_set(QUERIES, ITEMS, replace(graded, gain=gain), (2,)) for gain in ("linear", "exponential")]
    with pytest.raises(DataError, match="both evaluations must have the same gain, got 'linear' and 'exponential'"):
        compare(*gains, "ndcg@2")


@pytest.mark.parametrize("gain", ["linear", "exponential"])
def test_grades_of_one_give_the_binary_numbers(gain):
    graded = evaluate_set(QUERIES, ITEMS, replace(SET, grades=torch.ones(3), gain=gain), (2, 4))
    binary = evaluate_set(QUERIES, ITEMS, SET, (2, 4))
    assert (graded.gain, binary.gain) == (gain, "binary")
    for name, values in binary.per_user.items():
        torch.testing.assert_close(graded.per_user[name], values, rtol=1e-14, atol=0, equal_nan=True)


def test_items_of_grade_zero_are_not_relevant():
    judged = EvalSet(QuerySet.known(3), ragged([0, 2, 5], [3], [1]), grades=torch.tensor([0, 1, 1, 0, 1]))
    with_zeros, without = (evaluate_set(QUERIES, ITEMS, some, (2, 4)) for some in (judged, SET))
    assert with_zeros.users.tolist() == [0, 2]
    assert with_zeros.mean() == pytest.approx(without.mean())


def test_graded_ndcg_of_a_set_by_hand():
    graded = evaluate_set(QUERIES, ITEMS, replace(SET, grades=torch.tensor([1, 2, 1])), (3, 6))
    ideal = 3 + 1 / math.log2(3)
    expected = [1 / math.log2(4) / ideal, (1 / math.log2(4) + 3 / math.log2(7)) / ideal]
    assert [float(graded.per_user[f"ndcg@{k}"][0]) for k in (3, 6)] == pytest.approx(expected)
    assert float(graded.per_user["recall@3"][0]) == 1 / 2


def plain_lists(scores: list[list[float]], candidates: list[set[int]], k: int) -> list[list[int]]:
    return [sorted(some, key=lambda j: (-row[j], j))[:k] for row, some in zip(scores, candidates, strict=True)]


def plain_auc(row: list[float], relevant: set[int], candidates: set[int]) -> float:
    pairs = [(row[i], row[j]) for i in relevant & candidates for j in candidates - relevant]
    return sum((a > b) + (a == b) / 2 for a, b in pairs) / len(pairs) if pairs else math.nan


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 7), st.integers(1, 25), st.floats(0, 1), st.integers(0, 2**20), st.sampled_from([32, 64]))
def test_only_candidates_are_ranked_as_by_brute_force(n_queries, n_items, share, seed, bits):
    draw = torch.Generator().manual_seed(seed)
    dtype = torch.float32 if bits == 32 else torch.float64
    queries, items = (torch.randint(-2, 3, (n, 3), generator=draw).to(dtype) for n in (n_queries, n_items))
    kind = torch.rand(n_queries, n_items, generator=draw)
    is_relevant, is_hidden = kind < 0.3, kind > 0.8
    is_candidate = torch.rand(n_queries, n_items, generator=draw) < share
    is_relevant[0, 0], is_hidden[0, 0] = True, False
    relevant, exclude, candidates = (
        ragged(*[row.nonzero().flatten().tolist() for row in table]) for table in (is_relevant, is_hidden, is_candidate)
    )
    k = min(4, n_items)
    evalset = EvalSet(QuerySet.known(n_queries), relevant, exclude=exclude, candidates=candidates, empty="zero")
    ours = evaluate_set(queries, items, evalset, (k,))
    scores, allowed = (queries @ items.T).tolist(), is_candidate & ~is_hidden
    ranked = [set(row.nonzero().flatten().tolist()) for row in allowed]
    wanted = [set(row.nonzero().flatten().tolist()) for row in is_relevant]
    lists = plain_lists(scores, ranked, k)
    hits = torch.tensor(
        [[float(i < len(row) and row[i] in find) for i in range(k)] for row, find in zip(lists, wanted, strict=True)]
    )
    for name, metric in METRICS.items():
        torch.testing.assert_close(ours.per_user[f"{name}@{k}"], metric(hits, is_relevant.sum(1)), msg=name)
    expected = [plain_auc(*some) for some in zip(scores, wanted, ranked, strict=True)]
    assert ours.per_user["auc"].tolist() == pytest.approx(expected, nan_ok=True)
    without = evaluate_set(queries, items, evalset, (k,), auc=False)
    assert "auc" not in without.per_user
    assert without.extras == ours.extras == {f"coverage@{k}": len({i for row in lists for i in row}) / n_items}


def test_every_item_as_candidate_gives_the_ranking_of_the_catalogue():
    every = Ragged(torch.arange(4) * 6, torch.arange(6).repeat(3))
    exclude = ragged([0], [1], [])
    whole = evaluate_set(QUERIES, ITEMS, replace(SET, exclude=exclude), (2, 4))
    listed = evaluate_set(QUERIES, ITEMS, replace(SET, exclude=exclude, candidates=every), (2, 4))
    assert whole.extras == listed.extras
    for name, values in whole.per_user.items():
        assert torch.equal(listed.per_user[name], values), name


def test_the_same_lists_have_the_same_fingerprint_and_others_have_another():
    every = Ragged(torch.arange(4) * 6, torch.arange(6).repeat(3))
    sets = [SET, replace(SET, exclude=ragged([0], [], [])), replace(SET, candidates=every)]
    sets += [replace(SET, grades=torch.tensor([1.0, 2, 3]), gain=gain) for gain in ("linear", "exponential")]
    assert len({some.checked(6).fingerprint() for some in sets}) == len(sets)
    assert replace(SET, empty="one").fingerprint() == SET.fingerprint()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"empty": "nothing"}, ConfigError, "empty must be one of skip, zero, one, got 'nothing'"),
        ({"gain": "log"}, ConfigError, "gain must be one of exponential, linear, got 'log'"),
        ({"relevant": [[1]]}, DataError, "relevant must be a Ragged, got list"),
        ({"exclude": [[1]]}, DataError, "exclude must be a Ragged, got list"),
        ({"queries": QuerySet.known(2)}, DataError, r"queries must be one vector per query \(2\), got 3"),
        ({"relevant": ragged([7], [], [])}, DataError, "relevant names item 7 in list 0"),
        ({"candidates": ragged([7], [], [])}, DataError, "candidates names item 7 in list 0"),
        ({"candidates": ragged([1])}, DataError, r"candidates must have one list per query \(3\)"),
        ({"exclude": ragged([2], [], [])}, DataError, "item 2 of query 0"),
        ({"grades": torch.ones(2)}, DataError, r"grades must have one value for each of the 3 .* got shape \(2,\)"),
        ({"grades": torch.tensor([1, -1, 1])}, DataError, "grades must be from 0 to 1023, got -1"),
        ({"grades": torch.tensor([1, math.nan, 1])}, DataError, "grades must be from 0 to 1023, got nan"),
        ({"grades": torch.zeros(3)}, DataError, "at least one item"),
        (
            {"candidates": Ragged(torch.tensor([0, 2, 2, 2]), torch.tensor([3, 1]))},
            DataError,
            "candidates names item 1 in list 0, but the items of a list must ascend without repeats",
        ),
    ],
)
def test_sets_that_cannot_be_evaluated_are_refused(changes, error, message):
    with pytest.raises(error, match=message):
        evaluate_set(QUERIES, ITEMS, replace(SET, **changes), (1,))


@pytest.mark.parametrize("where", ["queries", "items"])
def test_nan_scores_of_candidates_are_refused(where):
    every = Ragged(torch.arange(4) * 6, torch.arange(6).repeat(3))
    vectors = {"queries": QUERIES.clone(), "items": ITEMS.clone()}
    vectors[where][2] = math.nan
    with pytest.raises(Exception, match="NaN for query"):
        evaluate_set(**vectors, evalset=replace(SET, candidates=every), cutoffs=(1,))


def test_queries_must_be_a_set_of_queries():
    with pytest.raises(DataError, match=r"queries must be a QuerySet, such as QuerySet.known.*got range"):
        EvalSet(range(3), RELEVANT)


def test_the_lists_of_an_evaluation_are_checked_once(monkeypatch):
    seen, check = [], Ragged.check

    def counted(self, n_items, name, **rules):
        seen.append(name)
        return check(self, n_items, name, **rules)

    monkeypatch.setattr(Ragged, "check", counted)
    train = ragged([4], [4], [4])
    evaluate(torch.rand(3, 2), torch.rand(6, 2), RELEVANT, train=train, cutoffs=[2])
    assert sorted(seen) == ["relevant", "train"]
    seen.clear()
    evalset, _ = protocol_set(RELEVANT, train, None, "standard", None, 3, 6)
    assert evalset.checked(6).checked(6) is evalset
    assert sorted(seen) == ["relevant", "train"]


def test_a_checked_set_with_other_lists_is_checked_again():
    wrong = replace(SET.checked(6), exclude=ragged([9], [], []))
    with pytest.raises(DataError, match="exclude names item 9"):
        wrong.checked(6)
    with pytest.raises(DataError, match="relevant names item"):
        SET.checked(6).checked(1)
