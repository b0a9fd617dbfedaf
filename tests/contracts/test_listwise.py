"""What every listwise loss of the registry promises."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.testing import assert_close

from topshelf.errors import ConfigError
from topshelf.losses import LISTWISE

EVERY = pytest.mark.parametrize("name", LISTWISE)


def lists(seed=0, dtype=torch.float64, n_queries=4, length=7):
    """Grades 0 to 3 with ties; no score twice."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(n_queries, length, generator=generator, dtype=torch.float64)
    relevance = torch.randint(4, (n_queries, length), generator=generator)
    relevance[:, 0], relevance[:, -1] = 2, 0
    mask = torch.rand(n_queries, length, generator=generator) < 0.25
    mask[:, 0] = mask[:, -1] = False
    return scores.to(dtype), relevance, mask


def has(name, setting):
    return setting in inspect.signature(LISTWISE[name].__init__).parameters


def cost_and_gradient(loss, scores, relevance, mask=None):
    scores = scores.clone().requires_grad_()
    value = loss(scores, relevance, mask)
    value.sum().backward()
    return value.detach(), scores.grad


@EVERY
def test_the_formula_says_what_it_is_in_one_line_and_the_rest_in_the_fixed_order(name):
    doc = inspect.getdoc(LISTWISE[name].documented())
    first, rest = doc.split("\n", 1)
    assert first.endswith(".")
    parts = [".. math::", "Shapes:", "Settings:", "Use when:", "Cost:", "Paper:", "Relations:"]
    assert sorted(parts, key=rest.index) == parts


@EVERY
def test_ranges_name_settings_that_exist_and_settings_are_few(name):
    settings = set(inspect.signature(LISTWISE[name].__init__).parameters) - {"self"}
    assert {key.removeprefix("loss.") for key in LISTWISE[name].ranges if key.startswith("loss.")} <= settings
    assert len(settings) <= 6


@EVERY
def test_the_module_and_its_formula_have_the_same_defaults(name):
    scores, relevance, mask = lists()
    assert_close(LISTWISE[name](reduction="none")(scores, relevance, mask), LISTWISE[name].formula(*lists()))


@EVERY
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("k", [1, 5, 100])
def test_values_and_gradients_stay_finite_at_extreme_scores(name, scale, k):
    scores, relevance, mask = lists(dtype=torch.float32, n_queries=8, length=12)
    settings = {"tau": 0.005} | ({"k": k} if has(name, "k") else {})
    value, gradient = cost_and_gradient(LISTWISE[name](**settings), scores * scale, relevance, mask)
    assert value.isfinite()
    assert gradient.isfinite().all()


@EVERY
@pytest.mark.parametrize("level", [-1e4, 0.0, 1e4])
def test_equal_scores_have_a_finite_cost_and_a_gradient_that_raises_the_relevant(name, level):
    relevance = torch.tensor([[0, 2, 0, 1]])
    loss = LISTWISE[name](**({"detach_weight": True} if has(name, "detach_weight") else {}))
    value, gradient = cost_and_gradient(loss, torch.full((1, 4), level), relevance)
    assert value.isfinite()
    assert value > 0
    assert gradient.isfinite().all()
    assert gradient[0, 1] < 0 < gradient[0, 0]


@EVERY
@pytest.mark.parametrize("filler", [0.0, 1e4, -1e4, float("inf"), float("nan")])
def test_padding_changes_nothing_whatever_it_holds(name, filler):
    scores, relevance, mask = lists()
    loss = LISTWISE[name](reduction="none")
    expected, gradient = cost_and_gradient(loss, scores, relevance, mask)
    grade = 30 if filler >= 0 else -1
    found, other = cost_and_gradient(loss, scores.masked_fill(mask, filler), relevance.masked_fill(mask, grade), mask)
    assert torch.equal(found, expected)
    assert torch.equal(other, gradient)
    assert (gradient[mask] == 0).all()


@EVERY
def test_a_padded_list_costs_what_the_list_does_alone(name):
    scores, relevance, mask = lists()
    loss = LISTWISE[name](reduction="none")
    padded = loss(scores, relevance, mask)
    for q in range(4):
        kept = ~mask[q]
        assert_close(loss(scores[q, kept][None], relevance[q, kept][None])[0], padded[q])


@EVERY
def test_the_order_of_places_changes_nothing(name):
    """With equal relevances, and with equal scores too."""
    scores, relevance, mask = lists()
    scores[:, 2:5] = scores[:, 2:3]
    loss = LISTWISE[name](reduction="none")
    for seed in range(5):
        order = torch.randperm(7, generator=torch.Generator().manual_seed(seed))
        shuffled = loss(scores[:, order], relevance[:, order], mask[:, order])
        assert_close(shuffled, loss(scores, relevance, mask))


@EVERY
def test_a_constant_added_to_a_list_changes_nothing(name):
    scores, relevance, mask = lists()
    loss = LISTWISE[name](reduction="none")
    assert_close(loss(scores + 3.0, relevance, mask), loss(scores, relevance, mask))


@EVERY
def test_inputs_are_never_mutated(name):
    given = lists()
    copies = [x.clone() for x in given]
    LISTWISE[name]()(*given)
    assert all(torch.equal(before, after) for before, after in zip(copies, given, strict=True))


@EVERY
def test_reductions_agree_over_queries(name):
    each = LISTWISE[name](reduction="none")(*lists())
    assert each.shape == (4,)
    assert (each > 0).all()
    assert_close(LISTWISE[name](reduction="mean")(*lists()), each.mean())
    assert_close(LISTWISE[name](reduction="sum")(*lists()), each.sum())


