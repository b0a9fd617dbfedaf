"""Users by what they have, against sums made one by one."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from lists import ragged
from topshelf.errors import ConfigError, TopshelfError
from topshelf.models import History
from topshelf.models.history import thinned_at_random
from vectors import attach, batch_of, queries_of, vectors_of

LISTS = [[1, 2, 4], [2], [], [0, 2, 3, 4, 5]]
N_ITEMS, DIM = 6, 3


def attached(**settings):
    torch.manual_seed(0)
    model = History(len(LISTS), N_ITEMS, dim=DIM, init="normal", **settings).double()
    attach(model, ragged(*LISTS))
    return model


def slow(model, lists):
    vectors = model.history_vectors.detach()
    rows = [sum((vectors[i] / len(some) ** 0.5 for i in some), torch.zeros(DIM, dtype=torch.float64)) for some in lists]
    return torch.stack(rows)


def test_users_are_the_sum_of_their_items():
    model = attached(score="dot")
    queries, items = vectors_of(model)
    assert_close(queries, slow(model, LISTS))
    assert_close(items, model.item_vectors.detach(), check_stride=False)


def test_the_cosine_is_that_of_the_same_vectors():
    dot, cosine = vectors_of(attached(score="dot")), vectors_of(attached())
    for one, other in zip(dot, cosine, strict=True):
        assert_close(torch.nn.functional.normalize(one, dim=1), other)


def test_scores_need_no_more_of_a_user_than_its_items():
    model = attached()
    found = queries_of(model, ragged(*[[2], [0, 2, 3, 4, 5], [0]]))
    assert torch.equal(found[:2], vectors_of(model)[0][[1, 3]])
    assert torch.isfinite(found).all()


def test_nothing_is_left_out_when_users_are_scored_and_some_in_training():
    model = attached(drop=0.5, score="dot")
    query = torch.tensor([3, 0, 3])
    assert torch.equal(vectors_of(model, query)[0], vectors_of(model, query)[0])
    torch.manual_seed(1)
    first = model.encode_batch(batch_of(query, torch.arange(query.numel()), query)).queries
    assert not torch.equal(first, model.encode_batch(batch_of(query, torch.arange(query.numel()), query)).queries)
    torch.manual_seed(1)
    assert torch.equal(first, model.encode_batch(batch_of(query, torch.arange(query.numel()), query)).queries)


def test_a_batch_without_drop_is_encoded_as_among_all():
    model, query = attached(drop=0.0), torch.tensor([3, 0, 2, 3])
    queries, items, auxiliary = model.encode_batch(batch_of(query, torch.arange(query.numel()), query))
    assert_close((queries, items), vectors_of(model, query))
    assert auxiliary is None


@pytest.mark.parametrize("share", [0.0, 0.2, 0.9])
def test_each_item_is_left_out_with_the_same_probability(share):
    torch.manual_seed(0)
    lists = ragged(*[list(range(3000)), [5], list(range(1, 2001))])
    found = thinned_at_random(lists, share)
    assert len(found) == 3
    assert int(found.indptr[-1]) == found.indices.numel()
    for kept, whole in ((found.slice(row, row + 1), lists.slice(row, row + 1)) for row in range(3)):
        assert set(kept.indices.tolist()) <= set(whole.indices.tolist())
        assert kept.indices.tolist() == sorted(kept.indices.tolist())
    assert found.indices.numel() / 5001 == pytest.approx(1 - share, abs=0.03)
    assert share > 0 or found is lists


def test_the_gradient_is_that_of_finite_differences():
    model, query = attached(score="dot", drop=0.0), torch.tensor([3, 0, 2])
    batch = batch_of(query, torch.arange(3), query)
    names = [name for name, _ in model.named_parameters()]

    def step(*values):
        return torch.func.functional_call(model, dict(zip(names, values, strict=True)), (batch,))[:2]

    model.forward = model.encode_batch
    assert torch.autograd.gradcheck(step, tuple(value.detach().requires_grad_() for value in model.parameters()))


def test_a_user_who_lost_every_item_leaves_the_gradient_finite():
    model = attached(drop=0.9)
    query = torch.arange(4).repeat(50)
    encoded = model.encode_batch(batch_of(query, torch.arange(query.numel()), query))
    (encoded.queries @ encoded.items.T).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_a_model_without_histories_says_what_to_do():
    with pytest.raises(TopshelfError, match=r"History has no histories yet: call attach\(context\)"):
        vectors_of(History(2, 3))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"drop": 0.95}, r"drop must be <= 0\.9, got 0\.95"), ({"drop": -0.2}, r"drop must be >= 0\.0, got -0\.2")],
)
def test_bad_settings_are_refused_with_the_value_received(settings, message):
    with pytest.raises(ConfigError, match=message):
        History(2, 3, **settings)
