"""Popularity."""

from __future__ import annotations

import torch
from torch import tensor

from topshelf.catalogue import top_k
from topshelf.models import Popularity
from topshelf.ragged import ragged_from_pairs


def test_everybody_gets_the_items_by_how_many_have_them():
    rows, items = tensor([0, 0, 1, 1, 2, 2]), tensor([3, 1, 3, 0, 3, 1])
    model = Popularity(4, 5)
    model.fit(ragged_from_pairs(rows, items, 4))
    queries, vectors = model.encode()
    values, indices = top_k(queries, vectors, 5)
    assert indices.tolist() == [[3, 1, 0, 2, 4]] * 4  # equals by index
    assert values.tolist() == [[3, 2, 1, 0, 0]] * 4


def test_some_rows_are_encoded_as_among_all():
    model = Popularity(4, 2)
    assert torch.equal(model.encode(tensor([3, 3, 1]))[0], model.encode()[0][:3])
