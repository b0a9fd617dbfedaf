"""log_partition against the direct formula; top_k has its own tests in test_ranking.py."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from topshelf.catalogue import CatalogueBlocks, Workspace, log_partition
from topshelf.errors import ConfigError, DataError
from topshelf.ragged import Ragged, ragged_from_pairs


def direct(queries, items, tau, exclude=None, log_weight=None):
    logits = queries @ items.T / tau
    if log_weight is not None:
        logits = logits + log_weight
    if exclude is not None:
        mask = torch.zeros_like(logits, dtype=torch.bool)
        mask[exclude.owner(), exclude.indices] = True
        logits = logits.masked_fill(mask, -math.inf)
    return logits.logsumexp(1)


def random_lists(n_queries, n_items, generator, share=0.3):
    row, column = (torch.rand(n_queries, n_items, generator=generator) < share).nonzero(as_tuple=True)
    return ragged_from_pairs(row, column, n_queries)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n_queries=st.integers(1, 9),
    n_items=st.integers(2, 23),
    columns=st.integers(1, 25),
    weighted=st.booleans(),
    tau=st.sampled_from([0.005, 0.2, 3.0]),
)
def test_value_and_gradients_equal_the_direct_formula_for_every_tile_size(
    seed, n_queries, n_items, columns, weighted, tau
):
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(n_queries, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    items = torch.randn(n_items, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    exclude = random_lists(n_queries, n_items - 1, generator)  # the last item is never excluded
    log_weight = torch.randn(n_items, generator=generator, dtype=torch.float64) if weighted else None
    upstream = torch.randn(n_queries, generator=generator, dtype=torch.float64)
    workspace = Workspace(budget=n_queries * columns * 8)

    ours = log_partition(queries, items, tau, exclude=exclude, log_weight=log_weight, workspace=workspace)
    found = torch.autograd.grad(ours @ upstream, (queries, items))
    reference = direct(queries, items, tau, exclude, log_weight)
    expected = torch.autograd.grad(reference @ upstream, (queries, items))

    assert_close(ours, reference)
    assert_close(found, expected)


@pytest.mark.parametrize("budget", [64, 2**20])
def test_gradcheck(budget):
    torch.manual_seed(0)
    queries = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    items = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    exclude = Ragged(torch.tensor([0, 1, 1, 3]), torch.tensor([2, 0, 6]))

    def function(q, i):
        return log_partition(q, i, 0.5, exclude=exclude, workspace=Workspace(budget))

    assert torch.autograd.gradcheck(function, (queries, items))


def test_float32_gradients_agree_with_autograd_to_1e_5():
    torch.manual_seed(0)
    queries = torch.nn.functional.normalize(torch.randn(40, 16), dim=1).requires_grad_()
    items = torch.nn.functional.normalize(torch.randn(200, 16), dim=1).requires_grad_()
    found = torch.autograd.grad(log_partition(queries, items, 0.2).sum(), (queries, items))
    expected = torch.autograd.grad(direct(queries, items, 0.2).sum(), (queries, items))
    assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_workspace_used_again_before_backward_gives_the_same_gradient():
    torch.manual_seed(0)
    workspace = Workspace()
    queries = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    items = torch.randn(11, 4, dtype=torch.float64)
    first = log_partition(queries, items, 0.3, workspace=workspace)
    second = log_partition(queries * 2, items, 0.3, workspace=workspace)
    found = torch.autograd.grad((first + second).sum(), queries)
    expected = torch.autograd.grad((direct(queries, items, 0.3) + direct(queries * 2, items, 0.3)).sum(), queries)
    assert_close(found, expected)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("tau", [0.005, 1.0])
@pytest.mark.parametrize("budget", [256, 2**20])
def test_no_score_and_no_temperature_overflows(scale, tau, budget):
    torch.manual_seed(0)
    queries = (torch.randn(6, 8) * scale).requires_grad_()
    items = torch.randn(50, 8, requires_grad=True)
    value = log_partition(queries, items, tau, workspace=Workspace(budget))
    value.sum().backward()
    assert value.isfinite().all()
    assert queries.grad.isfinite().all()
    assert items.grad.isfinite().all()
    assert_close(value.double(), direct(queries.double(), items.double(), tau), rtol=1e-5, atol=1e-4)


def test_a_query_with_everything_excluded_is_minus_infinity_without_gradient():
    queries, items = torch.ones(2, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    exclude = Ragged(torch.tensor([0, 4, 4]), torch.arange(4))
    for budget in (8, 2**20):
        queries.grad = None
        value = log_partition(queries, items, 0.2, exclude=exclude, workspace=Workspace(budget))
        value[1:].sum().backward()
        assert value[0] == -math.inf
        assert queries.grad[0].eq(0).all()
        assert queries.grad.isfinite().all()


def test_bfloat16_tables_are_summed_in_float32():
    torch.manual_seed(0)
    queries, items = torch.randn(3, 8).bfloat16(), torch.randn(500, 8).bfloat16()
    value = log_partition(queries, items, 0.5)
    assert value.dtype == torch.float32
    assert_close(value, direct(queries.float(), items.float(), 0.5))


def test_a_temperature_of_zero_is_refused():
    with pytest.raises(ConfigError, match="tau must be > 0, got 0"):
        log_partition(torch.ones(1, 2), torch.ones(1, 2), 0.0)


def by_head(queries, items, tau, positives, weights, budget, **options):
    """Gradients of sum(weights * (partition[owner] * 2 - positive / tau)) by CatalogueBlocks."""
    head = CatalogueBlocks(budget, **options)
    scores, partitions = [], []
    for start, stop in head.begin(queries, items, tau):
        block = positives.slice(start, stop)
        made = head.forward(start, stop, block)
        positive, partition = made.scores.requires_grad_(), made.partition.requires_grad_()
        part = weights[int(positives.indptr[start]) : int(positives.indptr[stop])]
        finite = partition.masked_fill(partition == -math.inf, 0.0)
        value = (part * (finite[block.owner()] * 2 - positive / tau)).sum()
        head.backward(*torch.autograd.grad(value, (positive, partition)))
        scores.append(positive.detach())
        partitions.append(partition.detach())
    return torch.cat(scores), torch.cat(partitions), [gradient.clone() for gradient in head.gradients()]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n_queries=st.integers(1, 12),
    n_items=st.integers(2, 40),
    rows=st.integers(1, 12),
    tau=st.sampled_from([0.005, 0.2, 3.0]),
    zeros=st.booleans(),
)
def test_the_head_equals_autograd_for_every_block_size(seed, n_queries, n_items, rows, tau, zeros):
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(n_queries, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    items = torch.randn(n_items, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    positives = random_lists(n_queries, n_items - 1, generator)
    weights = torch.rand(positives.indices.numel(), generator=generator, dtype=torch.float64)
    if zeros:  # rows whose partition does not matter
        weights[positives.owner() % 2 == 0] = 0.0
    owner = positives.owner()
    positive = (queries[owner] * items[positives.indices]).sum(1)
    partition = direct(queries, items, tau, positives)
    value = (weights * (partition[owner] * 2 - positive / tau)).sum()
    expected = torch.autograd.grad(value, (queries, items))

    stride = -(-n_items // 32) * 32
    scores, partitions, found = by_head(
        queries.detach(), items.detach(), tau, positives, weights, budget=rows * stride * 8
    )
    assert_close(scores, positive.detach())
    assert_close(partitions, partition.detach())
    assert_close(found, list(expected))


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("tau", [0.005, 1.0])
def test_the_head_does_not_overflow(scale, tau):
    generator = torch.Generator().manual_seed(0)
    queries, items = torch.randn(6, 8, generator=generator) * scale, torch.randn(50, 8, generator=generator)
    positives = random_lists(6, 50, generator)
    weights = torch.ones(positives.indices.numel())
    scores, partitions, found = by_head(queries, items, tau, positives, weights, budget=2**20)
    assert scores.isfinite().all()
    assert partitions.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in found)


def test_a_query_with_everything_excluded_moves_nothing():
    generator = torch.Generator().manual_seed(0)
    queries, items = torch.randn(2, 3, generator=generator), torch.randn(4, 3, generator=generator)
    positives = Ragged(torch.tensor([0, 4, 5]), torch.tensor([0, 1, 2, 3, 1]))
    weights = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0])
    _, partitions, (to_queries, to_items) = by_head(queries, items, 0.2, positives, weights, budget=2**20)
    assert partitions[0] == -math.inf
    assert to_queries[0].eq(0).all()
    assert to_items.isfinite().all()


@pytest.mark.parametrize("n_items", [40, 2000])
def test_the_head_reads_the_kth_best_score_off_the_same_pass(n_items):
    generator = torch.Generator().manual_seed(0)
    queries, items = torch.randn(7, 8, generator=generator), torch.randn(n_items, 8, generator=generator)
    positives = random_lists(7, n_items, generator, share=0.05)
    head = CatalogueBlocks()
    for start, stop in head.begin(queries, items, 0.3):
        block = positives.slice(start, stop)
        made = head.forward(start, stop, block, k=20)
        assert_close(made.threshold, (queries @ items.T)[start:stop].topk(20).values[:, -1])


@pytest.mark.parametrize("n_items", [40, 2000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 100.0])  # the larger scores are shifted
def test_the_head_counts_the_items_above_a_level(n_items, dtype, scale):
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(7, 8, generator=generator, dtype=dtype) * scale
    items = torch.randn(n_items, 8, generator=generator, dtype=dtype)
    positives = random_lists(7, n_items, generator, share=0.05)
    level = torch.randn(7, generator=generator, dtype=dtype) * scale
    scores = queries @ items.T
    over = (scores - level.unsqueeze(1)).clamp(min=0)
    head = CatalogueBlocks(3 * 64 * dtype.itemsize)
    for start, stop in head.begin(queries, items, 0.3):
        count, excess = head.forward(start, stop, positives.slice(start, stop), level=level[start:stop]).above
        assert torch.equal(count, (over[start:stop] > 0).sum(1).to(dtype))
        assert_close(excess, over[start:stop].sum(1), rtol=1e-4, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n_items=st.integers(2, 400),
    rows=st.integers(1, 12),
    width=st.sampled_from([32, 64, 4096]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_the_head_in_bfloat16_gives_the_same_partitions_and_nearly_the_same_gradients(
    seed, n_items, rows, width, dtype
):
    generator = torch.Generator().manual_seed(seed)
    queries = torch.nn.functional.normalize(torch.randn(9, 8, generator=generator, dtype=dtype))
    items = torch.nn.functional.normalize(torch.randn(n_items, 8, generator=generator, dtype=dtype))
    positives = random_lists(9, n_items - 1, generator)
    weights = torch.rand(positives.indices.numel(), generator=generator, dtype=dtype)
    whole = by_head(queries, items, 0.2, positives, weights, budget=2**20)
    stride = -(-n_items // 32) * 32
    half = by_head(queries, items, 0.2, positives, weights, rows * stride * 2, half=True, half_width=width)
    assert_close(half[0], whole[0])
    assert_close(half[1], whole[1])
    for found, expected in zip(half[2], whole[2], strict=True):
        assert (found - expected).norm() <= 0.02 * expected.norm() + 1e-9


def test_scores_that_must_be_shifted_are_kept_in_float32():
    generator = torch.Generator().manual_seed(0)
    queries, items = torch.randn(6, 8, generator=generator) * 50, torch.randn(100, 8, generator=generator)
    positives = random_lists(6, 100, generator)
    weights = torch.ones(positives.indices.numel())
    whole = by_head(queries, items, 0.2, positives, weights, budget=2**20)
    half = by_head(queries, items, 0.2, positives, weights, budget=2**20, half=True)
    assert_close(half, whole, rtol=0, atol=0)


@pytest.mark.parametrize("bound", [30.0, 39.9, 45.0, 60.0])
def test_the_head_keeps_small_gradients_of_large_logits(bound):
    generator = torch.Generator().manual_seed(0)
    direction = torch.nn.functional.normalize(torch.randn(1, 8, generator=generator))
    items = torch.nn.functional.normalize(direction + 0.01 * torch.randn(2000, 8, generator=generator)).double()
    queries = torch.nn.functional.normalize(direction + 0.01 * torch.randn(5, 8, generator=generator)).double()
    positives = random_lists(5, 2000, generator, share=0.002)
    weights = torch.full((positives.indices.numel(),), 1 / 2048, dtype=torch.float64)
    expected = by_head(queries, items, 1 / bound, positives, weights, budget=2**20)[2]
    found = by_head(queries.float(), items.float(), 1 / bound, positives, weights.float(), budget=2**20)[2]
    for gradient, wanted in zip(found, expected, strict=True):
        assert (gradient.double() - wanted).norm() <= 1e-4 * wanted.norm()


def test_the_head_has_no_blocks_without_queries_and_no_kth_best_beyond_the_catalogue():
    head = CatalogueBlocks()
    assert head.begin(torch.empty(0, 3), torch.randn(4, 3), 0.2) == []
    (start, stop), *_ = head.begin(torch.randn(2, 3), torch.randn(4, 3), 0.2)
    with pytest.raises(ConfigError, match="k must be <= 4"):
        head.forward(start, stop, Ragged(torch.tensor([0, 0, 0]), torch.empty(0, dtype=torch.int64)), k=5)


def test_half_width_counts_its_scratch_in_the_budget():
    head = CatalogueBlocks(2**20, half=True)
    head.begin(
        torch.nn.functional.normalize(torch.randn(5000, 4)), torch.nn.functional.normalize(torch.randn(100, 4)), 1
    )
    assert head.kept.nbytes + head.scratch.nbytes <= 2**20


def test_an_excluded_item_that_is_not_there_is_refused():
    exclude = Ragged(torch.tensor([0, 1, 1]), torch.tensor([4]))
    with pytest.raises(DataError, match=r"exclude names item 4 in list 0, but there are 4 items \(0 to 3\)"):
        log_partition(torch.ones(2, 3), torch.ones(4, 3), 0.2, exclude=exclude)
