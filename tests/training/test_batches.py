"""Batches: everything once an epoch, in an order that only the stream decides."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lists import ragged
from topshelf.training.batches import Batches, stream

N_ITEMS = 6
LISTS = st.lists(st.sets(st.integers(0, N_ITEMS - 1)).map(sorted), min_size=1, max_size=9)
ORDERS = pytest.mark.parametrize(("order", "repeat"), [("query", False), ("pair", False), ("pair", True)])


def pairs_of(batch):
    return list(zip(batch.query[batch.owner].tolist(), batch.item.tolist(), strict=True))


@ORDERS
@settings(max_examples=50, deadline=None)
@given(rows=LISTS, size=st.integers(1, 12), seed=st.integers(0, 99))
def test_every_pair_of_a_rankable_query_comes_exactly_once_an_epoch(order, repeat, rows, size, seed):
    batches = Batches(ragged(*rows), N_ITEMS, order=order, size=size, repeat_queries=repeat)
    epoch = list(batches.epoch(stream(seed)))
    expected = [(q, item) for q, row in enumerate(rows) if 0 < len(row) < N_ITEMS for item in row]
    assert sorted(pair for batch in epoch for pair in pairs_of(batch)) == expected
    counted = [batch.item.numel() if order == "pair" else batch.query.numel() for batch in epoch if batch.item.numel()]
    total = len(expected) if order == "pair" else len({q for q, _ in expected})
    assert counted == [size] * (total // size) + [total % size] * (total % size > 0)
    assert len(batches) == len(counted)


@ORDERS
@settings(max_examples=30, deadline=None)
@given(rows=LISTS, seed=st.integers(0, 99))
def test_a_batch_knows_all_positives_of_its_queries(order, repeat, rows, seed):
    batches = Batches(ragged(*rows), N_ITEMS, order=order, size=4, repeat_queries=repeat)
    for batch in batches.epoch(stream(seed)):
        bounds, items = batch.positives.indptr.tolist(), batch.positives.indices.tolist()
        found = [items[bounds[place] : bounds[place + 1]] for place in range(batch.query.numel())]
        assert found == [rows[query] for query in batch.query.tolist()]
        if repeat:
            assert batch.owner.tolist() == list(range(batch.item.numel()))
        else:
            assert len(set(batch.query.tolist())) == batch.query.numel()


@ORDERS
def test_the_same_stream_gives_the_same_batches_and_another_does_not(order, repeat):
    rows = [[q % 5, 5] for q in range(40)]
    batches = Batches(ragged(*rows), N_ITEMS, order=order, size=10, repeat_queries=repeat)

    def epoch(*path):
        return [pairs_of(batch) for batch in batches.epoch(stream(*path))]

    assert epoch(3, 1) == epoch(3, 1)
    assert epoch(3, 1) != epoch(3, 2)
    assert epoch(3, 1) != epoch(4, 1)


def test_streams_of_different_paths_have_nothing_in_common():
    paths = [(seed, branch, epoch) for seed in range(5) for branch in range(4) for epoch in range(50)]
    assert len({stream(*path).initial_seed() for path in paths}) == len(paths)
    drawn = torch.stack([torch.rand(200, generator=stream(*path)) for path in paths[:100]])
    off_diagonal = torch.corrcoef(drawn)[~torch.eye(100, dtype=torch.bool)]
    assert float(off_diagonal.abs().max()) < 6 / math.sqrt(200)


def test_queries_that_teach_nothing_about_ranking_are_left_out_and_counted():
    batches = Batches(ragged(*[[], [0], list(range(N_ITEMS)), [1, 2]]), N_ITEMS, order="query", size=9)
    assert batches.queries.tolist() == [1, 3]
    assert batches.n_full == 1
    assert len(Batches(ragged(*[[], []]), N_ITEMS, order="pair", size=9)) == 0
