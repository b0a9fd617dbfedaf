"""What every loss of the registry promises."""

from __future__ import annotations

import dataclasses
import inspect
import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from topshelf.config import RunConfig
from topshelf.errors import ConfigError
from topshelf.losses import LISTWISE, LOSSES, Loss
from topshelf.losses.base import Extras

EVERY = pytest.mark.parametrize("name", LOSSES)
SECTIONS = ("Shapes:", "Use when:", "Cost:", "Paper:", "Relations:")

# Their gradient is by design not the derivative of their value (weights that are not differentiated, networks that are
# fitted beside); tests/losses checks the gradients themselves.
NOT_DERIVATIVES = {"song_at_k", "sogslatk", "guidedrec"}
# These pull a positive up, or apart, whether or not there is a negative.
WITHOUT_RIVALS_TOO = {"directau"}


@dataclasses.dataclass
class Case:
    """A batch with everything that a loss may ask for."""

    positive: Tensor
    negative: Tensor
    owner: Tensor | None
    query: Tensor
    pair: Tensor
    negative_item: Tensor
    query_vector: Tensor
    item_vector: Tensor
    mask: Tensor | None = None
    log_q: Tensor | None = None

    def but(self, **changes) -> Case:
        return dataclasses.replace(self, **changes)

    def run(self, loss):
        extras = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)[3:]}
        return loss(self.positive, self.negative, self.owner, **extras)

    def tensors(self) -> list[Tensor]:
        return [value for value in vars(self).values() if value is not None]


def case(seed=0, dtype=torch.float64, n_queries=4, n_positives=7, n_negatives=5) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape):
        return (torch.rand(*shape, generator=generator, dtype=torch.float64) * 2 - 1).to(dtype)

    more = torch.randint(n_queries, (n_positives - n_queries,), generator=generator)
    return Case(
        positive=uniform(n_positives),
        negative=uniform(n_queries, n_negatives),
        owner=torch.cat([torch.arange(n_queries), more]),
        query=torch.randperm(max(10, n_queries), generator=generator)[:n_queries],
        pair=torch.randperm(n_positives, generator=generator),
        negative_item=torch.randint(12, (n_queries, n_negatives), generator=generator),
        query_vector=uniform(n_queries, 3),
        item_vector=uniform(n_positives, 3),
    )


def make(name, n_queries=10, n_positives=20, **settings):
    cls = LOSSES[name]
    sizes = {"n_queries": n_queries, "n_items": 12, "n_positives": n_positives}
    taken = inspect.signature(cls.__init__).parameters
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return cls(**{key: size for key, size in sizes.items() if key in taken}, **settings)


def value(name, given: Case, *, reduction="mean", **settings):
    """The loss of a fresh module, so that no state is left over from another call."""
    loss = make(name, reduction=reduction, **settings)
    return given.run(loss.double() if given.positive.dtype == torch.float64 else loss)


def value_and_gradients(name, given: Case):
    """The sum over positives, its gradients by positives and negatives, and the state after it."""
    loss = make(name, reduction="sum").double()
    positive, negative = given.positive.clone().requires_grad_(), given.negative.clone().requires_grad_()
    found = given.but(positive=positive, negative=negative).run(loss)
    gradients = torch.autograd.grad(found, (positive, negative), materialize_grads=True)
    return found.detach(), gradients, loss.state_dict()


def temperatures(name, tau):
    return {key: tau for key in inspect.signature(LOSSES[name].__init__).parameters if key in ("tau", "tau1", "tau2")}


@EVERY
def test_it_is_documented_in_the_fixed_form(name):
    text = inspect.getdoc(LOSSES[name].documented())
    summary = text.split("\n\n")[0]
    assert summary.endswith(".")
    assert "\n" not in summary, "the first sentence is what `topshelf losses` prints: one line"
    places = [text.index(".. math::"), *(text.index(section) for section in SECTIONS)]
    assert places == sorted(places)


SIZES = ("n_queries", "n_items", "n_positives")


def place(argument):
    """Sizes, k, temperatures, the other settings, the reduction."""
    name = argument.name
    if name in (*SIZES, "k"):
        return (*SIZES, "k").index(name)
    return 4 if name.startswith("tau") else 6 if name == "reduction" else 5


