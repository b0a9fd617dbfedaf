"""Mixed negatives: the batch's items and each query's hardest, against a search one query at a time."""

from __future__ import annotations

import pytest
import torch
from torch import tensor

from lists import ragged
from topshelf.config import make_config
from topshelf.data import generate, make_split
from topshelf.drawing import draw_distinct
from topshelf.errors import ConfigError
from topshelf.evaluation import ndcg
from topshelf.losses import LOSSES
from topshelf.negatives import InBatch, Mixed
from topshelf.queries import Context, Encoded
from topshelf.ragged import Ragged
from topshelf.training.batches import Batches, stream
from topshelf.training.build import build_model, build_trainer, resolve
from vectors import batch_of, vectors_of

N_QUERIES, N_ITEMS = 12, 40


def problem(seed=0):
    generator = torch.Generator().manual_seed(seed)
    taken = torch.rand(N_QUERIES, N_ITEMS, generator=generator) < 0.15
    taken[:, 0], taken[:, -1] = True, False
    taken[3, :36] = True  # with few negatives
    positives = ragged(*(row.nonzero().flatten().tolist() for row in taken))
    return positives, *(torch.randn(n, 5, generator=generator) for n in (N_QUERIES, N_ITEMS))


def drawn(source, positives, batch, encoded, seed):
    return source.attach(Context(positives, N_ITEMS)).draw(batch, encoded, torch.Generator().manual_seed(seed))


def hardest(own, scores, pool, n_hard):
    """The items of the pool that are not the query's own, best first."""
    return sorted((item for item in pool if item not in own), key=lambda item: -scores[item])[:n_hard]


@pytest.mark.parametrize(("order", "size"), [("query", 3), ("query", N_QUERIES), ("pair", 6)])
@pytest.mark.parametrize(("n_hard", "pool"), [(1, 1), (4, 10), (4, 30), (10, 1000)])
@pytest.mark.parametrize("seed", range(3))
def test_they_are_the_items_of_the_batch_and_each_querys_hardest_of_the_pool(order, size, n_hard, pool, seed):
    positives, queries, items = problem(seed)
    batches = Batches(positives, N_ITEMS, order=order, size=size, repeat_queries=True)
    batch = next(batches.epoch(stream(seed)))
    encoded = Encoded(queries[batch.query], items)
    draw = drawn(Mixed(n_hard=n_hard, pool=pool), positives, batch, encoded, seed)
    in_batch = drawn(InBatch(), positives, batch, encoded, seed)
    shared = sorted(set(batch.item.tolist()))
    order_drawn = draw_distinct(pool, N_ITEMS, torch.Generator().manual_seed(seed)).tolist()
    rest = [item for item in order_drawn if item not in shared]
    counted = ~draw.mask(draw.items.size(1))
    scores = (encoded.queries @ items.T).tolist()
    for row, query in enumerate(batch.query.tolist()):
        own = positives.slice(query, query + 1).indices.tolist()
        expected = [item for item in shared if item not in own] + hardest(own, scores[row], rest, n_hard)
        assert draw.items[row, counted[row]].tolist() == expected
        assert len(set(expected)) == len(expected)
    n_shared = len(shared)
    assert torch.equal(draw.log_q[:n_shared], in_batch.log_q)
    assert (draw.log_q[n_shared:] == 0).all()
    assert draw.items.shape == (batch.query.numel(), n_shared + min(n_hard, len(rest)))


def test_a_query_with_too_few_negatives_in_the_pool_has_the_places_left_over_masked():
    positives = ragged([0, 1, 2, 3], [0])
    batch = batch_of(tensor([0, 1]), tensor([0, 0, 0, 0, 1]), tensor([0, 1, 2, 3, 0]))
    # A batch of one pair, of those two queries: items 1 to 3 are in the pool, and positives of the first query only.
    batch = type(batch)(batch.query, tensor([0, 1]), tensor([0, 0]), batch.positives, is_whole=False, begin=batch.begin)
    encoded = Encoded(torch.ones(2, 1), tensor([[0.0], [5.0], [4.0], [3.0], [2.0], [1.0]]))
    source = Mixed(n_hard=4, pool=6).attach(Context(positives, 6))
    draw = source.draw(batch, encoded, torch.Generator().manual_seed(0))
    counted = ~draw.mask(5)
    assert draw.items[0, counted[0]].tolist() == [4, 5]
    assert draw.items[1, counted[1]].tolist() == [1, 2, 3, 4]


def test_a_pool_of_nothing_but_the_batchs_items_leaves_those():
    positives = ragged([0, 1], [2], [0])
    batch = batch_of(torch.arange(3), positives.owner(), positives.indices)
    source = Mixed(n_hard=2, pool=3).attach(Context(positives, 3))
    draw = source.draw(batch, Encoded(torch.ones(3, 1), torch.ones(3, 1)), torch.Generator())
    assert draw.items.tolist() == [[0, 1, 2]] * 3
    assert draw.mask(3).tolist() == [[True, True, False], [False, False, True], [True, False, False]]


def test_drawing_leaves_the_vectors_without_a_graph_alone():
    positives, queries, items = problem()
    batch = batch_of(torch.arange(N_QUERIES), positives.owner(), positives.indices)
    encoded = Encoded(queries.requires_grad_(), items.requires_grad_())
    draw = drawn(Mixed(n_hard=3, pool=20), positives, batch, encoded, 0)
    assert not draw.log_q.requires_grad


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"n_hard": 0}, "n_hard must be >= 1, got 0"), ({"n_hard": 5, "pool": 4}, "pool must be >= 5, got 4")],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Mixed(**settings)


def ranked(model, positives):
    """NDCG@5 of the training positives themselves."""
    nothing = Ragged(torch.zeros_like(positives.indptr), positives.indices[:0])
    with torch.no_grad():
        return ndcg(*vectors_of(model), positives, nothing, 5)


def trainer_of(loss, **train):
    negatives = {"kind": "mixed", "n_hard": 5, "pool": 20}
    train = {"epochs": 5, "batch_size": 16, "learning_rate": 0.05, **train}
    config = resolve(make_config({"k": 5, "loss": {"name": loss}, "negatives": negatives, "train": train}))
    positives = make_split(generate(60, 50, interactions_per_user=8, seed=1), seed=0).train.ragged()
    return build_trainer(config, build_model(config, 60, 50), Context(positives, 50)), positives


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_trains_with_them(loss):
    trainer, positives = trainer_of(loss)
    before = ranked(trainer.model, positives)
    trainer.run()
    losses = [record["loss"] for record in trainer.progress.history]
    assert all(value.isfinite().all() for value in trainer.model.state_dict().values())
    # The negatives get harder as the model learns, so a loss need not fall.
    assert losses[-1] < losses[0] or ranked(trainer.model, positives) > before


@pytest.mark.parametrize("order", ["query", "pair"])
@pytest.mark.parametrize("loss", ["softmax", "slatk", "bpr"])
def test_training_lowers_the_loss(loss, order):
    trainer, positives = trainer_of(loss, order=order, epochs=10)
    before = ranked(trainer.model, positives)
    trainer.run()
    losses = [record["loss"] for record in trainer.progress.history]
    assert losses[-1] < losses[0]
    assert ranked(trainer.model, positives) > before
