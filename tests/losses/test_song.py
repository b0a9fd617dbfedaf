"""SONG and SONG@K: the paper's sums over all items as explicit loops, and its gradient estimator written out."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from topshelf.errors import ConfigError
from topshelf.losses.smooth_ranks import positives_above, smooth_rank
from topshelf.losses.song import SONG, SONGAtK, song_at_k_loss, song_loss
from topshelf.losses.tables import first_rows

N_ITEMS = 40


def problem(seed, n_queries=4, n_positives=9, n_negatives=6):
    generator = torch.Generator().manual_seed(seed)
    return {
        "positive": torch.randn(n_positives, generator=generator, dtype=torch.float64),
        "negative": torch.randn(n_queries, n_negatives, generator=generator, dtype=torch.float64),
        "owner": torch.randint(n_queries, (n_positives,), generator=generator),
        "mask": torch.rand(n_queries, n_negatives, generator=generator) < 0.3,
        "log_q": torch.randn(n_negatives, generator=generator, dtype=torch.float64),
    }


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def over(s_j, s_i):
    return max(0.0, s_j - s_i + 1)


def slow_rank(p, i):
    """ĝ of a sample, and its derivatives by every positive's score and by its row of negatives."""
    q, s_i = int(p["owner"][i]), float(p["positive"][i])
    positives = [k for k in range(len(p["owner"])) if p["owner"][k] == q]
    rivals = [j for j in range(p["negative"].size(1)) if not p["mask"][q, j]]
    counts = {j: math.exp(-float(p["log_q"][j])) for j in rivals}
    stands_for = {j: (N_ITEMS - len(positives)) * counts[j] / sum(counts.values()) for j in rivals}
    rank, by_positive, by_negative = 0.0, [0.0] * len(p["owner"]), {}
    for k in positives:
        above = over(float(p["positive"][k]), s_i)
        rank += above**2
        by_positive[k] += 2 * above
        by_positive[i] -= 2 * above
    for j in rivals:
        above = over(float(p["negative"][q, j]), s_i)
        rank += stands_for[j] * above**2
        by_negative[j] = stands_for[j] * 2 * above
        by_positive[i] -= by_negative[j]
    return rank, by_positive, by_negative


def slow(p, averages, gamma, weights, divisor=1):
    """Values, gradients and averages after the step, from the formulas alone."""
    p = {name: tensor.detach() for name, tensor in p.items()}
    values, averages = [], list(averages)
    to_positive, to_negative = torch.zeros_like(p["positive"]), torch.zeros_like(p["negative"])
    for i in range(len(averages)):
        rank, by_positive, by_negative = slow_rank(p, i)
        if not by_negative:
            values.append(0.0)
            continue
        g = rank / divisor if averages[i] < 0 else (1 - gamma) * averages[i] + gamma * rank / divisor
        averages[i] = g
        values.append(-weights[i] / math.log2(1 + g))
        slope = weights[i] / (math.log2(g + 1) ** 2 * (g + 1) * math.log(2)) / divisor
        to_positive += slope * torch.tensor(by_positive, dtype=torch.float64)
        for j, derivative in by_negative.items():
            to_negative[p["owner"][i], j] += slope * derivative
    return torch.tensor(values, dtype=torch.float64), to_positive, to_negative, averages


def slow_catalogue(scores, chosen):
    """The paper's formula: values and their gradient by the scores of all items (Q, I), rank by sums over all items."""
    values, to_scores = [], torch.zeros_like(scores)
    for q, i in chosen.nonzero().tolist():
        row = scores[q].tolist()
        g = sum(over(s_j, row[i]) ** 2 for s_j in row)
        values.append(-1 / math.log2(1 + g))
        slope = 1 / (math.log2(g + 1) ** 2 * (g + 1) * math.log(2))
        for j, s_j in enumerate(row):
            to_scores[q, j] += slope * 2 * over(s_j, row[i])
            to_scores[q, i] -= slope * 2 * over(s_j, row[i])
    return torch.tensor(values, dtype=torch.float64), to_scores