@EVERY
def test_half_precision_scores_are_computed_in_float32(name):
    scores, relevance, mask = lists(dtype=torch.bfloat16)
    value, gradient = cost_and_gradient(LISTWISE[name](), scores, relevance.to(torch.bfloat16), mask)
    assert value.dtype == torch.float32
    assert gradient.dtype == torch.bfloat16
    assert_close(value, LISTWISE[name]()(scores.float(), relevance.float(), mask))


@EVERY
def test_relevance_may_be_of_any_number_type(name):
    scores, relevance, mask = lists()
    expected = LISTWISE[name]()(scores, relevance, mask)
    for dtype in (torch.int8, torch.int32, torch.float32, torch.float64):
        assert torch.equal(LISTWISE[name]()(scores, relevance.to(dtype), mask), expected)
    assert_close(LISTWISE[name]()(scores, relevance > 0), LISTWISE[name]()(scores, (relevance > 0).long()))


@EVERY
@pytest.mark.parametrize("grade", [0, 1, 3])
def test_a_query_of_one_relevance_throughout_costs_nothing(name, grade):
    scores, relevance, mask = lists()
    relevance[1][~mask[1]] = grade
    relevance[1][mask[1]] = 2
    value, gradient = cost_and_gradient(LISTWISE[name](reduction="none"), scores, relevance, mask)
    assert value[1] == 0
    assert (gradient[1] == 0).all()
    assert (value[[0, 2, 3]] > 0).all()


@EVERY
def test_a_query_of_nothing_but_padding_costs_nothing(name):
    scores, relevance, mask = lists()
    mask[2] = True
    value, gradient = cost_and_gradient(LISTWISE[name](reduction="none"), scores, relevance, mask)
    assert value[2] == 0
    assert (gradient[2] == 0).all()
    assert gradient.isfinite().all()


@EVERY
@pytest.mark.parametrize("shape", [(0, 5), (0, 0), (3, 0), (3, 1)])
def test_empty_batches_and_lists_of_one_place_cost_nothing(name, shape):
    value, gradient = cost_and_gradient(LISTWISE[name](), torch.zeros(shape), torch.ones(shape))
    assert value == 0
    assert (gradient == 0).all()
    assert gradient.shape == shape
    mask = torch.zeros(shape, dtype=torch.bool)
    assert LISTWISE[name](reduction="none")(torch.zeros(shape), torch.ones(shape), mask).shape == shape[:1]


@EVERY
def test_values_and_gradients_are_the_same_to_the_last_bit_every_time(name):
    scores, relevance, mask = lists(dtype=torch.float32, n_queries=64, length=60)
    settings = {"steps": 5} if has(name, "steps") else {}
    found = [cost_and_gradient(LISTWISE[name](**settings), scores, relevance, mask) for _ in range(3)]
    for value, gradient in found[1:]:
        assert torch.equal(value, found[0][0])
        assert torch.equal(gradient, found[0][1])


@EVERY
def test_compiles_whole_and_costs_the_same(name):
    torch._dynamo.reset()
    settings = {"steps": 3} if has(name, "steps") else {}
    loss = LISTWISE[name](**settings)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    value, gradient = cost_and_gradient(compiled, *lists())
    expected, other = cost_and_gradient(loss, *lists())
    assert_close(value, expected)
    assert_close(gradient, other)


@EVERY
def test_there_is_no_state(name):
    assert not LISTWISE[name]().state_dict()


@EVERY
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda loss: loss(torch.ones(3), torch.ones(3)), r"scores must be \(Q, L\), a list of each query, got \(3,\)"),
        (lambda loss: loss(torch.ones(2, 3), torch.ones(3)), r"relevance must be \(2, 3\) as scores is, got \(3,\)"),
        (
            lambda loss: loss(torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 1, dtype=torch.bool)),
            r"mask must be \(2, 3\) as scores is, got \(2, 1\)",
        ),
        (
            lambda loss: loss(torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 3)),
            "mask must be of bool, True where a place is padding, got torch.float32",
        ),
    ],
)
def test_calls_that_do_not_fit_are_refused_with_what_was_given(name, call, message):
    with pytest.raises(ConfigError, match=message):
        call(LISTWISE[name]())


@EVERY
def test_high_grades_do_not_overflow(name):
    """In float32 2^128 is infinite; the losses are of ratios of gains, which are not."""
    scores, relevance, mask = lists(dtype=torch.float32)
    relevance = relevance * 60  # up to 180
    value, gradient = cost_and_gradient(LISTWISE[name](), scores, relevance, mask)
    exact, other = cost_and_gradient(LISTWISE[name](), scores.double(), relevance, mask)
    assert value > 0
    assert_close(value.double(), exact, atol=1e-5, rtol=1e-5)
    assert_close(gradient.double(), other, atol=1e-5, rtol=1e-4)


@EVERY
def test_scores_that_are_no_floating_point_numbers_are_refused(name):
    with pytest.raises(ConfigError, match=r"scores must be of floating-point numbers, got torch.int64; convert"):
        LISTWISE[name]()(torch.ones(2, 3).long(), torch.ones(2, 3))


BAD = [
    ({"tau": 0}, "tau must be > 0, got 0"),
    ({"tau": float("nan")}, "tau must be > 0, got nan"),
    ({"k": 0}, "k must be >= 1, got 0"),
    ({"positive_from": 0.0}, "positive_from must be > 0, got 0.0"),
    ({"reduction": "max"}, "reduction must be one of mean, sum, none, got 'max'"),
]


@pytest.mark.parametrize(
    ("name", "settings", "message"), [(name, *bad) for name in LISTWISE for bad in BAD if has(name, next(iter(bad[0])))]
)
def test_bad_settings_are_refused_with_the_value_received(name, settings, message):
    with pytest.raises(ConfigError, match=message):
        LISTWISE[name](**settings)
