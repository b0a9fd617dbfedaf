"""Matrix factorisation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from topshelf.errors import ConfigError
from topshelf.models import MF
from vectors import vectors_of


def vectors(model):
    return model.query_vectors.detach().double(), model.item_vectors.detach().double()


def scores(model):
    queries, items = vectors_of(model)
    return (queries @ items.T).detach()


def test_dot_scores_are_the_products_of_the_tables():
    model = MF(3, 4, dim=5, score="dot")
    queries, items = vectors(model)
    expected = [[sum(float(a * b) for a, b in zip(q, i, strict=True)) for i in items] for q in queries]
    assert_close(scores(model), tensor(expected))


def test_cosine_scores_forget_the_lengths_of_the_vectors():
    model = MF(3, 4, dim=5, init="normal")
    queries, items = vectors(model)
    expected = [[float(q @ i) / math.sqrt(float(q @ q) * float(i @ i)) for i in items] for q in queries]
    assert_close(scores(model), tensor(expected))
    with torch.no_grad():
        model.query_vectors *= 7
    assert_close(scores(model), tensor(expected))


def test_a_vector_of_zeros_has_zero_cosine_and_a_finite_gradient():
    model = MF(2, 3, dim=4)
    with torch.no_grad():
        model.query_vectors.zero_()
    queries, items = vectors_of(model)
    (queries @ items.T).sum().backward()
    assert (queries == 0).all()
    assert model.query_vectors.grad.isfinite().all()


@pytest.mark.parametrize("score", ["cosine", "dot"])
def test_some_rows_in_any_order_are_encoded_as_among_all(score):
    model, rows = MF(6, 4, dim=3, score=score), tensor([4, 0, 4])
    assert_close(vectors_of(model, rows)[0], vectors_of(model)[0][rows])
    assert_close(vectors_of(model, rows)[1], vectors_of(model)[1])


def test_initial_values_are_xaviers_or_normal():
    torch.manual_seed(0)
    xavier, normal = MF(500, 700, dim=32), MF(500, 700, dim=32, init="normal")
    for table, n in ((xavier.query_vectors.detach(), 500), (xavier.item_vectors.detach(), 700)):
        bound = math.sqrt(6 / (n + 32))
        assert float(table.abs().max()) <= bound
        assert float(table.std()) == pytest.approx(bound / math.sqrt(3), rel=0.03)
    assert float(normal.item_vectors.detach().std()) == pytest.approx(1, rel=0.03)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dim": 0}, "dim must be >= 1, got 0"),
        ({"score": "euclid"}, "score must be one of cosine, dot, got 'euclid'"),
        ({"init": "ones"}, "init must be one of xavier, normal, got 'ones'"),
    ],
)
def test_bad_settings_are_refused_with_the_value_received(settings, message):
    with pytest.raises(ConfigError, match=message):
        MF(2, 3, **settings)
    with pytest.raises(ConfigError, match="n_items must be >= 1, got 0"):
        MF(2, 0)
