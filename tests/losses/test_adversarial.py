"""AdvInfoNCE against loops, its plain form, and who moves when."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from topshelf.errors import ConfigError
from topshelf.losses.adversarial import AdvInfoNCE, advinfonce_loss


def problem(seed, n_queries=3, n_positives=7, n_negatives=6):
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64) * 2 - 1

    mask = torch.rand(n_queries, n_negatives, generator=generator) < 0.3
    mask[0] = True
    return {
        "positive": uniform(n_positives),
        "negative": uniform(n_queries, n_negatives),
        "owner": torch.randint(n_queries, (n_positives,), generator=generator),
        "mask": mask,
        "log_q": uniform(n_negatives),
        "hardness": uniform(n_queries, n_negatives),
    }


def slow_advinfonce(p, i, tau, weight):
    q, up = int(p["owner"][i]), math.exp(float(p["positive"][i]) / tau)
    counted = [j for j in range(p["negative"].size(1)) if not p["mask"][q, j]]
    if not counted:
        return 0.0
    stands_for = {j: math.exp(-float(p["log_q"][j])) for j in counted}
    n = sum(stands_for.values())
    z = sum(stands_for[j] * math.exp(float(p["hardness"][q, j])) for j in counted)
    down = 0.0
    for j in counted:
        probability = stands_for[j] * math.exp(float(p["hardness"][q, j])) / z
        down += weight * n * probability * math.exp(float(p["negative"][q, j]) / tau)
    return -math.log(up / (up + down))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), tau=st.sampled_from([0.1, 0.5, 2.0]), weight=st.sampled_from([1.0, 64.0]))
def test_advinfonce_follows_its_formula(seed, tau, weight):
    p = problem(seed)
    found = advinfonce_loss(**p, tau=tau, negative_weight=weight)
    slow = [slow_advinfonce(p, i, tau, weight) for i in range(7)]
    assert_close(found, tensor(slow, dtype=torch.float64))


def test_gradients_of_scores_and_hardness_are_the_derivative():
    p = problem(3)
    inputs = [p.pop(name).requires_grad_() for name in ("positive", "negative", "hardness")]

    def call(positive, negative, hardness):
        return advinfonce_loss(positive, negative, hardness=hardness, tau=0.5, **p)

    assert torch.autograd.gradcheck(call, inputs)


def test_a_constant_added_to_a_querys_hardness_changes_nothing():
    p = problem(4)
    moved = {**p, "hardness": p["hardness"] + tensor([[3.0], [-7.0], [100.0]])}
    assert_close(advinfonce_loss(**moved, tau=0.2), advinfonce_loss(**p, tau=0.2))


@pytest.mark.parametrize("per_query", [False, True])
def test_an_adversary_of_equal_vectors_gives_the_plain_form(per_query):
    p = problem(5)
    loss = AdvInfoNCE(10, 20, reduction="none").double()
    with torch.no_grad():
        loss.query_adversary.copy_(torch.arange(1.0, 65.0))
        loss.item_adversary.copy_(torch.arange(1.0, 65.0))
    items = torch.arange(18).view(3, 6) if per_query else torch.arange(6)
    found = loss(p["positive"], p["negative"], p["owner"], query=torch.arange(3), negative_item=items)
    partition = torch.logsumexp(p["negative"] / 0.2, 1)[p["owner"]]
    assert_close(found, torch.nn.functional.softplus(math.log(64) + partition - p["positive"] / 0.2))


def test_hardness_is_the_cosine_of_the_adversarys_vectors_whichever_way_it_is_computed():
    small, large = AdvInfoNCE(5, 12, adversary_dim=3), AdvInfoNCE(5, 4000, adversary_dim=3)
    query, shared = tensor([4, 0, 4]), tensor([1, 7, 7, 11])
    for loss in (small, large):
        found = loss.hardness(query, shared)
        for q in range(3):
            for j in range(4):
                a, b = loss.query_adversary[query[q]].tolist(), loss.item_adversary[shared[j]].tolist()
                dot = sum(x * y for x, y in zip(a, b, strict=True))
                assert found[q, j].item() == pytest.approx(dot / math.hypot(*a) / math.hypot(*b), abs=1e-6)
        assert_close(loss.hardness(query, shared.repeat(3, 1)), found)


def test_hardness_starts_near_uniform():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        hardness = AdvInfoNCE(100, 500).hardness(torch.arange(100), torch.arange(500))
    assert hardness.std().item() == pytest.approx(1 / 8, rel=0.05)
    assert (500 * hardness.softmax(1)).max() < 2


def step_gradients(epoch):
    """Whether a step of this epoch moves the scores and the adversary."""
    p = problem(6)
    loss = AdvInfoNCE(10, 20, every=5).double()
    if epoch is not None:
        loss.begin_epoch(epoch)
    positive, negative = p["positive"].requires_grad_(), p["negative"].requires_grad_()
    loss(positive, negative, p["owner"], query=torch.arange(3), negative_item=torch.arange(6)).backward()
    scores, adversary = (positive, negative), (loss.query_adversary, loss.item_adversary)
    return [{x.grad is not None for x in side} for side in (scores, adversary)]


@pytest.mark.parametrize(
    ("epoch", "scores", "adversary"),
    [(None, True, True), (1, True, False), (4, True, False), (5, False, True), (6, True, False), (10, False, True)],
)
def test_model_and_adversary_take_turns_by_epochs_and_move_together_without_them(epoch, scores, adversary):
    assert step_gradients(epoch) == [{scores}, {adversary}]


def test_in_evaluation_mode_it_is_always_the_models_turn():
    p = problem(6)
    loss = AdvInfoNCE(10, 20, every=5).double().eval()
    loss.begin_epoch(5)
    positive, negative = p["positive"].requires_grad_(), p["negative"].requires_grad_()
    loss(positive, negative, p["owner"], query=torch.arange(3), negative_item=torch.arange(6)).backward()
    assert positive.grad.abs().max() > 0
    assert negative.grad.abs().max() > 0
    assert loss.query_adversary.grad is None


def test_the_adversarys_gradient_is_turned_round():
    p = problem(7)
    loss = AdvInfoNCE(3, 6, reduction="sum").double()
    query, items = torch.arange(3), torch.arange(6)
    p["hardness"] = loss.hardness(query, items)
    true = torch.autograd.grad(advinfonce_loss(**p, tau=0.2).sum(), list(loss.parameters()))
    rest = {name: p[name] for name in ("mask", "log_q")}
    loss(p["positive"], p["negative"], p["owner"], query=query, negative_item=items, **rest).backward()
    for parameter, gradient in zip(loss.parameters(), true, strict=True):
        assert gradient.abs().max() > 0
        assert_close(parameter.grad, -gradient)


def test_a_descending_optimizer_makes_the_adversary_raise_the_loss_at_its_own_rate():
    p = problem(8)
    loss = AdvInfoNCE(3, 6, adversary_rate=0.05).double()
    optimizer = torch.optim.Adam(loss.parameter_groups(0.1))
    assert [(g["lr"], g["weight_decay"]) for g in optimizer.param_groups] == [(0.05, 0.0)]
    values = []
    loss.begin_epoch(5)
    for _ in range(30):
        optimizer.zero_grad()
        value = loss(p["positive"], p["negative"], p["owner"], query=torch.arange(3), negative_item=torch.arange(6))
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values[-1] > values[0] + 0.1
    hardest = loss.hardness(torch.arange(3), torch.arange(6)).argmax(1)
    assert torch.equal(hardest, p["negative"].argmax(1))


@pytest.mark.slow
@pytest.mark.parametrize("per_query", [False, True])
def test_it_compiles_in_training_mode_in_both_turns(per_query):
    loss = AdvInfoNCE(3, 20)
    items = torch.arange(18).view(3, 6) if per_query else torch.arange(6)
    given = {"query": torch.arange(3), "negative_item": items}
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for epoch in (1, 5):
        loss.begin_epoch(epoch)
        positive, negative = torch.rand(3, requires_grad=True), torch.rand(3, 6, requires_grad=True)
        moved = [positive, negative] if epoch == 1 else list(loss.parameters())
        found = torch.autograd.grad(compiled(positive, negative, **given), moved)
        for ours, plain in zip(found, torch.autograd.grad(loss(positive, negative, **given), moved), strict=True):
            assert_close(ours, plain)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"tau": 0.0}, r"tau must be > 0, got 0\.0"),
        ({"negative_weight": -64.0}, r"negative_weight must be > 0, got -64\.0"),
        ({"adversary_dim": 0}, "adversary_dim must be >= 1, got 0"),
        ({"adversary_rate": math.nan}, "adversary_rate must be > 0, got nan"),
        ({"every": 1}, "every must be >= 2, got 1"),
        ({"n_items": -1}, "n_items must be >= 0, got -1"),
    ],
)
def test_bad_settings_are_refused_with_name_rule_and_value(bad, words):
    with pytest.raises(ConfigError, match=words):
        AdvInfoNCE(**{"n_queries": 3, "n_items": 4, **bad})


def test_without_the_negatives_items_it_says_what_it_needs():
    with pytest.raises(ConfigError, match="AdvInfoNCE needs negative_item"):
        AdvInfoNCE(3, 4)(torch.rand(3), torch.rand(3, 2), query=torch.arange(3))
