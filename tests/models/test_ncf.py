"""NCF against its networks computed one number at a time."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from topshelf.errors import ConfigError
from topshelf.models import NCF
from vectors import batch_of, vectors_of


def model(**settings):
    torch.manual_seed(0)
    return NCF(5, 4, dim=6, init="normal", **settings).double()


def slow_network(vector, network):
    """Weighted sums and a ReLU, layer after layer, the last one too."""
    for layer in network[::2]:
        weights, biases = layer.weight.tolist(), layer.bias.tolist()
        vector = [
            max(0.0, sum(w * x for w, x in zip(row, vector, strict=True)) + bias)
            for row, bias in zip(weights, biases, strict=True)
        ]
    return vector


@pytest.mark.parametrize("hidden", [(), (3,), (5, 2, 4)])
def test_vectors_are_the_tables_plus_what_their_networks_make_of_them(hidden):
    ncf = model(hidden=hidden, score="dot")
    for found, table, network in zip(
        vectors_of(ncf), (ncf.query_vectors, ncf.item_vectors), (ncf.query_network, ncf.item_network), strict=True
    ):
        expected = [
            [x + y for x, y in zip(row, slow_network(row, network), strict=True)] for row in table.detach().tolist()
        ]
        assert_close(found, torch.tensor(expected, dtype=torch.float64))
        assert (found >= table).all()  # a ReLU at the end


def test_the_default_network_narrows_to_eight_and_widens_again():
    widths = [tuple(layer.weight.shape) for layer in NCF(2, 3).query_network[::2]]
    assert widths == [(32, 64), (16, 32), (8, 16), (64, 8)]


def test_users_and_items_have_networks_of_their_own():
    ncf = model()
    with torch.no_grad():
        before = vectors_of(ncf)
        for parameter in ncf.item_network.parameters():
            parameter.add_(1.0)
        after = vectors_of(ncf)
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[1], after[1])


def test_a_batch_is_encoded_as_among_all():
    ncf, query = model(), torch.tensor([4, 0, 4])
    queries, items, auxiliary = ncf.encode_batch(batch_of(query, torch.arange(query.numel()), query))
    assert_close((queries, items), vectors_of(ncf, query))
    assert auxiliary is None


def test_bad_settings_are_refused_with_the_value_received():
    with pytest.raises(ConfigError, match="hidden must be >= 1, got 0"):
        NCF(2, 3, hidden=(4, 0))
