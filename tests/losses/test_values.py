"""Each loss against its formula written as explicit loops in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from topshelf.errors import ConfigError
from topshelf.losses import BPR, SLatK, SoftmaxLoss, SogSLatK, bpr_loss, slatk_loss, softmax_loss


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def problem(seed, n_queries=4, n_positives=9, n_negatives=6):
    generator = torch.Generator().manual_seed(seed)
    return {
        "positive": torch.randn(n_positives, generator=generator, dtype=torch.float64),
        "negative": torch.randn(n_queries, n_negatives, generator=generator, dtype=torch.float64),
        "owner": torch.randint(n_queries, (n_positives,), generator=generator),
        "mask": torch.rand(n_queries, n_negatives, generator=generator) < 0.3,
        "log_q": torch.randn(n_negatives, generator=generator, dtype=torch.float64),
        "threshold": torch.randn(n_queries, generator=generator, dtype=torch.float64),
    }


def rivals(p, i):
    """(score, log_q) of the negatives that count for positive i."""
    q = int(p["owner"][i])
    return [
        (float(p["negative"][q, j]), float(p["log_q"][j])) for j in range(p["negative"].size(1)) if not p["mask"][q, j]
    ]


def slow_softmax(p, i, tau):
    total = sum(math.exp((s - float(p["positive"][i])) / tau - lq) for s, lq in rivals(p, i))
    return math.log(total) if total else 0.0


def call(p, *names):
    return {name: p[name] for name in names}


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), tau=st.sampled_from([0.1, 0.5, 2.0]))
def test_softmax_follows_its_formula(seed, tau):
    p = problem(seed)
    found = softmax_loss(p["positive"], p["negative"], p["owner"], tau=tau, **call(p, "mask", "log_q"))
    assert_close(found, tensor([slow_softmax(p, i, tau) for i in range(9)], dtype=torch.float64))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), tau_weight=st.sampled_from([0.2, 1.0, 2.5]))
def test_slatk_follows_its_formula(seed, tau_weight):
    p = problem(seed)
    found = slatk_loss(
        p["positive"], p["negative"], p["owner"], tau=0.5, tau_weight=tau_weight,
        **call(p, "mask", "log_q", "threshold"),
    )  # fmt: skip
    expected = []
    for i in range(9):
        gap = float(p["positive"][i] - p["threshold"][p["owner"][i]])
        expected.append(sigmoid(gap / tau_weight) * slow_softmax(p, i, 0.5))
    assert_close(found, tensor(expected, dtype=torch.float64))


def test_slatk_with_every_choice_of_activations_follows_its_formula():
    p = problem(3)
    for weight in ("sigmoid", "exponential"):
        for distance in ("sigmoid", "exponential"):
            found = slatk_loss(
                p["positive"], p["negative"], p["owner"], tau=0.5, tau_weight=0.7, weight=weight, distance=distance,
                **call(p, "mask", "log_q", "threshold"),
            )  # fmt: skip
            expected = []
            for i in range(9):
                s = float(p["positive"][i])
                gap = (s - float(p["threshold"][p["owner"][i]])) / 0.7
                w = sigmoid(gap) if weight == "sigmoid" else math.exp(gap)
                act = (lambda x: sigmoid(x / 0.5)) if distance == "sigmoid" else (lambda x: math.exp(x / 0.5))
                total = sum(act(n - s) * math.exp(-lq) for n, lq in rivals(p, i))
                expected.append(w * math.log(total) if total else 0.0)
            assert_close(found, tensor(expected, dtype=torch.float64), msg=f"{weight}, {distance}")


def test_slatk_with_hits_kept_is_equation_3_3d_summed_over_a_query():
    positive, owner = tensor([2.0, 1.0, -1.0]), tensor([0, 0, 0])
    negative, threshold = tensor([[0.0, 0.5]]), tensor([0.9])
    found = slatk_loss(positive, negative, owner, threshold=threshold, tau=1.0, tau_weight=0.3, keep_hits=True).sum()
    plain = slatk_loss(positive, negative, owner, threshold=threshold, tau=1.0, tau_weight=0.3).sum()
    hits = 2  # 2.0 and 1.0 are at least 0.9
    assert_close(found, plain / hits - math.log(hits))


@pytest.mark.parametrize("distance", ["exponential", "sigmoid"])
def test_with_hits_kept_a_query_without_negatives_costs_nothing(distance):
    positive, owner = tensor([0.9, 0.8, 0.7], requires_grad=True), tensor([0, 0, 1])
    settings = {"threshold": torch.zeros(2), "tau": 1.0, "tau_weight": 0.3, "keep_hits": True, "distance": distance}
    mask = tensor([[True, True], [False, True]])
    found = slatk_loss(positive, torch.zeros(2, 2), owner, mask=mask, **settings)
    found.sum().backward()
    assert found[:2].tolist() == [0.0, 0.0]
    assert positive.grad[:2].tolist() == [0.0, 0.0]
    assert found[2] != 0
    if distance == "exponential":
        partition = tensor([-math.inf, 0.0])
        assert_close(slatk_loss(positive, None, owner, log_partition=partition, **settings), found)


def test_hits_cannot_be_kept_in_the_pair_form():
    with pytest.raises(ConfigError, match="keep_hits needs all positives"):
        slatk_loss(torch.ones(2), torch.ones(2, 3), threshold=torch.zeros(2), tau=1, tau_weight=1, keep_hits=True)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_bpr_follows_its_formula(seed):
    p = problem(seed)
    found = bpr_loss(p["positive"], p["negative"], p["owner"], **call(p, "mask", "log_q"))
    expected = []
    for i in range(9):
        pairs = [(math.log1p(math.exp(s - float(p["positive"][i]))), math.exp(-lq)) for s, lq in rivals(p, i)]
        total = sum(w for _, w in pairs)
        expected.append(sum(v * w for v, w in pairs) / total if total else 0.0)
    assert_close(found, tensor(expected, dtype=torch.float64))


def test_log_partition_stands_for_the_negatives():
    p = problem(1)
    partition = (p["negative"] / 0.4).logsumexp(1)
    a = softmax_loss(p["positive"], p["negative"], p["owner"], tau=0.4)
    b = softmax_loss(p["positive"], owner=p["owner"], tau=0.4, log_partition=partition)
    assert_close(a, b)


def test_slatk_with_a_constant_weight_is_the_softmax_loss():
    p = problem(2)
    far = torch.full((4,), -1e9, dtype=torch.float64)
    a = slatk_loss(p["positive"], p["negative"], p["owner"], threshold=far, tau=0.3, tau_weight=1.0)
    assert_close(a, softmax_loss(p["positive"], p["negative"], p["owner"], tau=0.3))


def test_gradient_of_slatk_is_the_papers():
    """w ∇SL + w (1 - w) SL ∇s / τ_w (paper, appendix on gradient analysis); without the last term when detached."""
    p = problem(5)
    s = p["positive"].requires_grad_()
    for detach in (False, True):
        loss = slatk_loss(
            s,
            p["negative"],
            p["owner"],
            threshold=p["threshold"],
            tau=0.5,
            tau_weight=0.8,
            detach_weight=detach,
        )
        (found,) = torch.autograd.grad(loss.sum(), s)
        softmax = softmax_loss(s, p["negative"], p["owner"], tau=0.5)
        (gradient,) = torch.autograd.grad(softmax.sum(), s)
        w = torch.sigmoid((s - p["threshold"][p["owner"]]) / 0.8)
        expected = w * gradient + (0 if detach else w * (1 - w) * softmax / 0.8)
        assert_close(found, expected.detach())


def test_update_threshold_takes_the_kth_best_of_positives_and_negatives():
    loss = SLatK(5, k=2)
    loss.update_threshold(tensor([3, 1]), tensor([0.9, 0.1, 0.5]), tensor([[0.4, 0.3], [0.2, 0.8]]), tensor([0, 1, 0]))
    # query 3: {0.9, 0.5, 0.4, 0.3} -> 0.5; query 1: {0.1, 0.2, 0.8} -> 0.2
    assert_close(loss.threshold, tensor([0.0, 0.2, 0.0, 0.5, 0.0]))


def test_update_threshold_joins_the_rows_of_a_query_that_comes_twice():
    loss = SLatK(3, k=2)
    loss.update_threshold(tensor([2, 2]), tensor([0.9, 0.7]), tensor([[0.1, 0.2], [0.3, 0.4]]))
    assert_close(loss.threshold, tensor([0.0, 0.0, 0.7]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": [3, 1]}, "query must be .* got a list"),
        ({"query": tensor([3, -1])}, r"query must be from 0 to 4 \(5 queries\), got -1"),
        ({"query": tensor([5, 1])}, r"query must be from 0 to 4 \(5 queries\), got 5"),
        ({"owner": tensor([0, 1, 2])}, r"owner must be from 0 to 1 \(2 rows of the batch\), got 2"),
        ({"owner": None}, "pass owner"),
        ({"negative": torch.ones(2, 2)}, "got k=4 and 3 scores of query 1; pass all its positives and more negatives"),
        ({"mask": tensor([[True, False, False], [True, False, True]])}, "got k=4 and 2 scores of query 1"),
        ({"query": tensor([1, 1]), "mask": torch.ones(2, 3, dtype=torch.bool)}, "got k=4 and 3 scores of query 1"),
    ],
)
def test_update_threshold_refuses_what_it_cannot_use_and_changes_nothing(changes, message):
    """A K-th best score of fewer than K scores is none; the lowest one was taken for it."""
    loss = SLatK(5, k=4)
    given = {"query": tensor([3, 1]), "positive": torch.ones(3), "negative": torch.ones(2, 3)}
    with pytest.raises(ConfigError, match=message):
        loss.update_threshold(**{**given, "owner": tensor([0, 1, 0]), **changes})
    assert_close(loss.threshold, torch.zeros(5))


def test_resize_keeps_old_thresholds_and_starts_new_ones_at_zero():
    loss = SLatK(2)
    loss.threshold.copy_(tensor([0.1, 0.2]))
    loss.resize(3)
    assert_close(loss.threshold, tensor([0.1, 0.2, 0.0]))
    assert "threshold" in loss.state_dict()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SLatK(3, k=0), "k must be >= 1, got 0"),
        (lambda: SLatK(3, tau=0), "tau must be > 0, got 0"),
        (lambda: SLatK(3, tau_weight=float("nan")), "tau_weight must be > 0, got nan"),
        (lambda: SLatK(3, weight="relu"), "weight must be one of sigmoid, exponential, got 'relu'"),
        (lambda: SoftmaxLoss(tau=-1), "tau must be > 0, got -1"),
        (lambda: BPR(reduction="max"), "reduction must be one of"),
        (lambda: SLatK(3)(torch.ones(1), torch.ones(1, 1)), "pass query"),
        (lambda: SoftmaxLoss()(torch.ones(3), torch.ones(2, 1)), "pass owner"),
        (lambda: SoftmaxLoss()(torch.ones(1), torch.ones(1, 1), log_partition=torch.ones(1)), "not both"),
        (
            lambda: SoftmaxLoss()(torch.ones(3)),
            r"SoftmaxLoss needs negative .* or log_partition \(Q,\); pass one of them",
        ),
        (lambda: BPR()(torch.ones(1), log_partition=torch.ones(1)), "BPR needs negative .*; pass negative"),
    ],
)
def test_bad_settings_and_calls_are_refused_with_the_value_received(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_without_n_queries_it_has_no_state_and_takes_the_thresholds_of_each_call():
    p = problem(7)
    loss = SLatK(k=3, tau=0.5, tau_weight=0.8, reduction="none").double()
    assert not loss.state_dict()
    assert not loss.keeps_thresholds
    given = {"threshold": p["threshold"], "mask": p["mask"], "log_q": p["log_q"]}
    expected = slatk_loss(p["positive"], p["negative"], p["owner"], tau=0.5, tau_weight=0.8, **given)
    assert torch.equal(loss(p["positive"], p["negative"], p["owner"], **given), expected)
    with pytest.raises(ConfigError, match=r"SLatK needs threshold .*made without n_queries; pass threshold"):
        loss(p["positive"], p["negative"], p["owner"])
    with pytest.raises(ConfigError, match=r"threshold must be \(Q,\) = \(4,\) of floating-point numbers, got \(8,\)"):
        loss(p["positive"], p["negative"], p["owner"], threshold=torch.zeros(8))
    for call in (
        lambda: loss.update_threshold(torch.arange(4), p["positive"], p["negative"], p["owner"]),
        lambda: loss.resize(5),
    ):
        with pytest.raises(ConfigError, match=r"needs a table of thresholds.*; give n_queries, or pass threshold"):
            call()


@pytest.mark.parametrize("cls", [SLatK, SogSLatK])
def test_a_threshold_given_with_the_call_stands_in_for_the_table(cls):
    p = problem(8)
    query, settings = torch.arange(4), {"tau": 0.5, "tau_weight": 0.8, "reduction": "none"}
    with_table, given = (cls(4, **settings).double() for _ in range(2))
    with_table.threshold.copy_(p["threshold"])
    batch = (p["positive"], p["negative"], p["owner"])
    assert torch.equal(given(*batch, query=query, threshold=p["threshold"]), with_table(*batch, query=query))
    assert (given.threshold == 0).all()