@pytest.mark.parametrize("cls", [*LOSSES.values(), *LISTWISE.values()], ids=lambda cls: cls.__name__)
def test_constructor_arguments_come_in_one_order(cls):
    """By position sizes and k only; the settings of one family come in the order of its first member."""
    arguments = list(inspect.signature(cls).parameters.values())
    by_position = [argument for argument in arguments if argument.kind is not argument.KEYWORD_ONLY]
    by_keyword = arguments[len(by_position) :]
    assert {argument.name for argument in by_position} <= {*SIZES, "k"}
    assert arguments[-1].name == "reduction"
    for part in (by_position, by_keyword):
        assert [place(argument) for argument in part] == sorted(place(argument) for argument in part)
    names = [argument.name for argument in by_keyword]
    for parent in cls.__mro__[1:]:
        shared = [name for name in inspect.signature(parent.__init__).parameters if name in names]
        assert shared == sorted(shared, key=names.index), f"{parent.__name__} has them in another order"


def test_losses_at_k_take_the_number_of_queries_and_k_first():
    """The further sizes of SONG are given by keyword, so that nobody swaps two."""
    for name in ("slatk", "sogslatk", "song_at_k"):
        assert list(inspect.signature(LOSSES[name]).parameters)[:2] == ["n_queries", "k"], name
    for name in ("song", "song_at_k"):
        taken = inspect.signature(LOSSES[name]).parameters
        assert all(taken[size].kind is taken[size].KEYWORD_ONLY for size in ("n_items", "n_positives"))


@EVERY
def test_what_it_says_of_itself_is_known_to_the_base(name):
    cls = LOSSES[name]
    assert set(cls.needs) <= {"negative", "whole_queries", *Extras._fields}
    assert len({"negative", "log_partition", "item_vector"} & set(cls.needs)) == 1, "what it is ranked against"
    assert cls.scope in ("positive", "query", "batch")
    assert "log_partition" not in cls.needs or hasattr(make(name), "tau")
    assert not cls.keeps_thresholds or {"k", "threshold"} <= set(vars(make(name)))


@EVERY
def test_a_call_without_what_it_needs_is_refused_by_name(name):
    given = case(dtype=torch.float32)
    for need in set(LOSSES[name].needs) - {"whole_queries"}:
        missing = {"negative": None} if need == "log_partition" else {need: None}
        with pytest.raises(ConfigError, match=rf"{LOSSES[name].__name__} needs .*; pass "):
            given.but(**missing).run(make(name))


@EVERY
def test_the_gradient_of_a_positives_term_stays_within_its_scope(name):
    """By the positives of its query (all rows of it) and by those of other queries."""
    given = case()
    given.positive.requires_grad_()
    each = given.run(make(name, reduction="none").double().eval())
    group = given.query[given.owner]
    for i in range(len(each)):
        (gradient,) = torch.autograd.grad(each[i], given.positive, retain_graph=True)
        reached = {"positive": torch.arange(len(each)) == i, "query": group == group[i]}.get(make(name).scope)
        assert reached is None or (gradient[~reached] == 0).all()


@EVERY
def test_its_ranges_name_settings_that_exist_and_hold_no_nonsense(name):
    taken = inspect.signature(LOSSES[name].__init__).parameters
    ranges = LOSSES[name].ranges
    assert "train.learning_rate" in ranges
    for key, choices in ranges.items():
        section, _, setting = key.partition(".")
        known = taken if section == "loss" else RunConfig.model_fields[section].annotation.model_fields
        assert setting in known, key
        assert len(choices) == len(set(choices)) > 0
        if section == "loss":
            make(name, **{setting: choices[0]})
            make(name, **{setting: choices[-1]})


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in NOT_DERIVATIVES])
def test_gradcheck(name):
    given = case()
    loss = make(name, reduction="none").double().eval()
    given.positive.requires_grad_()
    given.negative.requires_grad_()

    def run(positive, negative):
        return given.but(positive=positive, negative=negative).run(loss)

    assert torch.autograd.gradcheck(run, (given.positive, given.negative))


@EVERY
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_values_and_gradients_stay_finite_at_extreme_scores(name, scale):
    given = case(dtype=torch.float32)
    positive, negative = (given.positive * scale).requires_grad_(), (given.negative * scale).requires_grad_()
    loss = make(name, **temperatures(name, 0.005))
    found = given.but(positive=positive, negative=negative).run(loss)
    found.backward()
    assert found.isfinite()
    for tensor in (positive, negative, *loss.parameters()):
        assert tensor.grad is None or tensor.grad.isfinite().all()
    for tensor in loss.state_dict().values():
        assert tensor.isfinite().all()


