"""Models of sequences: order, causality, padding, batches, and what is kept."""

from __future__ import annotations

import pytest
import torch

from topshelf.errors import ConfigError, TopshelfError
from topshelf.models.gru4rec import GRU4Rec
from topshelf.models.sasrec import ESASRec, SASRec
from topshelf.models.transitions import Markov, SequenceKNN
from topshelf.queries import Context, EventLists, QuerySet
from topshelf.ragged import Ragged
from topshelf.sequences import Packed, SequenceBatch, from_end, latest, padded, unpadded
from topshelf.training.sequence_batches import SequenceBatches

N_ITEMS = 30
NETWORKS = {
    "sasrec": lambda **more: SASRec(4, N_ITEMS, **{"dim": 16, "max_length": 9, "dropout": 0.0, **more}),
    "sasrec, two heads, own outputs": lambda **more: SASRec(
        4, N_ITEMS, **{"dim": 16, "max_length": 9, "heads": 2, "tied": False, "inner": 3, "dropout": 0.0, **more}
    ),
    "esasrec": lambda **more: ESASRec(4, N_ITEMS, **{"dim": 16, "max_length": 9, "dropout": 0.0, **more}),
    "gru4rec": lambda **more: GRU4Rec(4, N_ITEMS, **{"dim": 16, "max_length": 9, "dropout": 0.0, **more}),
}


@pytest.fixture(params=NETWORKS)
def new(request):
    def made(**more):
        torch.manual_seed(0)
        model = NETWORKS[request.param](**more)
        with torch.no_grad():  # far from the small initial values, at which everything looks alike
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)
        return model

    return made


def lists(*some: list[int]) -> Ragged:
    indptr = torch.tensor([0, *(len(one) for one in some)]).cumsum(0)
    return Ragged(indptr, torch.tensor([item for one in some for item in one], dtype=torch.int64))


def drawn(n: int, most: int, seed: int = 0) -> Ragged:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, most + 1, (n,), generator=generator).tolist()
    return lists(*(torch.randint(N_ITEMS, (length,), generator=generator).tolist() for length in lengths))


def context(sequences: Ragged) -> Context:
    return Context(sequences, N_ITEMS, lambda: EventLists(sequences, None))


