"""Every epoch has each position of each sequence once."""

from __future__ import annotations

import pytest
import torch

from topshelf.ragged import Ragged
from topshelf.training.sequence_batches import SequenceBatches

ITEMS = [[5, 6, 7, 8], [1], [], [2, 2], [9, 4, 3, 9, 1, 0, 7]]


def lists(*some: list[int]) -> Ragged:
    return Ragged(torch.tensor([0, *map(len, some)]).cumsum(0), torch.tensor([item for one in some for item in one]))


def epoch(batches: SequenceBatches, seed: int = 0) -> list:
    return list(batches.epoch(torch.Generator().manual_seed(seed)))


def test_positions_are_what_was_read_and_what_came_next():
    (batch,) = epoch(SequenceBatches(lists(*ITEMS), size=8, max_length=10))
    assert batch.sequences.counts.tolist() == [1, 3, 6]  # the shortest first; one item has nothing after it
    assert batch.sequences.indices.tolist() == [2, 5, 6, 7, 9, 4, 3, 9, 1, 0]
    assert batch.item.tolist() == [2, 6, 7, 8, 4, 3, 9, 1, 0, 7]
    assert batch.owner.tolist() == list(range(10))
    assert batch.is_whole
    assert batch.positives.indices.tolist() == batch.item.tolist()
    part = batch.part(3, 6)
    assert part.item.tolist() == [8, 4, 3]
    assert part.query.tolist() == batch.query[3:6].tolist()


def test_only_the_last_items_give_positions():
    (batch,) = epoch(SequenceBatches(lists(*ITEMS), size=8, max_length=2))
    assert sorted(zip(batch.sequences.indices.tolist(), batch.item.tolist(), strict=True)) == [
        (0, 7),
        (1, 0),
        (2, 2),
        (6, 7),
        (7, 8),
    ]


@pytest.mark.parametrize(("slots", "n"), [("user", 5), ("position", 10), ("batch", 9)])
def test_slots(slots, n):
    batches = SequenceBatches(lists(*ITEMS), size=2, max_length=10, slots=slots)
    assert batches.n_slots(5) == n
    assert len(batches) == 2
    for batch in epoch(batches):
        assert int(batch.query.max()) < n
    together = torch.cat([batch.query for batch in epoch(batches)])
    if slots == "user":
        assert sorted(together.tolist()) == [0] * 3 + [3] + [4] * 6
    if slots == "position":
        assert sorted(together.tolist()) == list(range(10))


def test_a_position_has_the_same_slot_in_every_epoch():
    batches = SequenceBatches(lists(*ITEMS), size=2, max_length=10)
    slot = {}
    for seed in range(4):
        for batch in epoch(batches, seed):
            for query, read, wanted in zip(
                batch.query.tolist(), batch.sequences.indices.tolist(), batch.item.tolist(), strict=True
            ):
                assert slot.setdefault(query, (read, wanted)) == (read, wanted)
    assert len(slot) == 10


def test_the_generator_alone_decides_the_order():
    batches = SequenceBatches(lists(*([[1, 2, 3]] * 4 + [[4, 5]] * 4)), size=3, max_length=5)
    orders = [[batch.query.tolist() for batch in epoch(batches, seed)] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
