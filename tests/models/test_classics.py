"""Popularity."""

from __future__ import annotations

import torch
from torch import tensor

from topshelf.catalogue import top_k
from topshelf.models import Popularity
from topshelf.ragged import ragged_from_pairs
from vectors import fit_to, vectors_of


def test_everybody_gets_the_items_by_how_many_have_them():
    rows, items = tensor([0, 0, 1, 1, 2, 2]), tensor([3, 1, 3, 0, 3, 1])
    model = Popularity(4, 5)
    fit_to(model, ragged_from_pairs(rows, items, 4))
    queries, vectors = vectors_of(model)
    values, indices = top_k(queries, vectors, 5)
    assert indices.tolist() == [[3, 1, 0, 2, 4]] * 4  # equals by index
    assert values.tolist() == [[3, 2, 1, 0, 0]] * 4


def test_some_rows_are_encoded_as_among_all():
    model = Popularity(4, 2)
    assert torch.equal(vectors_of(model, tensor([3, 3, 1]))[0], vectors_of(model)[0][:3])