@EVERY
@pytest.mark.parametrize("filler", [100.0, math.inf, -math.inf, math.nan])
def test_masked_negatives_change_nothing_whatever_they_hold(name, filler):
    given = case()
    wide = torch.cat([given.negative, torch.full((4, 2), filler, dtype=torch.float64)], 1)
    items = torch.cat([given.negative_item, torch.zeros(4, 2, dtype=torch.long)], 1)
    mask = torch.zeros_like(wide, dtype=torch.bool)
    mask[:, 5:] = True
    expected, gradients, state = value_and_gradients(name, given)
    found, others, other_state = value_and_gradients(name, given.but(negative=wide, negative_item=items, mask=mask))
    assert_close(found, expected)
    assert_close(others[0], gradients[0])
    assert_close(others[1], torch.nn.functional.pad(gradients[1], (0, 2)))
    assert_close(other_state, state)


@EVERY
def test_no_negatives_at_all_are_the_same_as_masked_ones(name):
    given = case()
    masked = value_and_gradients(name, given.but(mask=torch.ones(4, 5, dtype=torch.bool)))
    none = value_and_gradients(
        name, given.but(negative=given.negative[:, :0], negative_item=given.negative_item[:, :0])
    )
    assert_close(none[0], masked[0])
    assert_close(none[1][0], masked[1][0])
    assert none[1][1].shape == (4, 0)
    assert name in WITHOUT_RIVALS_TOO or none[0] == 0


def misfits():
    """Tensors of a batch with 7 positives, 4 queries and 5 negatives that do not fit, and what is said of them."""
    rows, ones, index = torch.ones(4, 5), torch.ones(7), torch.zeros(7, dtype=torch.long)
    return [
        ({"positive": ones.unsqueeze(1)}, r"positive must be \(P,\) of floating-point numbers, got \(7, 1\)"),
        ({"positive": ones.long()}, r"positive must be \(P,\) of floating-point numbers, got \(7,\) of torch.int64"),
        ({"negative": rows[0]}, r"negative must be \(Q, N\) of floating-point numbers, got \(5,\)"),
        ({"owner": index[:4]}, r"owner must be \(P,\) = \(7,\) of integers, got \(4,\)"),
        ({"owner": ones}, r"owner must be \(P,\) = \(7,\) of integers, got \(7,\) of torch.float32"),
        ({"query": index}, r"query must be \(Q,\) = \(4,\) of integers, got \(7,\)"),
        ({"mask": rows[:1] > 0}, r"mask must be \(Q, N\) = \(4, 5\) of bool, got \(1, 5\)"),
        ({"mask": rows}, r"mask must be \(Q, N\) = \(4, 5\) of bool, got \(4, 5\) of torch.float32"),
        ({"log_q": rows[:, 0]}, r"log_q must be \(1,\) or \(N,\) = \(5,\) or \(Q, N\) = \(4, 5\) of .*, got \(4,\)"),
        ({"pair": index[:4]}, r"pair must be \(P,\) = \(7,\) of integers, got \(4,\)"),
        ({"negative_item": index[:4]}, r"negative_item must be \(N,\) = \(5,\) or .* of integers, got \(4,\)"),
        ({"query_vector": ones}, r"query_vector must be \(Q, d\) = \(4, d\) of floating-point numbers, got \(7,\)"),
        ({"item_vector": torch.ones(7, 2)}, r"item_vector must be \(P, d\) = \(7, 3\) of .*, got \(7, 2\)"),
    ]


@EVERY
def test_tensors_that_do_not_fit_are_refused_with_what_would_fit_and_what_to_do(name):
    loss = make(name)
    for changes, message in misfits():
        with pytest.raises(ConfigError, match=message + r".*; pass "):
            case(dtype=torch.float32).but(**changes).run(loss)


@EVERY
@pytest.mark.parametrize("index", ["owner", "query", "pair", "negative_item"])
def test_an_index_out_of_range_or_a_list_is_refused_with_what_to_do(name, index):
    loss, given = make(name), case(dtype=torch.float32)
    counts = {**loss.index_sizes(), "owner": 4}
    for wrong in (-1, counts.get(index)):
        if wrong is not None:
            changed = getattr(given, index).clone()
            changed.view(-1)[2] = wrong
            with pytest.raises(ConfigError, match=f"{index} must be (from 0 to|>= 0).*, got {wrong}; pass the"):
                given.but(**{index: changed}).run(loss)
    with pytest.raises(ConfigError, match=f"{index} must be .* of integers, got a list; pass "):
        given.but(**{index: getattr(given, index).tolist()}).run(loss)


@pytest.mark.parametrize("name", [name for name in LOSSES if "log_partition" in LOSSES[name].needs])
def test_a_log_partition_that_does_not_fit_is_refused(name):
    given = case(dtype=torch.float32)
    for partition in (torch.zeros(4, 1), torch.zeros(4, dtype=torch.long)):
        with pytest.raises(ConfigError, match=r"log_partition must be \(Q,\) of floating-point numbers, got \(4"):
            make(name)(given.positive, owner=given.owner, query=given.query, log_partition=partition)
    with pytest.raises(ConfigError, match=r"query must be \(Q,\) = \(3,\) of integers, got \(4,\)"):
        make(name)(given.positive, owner=given.owner, query=given.query, log_partition=torch.zeros(3))


