"""Sampled softmax and CCL against pytorch-metric-learning (written for 2.9.0), which is not installed by default.

pip install --no-deps --target DIR pytorch-metric-learning==2.9.0 && PYTHONPATH=DIR pytest -m parity tests/parity
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from topshelf.losses import CCL, SampledSoftmax

outside = pytest.importorskip("pytorch_metric_learning.losses")
distances = pytest.importorskip("pytorch_metric_learning.distances")
reducers = pytest.importorskip("pytorch_metric_learning.reducers")

pytestmark = pytest.mark.parity


def problem(seed=0, n_queries=5, n_items=14, dim=8):
    """Vectors of any length. An item is a positive of the query whose label it has, and a negative of all others."""
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(n_queries, dim, generator=generator, dtype=torch.float64)
    items = torch.randn(n_items, dim, generator=generator, dtype=torch.float64)
    labels = torch.cat([torch.arange(n_queries), torch.randint(n_queries, (n_items - n_queries,), generator=generator)])
    return queries.requires_grad_(), items.requires_grad_(), labels


def ours(loss, queries, items, labels):
    """In-batch negatives: every item is a column, masked where it is a positive of the row's query."""
    scores = F.normalize(queries, dim=1) @ F.normalize(items, dim=1).T
    mask = torch.arange(queries.size(0)).unsqueeze(1) == labels
    return loss(scores[labels, torch.arange(labels.numel())], scores, labels, mask=mask)


def theirs(loss, queries, items, labels):
    return loss(queries, torch.arange(queries.size(0)), ref_emb=items, ref_labels=labels)


def assert_same_value_and_gradients(one, other, given):
    queries, items, _ = given
    mine, outer = ours(one, *given), theirs(other, *given)
    assert_close(mine, outer)
    for a, b in zip(
        torch.autograd.grad(mine, (queries, items)), torch.autograd.grad(outer, (queries, items)), strict=True
    ):
        assert a.abs().max() > 1e-3
        assert_close(a, b)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("tau", [0.05, 0.2, 1.0])
def test_sampled_softmax_without_correction_is_their_infonce(seed, tau):
    assert_same_value_and_gradients(SampledSoftmax(tau=tau), outside.NTXentLoss(temperature=tau), problem(seed))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_ccl_of_equal_sides_is_their_contrastive_loss_on_cosines(seed, margin):
    """Theirs takes one mean over all pairs, so the queries must have equally many of them: one positive each."""
    contrastive = outside.ContrastiveLoss(
        pos_margin=1, neg_margin=margin, distance=distances.CosineSimilarity(), reducer=reducers.MeanReducer()
    )
    assert_same_value_and_gradients(CCL(margin=margin, weight=1.0), contrastive, problem(seed, n_queries=9, n_items=9))
