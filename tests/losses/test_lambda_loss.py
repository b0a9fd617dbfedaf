"""Lambda losses against explicit loops over pairs, ranks counted one by one."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from topshelf.errors import ConfigError
from topshelf.losses import LOSSES
from topshelf.losses.lambda_loss import (
    LambdaLoss,
    LambdaLossAtK,
    LambdaLossS,
    lambda_weights,
    lambdaloss_at_k_loss,
    lambdaloss_loss,
    lambdarank_loss,
)
from topshelf.losses.ranks import ranks

FORMULAS = {
    "lambdarank": lambdarank_loss,
    "lambdaloss": lambdaloss_loss,
    "lambdaloss_at_k": lambdaloss_at_k_loss,
}


def problem(seed, n_queries=3, n_positives=8, n_negatives=9, *, ties=False):
    generator = torch.Generator().manual_seed(seed)

    def scores(*shape):
        drawn = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return drawn.round() if ties else drawn

    return {
        "positive": scores(n_positives),
        "negative": scores(n_queries, n_negatives),
        "owner": torch.randint(n_queries, (n_positives,), generator=generator),
        "mask": torch.rand(n_queries, n_negatives, generator=generator) < 0.3,
        "log_q": torch.randn(n_negatives, generator=generator, dtype=torch.float64),
    }


def slow(p, kind, *, k=None, form="paper", n_items=None):
    """From the formulas alone."""
    found = []
    for i, q in enumerate(p["owner"].tolist()):
        rivals = [j for j in range(p["negative"].size(1)) if not p["mask"][q, j]]
        everyone = [float(s) for s, o in zip(p["positive"], p["owner"], strict=True) if o == q]
        everyone += [float(p["negative"][q, j]) for j in rivals]
        scale = 1 if n_items is None else n_items / len(everyone)

        def rank(score, everyone=everyone, scale=scale):
            return max(1, scale * sum(other >= score for other in everyone))

        s_i, total = float(p["positive"][i]), 0.0
        for j in rivals:
            s_j = float(p["negative"][q, j])
            weight = slow_weight(rank(s_i), rank(s_j), kind, k, form)
            total += math.exp(-float(p["log_q"][j])) * weight * math.log(1 + math.exp(s_j - s_i))
        found.append(total)
    return torch.tensor(found, dtype=torch.float64)


def slow_weight(a, b, kind, k, form):
    if kind == "lambdarank":
        return abs(1 / math.log2(1 + a) - 1 / math.log2(1 + b))
    apart = max(1, abs(a - b))
    weight = 1 / math.log2(apart + 1) - (1 / math.log2(apart + 2) if form == "paper" else 0)
    lower = max(a, b)
    if kind == "lambdaloss_at_k" and lower > k:
        weight /= 1 - (1 / math.log2(lower + 1) if form == "paper" else 1 / lower)
    return weight


def settings_of(kind, form):
    return {"lambdarank": {}, "lambdaloss": {"form": form}, "lambdaloss_at_k": {"form": form, "k": 4}}[kind]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(list(FORMULAS)), form=st.sampled_from(["paper", "released"]))
@pytest.mark.parametrize("ties", [False, True])
def test_exact_forms_follow_their_formula(seed, kind, form, ties):
    p = problem(seed, ties=ties)
    assert_close(FORMULAS[kind](**p, **settings_of(kind, form)), slow(p, kind, k=4, form=form))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(list(FORMULAS)), form=st.sampled_from(["paper", "released"]))
def test_sampled_forms_follow_their_formula(seed, kind, form):
    p = problem(seed)
    found = FORMULAS[kind](**p, n_items=500, **settings_of(kind, form))
    assert_close(found, slow(p, kind, k=4, form=form, n_items=500))


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(list(FORMULAS)))
def test_a_sampled_form_given_the_whole_catalogue_is_the_exact_form(seed, kind):
    """Every query has three positives and the other nine of twelve items as negatives."""
    p = {**problem(seed, n_positives=9), "owner": torch.arange(9) % 3, "mask": torch.zeros(3, 9, dtype=torch.bool)}
    chosen = settings_of(kind, "paper")
    assert_close(FORMULAS[kind](**p, n_items=12, **chosen), FORMULAS[kind](**p, **chosen), rtol=0, atol=0)


@pytest.mark.parametrize("form", ["paper", "released"])
def test_lambdaloss_at_k_of_the_whole_catalogue_is_lambdaloss(form):
    p = problem(3)
    n_items = 8 + 9
    assert_close(lambdaloss_at_k_loss(**p, k=n_items, form=form), lambdaloss_loss(**p, form=form), rtol=0, atol=0)
    assert not torch.allclose(lambdaloss_at_k_loss(**p, k=2, form=form), lambdaloss_loss(**p, form=form))


@pytest.mark.parametrize("kind", FORMULAS)
def test_the_gradient_is_that_of_the_pairs_with_weights_held(kind):
    p = problem(5)
    positive, negative = p["positive"].requires_grad_(), p["negative"].requires_grad_()
    log_q, mask, owner = p["log_q"], p["mask"], p["owner"]
    chosen = settings_of(kind, "paper")

    def run(positive, negative):
        return FORMULAS[kind](positive, negative, owner, mask=mask, log_q=log_q, **chosen)

    assert torch.autograd.gradcheck(run, (positive, negative))


def test_ranks_count_everything_at_or_above_with_ties_and_repeated_queries():
    positive, owner = torch.tensor([0.5, 0.1, 0.5, 0.9]), torch.tensor([0, 1, 2, 1])
    negative = torch.tensor([[0.5, 0.7, 0.0], [0.9, 0.1, 0.3], [0.2, 0.6, 0.5]])
    mask = torch.tensor([[False, False, False], [False, False, True], [False, False, False]])
    query = torch.tensor([7, 3, 7])  # the first and the last row are the same query's
    rank_i, rank_j = ranks(positive, negative, owner, query=query, mask=mask)
    assert_close(rank_i, torch.tensor([4.0, 4.0, 4.0, 2.0]))
    assert_close(rank_j[0], torch.tensor([4.0, 1.0, 5.0]))
    assert_close(rank_j[1, :2], torch.tensor([2.0, 4.0]))
    assert_close(rank_j[2], torch.tensor([5.0, 1.0, 4.0]))


def test_all_scores_equal_gives_finite_weights_and_gradients():
    positive, negative = torch.zeros(2, requires_grad=True), torch.zeros(2, 4, requires_grad=True)
    for kind in FORMULAS:
        FORMULAS[kind](positive, negative, **settings_of(kind, "released")).sum().backward()
    assert positive.grad.isfinite().all()
    assert negative.grad.isfinite().all()


def test_lambda_weights_are_those_of_the_papers_figure():
    """Figure 4 shows the weights of LambdaLoss@5 over the first twenty places; below 0.005 they are left out."""
    rank = torch.arange(1, 21, dtype=torch.float64)
    table = lambda_weights(rank.unsqueeze(1), rank, k=5)
    assert_close(table, table.T)
    expected = [[slow_weight(a, b, "lambdaloss_at_k", 5, "paper") for b in range(1, 21)] for a in range(1, 21)]
    assert_close(table, torch.tensor(expected, dtype=torch.float64))
    assert table[0, 1] > 0.3  # neighbours dominate
    assert 0.004 < table[0, 19] < 0.006  # and twenty places apart nothing is left


def test_lambda_weights_keep_their_digits_at_large_ranks_in_float32():
    far, near = torch.tensor([400_000.0]), torch.tensor([1.0])
    exact = slow_weight(400_000, 1, "lambdaloss", None, "paper")
    assert_close(lambda_weights(far, near).double(), torch.tensor([exact], dtype=torch.float64), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LambdaLossAtK(k=0), "k must be >= 1, got 0"),
        (lambda: LambdaLoss(form="code"), "form must be one of paper, released, got 'code'"),
        (lambda: LambdaLossS(n_items=0), "n_items must be >= 1, got 0"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("name", [name for name in LOSSES if name.startswith("lambda")])
def test_a_run_knows_what_negatives_and_scores_they_want(name):
    loss = LOSSES[name]
    assert "whole_queries" in loss.needs
    assert loss.defaults.score == "dot"
    assert loss.defaults.negatives == ("per_query" if name.endswith("_s") else "catalogue")
