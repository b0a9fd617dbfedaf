"""The weight of an item as a negative by its popularity: values and gradients against slow sums, in every head."""

from __future__ import annotations

import inspect
import itertools
import math

import pytest
import torch
from torch.testing import assert_close

from topshelf import kernels
from topshelf.catalogue import CatalogueBlocks
from topshelf.config import make_config
from topshelf.errors import ConfigError
from topshelf.losses import LOSSES
from topshelf.models import MF
from topshelf.negatives import NEGATIVES, Population, item_prior
from topshelf.queries import Context
from topshelf.ragged import ragged_from_pairs
from topshelf.training.batches import Batches, stream
from topshelf.training.build import resolve
from topshelf.training.heads import PartitionHead
from topshelf.training.objective import CatalogueObjective

N_QUERIES, N_ITEMS, PRIOR = 7, 40, -0.5
WITH_NEGATIVES = [name for name in LOSSES if name != "directau"]


def positives():
    taken = torch.rand(N_QUERIES, N_ITEMS, generator=torch.Generator().manual_seed(1)) < 0.3
    taken[:, 0], taken[:, -1] = True, False
    return ragged_from_pairs(*taken.nonzero().T, N_QUERIES)


def lists_of(ragged):
    return [ragged.indices[start:stop].tolist() for start, stop in itertools.pairwise(ragged.indptr.tolist())]


def loss_of(name, **settings):
    sizes = {"n_queries": N_QUERIES, "n_items": N_ITEMS, "n_positives": positives().indices.numel()}
    taken = inspect.signature(LOSSES[name].__init__).parameters
    torch.manual_seed(4)
    return LOSSES[name](**{key: size for key, size in sizes.items() if key in taken}, **settings).double()


def negatives_of(kind):
    sizes = {"mixed": {"n_hard": 3, "pool": 8}, "shared": {"n": 12}, "per_query": {"n": 12}}
    return NEGATIVES[kind](**sizes.get(kind, {}))


def objective_of(loss, kind="catalogue", prior=PRIOR, order="query", **more):
    torch.manual_seed(2)
    model = MF(N_QUERIES, N_ITEMS, dim=4, init="normal").double()
    negatives = negatives_of(kind)
    objective = CatalogueObjective(model, loss, negatives, Context(positives(), N_ITEMS), prior=prior, **more)
    repeat = negatives.layout == "own"
    objective.batches = Batches(positives(), N_ITEMS, order=order, size=6, repeat_queries=repeat)
    return objective


def backward(objective, *, plain=False):
    """The loss and the gradients of the model, by the head or by autograd in one piece."""
    batch = next(iter(objective.batches.epoch(stream(0))))
    torch.manual_seed(5)
    if plain:
        value, _ = objective(batch, stream(1))
        value.backward()
        number = value.item()
    else:
        number = objective.backward(batch, stream(1)).loss
    return number, [parameter.grad for parameter in objective.model.parameters()]


def log_weights(prior=PRIOR):
    """By the definition: (count + 1)^prior over its mean."""
    counts = [sum(item in row for row in lists_of(positives())) for item in range(N_ITEMS)]
    weights = [(count + 1) ** prior for count in counts]
    mean = sum(weights) / N_ITEMS
    return [math.log(weight / mean) for weight in weights]


def test_the_weights_are_powers_of_the_counts_with_mean_one():
    counts = Population.of(positives(), N_ITEMS).item_counts
    found = item_prior(counts, PRIOR)
    assert_close(found, torch.tensor(log_weights()), rtol=1e-5, atol=1e-6)
    assert found.exp().mean().item() == pytest.approx(1)
    assert item_prior(counts, 0.0) is None


@pytest.mark.parametrize("name", ["softmax", "slatk"])
def test_the_loss_over_the_catalogue_is_the_slow_sum(name):
    objective = objective_of(loss_of(name), effective_n=50)
    batch = next(iter(objective.batches.epoch(stream(0))))
    with torch.no_grad():
        queries, items, _ = objective.model.encode_batch(batch)
    weight, total = log_weights(), 0.0
    for row in range(len(batch.positives)):
        own = lists_of(batch.positives)[row]
        scores = [float(queries[row] @ item) for item in items]
        others = [math.exp(scores[j] / 0.2 + weight[j]) for j in range(N_ITEMS) if j not in own]
        partition = math.log(sum(others)) - math.log(N_ITEMS / 50)
        for i in own:
            near = 1.0 if name == "softmax" else 1 / (1 + math.exp(-scores[i] / 3.0))  # thresholds begin at 0
            total += near * (partition - scores[i] / 0.2)
    assert backward(objective)[0] == pytest.approx(total / batch.item.numel(), rel=1e-5)


