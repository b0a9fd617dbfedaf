"""Which head a loss and its negatives get, and that every head's gradients are those of the plain path."""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass

import pytest
import torch
from torch.testing import assert_close

from topshelf.catalogue import CatalogueBlocks, Workspace
from topshelf.errors import ConfigError
from topshelf.losses import LOSSES
from topshelf.models import MF
from topshelf.negatives import NEGATIVES, Catalogue, Draw, Negatives
from topshelf.queries import Context
from topshelf.ragged import Ragged, ragged_from_pairs
from topshelf.training import heads as heads_module
from topshelf.training.batches import Batches, stream
from topshelf.training.heads import AutogradHead, PairHead, PartitionHead, choose_head
from topshelf.training.objective import CatalogueObjective

N_QUERIES, N_ITEMS = 9, 14
OF_PARTITIONS = ("softmax", "slatk", "bsl", "sampled_softmax", "sogclr")
IN_ONE_PIECE = ("directau", "sogslatk")
EVERY_LOSS = pytest.mark.parametrize("name", LOSSES)
EVERY_KIND = pytest.mark.parametrize("kind", NEGATIVES)


def positives():
    taken = torch.rand(N_QUERIES, N_ITEMS, generator=torch.Generator().manual_seed(1)) < 0.3
    taken[:, 0], taken[:, -1] = True, False
    rows, items = taken.nonzero().T
    return ragged_from_pairs(rows, items, N_QUERIES)


def loss_of(name, **settings):
    sizes = {"n_queries": N_QUERIES, "n_items": N_ITEMS, "n_positives": positives().indices.numel()}
    taken = inspect.signature(LOSSES[name].__init__).parameters
    torch.manual_seed(4)
    return LOSSES[name](**{key: size for key, size in sizes.items() if key in taken}, **settings).double()


def negatives_of(kind):
    return NEGATIVES[kind](
        **{"mixed": {"n_hard": 3, "pool": 8}, "shared": {"n": 6}, "per_query": {"n": 6}}.get(kind, {})
    )


def expected_head(name, kind):
    """By the two flags that the objective had before there were heads, of each loss as it comes."""
    if name in OF_PARTITIONS:
        return PartitionHead if kind == "catalogue" else AutogradHead
    return AutogradHead if name in IN_ONE_PIECE else PairHead


@EVERY_LOSS
@EVERY_KIND
def test_a_loss_and_its_negatives_get_the_head_that_they_always_got(name, kind):
    loss, negatives = loss_of(name), negatives_of(kind)
    head = choose_head(loss, negatives, None, Workspace())
    assert type(head) is expected_head(name, kind)
    assert (head.loss, head.negatives) == (loss, negatives)


def test_every_head_is_some_losss():
    chosen = {type(choose_head(loss_of(name), Catalogue(), None, Workspace())) for name in LOSSES}
    assert chosen == {PartitionHead, PairHead, AutogradHead}


def test_a_loss_that_gives_up_its_partition_is_taken_by_pairs():
    loss = loss_of("slatk", distance="sigmoid")
    assert type(choose_head(loss, Catalogue(), None, Workspace())) is PairHead


@EVERY_LOSS
@EVERY_KIND
def test_half_width_is_for_blocks_of_the_catalogue_only(name, kind):
    loss, negatives = loss_of(name), negatives_of(kind)
    if expected_head(name, kind) is PartitionHead:
        assert choose_head(loss, negatives, None, Workspace(), half=True).blocks is not None
        return
    with pytest.raises(ConfigError, match="is for losses of the softmax family over the whole catalogue"):
        choose_head(loss, negatives, None, Workspace(), half=True)