@EVERY
def test_the_run_is_told_how_far_the_sum_over_negatives_reaches_and_how_much_memory_a_pair_takes(name):
    """A sum whose size is a setting; all other losses have their formula's own sum or mean."""
    sizes = dict.fromkeys(("softmax", "slatk", "bsl", "psl", "sogclr", "sogslatk"), 1000)
    assert LOSSES[name].defaults.effective_n == {**sizes, "sampled_softmax": "catalogue"}.get(name)
    copies = 12 + 6 * 32 if name == "guidedrec" else 20 if name.startswith("lambda") else 12
    assert make(name).pair_copies == copies


@EVERY
def test_no_digit_of_float64_is_lost(name):
    """What torch makes of integers is of its default type, float32: such a count would show in the eighth digit."""
    given = case()
    settings = {"bsl": {"positives": "query"}, "psl": {"method": "batch"}, "slatk": {"keep_hits": True}}.get(name, {})
    loss, other = make(name, **settings).double(), make(name, **settings).double()
    found = given.run(loss).item()
    torch.set_default_dtype(torch.float64)
    try:
        assert given.run(other).item() == pytest.approx(found, rel=1e-13)
    finally:
        torch.set_default_dtype(torch.float32)


@EVERY
def test_order_of_negatives_changes_nothing(name):
    given = case()
    order = torch.randperm(5, generator=torch.Generator().manual_seed(1))
    shuffled = given.but(negative=given.negative[:, order], negative_item=given.negative_item[:, order])
    assert_close(value(name, shuffled), value(name, given))


@EVERY
def test_order_of_positives_changes_nothing(name):
    given = case()
    order = torch.randperm(7, generator=torch.Generator().manual_seed(2))
    fields = ("positive", "owner", "pair", "item_vector")
    shuffled = given.but(**{field: getattr(given, field)[order] for field in fields})
    assert_close(value(name, shuffled, reduction="none"), value(name, given, reduction="none")[order])


@EVERY
def test_a_uniform_log_q_of_zero_changes_nothing(name):
    given = case()
    zero = torch.zeros(5, dtype=torch.float64)
    assert_close(value(name, given.but(log_q=zero)), value(name, given))


@EVERY
def test_inputs_are_never_mutated(name):
    given = case().but(mask=torch.zeros(4, 5, dtype=torch.bool), log_q=torch.zeros(4, 5, dtype=torch.float64))
    copies = [x.clone() for x in given.tensors()]
    value(name, given)
    for before, after in zip(copies, given.tensors(), strict=True):
        assert_close(before, after, rtol=0, atol=0)


@EVERY
def test_ragged_form_equals_pair_form(name):
    given = case()
    rows = {field: getattr(given, field)[given.owner] for field in ("negative", "query", "negative_item")}
    pairs = given.but(owner=None, query_vector=given.query_vector[given.owner], **rows)
    assert_close(value(name, given, reduction="none"), value(name, pairs, reduction="none"))


@EVERY
def test_reductions_agree(name):
    given = case()
    each = value(name, given, reduction="none")
    assert each.shape == given.positive.shape
    assert_close(value(name, given, reduction="mean"), each.mean())
    assert_close(value(name, given, reduction="sum"), each.sum())


@EVERY
def test_half_precision_scores_are_computed_in_float32(name):
    given = case(dtype=torch.bfloat16)
    found = value(name, given)
    assert found.dtype == torch.float32
    floats = ("positive", "negative", "query_vector", "item_vector")
    assert_close(found, value(name, given.but(**{field: getattr(given, field).float() for field in floats})))


@EVERY
def test_state_dict_round_trip(name):
    given = case(dtype=torch.float32)
    loss, other = make(name).eval(), make(name).eval()
    for tensor in loss.state_dict().values():
        tensor.copy_(torch.rand(tensor.shape, generator=torch.Generator().manual_seed(3)))
    other.load_state_dict(loss.state_dict())
    assert_close(given.run(other), given.run(loss), rtol=0, atol=0)


@EVERY
def test_evaluation_mode_moves_no_state(name):
    loss = make(name).eval()
    before = {key: tensor.clone() for key, tensor in loss.state_dict().items()}
    case(dtype=torch.float32).run(loss)
    for key, tensor in loss.state_dict().items():
        assert_close(tensor, before[key], rtol=0, atol=0)


