"""CCL and DirectAU against their formulas written as explicit loops in float64."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import tensor
from torch.testing import assert_close

from topshelf.errors import ConfigError
from topshelf.losses import CCL, DirectAU, ccl_loss, cosine, directau_loss


def problem(seed=0, n_queries=4, n_positives=9, n_negatives=6):
    """Cosines; the last query's negatives are all masked, and positive 0 is its."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64) * 2 - 1

    mask = torch.rand(n_queries, n_negatives, generator=generator) < 0.3
    mask[-1] = True
    owner = torch.randint(n_queries - 1, (n_positives,), generator=generator)
    owner[0] = n_queries - 1
    return uniform(n_positives), uniform(n_queries, n_negatives), owner, {"mask": mask, "log_q": uniform(n_negatives)}


@pytest.mark.parametrize(("margin", "weight"), [(0.0, 1.0), (0.4, 50.0)])
def test_ccl_follows_its_formula(margin, weight):
    positive, negative, owner, extras = problem()
    wanted = []
    for s, q in zip(positive.tolist(), owner.tolist(), strict=True):
        counted = [j for j in range(negative.size(1)) if not extras["mask"][q, j]]
        shares = [math.exp(-float(extras["log_q"][j])) for j in counted]
        pushed = sum(w * max(0.0, float(negative[q, j]) - margin) for j, w in zip(counted, shares, strict=True))
        wanted.append((1 - s) + weight * pushed / sum(shares) if counted else 0.0)
    found = ccl_loss(positive, negative, owner, margin=margin, weight=weight, **extras)
    assert_close(found, tensor(wanted, dtype=torch.float64))


def test_ccl_gradcheck():
    positive, negative, owner, extras = problem()
    inputs = (positive.requires_grad_(), negative.requires_grad_())
    assert torch.autograd.gradcheck(lambda p, n: ccl_loss(p, n, owner, margin=0.2, weight=10.0, **extras), inputs)


def test_ccl_leaves_negatives_below_the_margin_alone():
    negative = tensor([[0.3, 0.5]], requires_grad=True)
    ccl_loss(tensor([0.9]), negative, margin=0.4, weight=10.0).sum().backward()
    assert negative.grad.tolist() == [[0.0, 5.0]]


def vectors(seed=0, n_queries=4, n_positives=9, dim=3):
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(n_queries, dim, generator=generator, dtype=torch.float64)
    items = torch.randn(n_positives, dim, generator=generator, dtype=torch.float64)
    owner = torch.cat(
        [torch.arange(n_queries), torch.randint(n_queries, (n_positives - n_queries,), generator=generator)]
    )
    return queries, items, owner


def cosines(queries, items, owner):
    return F.cosine_similarity(queries[owner], items)


def slow_uniformity(rows):
    """``rows``: (identity, vector) each as often as it counts."""
    terms = []
    for name, x in rows:
        for other, y in rows:
            if name != other:
                distance = sum((a / math.hypot(*x) - b / math.hypot(*y)) ** 2 for a, b in zip(x, y, strict=True))
                terms.append(math.exp(-2 * distance))
    return math.log(sum(terms) / len(terms)) if terms else 0.0


def slow_directau(queries, items, owner, gamma, query):
    """From the vectors alone, as a batch of pairs."""
    spread = slow_uniformity([(query[q], queries[q].tolist()) for q in owner.tolist()])
    spread += slow_uniformity([(i, items[i].tolist()) for i in range(len(items))])
    losses = []
    for i, q in enumerate(owner.tolist()):
        x, y = queries[q].tolist(), items[i].tolist()
        align = sum((a / math.hypot(*x) - b / math.hypot(*y)) ** 2 for a, b in zip(x, y, strict=True))
        losses.append(align + gamma * spread / 2)
    return tensor(losses, dtype=torch.float64)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 10.0])
@pytest.mark.parametrize("query", [[0, 1, 2, 3], [5, 2, 5, 7]])  # the second: one query in two rows
def test_directau_follows_its_formula(gamma, query):
    queries, items, owner = vectors()
    found = directau_loss(
        cosines(queries, items, owner),
        owner,
        query_vector=queries,
        item_vector=items,
        gamma=gamma,
        query=torch.tensor(query),
    )
    assert_close(found, slow_directau(queries, items, owner, gamma, query))


def test_directau_of_different_rows_is_the_log_mean_of_torchs_pair_distances():
    queries, items, _ = vectors(n_queries=6, n_positives=6)
    queries, items = F.normalize(queries, dim=1), F.normalize(items, dim=1)
    positive = (queries * items).sum(1)
    spread = [torch.pdist(rows).pow(2).mul(-2).exp().mean().log() for rows in (queries, items)]
    wanted = (queries - items).pow(2).sum(1).mean() + 2.0 * (spread[0] + spread[1]) / 2
    found = DirectAU(gamma=2.0)(positive, query_vector=queries, item_vector=items)
    assert_close(found, wanted)


