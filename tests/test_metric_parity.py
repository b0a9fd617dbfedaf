"""Our metrics against trec_eval, scikit-learn and torchmetrics, with and without tied scores, binary and graded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import pytrec_eval
import torch
from sklearn.metrics import ndcg_score, roc_auc_score
from torch import Tensor

from topshelf.evalset import EvalSet
from topshelf.evaluation import evaluate, evaluate_set
from topshelf.metrics import GAINS
from topshelf.queries import QuerySet
from topshelf.ragged import Ragged, ragged_from_pairs
from topshelf.ranking import top_k

CUTOFFS = (1, 5, 10, 20)
N_USERS, N_ITEMS = 40, 60
TREC_NAMES = {
    "ndcg": "ndcg_cut",
    "recall": "recall",
    "precision": "P",
    "hit_rate": "success",
    "map": "map_cut",
}


def problem(seed: int, *, tied: bool) -> tuple[Tensor, Tensor, Ragged, Ragged]:
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(N_USERS, 4, generator=generator, dtype=torch.float64)
    items = torch.randn(N_ITEMS, 4, generator=generator, dtype=torch.float64)
    if tied:
        queries, items = queries.round(), items.round()
    kind = torch.rand(N_USERS, N_ITEMS, generator=generator)
    kind[:, 0] = 0.0  # trec_eval leaves out users without relevant items; here every user has one
    relevant = ragged_from_pairs(*(kind < 0.2).nonzero(as_tuple=True), N_USERS)
    train = ragged_from_pairs(*(kind > 0.8).nonzero(as_tuple=True), N_USERS)
    return queries, items, relevant, train


def row(lists: Ragged, user: int) -> list[int]:
    return lists.indices[lists.indptr[user] : lists.indptr[user + 1]].tolist()


def document(item: int) -> str:
    # trec_eval puts equal scores in descending order of the name; so the lowest index gets the highest name.
    return f"d{N_ITEMS - item:04d}"


def trec_values(run: dict[str, dict[str, float]], relevant: Ragged) -> dict[str, list[float]]:
    judged = {str(user): {document(item): 1 for item in row(relevant, user)} for user in range(N_USERS)}
    places = ",".join(str(k) for k in CUTOFFS)
    measures = {f"{name}.{places}" for name in TREC_NAMES.values()} | {"recip_rank"}
    found = pytrec_eval.RelevanceEvaluator(judged, measures).evaluate(run)
    values = {
        f"{ours}@{k}": [found[str(user)][f"{trec}_{k}"] for user in range(N_USERS)]
        for ours, trec in TREC_NAMES.items()
        for k in CUTOFFS
    }
    for k in CUTOFFS:  # trec_eval divides by all relevant items, we by the most that K places can hold
        scale = [n / min(k, n) for n in relevant.counts.tolist()]
        values[f"map@{k}"] = [value * factor for value, factor in zip(values[f"map@{k}"], scale, strict=True)]
    values["mrr"] = [found[str(user)]["recip_rank"] for user in range(N_USERS)]
    return values


def scored_run(queries: Tensor, items: Tensor, train: Ragged) -> dict[str, dict[str, float]]:
    scores = queries @ items.T
    return {
        str(user): {document(item): float(scores[user, item]) for item in set(range(N_ITEMS)) - set(row(train, user))}
        for user in range(N_USERS)
    }


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_every_metric_equals_trec_eval_on_the_same_scores(seed, tied):
    queries, items, relevant, train = problem(seed, tied=tied)
    if tied:
        assert (queries @ items.T).unique().numel() < N_ITEMS
    ours = evaluate(queries, items, relevant, train=train, cutoffs=(*CUTOFFS, N_ITEMS))
    expected = trec_values(scored_run(queries, items, train), relevant)
    # recip_rank has no cut-off, so it is compared with the reciprocal rank over the whole catalogue
    expected[f"mrr@{N_ITEMS}"] = expected.pop("mrr")
    for name, values in expected.items():
        torch.testing.assert_close(ours.per_user[name], torch.tensor(values, dtype=torch.float64), msg=name)


@pytest.mark.parametrize("seed", range(3))
def test_every_metric_equals_trec_eval_on_our_own_order_of_ties(seed):
    queries, items, relevant, train = problem(seed, tied=True)
    ours = evaluate(queries, items, relevant, train=train, cutoffs=CUTOFFS)
    _, lists = top_k(queries, items, CUTOFFS[-1], exclude=train)
    run = {
        str(user): {document(item): -float(place) for place, item in enumerate(lists[user].tolist())}
        for user in range(N_USERS)
    }
    expected = trec_values(run, relevant)
    expected[f"mrr@{CUTOFFS[-1]}"] = expected.pop("mrr")
    for name, values in expected.items():
        torch.testing.assert_close(ours.per_user[name], torch.tensor(values, dtype=torch.float64), msg=name)


@pytest.mark.parametrize("k", CUTOFFS)
def test_ndcg_equals_scikit_learn_on_untied_scores(k):
    queries, items, relevant, train = problem(3, tied=False)
    scores = queries @ items.T
    ours = evaluate(queries, items, relevant, train=train, cutoffs=(k,)).per_user[f"ndcg@{k}"]
    for user in range(N_USERS):
        kept = sorted(set(range(N_ITEMS)) - set(row(train, user)))
        labels = [[float(item in row(relevant, user)) for item in kept]]
        expected = ndcg_score(labels, scores[user, kept].unsqueeze(0).numpy(), k=k, ignore_ties=True)
        assert float(ours[user]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("tied", [False, True])
def test_auc_equals_scikit_learn(tied):
    queries, items, relevant, train = problem(4, tied=tied)
    scores = queries @ items.T
    ours = evaluate(queries, items, relevant, train=train, cutoffs=(5,)).per_user["auc"]
    for user in range(N_USERS):
        kept = sorted(set(range(N_ITEMS)) - set(row(train, user)))
        labels = [item in row(relevant, user) for item in kept]
        assert float(ours[user]) == pytest.approx(roc_auc_score(labels, scores[user, kept]), rel=1e-12)


def graded_problem() -> tuple[Tensor, Tensor, EvalSet, Tensor]:
    """Grades 0 to 4 of every item, as a table (U, I); half of them are 0."""
    queries, items, _, _ = problem(5, tied=False)
    draw = torch.Generator().manual_seed(6)
    grades = torch.randint(-4, 5, (N_USERS, N_ITEMS), generator=draw).clamp(min=0)
    every = ragged_from_pairs(*torch.ones_like(grades).nonzero(as_tuple=True), N_USERS)
    return queries, items, EvalSet(QuerySet.known(N_USERS), every, grades=grades.flatten()), grades


@pytest.mark.parametrize("gain", GAINS)
def test_graded_ndcg_equals_scikit_learn(gain):
    queries, items, evalset, grades = graded_problem()
    ours = evaluate_set(queries, items, replace(evalset, gain=gain), CUTOFFS).per_user
    gains = (2.0**grades - 1 if gain == "exponential" else grades.double()).numpy()
    for k in CUTOFFS:
        for user in range(N_USERS):
            scores = (queries[user : user + 1] @ items.T).numpy()
            expected = ndcg_score(gains[user : user + 1], scores, k=k, ignore_ties=True)
            assert float(ours[f"ndcg@{k}"][user]) == pytest.approx(expected, rel=1e-12)


def test_graded_metrics_equal_trec_eval():
    queries, items, evalset, grades = graded_problem()
    ours = evaluate_set(queries, items, replace(evalset, gain="linear"), CUTOFFS).per_user
    judged = {str(u): {document(i): int(grades[u, i]) for i in range(N_ITEMS)} for u in range(N_USERS)}
    measures = {f"{name}.{','.join(map(str, CUTOFFS))}" for name in ("ndcg_cut", "recall", "P", "success")}
    nothing = ragged_from_pairs(*torch.zeros(2, 0, dtype=torch.int64), N_USERS)
    rated = pytrec_eval.RelevanceEvaluator(judged, measures).evaluate(scored_run(queries, items, nothing))
    for name in ("ndcg", "recall", "precision", "hit_rate"):
        for k in CUTOFFS:
            expected = [rated[str(u)][f"{TREC_NAMES[name]}_{k}"] for u in range(N_USERS)]
            assert ours[f"{name}@{k}"].tolist() == pytest.approx(expected, rel=1e-12), (name, k)


def test_graded_ndcg_equals_torchmetrics():
    functional = pytest.importorskip("torchmetrics.functional.retrieval")
    queries, items, evalset, grades = graded_problem()
    ours = evaluate_set(queries, items, replace(evalset, gain="linear"), (10,)).per_user["ndcg@10"]
    for user in range(N_USERS):
        expected = functional.retrieval_normalized_dcg(queries[user] @ items.T, grades[user], top_k=10)
        assert float(ours[user]) == pytest.approx(float(expected), rel=1e-6)
