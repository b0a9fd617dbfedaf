"""Batches and steps on graded lists."""

from __future__ import annotations

import pytest
import torch

from topshelf.errors import TrainingError
from topshelf.graded_lists import GradedLists, ListContext
from topshelf.list_evaluation import mean_ndcg
from topshelf.losses import LISTWISE
from topshelf.models.list_networks import MLPRanker, TransformerRanker
from topshelf.training.batches import stream
from topshelf.training.list_objective import ListBatches, ListObjective, shortened, varied_queries


def lists(n_queries=50, seed=0, longest=20):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (n_queries,), generator=generator)
    features = torch.randn(int(lengths.sum()), 4, generator=generator)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return GradedLists(features, (2 * features[:, 0]).clamp(0, 3).round(), indptr)


def test_an_epoch_has_every_query_with_an_order_once():
    data = lists()
    batches = ListBatches(data, size=4)
    seen = [batch.query for batch in batches.epoch(stream(0))]
    assert len(seen) == len(batches)
    expected = [q for q in range(50) if data.grades[data.indptr[q] : data.indptr[q + 1]].unique().numel() > 1]
    assert sorted(torch.cat(seen).tolist()) == expected == varied_queries(data).tolist()
    assert len(expected) < 50
    again = [batch.query.tolist() for batch in batches.epoch(stream(0))]
    assert again == [query.tolist() for query in seen]
    assert again != [batch.query.tolist() for batch in batches.epoch(stream(1))]


def test_batches_hold_lists_of_similar_length():
    data = lists(400)

    def padded(batches):
        return sum(int(batch.lists.lengths.max()) * len(batch.lists) for batch in batches.epoch(stream(0)))

    bucketed, whole = padded(ListBatches(data, size=16)), padded(ListBatches(data, size=400))
    assert bucketed < 0.8 * whole


def test_a_batch_has_the_documents_of_its_queries():
    data = lists()
    batch = next(ListBatches(data, size=3).epoch(stream(0)))
    for place, query in enumerate(batch.query.tolist()):
        mine = slice(int(batch.lists.indptr[place]), int(batch.lists.indptr[place + 1]))
        theirs = slice(int(data.indptr[query]), int(data.indptr[query + 1]))
        assert torch.equal(batch.lists.features[mine], data.features[theirs])
        assert torch.equal(batch.lists.grades[mine], data.grades[theirs])


def test_long_lists_lose_irrelevant_documents_first_and_stay_varied():
    data = lists(60, longest=40)
    chosen = data.select(varied_queries(data))
    cut = shortened(chosen, 8, stream(0))
    assert cut.lengths.tolist() == chosen.lengths.clamp(max=8).tolist()
    assert varied_queries(cut).numel() == len(chosen)
    for query in range(len(chosen)):
        before = chosen.grades[chosen.indptr[query] : chosen.indptr[query + 1]]
        after = cut.grades[cut.indptr[query] : cut.indptr[query + 1]]
        assert (after > 0).sum() >= min(int((before > 0).sum()), 7)
    assert not torch.equal(shortened(chosen, 8, stream(1)).features, cut.features)
    assert int(next(ListBatches(data, size=60, slate=5).epoch(stream(0))).lists.lengths.max()) == 5


def test_lists_that_say_nothing_are_refused():
    flat = lists()
    with pytest.raises(TrainingError, match="nothing to rank"):
        ListBatches(GradedLists(flat.features, flat.grades * 0, flat.indptr), size=4)


@pytest.mark.parametrize("name", LISTWISE)
def test_every_loss_trains_a_network(name):
    data = lists(120, longest=12)
    torch.manual_seed(0)
    model = MLPRanker(4, hidden=(16,), dropout=0.0, transform="standardise")
    model.prepare(ListContext(data))
    # Without bounds on the scores, SL@K can fall by pushing positives down, where their weight vanishes.
    settings = {"detach_weight": True} if name == "slatk" else {}
    objective = ListObjective(model, LISTWISE[name](**settings), ListBatches(data, size=32))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    before = ndcg(model, data)
    for epoch in range(40):
        for batch in objective.batches.epoch(stream(0, epoch)):
            optimizer.zero_grad()
            objective.backward(batch, stream(0))
            optimizer.step()
    assert ndcg(model, data) > max(0.93, before + 0.1)


def ndcg(model, data):
    with torch.no_grad():
        return mean_ndcg(model.score(data.features, data.indptr), data.grades, data.indptr, 5)


def test_padding_changes_no_loss():
    data = lists()
    model = TransformerRanker(4, dim=8, hidden=8, dropout=0.0)
    objective = ListObjective(model, LISTWISE["slatk"](reduction="none"), ListBatches(data, size=8))
    batch = next(objective.batches.epoch(stream(0)))
    together = objective.value(batch)
    for place in range(8):
        alone = batch._replace(query=batch.query[place : place + 1], lists=batch.lists.select(torch.tensor([place])))
        torch.testing.assert_close(objective.value(alone)[0], together[place], rtol=1e-4, atol=1e-5)
