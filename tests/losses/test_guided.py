"""GuidedRec against loops, what moves what, and whether its network learns DCG."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from topshelf.errors import ConfigError
from topshelf.losses.guided import GuidedRec, Surrogate, guidedrec_loss


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


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
    }


def surrogate(seed=0, hidden=5):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Surrogate(hidden).double()


def dense(layer, x):
    return [sum(w * v for w, v in zip(row, x, strict=True)) + b for row, b in zip(*layer, strict=True)]


def slow_surrogate(network, y_i, rivals):
    """The network on one list, as lists of Python numbers; rivals are (y_j, weight)."""
    layers = [(x.weight.tolist(), x.bias.tolist()) for x in (network.pair, network.pooled, network.out)]
    total = sum(w for _, w in rivals)
    pooled = [0.0] * len(layers[0][1])
    for y_j, w in rivals:
        for h, x in enumerate(dense(layers[0], [8 * y_i - 4, 8 * y_j - 4])):
            pooled[h] += w * x * sigmoid(x) / total
    hidden = [x * sigmoid(x) for x in dense(layers[1], [*pooled, 1 / math.log2(2 + total)])]
    return sigmoid(dense(layers[2], hidden)[0])


def slow_guidedrec(p, i, network, guidance, tau):
    q, up = int(p["owner"][i]), float(p["positive"][i]) / tau
    rivals = []
    for j in range(p["negative"].size(1)):
        if not p["mask"][q, j]:
            rivals.append((float(p["negative"][q, j]) / tau, math.exp(-float(p["log_q"][j]))))
    if not rivals:
        return 0.0
    total = sum(w for _, w in rivals)
    entropy = -math.log(sigmoid(up)) - sum(w * math.log(1 - sigmoid(s)) for s, w in rivals) / total
    predicted = slow_surrogate(network, sigmoid(up), [(sigmoid(s), w) for s, w in rivals])
    place = 1 + sum(w for s, w in rivals if s > up)
    return entropy - guidance * predicted + (predicted - 1 / math.log2(1 + place)) ** 2


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), guidance=st.sampled_from([0.0, 1.0, 3.0]), tau=st.sampled_from([0.2, 1.0]))
def test_guidedrec_follows_its_formula(seed, guidance, tau):
    p, network = problem(seed), surrogate(seed)
    found = guidedrec_loss(**p, surrogate=network, guidance=guidance, tau=tau)
    slow = [slow_guidedrec(p, i, network, guidance, tau) for i in range(7)]
    assert_close(found, tensor(slow, dtype=torch.float64))


def slow_prediction(p, i, network):
    """Predicted DCG of list i: what guidance takes off the value."""
    return slow_guidedrec(p, i, network, 0.0, 1.0) - slow_guidedrec(p, i, network, 1.0, 1.0)


def slow_dcg(p, i):
    q = int(p["owner"][i])
    above = [j for j in range(6) if not p["mask"][q, j] and p["negative"][q, j] > p["positive"][i]]
    return 1 / math.log2(2 + sum(math.exp(-float(p["log_q"][j])) for j in above))


def slow_error(p, network):
    counted = [i for i, q in enumerate(p["owner"].tolist()) if not p["mask"][q].all()]
    return sum((slow_prediction(p, i, network) - slow_dcg(p, i)) ** 2 for i in counted)


def difference(function, tensor, cell, step=1e-6):
    """Central difference of a function of nothing by one number of a tensor."""
    number, sides = tensor.view(-1)[cell].item(), []
    with torch.no_grad():
        for sign in (1, -1):
            tensor.view(-1)[cell] = number + sign * step
            sides.append(function())
        tensor.view(-1)[cell] = number
    return (sides[0] - sides[1]) / (2 * step)


def test_the_scores_descend_cross_entropy_minus_the_predicted_dcg_and_not_the_error():
    p, network = problem(1), surrogate()
    scores = p["positive"].requires_grad_(), p["negative"].requires_grad_()
    found = torch.autograd.grad(guidedrec_loss(**p, surrogate=network, guidance=2.0).sum(), scores)

    def without_error():
        return sum(slow_guidedrec(p, i, network, 2.0, 1.0) for i in range(7)) - slow_error(p, network)

    for score, gradient in zip(scores, found, strict=True):
        slow = [difference(without_error, score, cell) for cell in range(score.numel())]
        assert_close(gradient.view(-1), tensor(slow, dtype=torch.float64), atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("guidance", [0.0, 5.0])
def test_the_network_descends_its_error_and_does_not_learn_from_being_maximised(guidance):
    p, network = problem(2), surrogate(hidden=3)
    parameters = list(network.parameters())
    found = torch.autograd.grad(guidedrec_loss(**p, surrogate=network, guidance=guidance).sum(), parameters)
    for parameter, gradient in zip(parameters, found, strict=True):
        slow = [difference(lambda: slow_error(p, network), parameter, cell) for cell in range(parameter.numel())]
        assert_close(gradient.view(-1), tensor(slow, dtype=torch.float64), atol=1e-7, rtol=1e-5)


def test_without_guidance_the_scores_get_the_gradient_of_binary_cross_entropy():
    generator = torch.Generator().manual_seed(0)
    positive = torch.randn(5, generator=generator, dtype=torch.float64, requires_grad=True)
    negative = torch.randn(5, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    loss = GuidedRec(guidance=0.0, reduction="sum").double()
    found = torch.autograd.grad(loss(positive, negative), (positive, negative))
    bce = torch.nn.functional.binary_cross_entropy_with_logits
    plain = bce(positive, torch.ones_like(positive), reduction="sum")
    plain = plain + bce(negative, torch.zeros_like(negative), reduction="sum") / 4
    for ours, theirs in zip(found, torch.autograd.grad(plain, (positive, negative)), strict=True):
        assert_close(ours, theirs)


def test_the_network_learns_to_predict_dcg():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        loss = GuidedRec(surrogate_rate=0.01)
        optimizer = torch.optim.Adam(loss.parameter_groups(0.1))
        assert optimizer.param_groups[0]["lr"] == 0.01
        for _ in range(60):
            optimizer.zero_grad()
            loss(torch.rand(256) * 2 - 1, torch.rand(256, 9) * 2 - 1).backward()
            optimizer.step()
        positive, negative = torch.rand(2000) * 2 - 1, torch.rand(2000, 9) * 2 - 1
    true = 1 / torch.log2(2 + (negative > positive.unsqueeze(1)).sum(1))
    with torch.no_grad():
        predicted = loss.surrogate(positive.sigmoid(), negative.sigmoid(), torch.ones_like(negative))
    assert (predicted - true).square().mean() < 0.25 * true.var()


def test_the_guard_of_memory_is_told_of_the_networks_width():
    assert GuidedRec(hidden=8).pair_copies == 12 + 6 * 8


def test_guidance_that_has_learned_dcg_pulls_positives_up_and_negatives_down():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        loss = GuidedRec()
        optimizer = torch.optim.Adam(loss.parameter_groups(0.1))
        for _ in range(200):
            optimizer.zero_grad()
            loss(torch.rand(256) * 2 - 1, torch.rand(256, 9) * 2 - 1).backward()
            optimizer.step()
        positive, negative = torch.rand(500) * 2 - 1, torch.rand(500, 9) * 2 - 1
    optimizer.zero_grad()
    y = [x.sigmoid().requires_grad_() for x in (positive, negative)]
    loss.surrogate.frozen(*y, torch.ones_like(negative)).sum().backward()
    assert y[0].grad.mean() > 0
    assert y[1].grad.mean() < 0
    assert all(x.grad is None for x in loss.parameters())


def test_the_same_seed_gives_the_same_network():
    networks = []
    for _ in range(2):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            networks.append(GuidedRec().state_dict())
    for name, value in networks[0].items():
        assert torch.equal(value, networks[1][name])


@pytest.mark.slow
def test_it_compiles_in_training_mode():
    loss, other = GuidedRec(), GuidedRec()
    other.load_state_dict(loss.state_dict())
    scores = torch.rand(4), torch.rand(4, 6)
    found, expected = torch.compile(loss, fullgraph=True, backend="aot_eager")(*scores), other(*scores)
    assert_close(found, expected)
    found.backward()
    expected.backward()
    for ours, theirs in zip(loss.parameters(), other.parameters(), strict=True):
        assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"hidden": 0}, "hidden must be >= 1, got 0"),
        ({"surrogate_rate": 0.0}, r"surrogate_rate must be > 0, got 0\.0"),
        ({"guidance": -1.0}, r"guidance must be >= 0\.0, got -1\.0"),
        ({"tau": math.nan}, "tau must be > 0, got nan"),
    ],
)
def test_bad_settings_are_refused_with_name_rule_and_value(bad, words):
    with pytest.raises(ConfigError, match=words):
        GuidedRec(**bad)