def gradients(losses, p):
    return torch.autograd.grad(losses.sum(), (p["positive"], p["negative"]))


def differentiable(p):
    p["positive"].requires_grad_()
    p["negative"].requires_grad_()
    return p


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_over_the_whole_catalogue_it_is_the_papers_formula(seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(4, 20, generator=generator, dtype=torch.float64).requires_grad_()
    chosen = torch.rand(4, 20, generator=generator) < torch.tensor([[0.05], [0.1], [0.5], [0.8]])
    chosen[:, 0] = False  # a query of positives alone costs nothing
    value, to_scores = slow_catalogue(scores.detach(), chosen)
    owner = chosen.nonzero()[:, 0]
    found = song_loss(scores[chosen], scores, owner, n_items=20, mask=chosen)
    assert_close(found, value)
    assert_close(torch.autograd.grad(found.sum(), scores)[0], to_scores)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), gamma=st.sampled_from([0.1, 0.5, 1.0]), rank=st.sampled_from(["sum", "mean"]))
def test_from_a_sample_song_has_the_value_and_the_gradient_of_the_papers_estimator(seed, gamma, rank):
    p = differentiable(problem(seed))
    averages = [-1.0, 3.0, 0.2, -1.0, 50.0, 7.0, 1.0, 0.0, 20.0]
    given_averages = torch.tensor(averages, dtype=torch.float64)
    found = song_loss(**p, n_items=N_ITEMS, gamma=gamma, average=given_averages, rank=rank)
    value, to_positive, to_negative, _ = slow(p, averages, gamma, [1.0] * 9, 1 if rank == "sum" else N_ITEMS)
    assert_close(found, value)
    assert_close(gradients(found, p), (to_positive, to_negative))


@st.composite
def grouped_scores(draw):
    """Scores of all sizes, many of them equal or one apart, in a few groups whose numbers may be large."""
    scale = draw(st.sampled_from([0.1, 1.0, 1e4]))
    score = st.one_of(st.floats(-1, 1, width=32).map(lambda x: x * scale), st.integers(-3, 3).map(float))
    groups = draw(st.lists(st.sampled_from([0, 1, 5, 10**9]), max_size=25))
    return [draw(score) for _ in groups], groups


@settings(max_examples=100, deadline=None)
@given(grouped_scores())
def test_the_positives_part_is_the_double_loop_over_positives(given_scores):
    scores, groups = given_scores
    positive = torch.tensor(scores, dtype=torch.float32, requires_grad=True)
    s, n = positive.tolist(), len(groups)
    weights = torch.linspace(0.5, 2, n, dtype=torch.float64)
    wanted, count, gradient = [0.0] * n, [0] * n, [0.0] * n
    for i in range(n):
        for k in range(n):
            if groups[k] == groups[i]:
                above = over(s[k], s[i])
                wanted[i] += above**2
                count[i] += 1
                gradient[k] += float(weights[i]) * 2 * above
                gradient[i] -= float(weights[i]) * 2 * above
    found, n_positives = positives_above(positive, torch.tensor(groups, dtype=torch.long))
    assert n_positives.tolist() == count
    assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=1e-11, atol=0)
    (to_positive,) = torch.autograd.grad((found * weights).sum(), positive)
    assert_close(to_positive, torch.tensor(gradient), rtol=1e-5, atol=1e-5)