def test_directau_gradcheck_with_respect_to_the_vectors():
    queries, items, owner = vectors()

    def run(q, v):
        return directau_loss(cosines(q, v, owner), owner, query_vector=q, item_vector=v, gamma=2.0)

    assert torch.autograd.gradcheck(run, (queries.requires_grad_(), items.requires_grad_()))


def test_directau_by_blocks_is_directau_in_one_piece(monkeypatch):
    found = []
    for block in (2**21, 20):  # 20 pairs: two rows of items at a time
        monkeypatch.setattr(cosine, "_BLOCK", block)
        queries, items, owner = vectors()
        queries.requires_grad_()
        items.requires_grad_()
        positive = cosines(queries, items, owner)
        loss = directau_loss(positive, owner, query_vector=queries, item_vector=items, gamma=2.0)
        loss.mean().backward()
        found.append((loss.detach(), queries.grad, items.grad))
    for whole, blocks in zip(*found, strict=True):
        assert_close(whole, blocks)


def test_directau_keeps_nothing_of_the_size_of_the_pairs():
    """4096 rows are 16.8 million pairs, 64 MiB: more than everything that autograd may keep."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(4096, 4, generator=generator, requires_grad=True)
    kept = []

    def pack(tensor):
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        cosine.uniformity(rows)
    assert 0 < sum(kept) < 40 * 4096


def test_an_item_that_comes_often_counts_as_often_and_its_rows_share_the_gradient():
    """Against torch's distances of all pairs of rows; equal ones are at distance 0, where the square root has none."""
    table = vectors(n_positives=5)[1]
    item = torch.tensor([0, 1, 1, 2, 3, 1, 4, 0])
    rows, plain = table[item].requires_grad_(), table[item].requires_grad_()
    found = cosine.uniformity(rows)
    unit = F.normalize(plain, dim=1)
    first, second = torch.triu_indices(8, 8, 1)
    wanted = (unit[first] - unit[second]).pow(2).sum(1).mul(-2).exp().mean().log()
    assert_close(found, wanted)
    assert_close(torch.autograd.grad(found, rows), torch.autograd.grad(wanted, plain))


def test_directau_of_a_single_pair_is_its_alignment_with_a_finite_gradient():
    query, item = tensor([[3.0, 4.0]], requires_grad=True), tensor([[1.0, 0.0]], requires_grad=True)
    positive = F.cosine_similarity(query, item)
    loss = DirectAU(gamma=5.0)(positive, query_vector=query, item_vector=item)
    loss.backward()
    assert_close(loss.detach(), tensor(2 - 2 * 0.6))
    assert query.grad.isfinite().all()
    assert item.grad.isfinite().all()


def test_directau_without_gradients_has_the_same_value():
    queries, items, owner = vectors()
    positive = cosines(queries, items, owner)
    plain = directau_loss(positive, owner, query_vector=queries, item_vector=items, gamma=1.0)
    moved = directau_loss(positive, owner, query_vector=queries.requires_grad_(), item_vector=items, gamma=1.0)
    assert_close(plain, moved.detach())


def test_directau_compiles_with_gradients_to_the_vectors():
    def gradients(module):
        queries, items, owner = vectors()
        queries.requires_grad_()
        items.requires_grad_()
        positive = cosines(queries, items, owner).detach().requires_grad_()
        module(positive, owner=owner, query_vector=queries, item_vector=items).backward()
        return positive.grad, queries.grad, items.grad

    compiled = torch.compile(DirectAU(), fullgraph=True, backend="aot_eager")
    assert_close(gradients(compiled), gradients(DirectAU()))
    torch._dynamo.reset()


def test_directau_says_what_it_needs():
    assert DirectAU().scope == "batch"
    with pytest.raises(ConfigError, match="pass query_vector"):
        DirectAU()(torch.zeros(2))


@pytest.mark.parametrize(
    ("loss", "settings", "message"),
    [
        (CCL, {"margin": 1.5}, "margin must be <= 1.0, got 1.5"),
        (CCL, {"margin": -2.0}, "margin must be >= -1.0, got -2.0"),
        (CCL, {"weight": -1.0}, "weight must be >= 0.0, got -1.0"),
        (DirectAU, {"gamma": -1.0}, "gamma must be >= 0.0, got -1.0"),
    ],
)
def test_bad_settings_are_refused(loss, settings, message):
    with pytest.raises(ConfigError, match=message):
        loss(**settings)