@EVERY_LOSS
@EVERY_KIND
@pytest.mark.parametrize("order", ["query", "pair"])
def test_the_plain_path_and_backward_agree(name, kind, order, monkeypatch):
    monkeypatch.setattr(heads_module, "PAIR_CELLS", 60)  # a few queries at a time
    torch.manual_seed(2)
    model = MF(N_QUERIES, N_ITEMS, dim=4, init="normal").double()
    loss, negatives, lists = loss_of(name), negatives_of(kind), positives()
    if "whole_queries" in loss.needs and order == "pair":
        order = "query"  # which a run insists on
    plain = CatalogueObjective(model, loss, negatives, Context(lists, N_ITEMS), effective_n=50)
    blocks = copy.deepcopy(plain)  # a loss may have state that a step changes
    if isinstance(blocks.head, PartitionHead):
        blocks.head.blocks = CatalogueBlocks(3 * 64 * 8)
    repeat = negatives.layout == "own"
    batch = next(Batches(lists, N_ITEMS, order=order, size=8, repeat_queries=repeat).epoch(stream(0)))
    torch.manual_seed(5)
    value, encoded = plain(batch, stream(1))
    value.backward()
    torch.manual_seed(5)
    number, same = blocks.backward(batch, stream(1))
    assert number == pytest.approx(value.item(), rel=1e-6)
    assert_close((same.queries, same.items), (encoded.queries, encoded.items), rtol=0, atol=0)
    for one, other in ((blocks.model, plain.model), (blocks.loss, plain.loss)):
        found, expected = (
            {key: parameter.grad for key, parameter in module.named_parameters()} for module in (one, other)
        )
        for key, gradient in expected.items():
            assert (found[key] is None) == (gradient is None), key
            if gradient is not None:
                assert_close(found[key], gradient, rtol=1e-5, atol=1e-7, msg=key)
    assert_close(blocks.loss.state_dict(), plain.loss.state_dict(), rtol=1e-6, atol=1e-8)


@dataclass
class Scripted(Negatives):
    """Draws what it is told."""

    layout = "shared"
    drawn: Draw

    def draw(self, batch, encoded, generator):
        return self.drawn


NONE = Ragged(torch.zeros(N_QUERIES + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int64))


@pytest.mark.parametrize(
    ("drawn", "message"),
    [
        (Draw(None, None), "with layout = 'shared' items must be .N,., got None"),
        (Draw(torch.zeros(N_QUERIES, 4, dtype=torch.int64), None), "with layout = 'shared' items must be .N,., got"),
        (Draw(torch.tensor([1, N_ITEMS]), None), f"items must be from 0 to {N_ITEMS - 1}, got 1 to {N_ITEMS}"),
        (Draw(torch.tensor([-1, 1]), None), "items must be from 0 to"),
        (Draw(torch.tensor([1.0, 2.0]), None), "items must be int64, got torch.float32"),
        (Draw(torch.tensor([1, 2]), NONE.slice(0, 2)), "exclude must have one list per query"),
        (Draw(torch.tensor([1, 2]), Ragged(NONE.indptr.clamp(max=0), torch.tensor([1]))), "exclude.indptr must ascend"),
        (
            Draw(torch.tensor([1, 2]), None, torch.zeros(3)),
            "log_q must be .2,., one number per column, or as items are, got .3,.",
        ),
    ],
)
@pytest.mark.parametrize("name", ["softmax", "bpr"])
def test_a_draw_that_does_not_fit_is_refused_with_the_name_of_its_class(name, drawn, message):
    model, context = MF(N_QUERIES, N_ITEMS, dim=3).double(), Context(positives(), N_ITEMS)
    objective = CatalogueObjective(model, loss_of(name), Scripted(drawn), context)
    objective.batches = Batches(positives(), N_ITEMS, order="query", size=N_QUERIES)
    batch = next(iter(objective.batches.epoch(stream(0))))
    with pytest.raises(ConfigError, match=f"the draw of negatives Scripted does not fit its batch: {message}"):
        objective.backward(batch, stream(1))


def test_a_subclass_of_the_catalogue_is_exact_until_it_draws_otherwise():
    class Plain(Catalogue):
        pass

    class Other(Catalogue):
        def draw(self, batch, encoded, generator):
            return Draw(torch.arange(3), None)

    assert [cls.is_exact for cls in (Catalogue, Plain, Other, NEGATIVES["shared"])] == [True, True, False, False]
    assert type(choose_head(loss_of("softmax"), Plain(), None, Workspace())) is PartitionHead
    assert type(choose_head(loss_of("softmax"), Other(), None, Workspace())) is AutogradHead
