"""SimGCL and XSimGCL: layers, noise and contrast against sums made one by one in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from topshelf.errors import ConfigError, TopshelfError
from topshelf.models import SimGCL, XSimGCL
from topshelf.models import simgcl as module
from topshelf.models.simgcl import Contrast, info_nce, perturbed
from topshelf.ragged import ragged_from_pairs
from vectors import attach, batch_of, vectors_of

BOTH = pytest.mark.parametrize("cls", [SimGCL, XSimGCL])
VARIANTS = pytest.mark.parametrize("variant", ["reference", "slatk"])
N_QUERIES, N_ITEMS, DIM = 6, 5, 3
PAIRS = [(0, 1), (0, 2), (0, 4), (1, 2), (3, 0), (3, 2), (4, 1), (5, 0), (5, 1), (5, 2)]  # nobody has 3, 2 has nothing
POSITIVES = ragged_from_pairs(*torch.tensor(PAIRS).T, N_QUERIES)
# Two queries and their positives.
QUERY, OWNER, ITEM = torch.tensor([5, 0]), torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 1, 2, 1, 2, 4])
BATCH = batch_of(QUERY, OWNER, ITEM)


def attached(cls, **settings):
    torch.manual_seed(0)
    model = cls(N_QUERIES, N_ITEMS, dim=DIM, **settings).double()
    attach(model, POSITIVES)
    return model


def adjacency():
    """The whole graph, queries first, normalised; dense."""
    dense = torch.zeros(N_QUERIES + N_ITEMS, N_QUERIES + N_ITEMS, dtype=torch.float64)
    for u, i in PAIRS:
        dense[u, N_QUERIES + i] = dense[N_QUERIES + i, u] = 1.0
    degree = dense.sum(1).clamp(min=1)
    return dense / torch.sqrt(degree.unsqueeze(0) * degree.unsqueeze(1))


def dense_layers(model, noises):
    """The layers 0 to L as (nodes, d), with the given noise added to each."""
    layers = [torch.cat([model.query_vectors, model.item_vectors]).detach()]
    for noise in noises:
        layers.append(adjacency() @ layers[-1] + noise)
    return layers


def slow_info_nce(first, second, chosen, tau):
    losses = []
    for v in chosen:
        cosines = [float(torch.cosine_similarity(first[v], second[w], dim=0)) for w in chosen]
        own = float(torch.cosine_similarity(first[v], second[v], dim=0))
        losses.append(math.log(sum(math.exp(c / tau) for c in cosines)) - own / tau)
    return sum(losses) / len(losses)


@BOTH
@pytest.mark.parametrize("n_layers", [1, 3])
def test_vectors_are_the_mean_of_the_layers_without_their_own(cls, n_layers):
    model = attached(cls, n_layers=n_layers, score="dot")
    expected = sum(dense_layers(model, [0.0] * n_layers)[1:]) / n_layers
    assert_close(torch.cat(vectors_of(model)), expected)


@BOTH
def test_encoding_draws_nothing_and_has_no_noise(cls):
    model, before = attached(cls, noise=5.0), torch.random.get_rng_state()
    first, second = vectors_of(model), vectors_of(model)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert_close(first, second, rtol=0, atol=0)


def test_reference_noise_has_its_length_and_stays_in_the_orthant():
    torch.manual_seed(1)
    table = torch.randn(200, 8)
    moved = perturbed(table, 0.1, "reference")
    assert_close((moved - table).norm(dim=1), torch.full((200,), 0.1))
    assert (moved.sign() == table.sign()).all()
    assert (moved.abs() >= table.abs()).all()
    assert perturbed(torch.zeros(3, 4), 0.1, "reference").eq(0).all()


def test_the_other_variants_noise_has_its_length_and_leaves_the_orthant():
    torch.manual_seed(1)
    table = torch.randn(200, 8) * 0.01
    moved = perturbed(table, 0.1, "slatk")
    assert_close((moved - table).norm(dim=1), torch.full((200,), 0.1))
    assert 0.2 < float((moved.sign() != table.sign()).float().mean()) < 0.6


@VARIANTS
def test_noise_does_not_change_the_gradient(variant):
    table = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(perturbed(table, 0.3, variant).sum(), table)
    assert_close(gradient, torch.ones_like(gradient))


def test_info_nce_follows_its_formula():
    torch.manual_seed(0)
    first, second = torch.randn(2, 7, 4, dtype=torch.float64)
    for chosen in ([0, 3, 6], [2], [1, 1, 4]):
        found = info_nce(first, second, torch.tensor(chosen), 0.3)
        assert float(found) == pytest.approx(slow_info_nce(first, second, chosen, 0.3))


def test_info_nce_has_the_gradient_of_its_formula():
    first, second = (torch.randn(5, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    nodes = torch.tensor([0, 2, 4])
    assert torch.autograd.gradcheck(lambda a, b: info_nce(a, b, nodes, 0.5), (first, second))


def test_each_node_counts_once_or_as_often_as_the_batch_has_it():
    first, second = ([torch.randn(n, 4, dtype=torch.float64) for n in (6, 5)] for _ in range(2))
    pairs = QUERY[OWNER], ITEM
    for variant, queries, items in (
        ("reference", [0, 5], [0, 1, 2, 4]),
        ("slatk", [5, 5, 5, 0, 0, 0], ITEM.tolist()),
    ):
        found = Contrast(0.2, 0.7, 100, variant)(first, second, *pairs)
        of_queries = slow_info_nce(first[0], second[0], queries, 0.2)
        of_items = slow_info_nce(first[1], second[1], items, 0.2)
        assert float(found) == pytest.approx(0.7 * (of_queries + of_items))


@VARIANTS
def test_large_batches_are_contrasted_by_a_draw_of_their_nodes(variant, monkeypatch):
    seen = []
    monkeypatch.setattr(module, "info_nce", lambda a, b, nodes, tau: seen.append(nodes) or nodes.sum())
    tables = (torch.zeros(50, 2), torch.zeros(40, 2))
    query, item = torch.arange(50).repeat(2), torch.arange(100) % 40
    torch.manual_seed(0)
    Contrast(0.2, 1.0, 30, variant)(tables, tables, query, item)
    Contrast(0.2, 1.0, 45, variant)(tables, tables, query, item)
    sizes = [nodes.numel() for nodes in seen]
    assert sizes == ([30, 30, 45, 40] if variant == "reference" else [30, 30, 45, 45])
    if variant == "reference":
        assert all(nodes.unique().numel() == nodes.numel() for nodes in seen)
        assert seen[0].max() > 30  # not the first ones


@pytest.fixture
def noises_of(monkeypatch):
    """The noise that a seeded batch adds at each layer, as (nodes, d), pass after pass."""
    given = []

    def record(table, noise, variant):
        moved = perturbed(table, noise, variant)
        given.append((moved - table).detach())
        return moved

    def noises(model):
        with monkeypatch.context() as patch:
            patch.setattr(module, "perturbed", record)
            torch.manual_seed(3)
            model.encode_batch(BATCH)
        layers = [torch.cat(given[place : place + 2]) for place in range(0, len(given), 2)]
        return [layers[place : place + model.n_layers] for place in range(0, len(layers), model.n_layers)]

    return noises


@VARIANTS
@pytest.mark.parametrize("contrasted", ["mean", "final"])
@pytest.mark.parametrize("contrast_layer", [0, 1, 3])
def test_xsimgcl_scores_and_contrasts_the_same_noisy_layers(variant, contrast_layer, contrasted, noises_of):
    """Against the mean of the layers, as the XSimGCL paper has it, or the last, as the SL@K paper says."""
    settings = {"contrast_layer": contrast_layer, "contrasted": contrasted, "weight": 0.4, "temperature": 0.5}
    model = attached(XSimGCL, variant=variant, score="dot", **settings)
    (noises,) = noises_of(model)
    layers = dense_layers(model, noises)
    mean = sum(layers[1:]) / 3
    torch.manual_seed(3)
    queries, items, auxiliary = model.encode_batch(BATCH)
    assert_close(queries, mean[QUERY])
    assert_close(items, mean[N_QUERIES:])
    chosen = QUERY[OWNER].tolist(), (ITEM + N_QUERIES).tolist()
    if variant == "reference":
        chosen = [sorted(set(some)) for some in chosen]
    view = mean if contrasted == "mean" else layers[-1]
    expected = 0.4 * sum(slow_info_nce(view, layers[contrast_layer], some, 0.5) for some in chosen)
    assert auxiliary.item() == pytest.approx(expected)
    assert all(float(noise[:2].norm(dim=1).min()) == pytest.approx(0.1) for noise in noises)


def test_simgcl_scores_without_noise_and_contrasts_two_noisy_passes(noises_of):
    model = attached(SimGCL, weight=0.4, temperature=0.5, score="dot")
    first, second = (sum(dense_layers(model, noises)[1:]) / 3 for noises in noises_of(model))
    torch.manual_seed(3)
    queries, items, auxiliary = model.encode_batch(BATCH)
    assert_close((queries, items), vectors_of(model, QUERY))
    chosen = [0, 5], [N_QUERIES + i for i in (0, 1, 2, 4)]
    assert auxiliary.item() == pytest.approx(0.4 * sum(slow_info_nce(first, second, some, 0.5) for some in chosen))
    assert not torch.equal(first, second)


@BOTH
def test_the_gradient_of_a_noisy_step_is_that_of_finite_differences(cls):
    model = attached(cls, score="dot")

    def step(queries, items):
        torch.manual_seed(5)
        return torch.func.functional_call(model, {"query_vectors": queries, "item_vectors": items}, (BATCH,))

    model.forward = model.encode_batch
    assert torch.autograd.gradcheck(step, tuple(table.detach().requires_grad_() for table in model.parameters()))


@BOTH
def test_without_noise_a_step_sees_what_everybody_sees(cls):
    model = attached(cls, noise=0.0)
    queries, items, auxiliary = model.encode_batch(BATCH)
    assert_close((queries, items), vectors_of(model, QUERY))
    assert auxiliary.isfinite()


@BOTH
def test_other_seeds_give_other_noise_and_the_same_seed_the_same(cls):
    model, found = attached(cls), []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        found.append(model.encode_batch(BATCH).auxiliary)
    assert found[0] == found[2]
    assert found[0] != found[1]


@BOTH
def test_a_model_without_its_graph_says_what_to_do(cls):
    for call in (vectors_of, lambda model: model.encode_batch(BATCH)):
        with pytest.raises(TopshelfError, match=rf"{cls.__name__} has no graph yet: call attach\(context\)"):
            call(cls(6, 5))


@BOTH
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_layers": 0}, "n_layers must be >= 1, got 0"),
        ({"noise": -0.1}, r"noise must be >= 0\.0, got -0\.1"),
        ({"temperature": 0.0}, r"temperature must be > 0, got 0\.0"),
        ({"weight": -1.0}, r"weight must be >= 0\.0, got -1\.0"),
        ({"n_contrast": 0}, "n_contrast must be >= 1, got 0"),
        ({"variant": "mine"}, "variant must be one of reference, slatk, got 'mine'"),
    ],
)
def test_bad_settings_are_refused_with_the_value_received(cls, settings, message):
    with pytest.raises(ConfigError, match=message):
        cls(2, 3, **settings)
    with pytest.raises(ConfigError, match=r"contrast_layer must be <= 3 \(n_layers\), got 4"):
        XSimGCL(2, 3, contrast_layer=4)
    with pytest.raises(ConfigError, match="contrasted must be one of mean, final, got 'last'"):
        XSimGCL(2, 3, contrasted="last")
