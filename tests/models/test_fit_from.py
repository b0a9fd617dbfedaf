"""Closed-form models fitted from older ones: the weights of a fit from the start, exactly or nearly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from topshelf.data import generate
from topshelf.models import EASE, IALS, MODELS, SLIM, Model
from topshelf.models import low_rank as module
from topshelf.models.low_rank import updated_weights
from topshelf.queries import Context, QuerySet
from topshelf.ragged import Ragged

USERS, ITEMS = 200, 90


def contexts(n_old_users=190, n_old_items=85, changed=3) -> tuple[Context, Context]:
    """All data, and some of them: fewer users and items, and a few users with an item less."""
    lists = generate(USERS, ITEMS, interactions_per_user=8).ragged()
    is_old = (lists.owner() < n_old_users) & (lists.indices < n_old_items)
    is_old[lists.indptr[:changed]] = False
    old = lists.where(is_old)
    return Context(Ragged(old.indptr[: n_old_users + 1], old.indices), n_old_items), Context(lists, ITEMS)


def fitted(cls: type[Model], context: Context, **settings) -> Model:
    torch.manual_seed(0)
    model = cls(len(context.histories), context.n_items, **settings)
    model.fit(context)
    return model


def scores(model: Model) -> torch.Tensor:
    queries, items = model.encode(QuerySet.known(model.n_queries))
    return queries[torch.arange(model.n_queries)].to_dense() @ items.T


def continued(cls: type[Model], old: Context, new: Context, **settings) -> Model:
    torch.manual_seed(0)
    model = cls(len(new.histories), new.n_items, **settings)
    model.fit_from(fitted(cls, old, **settings), new)
    return model


@pytest.mark.parametrize("name", [name for name, cls in MODELS.items() if cls.is_closed_form and cls is not IALS])
def test_it_is_the_fit_from_the_start(name):
    old, new = contexts()
    assert_close(scores(continued(MODELS[name], old, new)), scores(fitted(MODELS[name], new)), rtol=1e-3, atol=2e-4)


def test_ials_comes_near_in_one_iteration_and_does_not_move_without_new_data():
    old, new = contexts()
    whole, one = scores(fitted(IALS, new, dim=8)), scores(continued(IALS, old, new, dim=8))
    assert np.corrcoef(whole.flatten(), one.flatten())[0, 1] > 0.9
    many = fitted(IALS, new, dim=8, iterations=100)
    again = IALS(USERS, ITEMS, dim=8, iterations=100)
    again.fit_from(many, new)
    assert_close(scores(again), scores(many), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("l2", [1.0, 50.0, 300.0])
def test_ease_is_corrected_by_few_changes_as_if_it_were_inverted_again(l2, monkeypatch):
    monkeypatch.setattr(module, "_MOST_RANK", 10.0)
    old, new = contexts()
    before = fitted(EASE, old, l2=l2)
    found = updated_weights(before.weights, old.histories, new, l2)
    assert found is not None
    assert_close(found.float(), fitted(EASE, new, l2=l2).weights, rtol=1e-3, atol=1e-5)


def test_ease_is_fitted_again_after_many_changes_or_with_weights_of_other_data(monkeypatch):
    old, new = contexts()
    before = fitted(EASE, old)
    assert updated_weights(before.weights, old.histories, new, 300.0) is None  # more than an eighth
    monkeypatch.setattr(module, "_MOST_RANK", 10.0)
    wrong = torch.roll(before.weights, 1, 0).fill_diagonal_(0.0)
    assert updated_weights(wrong, old.histories, new, 300.0) is None  # noticed by its columns


def test_ease_without_a_change_keeps_its_weights():
    _, new = contexts()
    before = fitted(EASE, new)
    found = updated_weights(before.weights, new.histories, new, 300.0)
    assert_close(found.float(), before.weights, rtol=1e-4, atol=1e-6)


def test_slim_starts_from_weights_that_the_data_may_contradict():
    old, new = contexts()
    before = fitted(SLIM, old)
    before.values = torch.full_like(before.values, 5.0)  # of items that may be no candidates any more
    model = SLIM(USERS, ITEMS)
    model.fit_from(before, new)
    assert_close(scores(model), scores(fitted(SLIM, new)), rtol=1e-3, atol=2e-4)
