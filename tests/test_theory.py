"""The paper's derivation on random score tables: every inequality of equation 3.3, and theorem 3.2."""

from __future__ import annotations

import math

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from topshelf.losses import slatk_loss

SLACK = 1e-9


def draw(seed, n_items, n_positives, k, integer):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(n_items, generator=generator, dtype=torch.float64)
    if integer:  # with ties
        scores = (scores * 2).round()
    positive = torch.randperm(n_items, generator=generator)[:n_positives]
    # As the paper defines them: pi counts items scored at least as high, beta is the lowest score with pi <= K.
    rank = (scores.unsqueeze(0) >= scores.unsqueeze(1)).sum(1)
    inside = scores[rank <= k]
    beta = inside.min().item() if inside.numel() else math.inf
    return scores, positive, rank, beta


tables = {
    "seed": st.integers(0, 100_000),
    "n_items": st.integers(3, 60),
    "n_positives": st.integers(1, 20),
    "k": st.integers(1, 25),
    "integer": st.booleans(),
}


@settings(max_examples=150, deadline=None)
@given(**tables)
def test_each_inequality_of_the_derivation_holds(seed, n_items, n_positives, k, integer):
    assume(n_positives < n_items)
    scores, positive, rank, beta = draw(seed, n_items, n_positives, k, integer)
    hits = [i for i in positive.tolist() if scores[i] >= beta]
    # The truncation is the comparison with the quantile.
    assert hits == [i for i in positive.tolist() if rank[i] <= k]
    assume(hits)
    pi = [float(rank[i]) for i in hits]
    h = len(hits)
    minus_log_dcg = -math.log(sum(1 / math.log2(p + 1) for p in pi))
    by_reciprocal = -math.log(sum(1 / p for p in pi))
    with_hits = -math.log(sum(1 / p / h for p in pi)) - math.log(h)
    by_jensen = sum(math.log(p) for p in pi) / h - math.log(h)
    without_hits = sum(math.log(p) for p in pi)
    assert minus_log_dcg <= by_reciprocal + SLACK
    assert math.isclose(by_reciprocal, with_hits, abs_tol=1e-9)
    assert with_hits <= by_jensen + SLACK
    assert by_jensen <= without_hits + SLACK


@settings(max_examples=150, deadline=None)
@given(tau=st.sampled_from([0.05, 0.2, 1.0, 5.0]), tau_weight=st.sampled_from([0.1, 1.0, 3.0]), **tables)
def test_theorem_3_2_slatk_bounds_minus_log_dcg(seed, n_items, n_positives, k, integer, tau, tau_weight):
    assume(n_positives < n_items)
    scores, positive, rank, beta = draw(seed, n_items, n_positives, k, integer)
    hits = [i for i in positive.tolist() if rank[i] <= k]
    assume(hits)
    minus_log_dcg = -math.log(sum(1 / math.log2(float(rank[i]) + 1) for i in hits))
    # The sum over all items, the positive itself included, as in equation 3.5.
    loss = slatk_loss(
        scores[positive],
        scores.unsqueeze(0),
        torch.zeros(n_positives, dtype=torch.long),
        threshold=torch.tensor([beta], dtype=torch.float64),
        tau=tau,
        tau_weight=tau_weight,
    )
    bound = loss.sum().item()
    if len(hits) > 1:
        assert minus_log_dcg <= bound + SLACK
    else:
        assert 0.5 * minus_log_dcg <= bound + SLACK


def test_with_one_hit_the_full_bound_can_fail_so_the_half_is_needed():
    scores = torch.tensor([1.0, 0.0], dtype=torch.float64)
    # One positive, in place 2 of a top 2: its score is the threshold, so its weight is exactly one half.
    loss = slatk_loss(scores[1:], scores.unsqueeze(0), threshold=scores[1:], tau=100.0, tau_weight=1.0).item()
    minus_log_dcg = -math.log(1 / math.log2(3))
    assert loss < minus_log_dcg
    assert loss >= 0.5 * minus_log_dcg


def test_a_sigmoid_distance_is_no_upper_bound():
    """The paper's table of activation functions: with sigma_d = sigmoid the bound breaks."""
    scores = torch.tensor([1.0, 0.0], dtype=torch.float64)
    settings = {"threshold": scores[:1], "tau": 0.01, "tau_weight": 1.0}
    minus_log_dcg = 0.0  # the only positive stands in the first of K = 1 places
    broken = slatk_loss(scores[:1], scores.unsqueeze(0), distance="sigmoid", **settings).item()
    kept = slatk_loss(scores[:1], scores.unsqueeze(0), distance="exponential", **settings).item()
    assert broken < minus_log_dcg - 0.3
    assert kept >= minus_log_dcg