def test_a_first_place_is_exactly_one_beside_many_scores_that_are_far_apart():
    """Sums over all positives of the batch would be 1e13 here, and leave three digits of a 1."""
    generator = torch.Generator().manual_seed(0)
    positive = ((torch.rand(20_000, generator=generator) * 2 - 1) * 1e4).requires_grad_()
    group = torch.arange(20_000) // 10
    found, n_positives = positives_above(positive, group)
    first = positive.detach().reshape(-1, 10).sort(1, descending=True)
    alone = first.values[:, 0] - first.values[:, 1] > 1
    best = torch.arange(2000) * 10 + first.indices[:, 0]
    assert (found[best][alone] == 1).all()
    assert (n_positives == 10).all()
    table = (positive.detach().double().reshape(-1, 1, 10) - positive.detach().double().reshape(-1, 10, 1) + 1).clamp(0)
    assert_close(found, table.square().sum(2).reshape(-1), rtol=1e-13, atol=0)
    (gradient,) = torch.autograd.grad((found / found.detach()).sum(), positive)
    slopes = 2 * table / table.square().sum(2, keepdim=True)
    assert_close(gradient, (slopes.sum(1) - slopes.sum(2)).reshape(-1).float())


def test_a_smooth_rank_is_never_below_one():
    p = problem(0)
    more_positives_than_items = smooth_rank(p["positive"] + 5, p["negative"], p["owner"], n_items=1)
    assert (more_positives_than_items >= 1).all()
    first_place = smooth_rank(torch.tensor([9.0]), torch.zeros(1, 3), n_items=N_ITEMS)
    assert first_place.tolist() == [1.0]


@pytest.mark.parametrize(("rank", "least"), [("sum", -1.0), ("mean", -1 / math.log2(1 + 1 / N_ITEMS))])
def test_the_least_value_is_that_of_the_first_place(rank, least):
    found = song_loss(torch.tensor([9.0]), torch.zeros(1, 3), n_items=N_ITEMS, rank=rank)
    assert_close(found, torch.tensor([least]))


def test_rows_of_the_same_query_share_their_positives():
    p, query = problem(7), torch.tensor([5, 1, 3, 0])
    owner, rows = p["owner"], {"n_items": N_ITEMS, "log_q": p["log_q"]}
    ragged = song_loss(**p, n_items=N_ITEMS)
    assert_close(song_loss(**p, n_items=N_ITEMS, query=query), ragged)
    repeated = (p["positive"], p["negative"][owner])
    assert_close(song_loss(*repeated, mask=p["mask"][owner], query=query[owner], **rows), ragged)
    alone = song_loss(*repeated, mask=p["mask"][owner], **rows)
    assert (alone - ragged).abs().max() > 0.01


@pytest.mark.parametrize("form", ["paper", "original"])
def test_song_at_k_has_the_value_and_the_gradient_of_the_papers_estimator(form):
    p = differentiable(problem(1))
    threshold = torch.tensor([0.3, -0.5, 1.0, 0.0], dtype=torch.float64)
    averages = [-1.0, 3.0, 0.2, -1.0, 50.0, 7.0, 1.0, 0.0, 20.0]
    given_averages = torch.tensor(averages, dtype=torch.float64)
    found = song_at_k_loss(**p, threshold=threshold, n_items=N_ITEMS, gamma=0.3, average=given_averages, form=form)
    inside = (p["positive"].detach() - threshold[p["owner"]]).tolist()
    weights = [sigmoid(x) if form == "paper" else 2 * sigmoid(2 * x) for x in inside]
    value, to_positive, to_negative, _ = slow(p, averages, 0.3, weights)
    assert_close(found, value)
    assert_close(gradients(found, p), (to_positive, to_negative))


def test_without_a_moving_average_the_gradient_is_the_derivative():
    p = differentiable(problem(2))
    assert torch.autograd.gradcheck(
        lambda s, n: song_loss(s, n, p["owner"], n_items=N_ITEMS, mask=p["mask"]), (p["positive"], p["negative"])
    )


def test_song_at_k_with_its_weight_held_at_one_is_song():
    p = differentiable(problem(3))
    average = torch.rand(9, dtype=torch.float64) * 30
    plain = song_loss(**p, n_items=N_ITEMS, gamma=0.4, average=average)
    held = song_at_k_loss(**p, threshold=None, n_items=N_ITEMS, gamma=0.4, average=average)
    assert_close(held, plain, rtol=0, atol=0)
    assert_close(gradients(held, p), gradients(plain, p), rtol=0, atol=0)
    far_above = song_at_k_loss(**p, threshold=torch.full((4,), -1e3), n_items=N_ITEMS, gamma=0.4, average=average)
    assert_close(far_above, plain)