def vectors(model, *some: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model.encode_queries(QuerySet(sequence=lists(*some)))


def test_other_sequences_in_a_call_and_their_lengths_change_nothing(new):
    model, sequences = new(), drawn(40, 12)
    with torch.no_grad():
        together = model.encode_queries(QuerySet(sequence=sequences))
    for row in (0, 7, 23, 39):
        alone = vectors(model, sequences.slice(row, row + 1).indices.tolist())
        torch.testing.assert_close(together[row], alone[0], rtol=1e-4, atol=1e-5)


def test_what_comes_later_changes_no_earlier_position(new):
    model, items = new(), [3, 8, 2, 9, 11, 4]
    with torch.no_grad():
        every = model.encode_positions(Packed(lists(items)))
        other = model.encode_positions(Packed(lists([*items[:4], 20, 21])))
    torch.testing.assert_close(every[:4], other[:4], rtol=1e-5, atol=1e-6)
    assert (every[4:] - other[4:]).abs().max() > 1e-3
    for place in range(6):
        torch.testing.assert_close(every[place], vectors(model, items[: place + 1])[0], rtol=1e-4, atol=1e-5)


def test_the_order_of_the_items_and_their_repeats_matter(new):
    first, swapped, repeated = vectors(new(), [1, 2, 3], [2, 1, 3], [1, 2, 3, 3])
    assert (first - swapped).abs().max() > 1e-3
    assert (first - repeated).abs().max() > 1e-3


def test_only_the_last_items_are_read(new):
    tail = list(range(9))
    long, short, other = vectors(new(), [20, 21, *tail], tail, [20, *tail[1:]])
    torch.testing.assert_close(long, short, rtol=1e-4, atol=1e-5)
    assert (short - other).abs().max() > 1e-4


def test_an_empty_sequence_has_the_vector_0_and_harms_no_other(new):
    model = new()
    some = vectors(model, [], [4, 5], [])
    assert torch.equal(some[0], torch.zeros_like(some[0]))
    assert torch.equal(some[2], some[0])
    torch.testing.assert_close(some[1], vectors(model, [4, 5])[0], rtol=1e-5, atol=1e-6)
    assert vectors(model, []).shape == (1, 16)
    assert vectors(model).shape == (0, 16)


def test_the_positions_of_a_batch_are_the_prefixes_of_its_sequences(new):
    model, sequences = new(), drawn(12, 14, seed=1)
    batches = SequenceBatches(sequences, size=5, max_length=9)
    for batch in batches.epoch(torch.Generator().manual_seed(0)):
        assert isinstance(batch, SequenceBatch)
        encoded = model.encode_batch(batch)
        assert encoded.queries.shape == (batch.query.numel(), 16)
        assert encoded.queries.requires_grad
        row = 0
        for one in range(len(batch.sequences)):
            items = batch.sequences.slice(one, one + 1).indices.tolist()
            for stop in range(1, len(items) + 1):
                alone = vectors(model, items[:stop])[0]
                torch.testing.assert_close(encoded.queries[row].detach(), alone, rtol=1e-4, atol=1e-5)
                row += 1


def test_known_rows_are_their_attached_sequences(new):
    model = new()
    with pytest.raises(TopshelfError, match="has no sequences yet"):
        model.encode_queries(QuerySet(rows=torch.tensor([0])))
    model.attach(context(lists([1, 2], [3], [], [4, 4, 5])))
    with torch.no_grad():
        known = model.encode_queries(QuerySet(rows=torch.tensor([3, 0])))
    torch.testing.assert_close(known, vectors(model, [4, 4, 5], [1, 2]))


def test_data_without_an_order_are_refused(new):
    with pytest.raises(ConfigError, match="these data have no order"):
        new().attach(Context(lists([1, 2]), N_ITEMS))


def test_noise_is_drawn_in_training_alone(new):
    model = new(dropout=0.5)
    batch = next(SequenceBatches(drawn(6, 8), size=6, max_length=9).epoch(torch.Generator().manual_seed(0)))
    first, second = model.encode_batch(batch).queries, model.encode_batch(batch).queries
    assert not torch.equal(first, second)
    assert not model.training
    assert torch.equal(vectors(model, [1, 2, 3]), vectors(model, [1, 2, 3]))


def test_cosine_scores_have_vectors_of_length_one(new):
    model = new()
    torch.testing.assert_close(vectors(model, [1, 2], [3]).norm(dim=1), torch.ones(2))
    torch.testing.assert_close(model.encode_items().norm(dim=1), torch.ones(N_ITEMS))
    assert not torch.allclose(new(score="dot").encode_items().norm(dim=1), torch.ones(N_ITEMS))


def test_what_was_learned_is_in_the_state(new):
    model, fresh = new(), new()
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.zero_()
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(vectors(fresh, [5, 6, 7]), vectors(model, [5, 6, 7]))


def test_positions_counted_from_the_end_tell_the_distance_to_the_last_item():
    torch.manual_seed(0)
    model = SASRec(4, N_ITEMS, dim=16, max_length=9, positions="end", dropout=0.0)
    packed = Packed(lists([1], [2, 3, 4]))
    assert packed.from_end.tolist() == [0, 2, 1, 0]
    assert packed.position.tolist() == [0, 0, 1, 2]
    assert model.position_vectors.shape == (9, 16)


def test_without_positions_attention_sees_a_set_of_earlier_items():
    torch.manual_seed(0)
    model = SASRec(4, N_ITEMS, dim=16, blocks=1, positions="none", dropout=0.0)
    first, swapped = vectors(model, [1, 2, 3], [2, 1, 3])
    torch.testing.assert_close(first, swapped)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heads": 3}, "heads must divide dim = 16, got 3"),
        ({"dropout": 1.0}, "dropout must be <= 0.9"),
        ({"max_length": 0}, "max_length must be >= 1"),
        ({"positions": "middle"}, "positions must be one of start, end, none"),
        ({"score": "sum"}, "score must be one of"),
        ({"blocks": 0}, "blocks must be >= 1"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        SASRec(4, N_ITEMS, dim=16, **settings)


def test_groups_pad_little_and_lose_no_row():
    sequences = drawn(200, 50, seed=3)
    order = torch.argsort(sequences.counts, stable=True)
    packed = Packed(sequences.select(order))
    rows = torch.arange(packed.lists.indices.numel(), dtype=torch.float32).unsqueeze(1)
    back = torch.cat([unpadded(padded(rows, group), group) for group in packed.groups])
    assert torch.equal(back, rows)
    cells = sum(group.n * group.length for group in packed.groups)
    assert cells < 1.2 * rows.numel()
    assert len(packed.groups) < 20


def test_latest_keeps_the_end_of_each_list():
    some = latest(lists([1, 2, 3], [], [4], [5, 6]), 2)
    assert some.indices.tolist() == [2, 3, 4, 5, 6]
    assert some.counts.tolist() == [2, 0, 1, 2]
    assert from_end(some).tolist() == [1, 0, 0, 1, 0]


# Baselines


def scores(model, *some: list[int]) -> torch.Tensor:
    rows = model.encode_queries(QuerySet(sequence=lists(*some)))
    return (rows[torch.arange(len(some))] @ model.encode_items().T).to_dense()


def test_the_chain_has_the_chances_of_what_followed():
    model = Markov(3, 5)
    model.fit(context(lists([0, 1, 0, 2], [0, 1, 1], [3])))
    after_0, after_1, after_3, nothing = scores(model, [4, 0], [1], [3], [])
    torch.testing.assert_close(after_0, torch.tensor([0, 2 / 3, 1 / 3, 0, 0]))
    torch.testing.assert_close(after_1, torch.tensor([1 / 3, 0, 0, 0, 0]))  # not itself again
    assert not after_3.any()
    assert not nothing.any()


def test_a_wider_window_and_a_decay_count_more_with_less_weight():
    model = Markov(2, 4, window=2, decay=0.5)
    model.fit(context(lists([0, 1, 2], [3])))
    torch.testing.assert_close(scores(model, [0])[0], torch.tensor([0, 1, 0.5, 0]))
    torch.testing.assert_close(scores(model, [0, 1])[0], torch.tensor([0, 0.5, 1.25, 0]))
    torch.testing.assert_close(scores(model, [1, 0, 1])[0], scores(model, [3, 0, 1])[0])  # by its latest place


def test_neighbours_of_later_items_count_more():
    model = SequenceKNN(4, 6, decay=0.5, shrink=0.0)
    model.fit(context(lists([0, 1], [0, 1], [2, 3], [2, 3])))
    first, second = scores(model, [0, 2], [2, 0])
    torch.testing.assert_close(first[[1, 3]], torch.tensor([0.5, 1.0]))
    torch.testing.assert_close(second[[1, 3]], torch.tensor([1.0, 0.5]))


def test_baselines_are_loaded_with_what_they_learned():
    for made in (lambda: Markov(3, 6), lambda: SequenceKNN(3, 6)):
        model, fresh = made(), made()
        model.fit(context(lists([0, 1, 2], [1, 2], [0, 1])))
        fresh.load_state_dict(model.state_dict())
        fresh.attach(context(lists([0], [1], [2])))
        assert torch.equal(scores(fresh, [0, 1]), scores(model, [0, 1]))
        assert scores(model, [0, 1]).any()