@pytest.mark.parametrize("name", WITH_NEGATIVES)
@pytest.mark.parametrize("kind", NEGATIVES)
def test_every_head_has_the_gradients_of_autograd(name, kind):
    loss = loss_of(name)
    order = "query" if kind != "per_query" or "whole_queries" in loss.needs else "pair"
    found, expected = (
        backward(objective_of(loss_of(name), kind, order=order, effective_n=50), plain=plain) for plain in (False, True)
    )
    assert found[0] == pytest.approx(expected[0], rel=1e-6)
    assert_close(found[1], expected[1], rtol=1e-5, atol=1e-7)
    without = backward(objective_of(loss_of(name), kind, prior=0.0, order=order, effective_n=50))
    assert without[0] != pytest.approx(found[0], rel=1e-9)


@pytest.mark.parametrize("name", ["softmax", "slatk", "sogclr"])
def test_sampled_columns_have_the_weights_of_their_items(name):
    """All items drawn, in another order, are the whole catalogue."""
    whole = backward(objective_of(loss_of(name), effective_n=50))
    objective = objective_of(loss_of(name), "shared", effective_n=50)
    objective.negatives.n = N_ITEMS
    assert_close(backward(objective), whole, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("scale", [1.0, 100.0])  # the larger scores are shifted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_blocks_weigh_partitions_and_nothing_else(half, scale, dtype):
    generator = torch.Generator().manual_seed(3)
    queries, items = (torch.randn(n, 5, generator=generator, dtype=dtype) * scale**0.5 / 5 for n in (N_QUERIES, 70))
    weight = torch.randn(70, generator=generator)
    lists, level = positives(), torch.full((N_QUERIES,), 0.1 * scale, dtype=dtype)
    blocks = CatalogueBlocks(half=half, half_width=32)
    (bounds,) = blocks.begin(queries, items, 0.5, weight)
    found = blocks.forward(*bounds, lists, k=3, level=level)
    table = (queries @ items.T).double()
    hidden = table.clone()
    hidden[lists.owner(), lists.indices] = -math.inf
    expected = torch.logsumexp(hidden / 0.5 + weight, 1)
    rough = 1e-2 if half else 1e-4
    assert_close(found.partition.double(), expected, rtol=1e-5, atol=1e-4)
    assert_close(found.scores.double(), table[lists.owner(), lists.indices], rtol=1e-4, atol=1e-4)
    assert_close(found.threshold.double(), table.sort(1, descending=True).values[:, 2], rtol=1e-4, atol=1e-4)
    assert_close(found.above[0].double(), (table > level.unsqueeze(1)).double().sum(1), rtol=0, atol=0)
    blocks.backward(torch.zeros_like(found.scores), torch.ones_like(found.partition))
    q, i = (x.double().requires_grad_() for x in (queries, items))
    hidden = (q @ i.T).masked_fill(hidden == -math.inf, -math.inf)
    torch.logsumexp(hidden / 0.5 + weight, 1).sum().backward()
    size = max(1.0, scale**0.5)
    for one, other in zip(blocks.gradients(), (q.grad, i.grad), strict=True):
        assert_close(one.double(), other, rtol=rough, atol=rough * size)


@pytest.mark.parametrize("width", [1, 33, 257])
def test_the_kernel_adds_the_weight_to_the_exponent_and_not_to_the_counts(width):
    tile, weight = torch.randn(9, width), torch.randn(width)
    total, count, excess = torch.zeros(9), torch.zeros(9), torch.zeros(9)
    made = tile.clone()
    kernels.exp_sums(made, total, above=(torch.zeros(9), count, excess), log_weight=weight)
    assert_close(made, (tile + weight).exp(), rtol=1e-6, atol=0)
    assert_close(total, made.sum(1), rtol=1e-5, atol=0)
    assert torch.equal(count, (tile > 0).sum(1).float())
    assert_close(excess, tile.clamp(min=0).sum(1), rtol=1e-5, atol=1e-6)


def test_without_an_exponent_nothing_changes():
    context = Context(positives(), N_ITEMS)
    without = CatalogueObjective(
        objective_of(loss_of("slatk")).model, loss_of("slatk"), negatives_of("catalogue"), context
    )
    without.batches = objective_of(loss_of("slatk")).batches
    zero = objective_of(loss_of("slatk"), prior=0.0)
    assert isinstance(zero.head, PartitionHead)
    assert zero.head.log_weight is None
    assert_close(backward(zero), backward(without), rtol=0, atol=0)


def test_a_loss_without_negatives_refuses_it():
    values = {"loss": {"name": "directau"}, "negatives": {"prior": -0.5}}
    with pytest.raises(ConfigError, match=r"negatives\.prior does not go with loss directau.*got -0.5"):
        resolve(make_config(values))
    with pytest.raises(ConfigError, match=r"negatives\.prior"):
        make_config({"negatives": {"prior": -3}})