def test_the_module_keeps_one_average_a_positive_and_moves_it_step_by_step():
    loss = SONG(n_positives=30, n_items=N_ITEMS, gamma=0.3, reduction="none").double()
    pair = torch.tensor([4, 29, 0, 7, 8, 9, 11, 2, 3])
    averages = [-1.0] * 9
    for seed in range(3):
        p = {**problem(seed), "owner": problem(0)["owner"]}
        found = loss(**p, query=torch.arange(p["negative"].size(0)), pair=pair)
        value, _, _, averages = slow(p, averages, 0.3, [1.0] * 9)
        assert_close(found, value)
        assert_close(loss.g[pair], torch.tensor(averages, dtype=torch.float64))
    untouched = torch.ones(30, dtype=torch.bool).scatter_(0, pair, False)
    assert (loss.g[untouched] == -1).all()
    assert sum(buffer.numel() for buffer in loss.state_dict().values()) == 30


def test_an_average_of_a_positive_without_negatives_stays():
    loss = SONG(n_positives=2, n_items=N_ITEMS, gamma=0.5)
    loss.g.copy_(torch.tensor([5.0, -1.0]))
    mask, both = torch.ones(2, 3, dtype=torch.bool), torch.arange(2)
    loss(torch.zeros(2), torch.zeros(2, 3), mask=mask, query=both, pair=both)
    assert_close(loss.g, torch.tensor([5.0, -1.0]))


@pytest.mark.parametrize("rank", ["sum", "mean"])
def test_positives_without_negatives_leave_each_other_alone(rank):
    positive = torch.tensor([0.0, 0.5, 0.9], requires_grad=True)
    mask = torch.tensor([[True, True], [False, False]])
    found = song_loss(positive, torch.zeros(2, 2), torch.tensor([0, 0, 1]), n_items=N_ITEMS, mask=mask, rank=rank)
    (gradient,) = torch.autograd.grad(found.sum(), positive)
    assert found[:2].tolist() == [0, 0]
    assert gradient[:2].tolist() == [0, 0]
    assert gradient[2] < 0


def test_of_a_positive_that_comes_twice_the_first_average_is_kept():
    loss = SONG(n_positives=1, n_items=2, gamma=1.0)
    loss(torch.zeros(2), torch.tensor([[1.0], [2.0]]), query=torch.arange(2), pair=torch.tensor([0, 0]))
    assert_close(loss.g, torch.tensor([1.0 + 4.0]))


def slow_threshold(before, k, eta, positive, negative):
    share = (sum(s <= before for s in positive) + (N_ITEMS - len(positive)) * mean(s <= before for s in negative)) / (
        N_ITEMS
    )
    return before - eta * (share - (1 - k / N_ITEMS))


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def test_thresholds_move_by_quantile_regression_over_positives_and_negatives():
    p = {**problem(4), "owner": torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 2]), "log_q": None}
    query = torch.tensor([5, 1, 3, 0])
    loss = SONGAtK(n_queries=7, n_positives=9, n_items=N_ITEMS, k=3, eta=0.1).double()
    loss.threshold.copy_(torch.linspace(-1, 1, 7))
    before = loss.threshold.clone()
    loss(**p, query=query, pair=torch.arange(9))
    for row, q in enumerate(query.tolist()):
        own = [float(s) for s, o in zip(p["positive"], p["owner"], strict=True) if o == row]
        rivals = [float(s) for s, hidden in zip(p["negative"][row], p["mask"][row], strict=True) if not hidden]
        expected = slow_threshold(float(before[q]), 3, 0.1, own, rivals)
        assert float(loss.threshold[q]) == pytest.approx(expected)
    assert_close(loss.threshold[[2, 4, 6]], before[[2, 4, 6]])