@EVERY
def test_its_parameters_are_all_in_the_groups_it_hands_out(name):
    loss = make(name)
    groups = loss.parameter_groups(0.1)
    given = {id(parameter) for group in groups for parameter in group["params"]}
    assert given == {id(parameter) for parameter in loss.parameters()}
    assert all(group["lr"] > 0 and group["weight_decay"] == 0 for group in groups)


@EVERY
def test_an_empty_batch_costs_nothing(name):
    given, none = case(dtype=torch.float32), torch.zeros(0, dtype=torch.long)
    empty = given.but(
        positive=torch.zeros(0, requires_grad=True),
        negative=torch.zeros(0, 3),
        negative_item=torch.zeros(0, 3, dtype=torch.long),
        owner=none,
        query=none,
        pair=none,
        query_vector=torch.zeros(0, 3),
        item_vector=torch.zeros(0, 3),
    )
    found = value(name, empty)
    found.backward()
    assert found == 0


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in WITHOUT_RIVALS_TOO])
def test_a_positive_without_negatives_costs_nothing_and_has_a_finite_gradient(name):
    given = case(dtype=torch.float32, n_queries=2, n_positives=2, n_negatives=1)
    positive, negative = given.positive.requires_grad_(), given.negative.requires_grad_()
    each = value(name, given.but(owner=None, mask=torch.tensor([[True], [False]])), reduction="none")
    each.sum().backward()
    assert each[0] == 0
    assert positive.grad.isfinite().all()
    assert negative.grad.isfinite().all()
    assert positive.grad[0] == 0


@EVERY
def test_a_single_positive_with_a_single_negative_is_finite(name):
    given = case(dtype=torch.float32, n_queries=1, n_positives=1, n_negatives=1)
    given.positive.requires_grad_()
    found = value(name, given)
    found.backward()
    assert found.isfinite()
    assert given.positive.grad.isfinite().all()


@EVERY
def test_gradients_are_the_same_to_the_last_bit_every_time(name):
    """Large enough that torch would add in parallel, and unsorted, as a shuffled batch is."""
    given = case(dtype=torch.float32, n_queries=256, n_positives=2048, n_negatives=100)
    order = torch.randperm(2048, generator=torch.Generator().manual_seed(1))
    found = []
    for _ in range(3):
        settings = {"distance": "sigmoid"} if name == "slatk" else {}
        rivals, wanted = given.negative.clone().requires_grad_(), given.positive.clone().requires_grad_()
        loss = make(name, n_queries=256, n_positives=2048, **settings)
        given.but(positive=wanted, negative=rivals, owner=given.owner[order]).run(loss).backward()
        found.append([tensor.grad for tensor in (wanted, rivals) if tensor.grad is not None])
    for other in found[1:]:
        assert all(torch.equal(first, second) for first, second in zip(found[0], other, strict=True))


@EVERY
def test_it_compiles_without_a_graph_break(name):
    """Traced and differentiated as a whole; the compiler's own code generation is torch's matter."""
    given = case(dtype=torch.float32)
    given.positive.requires_grad_()
    plain, compiled = make(name), torch.compile(make(name), fullgraph=True, backend="aot_eager")
    assert_close(given.run(compiled), given.run(plain))
    torch._dynamo.reset()


def hinge_loss(positive, negative, owner=None, *, margin, mask=None):
    """A user's own formula; it asks for some of a call's arguments and for a setting."""
    owner = torch.arange(len(positive)) if owner is None else owner
    over = (negative[owner] - positive.unsqueeze(1) + margin).clamp(min=0)
    return (over if mask is None else over.masked_fill(mask[owner], 0.0)).sum(1)


class Hinge(Loss):
    formula = staticmethod(hinge_loss)

    def __init__(self, *, margin: float = 0.5, reduction="mean") -> None:
        super().__init__(reduction)
        self.margin = margin


class Doubled(Hinge):
    """Twice the hinge.

    Use when: a class documents itself.
    """

    def each(self, positive, negative, owner, extras):
        return 2 * super().each(positive, negative, owner, extras)


def test_a_user_defined_loss_is_a_formula_and_its_settings():
    given = case().but(mask=torch.rand(4, 5, generator=torch.Generator().manual_seed(1)) < 0.5)
    expected = hinge_loss(given.positive, given.negative, given.owner, margin=0.2, mask=given.mask)
    assert torch.equal(given.run(Hinge(margin=0.2, reduction="none")), expected)
    assert torch.equal(given.run(Doubled(margin=0.2, reduction="none")), 2 * expected)
    assert (Hinge.documented(), Doubled.documented()) == (hinge_loss, Doubled)
