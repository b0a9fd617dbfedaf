"""Steps that touch a few rows of the items: the gradients of the plain path, at a cost without the catalogue in it."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.testing import assert_close

from runs import assert_same
from topshelf.config import make_config, merged
from topshelf.data import generate, make_split
from topshelf.losses import LOSSES
from topshelf.models import MF
from topshelf.models.slices import ItemSlice
from topshelf.negatives import NEGATIVES, Negatives, Shared
from topshelf.queries import Context
from topshelf.ragged import ragged_from_pairs
from topshelf.training.batches import Batches, stream
from topshelf.training.build import build_model, build_trainer, resolve
from topshelf.training.item_rows import only_rows
from topshelf.training.objective import CatalogueObjective
from topshelf.training.thresholding import ESTIMATORS, Estimator
from topshelf.world import World

N_QUERIES, N_ITEMS = 9, 40
SETTINGS = {
    "shared": {"n": 6},
    "popular": {"n": 6, "popularity": 0.75},
    "per_query": {"n": 6},
    "in_batch": {},
    "in_batch and uniform": {"n_uniform": 5},
    "mixed": {"n_hard": 3, "pool": 8},
    "corrected": {"n_hard": 3, "pool": 8, "corrected": True},
}
KINDS = {"popular": "shared", "in_batch and uniform": "in_batch", "corrected": "mixed"}
BY_ROWS = [name for name in LOSSES if not {"negative_item", "item_vector"} & set(LOSSES[name].needs)]


def positives():
    taken = torch.rand(N_QUERIES, N_ITEMS, generator=torch.Generator().manual_seed(1)) < 0.15
    taken[:, 0], taken[:, -1] = True, False
    return ragged_from_pairs(*taken.nonzero().T, N_QUERIES)


def gradients(name, source, *, sparse, order="query", prior=0.0):
    lists = positives()
    sizes = {"n_queries": N_QUERIES, "n_items": N_ITEMS, "n_positives": lists.indices.numel()}
    taken = inspect.signature(LOSSES[name].__init__).parameters
    torch.manual_seed(4)
    loss = LOSSES[name](**{key: size for key, size in sizes.items() if key in taken}).double()
    model = MF(N_QUERIES, N_ITEMS, dim=5).double()
    model.sparse_rows = sparse
    negatives = NEGATIVES[KINDS.get(source, source)](**SETTINGS[source])
    objective = CatalogueObjective(model, loss, negatives, Context(lists, N_ITEMS), prior=prior)
    assert objective.goes_by_rows == sparse
    batches = Batches(lists, N_ITEMS, order=order, size=4, repeat_queries=negatives.layout == "own")
    batch = next(batches.epoch(stream(3)))
    number, _ = objective.backward(batch, stream(5))
    return number, model.query_vectors.grad.to_dense(), model.item_vectors.grad


@pytest.mark.parametrize("name", BY_ROWS)
@pytest.mark.parametrize("source", SETTINGS)
def test_a_step_by_rows_has_the_gradients_of_a_step_over_all_items(name, source):
    number, to_queries, to_items = gradients(name, source, sparse=True)
    expected = gradients(name, source, sparse=False)
    assert to_items.is_sparse
    assert number == pytest.approx(expected[0], rel=1e-12)
    assert_close(to_queries, expected[1])
    assert_close(to_items.to_dense(), expected[2])


@pytest.mark.parametrize("source", SETTINGS)
def test_pairs_and_priors_too(source):
    number, to_queries, to_items = gradients("song", source, sparse=True, order="pair", prior=0.5)
    expected = gradients("song", source, sparse=False, order="pair", prior=0.5)
    assert number == pytest.approx(expected[0], rel=1e-12)
    assert_close(to_queries, expected[1])
    assert_close(to_items.to_dense(), expected[2])


class NeverWhole(MF):
    """A model that refuses to encode all its items."""

    by_rows = True

    def encode_items(self):
        raise AssertionError("all items were encoded")


def test_a_model_that_encodes_otherwise_does_not_inherit_the_claim():
    class Halved(MF):
        def encode_items(self):
            return super().encode_items() / 2

    assert MF.by_rows
    assert not Halved.by_rows
    assert NeverWhole.by_rows  # it says so


def trainer_of(model_class=MF, n_items=3000, **more):
    values = {
        "k": 5,
        "model": {"dim": 8},
        "loss": {"name": "slatk"},
        "negatives": {"kind": "shared", "n": 20},
        "threshold": {"estimator": "incremental", "n": 30},
        "train": {"optimizer": "row_adam", "epochs": 2, "batch_size": 16},
    }
    config = resolve(make_config(merged(values, more)))
    lists = make_split(generate(60, n_items, interactions_per_user=8, seed=1), seed=0).train.ragged()
    if model_class is MF:
        model = build_model(config, 60, n_items)
    else:
        torch.manual_seed(0)
        model = model_class(60, n_items, dim=8)
    return build_trainer(config, model, Context(lists, n_items))


@pytest.mark.parametrize("source", SETTINGS)
def test_nothing_in_a_step_has_the_size_of_the_catalogue(source, monkeypatch):
    """A large catalogue, and none of the operations that would make a table, a permutation or a pass over it."""
    negatives = {"negatives": {"n": None, **SETTINGS[source], "kind": KINDS.get(source, source)}}
    trainer = trainer_of(NeverWhole, n_items=30_000, **negatives)
    sizes = []
    from torch.utils._python_dispatch import TorchDispatchMode

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            results = out if isinstance(out, tuple | list) else (out,)
            kept = [one for one in results if isinstance(one, torch.Tensor) and one.layout == torch.strided]
            sizes.extend(one.numel() for one in kept if one.untyped_storage().data_ptr() not in known)
            return out

    batch = next(trainer.batches.epoch(stream(0)))
    trainer._step(batch, 1, 0)  # makes the optimizer's state
    state = [one for kept in trainer.optimizer.state.values() for one in kept.values()]
    whole = [*trainer.model.parameters(), *state, trainer.objective.negatives.population.item_counts]
    whole += [one for one in vars(trainer.objective.negatives).values() if isinstance(one, torch.Tensor)]
    known = {one.untyped_storage().data_ptr() for one in whole}
    with Sizes():
        trainer._step(batch, 1, 1)
    assert sizes
    assert max(sizes) < 30_000


def test_a_row_that_no_batch_has_touched_stays_as_it_was():
    trainer = trainer_of()
    before = trainer.model.item_vectors.detach().clone()
    touched = set()
    for step, batch in enumerate(trainer.batches.epoch(stream(0))):
        trainer._step(batch, 1, step)
        touched |= set(trainer.model.item_vectors.grad.coalesce().indices()[0].tolist())
    moved = (trainer.model.item_vectors != before).any(1).nonzero().squeeze(1).tolist()
    assert set(moved) <= touched
    assert 0 < len(moved) < 3000


def test_the_loss_in_one_piece_draws_anew_after_a_step():
    trainer = trainer_of()
    batches = list(trainer.batches.epoch(stream(0)))
    trainer._step(batches[0], 1, 0)
    value, encoded = trainer.objective(batches[1], stream(7))
    assert encoded.items.size(0) == 3000
    again, _ = trainer.objective(batches[1], stream(7))
    assert value.item() == again.item() > 0
    assert trainer.objective.head.made is None


def test_a_resumed_run_by_rows_is_the_same_to_the_last_bit():
    whole, first, second = trainer_of(), trainer_of(train={"epochs": 1}), trainer_of()
    whole.run()
    first.run()
    second.load_state_dict(first.state_dict())
    second.run()
    assert_same(whole.model.state_dict(), second.model.state_dict())
    assert_same(whole.loss.state_dict(), second.loss.state_dict())


def test_a_model_learns_by_rows():
    trainer = trainer_of(n_items=200, train={"epochs": 12})
    trainer.run()
    history = trainer.progress.history
    assert history[-1]["loss"] < 0.7 * history[0]["loss"]


def test_what_reads_all_items_still_gets_them():
    class Whole(Negatives):
        layout = "shared"

        def draw(self, batch, encoded, generator):
            assert isinstance(encoded.items, torch.Tensor)
            return Shared(n=3).attach(Context(positives(), N_ITEMS)).draw(batch, encoded, generator)

    class Drawing(Shared):
        def draw(self, batch, encoded, generator):
            return super().draw(batch, encoded, generator)

    assert not Whole.by_rows
    assert not Drawing.by_rows
    model = MF(N_QUERIES, N_ITEMS, dim=5)
    model.sparse_rows = True
    objective = CatalogueObjective(model, LOSSES["softmax"](), Whole(), Context(positives(), N_ITEMS))
    assert not objective.goes_by_rows
    objective.backward(next(Batches(positives(), N_ITEMS, order="query", size=4).epoch(stream(3))), stream(5))


def test_an_estimator_that_does_not_read_rows_gets_the_whole_table(monkeypatch):
    seen = []

    class Follows(Estimator):
        updates = "steps"

        def follow(self, now, batch, encoded, k, generator):
            seen.append(encoded.items.shape)
            return now

    monkeypatch.setitem(ESTIMATORS, "follows", Follows)
    trainer_of(n_items=300, threshold={"estimator": "follows", "n": None}, train={"epochs": 1}).run()
    assert set(seen) == {torch.Size([300, 8])}


def test_a_slice_among_some_items_is_consecutive_and_may_be_empty():
    items = torch.tensor([1, 2, 5, 9])
    slices = [ItemSlice.of(12, World(rank, 3)).among(items) for rank in range(3)]
    assert [(one.first, one.last, one.n_items) for one in slices] == [(0, 2, 4), (2, 3, 4), (3, 4, 4)]
    assert len(ItemSlice.of(12, World(1, 3)).among(torch.tensor([0, 11]))) == 0


def test_places_are_those_of_the_rows():
    lists = positives()
    batch = next(Batches(lists, N_ITEMS, order="query", size=4).epoch(stream(3)))
    draw = Shared(n=6).attach(Context(lists, N_ITEMS)).draw(batch, None, stream(5))
    rows, small, columns = only_rows(batch, draw)
    assert torch.equal(rows, torch.cat([batch.item, draw.items]).unique())
    assert torch.equal(rows[small.item], batch.item)
    assert torch.equal(rows[small.positives.indices], batch.positives.indices)
    assert torch.equal(rows[columns.items], draw.items)