def test_the_threshold_of_a_query_without_negatives_stays():
    loss = SONGAtK(n_queries=3, n_positives=2, n_items=N_ITEMS, eta=0.1)
    mask = torch.tensor([[True, True], [False, False]])
    loss(torch.zeros(2), torch.zeros(2, 2), mask=mask, query=torch.tensor([2, 0]), pair=torch.arange(2))
    assert loss.threshold[1:].tolist() == [0, 0]
    assert loss.threshold[0] != 0


def test_thresholds_move_alike_in_the_ragged_and_the_pair_form():
    p, query = problem(6), torch.tensor([5, 1, 3, 0])
    ragged, pairs = (SONGAtK(n_queries=7, n_positives=9, n_items=N_ITEMS, eta=0.1).double() for _ in range(2))
    pair, owner = torch.arange(9), p["owner"]
    ragged(**p, query=query, pair=pair)
    pairs(p["positive"], p["negative"][owner], mask=p["mask"][owner], log_q=p["log_q"], query=query[owner], pair=pair)
    moved = query[owner.unique()]
    assert_close(pairs.threshold[moved], ragged.threshold[moved])
    assert (ragged.threshold[moved] != 0).all()


def test_thresholds_settle_at_the_kth_best_score():
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(2, N_ITEMS, generator=generator)
    loss = SONGAtK(n_queries=2, n_positives=4, n_items=N_ITEMS, k=5, eta=0.01)
    owner, positive = torch.tensor([0, 0, 1, 1]), scores[:, :2].reshape(-1)
    for _ in range(600):
        loss(positive, scores[:, 2:], owner, query=torch.arange(2), pair=torch.arange(4))
    ordered = scores.sort(1, descending=True).values
    assert (loss.threshold < ordered[:, 4]).all()
    assert (loss.threshold > ordered[:, 6]).all()


def test_first_rows_names_the_first_place_of_each_index():
    assert first_rows(torch.tensor([3, 1, 3, 0, 1, 3])).tolist() == [0, 1, 0, 3, 1, 0]
    assert first_rows(torch.zeros(0, dtype=torch.long)).tolist() == []


@pytest.mark.parametrize(
    ("settings_given", "message"),
    [
        ({"gamma": 0.0}, "gamma must be > 0, got 0.0"),
        ({"gamma": 1.5}, "gamma must be <= 1.0, got 1.5"),
        ({"eta": -0.1}, "eta must be > 0, got -0.1"),
        ({"k": 0}, "k must be >= 1, got 0"),
        ({"form": "old"}, "form must be one of paper, original, got 'old'"),
        ({"n_items": 0}, "n_items must be >= 1, got 0"),
    ],
)
def test_bad_settings_are_refused(settings_given, message):
    with pytest.raises(ConfigError, match=message):
        SONGAtK(**{"n_queries": 2, "n_positives": 3, "n_items": 9, **settings_given})


def test_it_says_when_it_is_not_told_which_positives_these_are():
    with pytest.raises(ConfigError, match="SONG needs pair"):
        SONG(n_positives=3, n_items=9)(torch.zeros(1), torch.zeros(1, 2))


def test_a_threshold_given_with_the_call_stands_in_for_the_table_which_then_stays():
    p = problem(4)
    made = {"n_queries": 7, "n_positives": 9, "n_items": N_ITEMS, "k": 3, "eta": 0.1, "reduction": "none"}
    with_table, given = (SONGAtK(**made).double() for _ in range(2))
    level, query = torch.linspace(-1, 1, 4, dtype=torch.float64), torch.arange(4)
    with_table.threshold[query] = level
    batch = {**p, "query": query, "pair": torch.arange(9)}
    assert torch.equal(given(**batch, threshold=level), with_table(**batch))
    assert (given.threshold == 0).all()
    assert torch.equal(given.g, with_table.g)
    assert not torch.equal(with_table.threshold[query], level)
