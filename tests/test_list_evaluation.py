"""Metrics of graded lists against slow references, scikit-learn and trec_eval."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import pytrec_eval
import torch
from sklearn.metrics import ndcg_score

from topshelf.errors import ConfigError, DataError
from topshelf.evaluation import check_json, compare
from topshelf.list_evaluation import evaluate_scores, mean_ndcg, order_of


def lists(n_queries=40, seed=0, ties=True):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 30, n_queries)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    scores = rng.normal(size=indptr[-1])
    grades = rng.integers(0, 5, indptr[-1]) * (rng.random(indptr[-1]) < 0.4)
    grades[indptr[3] : indptr[4]] = 0
    return np.round(scores, 1 if ties else 9), grades.astype(np.float32), indptr


def reference(scores, grades, k, highest, gain=lambda y: 2.0**y - 1):
    """One query, place by place."""
    order = sorted(range(len(scores)), key=lambda d: (-scores[d], d))
    ranked = [float(grades[d]) for d in order]
    n = sum(grade > 0 for grade in ranked)
    dcg = sum(gain(y) / math.log2(r + 2) for r, y in enumerate(ranked[:k]))
    best = sum(gain(y) / math.log2(r + 2) for r, y in enumerate(sorted(ranked, reverse=True)[:k]))
    err, goes_on = 0.0, 1.0
    for r, y in enumerate(ranked[:k]):
        stop = (2**y - 1) / 2**highest
        err, goes_on = err + goes_on * stop / (r + 1), goes_on * (1 - stop)
    hits = [y > 0 for y in ranked]
    precisions = [sum(hits[: r + 1]) / (r + 1) for r in range(len(hits)) if hits[r]]
    first = next((1 / (r + 1) for r, hit in enumerate(hits) if hit), 0.0)
    return {
        f"ndcg@{k}": dcg / best if best else math.nan,
        f"err@{k}": err,
        f"precision@{k}": sum(hits[:k]) / k,
        f"mrr@{k}": first if first >= 1 / k else 0.0,
        f"map@{k}": sum(precisions[: sum(hits[:k])]) / max(1, min(k, n)),
        "map": sum(precisions) / max(1, n),
        "mrr": first,
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("gain", ["exponential", "linear"])
def test_every_metric_is_the_slow_one(seed, gain):
    scores, grades, indptr = lists(seed=seed)
    found = evaluate_scores(scores, grades, indptr, (1, 5, 10), gain=gain)
    formula = (lambda y: 2.0**y - 1) if gain == "exponential" else float
    for row, query in enumerate(found.users.tolist()):
        part = slice(indptr[query], indptr[query + 1])
        for k in (1, 5, 10):
            for name, value in reference(scores[part], grades[part], k, float(grades.max()), formula).items():
                assert float(found.per_user[name][row]) == pytest.approx(value, abs=1e-12), (name, query)


def test_ndcg_is_that_of_scikit_learn_where_no_scores_are_equal():
    scores, grades, indptr = lists(ties=False)
    found = evaluate_scores(scores, grades, indptr, (5,))
    for row, query in enumerate(found.users.tolist()):
        part = slice(indptr[query], indptr[query + 1])
        if indptr[query + 1] - indptr[query] > 1:
            expected = ndcg_score([2 ** grades[part] - 1], [scores[part]], k=5)
            assert float(found.per_user["ndcg@5"][row]) == pytest.approx(expected)


def test_metrics_are_those_of_trec_eval():
    scores, grades, indptr = lists(ties=False)
    run, wanted = {}, {}
    for query in range(indptr.size - 1):
        part = range(indptr[query], indptr[query + 1])
        run[str(query)] = {f"d{d}": float(scores[d]) for d in part}
        wanted[str(query)] = {f"d{d}": int(grades[d]) for d in part}
    theirs = pytrec_eval.RelevanceEvaluator(wanted, {"map", "recip_rank", "P_5", "ndcg_cut_10"}).evaluate(run)
    found = evaluate_scores(scores, grades, indptr, (5, 10), gain="linear")
    names = {"map": "map", "mrr": "recip_rank", "precision@5": "P_5", "ndcg@10": "ndcg_cut_10"}
    for row, query in enumerate(found.users.tolist()):
        for ours, other in names.items():
            assert float(found.per_user[ours][row]) == pytest.approx(theirs[str(query)][other])


def test_queries_with_nothing_to_find_are_worth_what_is_said():
    scores, grades, indptr = lists()
    n_empty = sum(not grades[a:b].any() for a, b in itertools.pairwise(indptr))
    n = indptr.size - 1
    means = {empty: evaluate_scores(scores, grades, indptr, (5,), empty=empty) for empty in ("skip", "zero", "one")}
    skip = means["skip"].mean()["ndcg@5"]
    assert means["skip"].n_skipped == n_empty > 0
    assert means["zero"].mean()["ndcg@5"] == pytest.approx(skip * (n - n_empty) / n)
    assert means["one"].mean()["ndcg@5"] == pytest.approx((skip * (n - n_empty) + n_empty) / n)
    assert mean_ndcg(torch.tensor(scores), torch.tensor(grades), torch.tensor(indptr), 5) == pytest.approx(skip)
    for evaluation in means.values():
        check_json(evaluation.to_json())
    with pytest.raises(DataError, match="same empty"):
        compare(means["skip"], means["one"], "ndcg@5")


def test_a_paired_test_is_by_query():
    scores, grades, indptr = lists()
    good = evaluate_scores(grades + 0.1 * scores, grades, indptr, (5,))
    result = compare(good, evaluate_scores(scores, grades, indptr, (5,)), "ndcg@5")
    assert result.difference > 0.2
    assert result.p_value < 0.01


def test_equal_scores_keep_the_order_of_the_list():
    indptr = torch.tensor([0, 3, 3, 5])
    assert order_of(torch.tensor([0.0, 0.0, 1.0, 2.0, 2.0]), indptr).tolist() == [2, 0, 1, 3, 4]


def test_err_takes_the_highest_grade_of_the_scale():
    found = evaluate_scores([1.0, 0.0], [1.0, 0.0], [0, 2], (1,), highest=4)
    assert found.mean()["err@1"] == 1 / 16
    assert evaluate_scores([1.0, 0.0], [1.0, 0.0], [0, 2], (1,)).mean()["err@1"] == 1 / 2


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (([1.0], [1.0, 0.0], [0, 2]), DataError, "a score per grade"),
        (([1.0, math.nan], [1.0, 0.0], [0, 2]), DataError, "NaN at document 2"),
        (([1.0, 2.0], [1.0, -1.0], [0, 2]), DataError, "grades must be finite and >= 0"),
        (([1.0, 2.0], [1.0, 0.0], [0, 3]), DataError, "indptr must ascend"),
        (([1.0, 2.0], [1.0, 0.0], [0, 2, 1, 2]), DataError, "indptr must ascend"),
        (([1.0, 2.0], [0.0, 0.0], [0, 2]), DataError, "at least one query"),
    ],
)
def test_bad_lists_are_refused(given, error, message):
    with pytest.raises(error, match=message):
        evaluate_scores(*given, (5,))


def test_bad_settings_are_refused():
    for settings in ({"empty": "two"}, {"gain": "cubic"}, {"cutoffs": ()}, {"cutoffs": (0,)}):
        with pytest.raises(ConfigError):
            evaluate_scores([1.0, 2.0], [1.0, 0.0], [0, 2], **settings)
