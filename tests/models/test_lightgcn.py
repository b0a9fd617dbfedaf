"""LightGCN and LightGCN++ against sums over neighbours made one by one in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from topshelf.errors import ConfigError, TopshelfError
from topshelf.models import MF, LightGCN, LightGCNPlusPlus
from topshelf.ragged import ragged_from_pairs
from vectors import attach, vectors_of

N_QUERIES, N_ITEMS, DIM = 6, 5, 3
PAIRS = [(0, 1), (0, 2), (0, 4), (1, 2), (3, 0), (3, 2), (4, 1), (5, 0), (5, 1), (5, 2)]  # nobody has 3, 2 has nothing
EDGES = [(u, N_QUERIES + i) for u, i in PAIRS] + [(N_QUERIES + i, u) for u, i in PAIRS]  # (target, source)
DEGREE = [sum(target == node for target, _ in EDGES) for node in range(N_QUERIES + N_ITEMS)]
POSITIVES = ragged_from_pairs(*torch.tensor(PAIRS).T, N_QUERIES)


def attached(cls, **settings):
    torch.manual_seed(0)
    model = cls(N_QUERIES, N_ITEMS, dim=DIM, init="normal", **settings).double()
    attach(model, POSITIVES)
    return model


def nodes(model):
    """All vectors as lists, queries first."""
    return [*model.query_vectors.tolist(), *model.item_vectors.tolist()]


def spread(vectors, weight):
    found = [[0.0] * DIM for _ in vectors]
    for target, source in EDGES:
        for c in range(DIM):
            found[target][c] += weight(DEGREE[target], DEGREE[source]) * vectors[source][c]
    return found


def unit(vector):
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length if length else 0.0 for x in vector]


def encoded(model):
    return torch.cat(vectors_of(model)).detach()


@pytest.mark.parametrize("n_layers", [0, 1, 2, 3])
def test_lightgcn_is_the_mean_of_its_layers(n_layers):
    model = attached(LightGCN, n_layers=n_layers, score="dot")
    layers = [nodes(model)]
    for _ in range(n_layers):
        layers.append(spread(layers[-1], lambda target, source: 1 / math.sqrt(target * source)))
    expected = [[sum(layer[v][c] for layer in layers) / len(layers) for c in range(DIM)] for v in range(len(layers[0]))]
    assert_close(encoded(model), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("n_layers", [1, 2])
@pytest.mark.parametrize("constants", [{}, {"alpha": 0.3, "beta": 0.7, "gamma": 0.5}])
def test_lightgcn_pp_weighs_neighbours_of_length_one(n_layers, constants):
    model = attached(LightGCNPlusPlus, n_layers=n_layers, score="dot", **constants)
    a, b, g = (constants.get(name, default) for name, default in (("alpha", 0.6), ("beta", -0.1), ("gamma", 0.2)))
    own = nodes(model)
    layers, last = [], own
    for _ in range(n_layers):
        last = spread([unit(vector) for vector in last], lambda target, source: target**-a * source**-b)
        layers.append(last)
    expected = [
        [g * own[v][c] + (1 - g) * sum(layer[v][c] for layer in layers) / n_layers for c in range(DIM)]
        for v in range(len(own))
    ]
    assert_close(encoded(model), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("cls", [LightGCN, LightGCNPlusPlus])
def test_cosine_scores_are_of_the_same_vectors_at_length_one(cls):
    dot, cosine = encoded(attached(cls, score="dot")), encoded(attached(cls, score="cosine"))
    assert_close(cosine, dot / dot.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("cls", [LightGCN, LightGCNPlusPlus])
@pytest.mark.parametrize("score", ["cosine", "dot"])
def test_gradients_are_those_of_finite_differences(cls, score):
    model = attached(cls, score=score)
    rows = torch.tensor([5, 0, 2])

    def scores(queries, items):
        tables = {"query_vectors": queries, "item_vectors": items}
        return torch.func.functional_call(model, tables, (rows,))

    model.forward = lambda rows: vectors_of(model, rows)
    assert torch.autograd.gradcheck(scores, tuple(table.detach().requires_grad_() for table in model.parameters()))


def test_without_layers_lightgcn_is_mf():
    model, mf = attached(LightGCN, n_layers=0), MF(N_QUERIES, N_ITEMS, dim=DIM).double()
    mf.load_state_dict(model.state_dict())
    assert_close(vectors_of(model), vectors_of(mf))


@pytest.mark.parametrize("cls", [LightGCN, LightGCNPlusPlus])
def test_those_without_neighbours_keep_their_own_direction(cls):
    model = attached(cls)
    queries, items = vectors_of(model)
    for found, own in ((queries[2], model.query_vectors[2]), (items[3], model.item_vectors[3])):
        assert_close(found, own / own.norm())


@pytest.mark.parametrize("cls", [LightGCN, LightGCNPlusPlus])
def test_a_model_without_its_graph_says_what_to_do(cls):
    with pytest.raises(TopshelfError, match=r"has no graph yet: call attach\(context\)"):
        vectors_of(cls(2, 3))


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (LightGCN, {"n_layers": -1}, "n_layers must be >= 0, got -1"),
        (LightGCN, {"dim": 0}, "dim must be >= 1, got 0"),
        (LightGCN, {"score": "euclid"}, "score must be one of cosine, dot, got 'euclid'"),
        (LightGCNPlusPlus, {"n_layers": 0}, "n_layers must be >= 1, got 0"),
        (LightGCNPlusPlus, {"gamma": 1.5}, r"gamma must be <= 1\.0, got 1\.5"),
        (LightGCNPlusPlus, {"gamma": -0.5}, r"gamma must be >= 0\.0, got -0\.5"),
        (LightGCNPlusPlus, {"init": "ones"}, "init must be one of xavier, normal, got 'ones'"),
    ],
)
def test_bad_settings_are_refused_with_the_value_received(cls, settings, message):
    with pytest.raises(ConfigError, match=message):
        cls(2, 3, **settings)
