"""Our metrics against trec_eval and scikit-learn, with and without tied scores."""

from __future__ import annotations

import pytest
import pytrec_eval
import torch
from sklearn.metrics import ndcg_score, roc_auc_score
from torch import Tensor

from topshelf.evaluation import evaluate
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
