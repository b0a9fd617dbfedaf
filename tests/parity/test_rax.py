"""Listwise losses beside rax 0.4.0 (on jax 0.10.2), values and gradients in float64.

Run by ``pytest -m parity tests/parity/test_rax.py`` where rax is installed. How the settings map:

- ListNet: ``softmax_loss`` with softmax as its ``label_fn``; SL: with gains 2^y - 1 over their sum, scores over tau.
- ListMLE: ``listmle_loss`` without a key sorts stably, which is ties="place"; without ties both rules agree with it.
- RankNet: ``pairwise_logistic_loss``, whose mean is over the pairs of the whole batch: one query at a time here.
- LambdaRank and LambdaLoss@K (form "original"): the same summed, with ``dcg_lambdaweight`` and ``dcg2_lambdaweight``,
  normalised, ``topn`` for k. rax multiplies weights by the length of the list, padding included: divided out here.
- LambdaLoss@K (form "paper"): the same weights, not normalised, of binary relevance.
- ApproxNDCG: one minus ``ndcg_metric`` over ``utils.approx_ranks``, which is what ``approx_t12n`` puts together;
  ``approx_t12n`` itself asks for ``jax.util``, which this jax no longer has.
- rax gives a query of one relevance throughout the cost of its formula, we give 0; such queries are left out.
- NeuralNDCG is not in rax, SL@K nowhere: both are checked in tests/losses alone.
"""

from __future__ import annotations

import functools

import pytest
import torch
from torch.testing import assert_close

from topshelf.losses import (
    approx_ndcg_loss,
    listmle_loss,
    listnet_loss,
    listwise_lambdaloss_at_k_loss,
    listwise_lambdarank_loss,
    listwise_softmax_loss,
    ranknet_loss,
)

pytestmark = pytest.mark.parity
jax = pytest.importorskip("jax")
rax = pytest.importorskip("rax")
jnp = pytest.importorskip("jax.numpy")

N_QUERIES, LENGTH = 6, 9


@pytest.fixture(autouse=True)
def double_precision():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def problem(padded, grades=5):
    """No score twice, no query of one relevance throughout."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(N_QUERIES, LENGTH, generator=generator, dtype=torch.float64)
    relevance = torch.randint(grades, (N_QUERIES, LENGTH), generator=generator)
    relevance[:, 0], relevance[:, 1] = 1, 0
    mask = torch.rand(N_QUERIES, LENGTH, generator=generator) < (0.3 if padded else -1.0)
    mask[:, :2] = False
    return scores, relevance, mask


def sums(**settings):
    return functools.partial(rax.pairwise_logistic_loss, reduce_fn=jnp.sum, **settings)


def lambdas(weights, k, *, normalize=True):
    one = sums(lambdaweight_fn=functools.partial(weights, topn=k, normalize=normalize))
    return lambda s, y, where: one(s, y, where=where) / LENGTH


def gain_shares(y, where=None):
    gains = jnp.where(where, 2.0**y - 1, 0.0)
    return gains / gains.sum(-1, keepdims=True)


def soft_labels(y, where=None):
    return jax.nn.softmax(jnp.where(where, y, -jnp.inf), axis=-1)


def both(ours, theirs, scores, relevance, mask):
    """Values and gradients of both, one query at a time for rax."""
    leaf = scores.clone().requires_grad_()
    found = ours(leaf, relevance, mask)
    found.sum().backward()
    given = (jnp.asarray(x.numpy()) for x in (scores, relevance.double(), ~mask))
    values, gradients = jax.vmap(jax.value_and_grad(theirs))(*given)
    assert_close(found.detach(), torch.tensor(values.tolist(), dtype=torch.float64))
    assert_close(leaf.grad, torch.tensor(gradients.tolist(), dtype=torch.float64))


def approx(s, y, where):
    smooth_ranks = functools.partial(rax.utils.approx_ranks, step_fn=lambda x: jax.nn.sigmoid(x / 0.2))
    return 1 - rax.ndcg_metric(s, y, where=where, rank_fn=smooth_ranks)


PAIRS = {
    "listnet": (listnet_loss, lambda s, y, w: rax.softmax_loss(s, y, where=w, label_fn=soft_labels)),
    "softmax": (
        functools.partial(listwise_softmax_loss, tau=0.4),
        lambda s, y, w: rax.softmax_loss(s / 0.4, y, where=w, label_fn=gain_shares),
    ),
    "listmle": (functools.partial(listmle_loss, ties="place"), lambda s, y, w: rax.listmle_loss(s, y, where=w)),
    "ranknet": (ranknet_loss, lambda s, y, w: rax.pairwise_logistic_loss(s, y, where=w)),
    "approx_ndcg": (functools.partial(approx_ndcg_loss, tau=0.2), approx),
}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", PAIRS)
def test_same_as_rax(name, padded):
    both(*PAIRS[name], *problem(padded))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("k", [None, 1, 3, 20])
def test_lambdarank_is_the_same_as_rax(k, padded):
    both(functools.partial(listwise_lambdarank_loss, k=k), lambdas(rax.dcg_lambdaweight, k), *problem(padded))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("k", [None, 1, 3, 20])
def test_lambdaloss_at_k_is_the_same_as_rax(k, padded):
    ours = functools.partial(listwise_lambdaloss_at_k_loss, k=k)
    both(ours, lambdas(rax.dcg2_lambdaweight, k), *problem(padded))


@pytest.mark.parametrize("k", [None, 3])
def test_lambdaloss_at_k_of_the_paper_is_the_same_as_rax_on_binary_relevance(k):
    ours = functools.partial(listwise_lambdaloss_at_k_loss, k=k, form="paper")
    both(ours, lambdas(rax.dcg2_lambdaweight, k, normalize=False), *problem(True, grades=2))


def test_listmle_without_ties_is_the_same_as_rax_under_both_rules():
    scores, _, mask = problem(True)
    relevance = torch.argsort(torch.rand(scores.shape, generator=torch.Generator().manual_seed(1)), dim=1)
    both(listmle_loss, lambda s, y, w: rax.listmle_loss(s, y, where=w), scores, relevance, mask)
