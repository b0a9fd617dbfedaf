"""What every loss of the registry promises."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.testing import assert_close

from topshelf.losses import LOSSES

EVERY = pytest.mark.parametrize("name", LOSSES)


def make(name, **settings):
    cls = LOSSES[name]
    if "n_queries" in inspect.signature(cls.__init__).parameters:
        settings["n_queries"] = 10
    return cls(**settings)


def batch(seed=0, dtype=torch.float64, n_queries=4, n_positives=7, n_negatives=5):
    generator = torch.Generator().manual_seed(seed)
    positive = torch.rand(n_positives, generator=generator, dtype=torch.float64) * 2 - 1
    negative = torch.rand(n_queries, n_negatives, generator=generator, dtype=torch.float64) * 2 - 1
    owner = torch.cat(
        [torch.arange(n_queries), torch.randint(n_queries, (n_positives - n_queries,), generator=generator)]
    )
    return positive.to(dtype), negative.to(dtype), owner, torch.randperm(10, generator=generator)[:n_queries]


@EVERY
def test_gradcheck(name):
    positive, negative, owner, query = batch()
    loss = make(name, reduction="none").double()
    positive.requires_grad_()
    negative.requires_grad_()
    assert torch.autograd.gradcheck(lambda p, n: loss(p, n, owner, query=query), (positive, negative))


@EVERY
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_values_and_gradients_stay_finite_at_extreme_scores(name, scale):
    settings = {"tau": 0.005} if "tau" in inspect.signature(LOSSES[name].__init__).parameters else {}
    positive, negative, owner, query = batch(dtype=torch.float32)
    positive, negative = (positive * scale).requires_grad_(), (negative * scale).requires_grad_()
    value = make(name, **settings)(positive, negative, owner, query=query)
    value.backward()
    assert value.isfinite()
    assert positive.grad.isfinite().all()
    assert negative.grad.isfinite().all()


@EVERY
def test_masked_negatives_change_nothing(name):
    positive, negative, owner, query = batch()
    loss = make(name).double()
    wide = torch.cat([negative, torch.full((4, 2), 100.0, dtype=torch.float64)], 1)
    mask = torch.zeros_like(wide, dtype=torch.bool)
    mask[:, 5:] = True
    assert_close(loss(positive, wide, owner, query=query, mask=mask), loss(positive, negative, owner, query=query))


@EVERY
def test_order_of_negatives_changes_nothing(name):
    positive, negative, owner, query = batch()
    loss = make(name).double()
    shuffled = negative[:, torch.randperm(5, generator=torch.Generator().manual_seed(1))]
    assert_close(loss(positive, shuffled, owner, query=query), loss(positive, negative, owner, query=query))


@EVERY
def test_a_uniform_log_q_of_zero_changes_nothing(name):
    positive, negative, owner, query = batch()
    loss = make(name).double()
    zero = torch.zeros(5, dtype=torch.float64)
    assert_close(loss(positive, negative, owner, query=query, log_q=zero), loss(positive, negative, owner, query=query))


@EVERY
def test_inputs_are_never_mutated(name):
    given = batch()
    copies = [x.clone() for x in given]
    positive, negative, owner, query = given
    make(name).double()(positive, negative, owner, query=query)
    for before, after in zip(copies, given, strict=True):
        assert_close(before, after)


@EVERY
def test_ragged_form_equals_pair_form(name):
    positive, negative, owner, query = batch()
    loss = make(name, reduction="none").double()
    ragged = loss(positive, negative, owner, query=query)
    assert_close(ragged, loss(positive, negative[owner], query=query[owner]))


@EVERY
def test_reductions_agree(name):
    positive, negative, owner, query = batch()
    each = make(name, reduction="none").double()(positive, negative, owner, query=query)
    assert each.shape == positive.shape
    assert_close(make(name, reduction="mean").double()(positive, negative, owner, query=query), each.mean())
    assert_close(make(name, reduction="sum").double()(positive, negative, owner, query=query), each.sum())


@EVERY
def test_half_precision_scores_are_computed_in_float32(name):
    positive, negative, owner, query = batch(dtype=torch.bfloat16)
    loss = make(name)
    value = loss(positive, negative, owner, query=query)
    assert value.dtype == torch.float32
    assert_close(value, loss(positive.float(), negative.float(), owner, query=query))


@EVERY
def test_state_dict_round_trip(name):
    positive, negative, owner, query = batch(dtype=torch.float32)
    loss, other = make(name), make(name)
    for tensor in loss.state_dict().values():
        tensor.copy_(torch.rand_like(tensor))
    other.load_state_dict(loss.state_dict())
    assert_close(other(positive, negative, owner, query=query), loss(positive, negative, owner, query=query))


@EVERY
def test_an_empty_batch_costs_nothing(name):
    empty = torch.zeros(0, requires_grad=True)
    value = make(name)(
        empty, torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), query=torch.zeros(0, dtype=torch.long)
    )
    value.backward()
    assert value == 0


@EVERY
def test_a_positive_without_negatives_costs_nothing_and_has_a_finite_gradient(name):
    positive = torch.tensor([0.3, 0.1], requires_grad=True)
    negative = torch.tensor([[0.5], [0.2]], requires_grad=True)
    mask = torch.tensor([[True], [False]])
    each = make(name, reduction="none")(positive, negative, query=torch.tensor([0, 1]), mask=mask)
    each.sum().backward()
    assert each[0] == 0
    assert positive.grad.isfinite().all()
    assert negative.grad.isfinite().all()


@EVERY
def test_gradients_are_the_same_to_the_last_bit_every_time(name):
    """Large enough that torch would add in parallel, and unsorted, as a shuffled batch is."""
    generator = torch.Generator().manual_seed(0)
    positive, negative = torch.randn(4096, generator=generator), torch.randn(512, 200, generator=generator)
    owner, query = torch.randint(512, (4096,), generator=generator), torch.randint(10, (512,), generator=generator)
    found = []
    for _ in range(5):
        loss = make(name, **({"distance": "sigmoid"} if name == "slatk" else {}))
        rivals = negative.clone().requires_grad_()
        loss(positive, rivals, owner, query=query).backward()
        found.append(rivals.grad)
    assert all(torch.equal(found[0], other) for other in found[1:])
