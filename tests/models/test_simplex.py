"""SimpleX against means made one by one."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from lists import ragged
from topshelf.errors import ConfigError, TopshelfError
from topshelf.models import SimpleX
from topshelf.models.simplex import thinned
from topshelf.ragged import Ragged
from vectors import attach, batch_of, vectors_of

LISTS = [[1, 2, 4], [2], [], [0, 2, 3, 4, 5]]
N_ITEMS, DIM = 6, 3


def attached(**settings):
    torch.manual_seed(0)
    model = SimpleX(len(LISTS), N_ITEMS, dim=DIM, init="normal", **settings).double()
    attach(model, ragged(*LISTS))
    return model


def slow(model, lists):
    gate, weight = model.gate, model.to_query.weight.detach()
    rows = []
    for own, some in zip(model.query_vectors.detach(), lists, strict=True):
        mean = sum((model.item_vectors.detach()[i] / len(some) for i in some), torch.zeros(DIM, dtype=torch.float64))
        rows.append(gate * own + (1 - gate) * torch.stack([(row * mean).sum() for row in weight]))
    return torch.stack(rows)


@pytest.mark.parametrize("gate", [0.0, 0.5, 0.8])
def test_users_are_their_own_vector_and_the_mean_of_their_items(gate):
    model = attached(gate=gate, score="dot")
    queries, items = vectors_of(model)
    assert_close(queries, slow(model, LISTS))
    assert_close(items, model.item_vectors.detach(), check_stride=False)
    assert items.size(0) == N_ITEMS  # nothing rankable for the padding


def test_long_histories_are_thinned_and_missing_places_are_not_counted():
    model = attached(n_history=2, score="dot")
    assert_close(vectors_of(model)[0], slow(model, [[1, 2], [2], [], [0, 3]]))


def test_thinning_takes_even_steps():
    lists = Ragged(torch.tensor([0, 10, 10, 13]), torch.tensor([*range(10), 7, 8, 9]))
    expected = {1: [0, 7], 3: [0, 3, 6, 7, 8, 9], 4: [0, 2, 5, 7, 7, 8, 9], 100: lists.indices.tolist()}
    for most, items in expected.items():
        found = thinned(lists, most)
        assert found.indices.tolist() == items
        assert found.counts.tolist() == [min(10, most), 0, min(3, most)]


def test_a_batch_is_encoded_as_among_all():
    model, query = attached(), torch.tensor([3, 0, 2, 3])
    queries, items, auxiliary = model.encode_batch(batch_of(query, torch.arange(query.numel()), query))
    assert_close((queries, items), vectors_of(model, query))
    assert auxiliary is None


def test_the_gradient_is_that_of_finite_differences():
    model, query = attached(score="dot"), torch.tensor([3, 0, 2])
    batch = batch_of(query, torch.arange(3), query)
    names = [name for name, _ in model.named_parameters()]

    def step(*values):
        return torch.func.functional_call(model, dict(zip(names, values, strict=True)), (batch,))[:2]

    model.forward = model.encode_batch
    assert torch.autograd.gradcheck(step, tuple(value.detach().requires_grad_() for value in model.parameters()))


def test_a_model_without_histories_says_what_to_do():
    with pytest.raises(TopshelfError, match=r"SimpleX has no histories yet: call attach\(context\)"):
        vectors_of(SimpleX(2, 3))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gate": 1.2}, r"gate must be <= 1\.0, got 1\.2"),
        ({"gate": -0.2}, r"gate must be >= 0\.0, got -0\.2"),
        ({"n_history": 0}, "n_history must be >= 1, got 0"),
    ],
)
def test_bad_settings_are_refused_with_the_value_received(settings, message):
    with pytest.raises(ConfigError, match=message):
        SimpleX(2, 3, **settings)
