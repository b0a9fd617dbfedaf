"""What every source of negatives promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from topshelf.negatives import NEGATIVES, Draw, Negatives
from topshelf.queries import Batch, Context, Encoded
from topshelf.ragged import Ragged, ragged_from_pairs
from topshelf.testing.promises import check_draws, check_is_named, check_training, identical, run_config
from topshelf.training.batches import Batches

N_QUERIES, N_ITEMS, DIM = 24, 30, 4
Order = Literal["query", "pair"]
EACH_ORDER = pytest.mark.parametrize("order", ["query", "pair"])


class NegativesContract:
    """Inherit it and name the source::

        class TestMyNegatives(topshelf.testing.NegativesContract):
            negatives = MyNegatives

    settings  of the source, such as {"n": 50}; its defaults are tested when left out
    losses    those that are trained with it
    """

    negatives: type[Negatives]
    settings: Mapping[str, Any] = {}
    losses: tuple[str, ...] = ("softmax", "bpr")

    def make(self) -> Negatives:
        source = self.negatives(**self.settings)
        attached = source.attach(Context(positives(), N_ITEMS))
        assert attached is source, f"attach must return the source itself, got {attached!r}"
        return source

    def batches(self, order: Order, epoch: int = 0) -> list[Batch]:
        """The batches of an epoch, as a run makes them for this source."""
        is_own = self.negatives.layout == "own"
        batches = Batches(positives(), N_ITEMS, order=order, size=9, repeat_queries=is_own)
        return list(batches.epoch(generator(epoch)))

    def test_a_run_can_name_it(self) -> None:
        check_is_named(self.negatives, Negatives, NEGATIVES)

    def test_it_says_how_its_draws_are_laid_out(self) -> None:
        layout = self.negatives.layout
        known = ("catalogue", "shared", "own")
        assert layout in known, f"layout must be one of {', '.join(known)}, got {layout!r}"
        n = self.make().n
        assert n is None or (isinstance(n, int) and n >= 1), f"n must be None or a number from 1 on, got {n!r}"

    @EACH_ORDER
    def test_a_draw_has_the_layout_and_the_shapes_it_says(self, order: Order) -> None:
        source = self.make()
        for batch in self.batches(order):
            draw = source.draw(batch, vectors(batch), generator())
            n_queries, layout = len(batch.positives), source.layout
            check_items(draw, layout, n_queries)
            n = draw.n_columns(N_ITEMS)
            assert source.n is None or n <= source.n, f"no more than n = {source.n} may be drawn, got {n}"
            if draw.exclude is not None:
                got = len(draw.exclude)
                assert got == n_queries, f"exclude must have one list per query of the batch ({n_queries}), got {got}"
                draw.exclude.check(n, "exclude", unique=True)
            if draw.log_q is not None:
                shapes = [(n,), (n_queries, n)] if layout == "own" else [(n,)]
                assert draw.log_q.shape in shapes, f"log_q must be (N,) = ({n},), got {tuple(draw.log_q.shape)}"
                assert draw.log_q.isfinite().all(), "log_q must be finite"
                assert not draw.log_q.requires_grad, "log_q must carry no gradient"

    @EACH_ORDER
    def test_a_positive_never_counts_as_a_negative(self, order: Order) -> None:
        """Whichever of a query's positives the batch trains on."""
        source, taken = self.make(), table(positives())
        for epoch in range(5):
            for batch in self.batches(order, epoch):
                draw = source.draw(batch, vectors(batch), generator(epoch))
                is_positive = taken[batch.query].gather(1, columns(draw, len(batch.positives)))
                mask = draw.mask(draw.n_columns(N_ITEMS))
                counted = is_positive if mask is None else is_positive & ~mask
                promise = "a training positive of a query must not count as its negative: draw others, or exclude it"
                assert not counted.any(), f"{promise}. It does {int(counted.sum())} times in a batch"

    @EACH_ORDER
    def test_the_same_stream_draws_the_same_whatever_else_is_drawn(self, order: Order) -> None:
        batch = self.batches(order)[0]
        promise = "the same generator must draw the same, or a run cannot be repeated or resumed"

        def compare(*draws: Draw) -> None:
            for name in ("items", "log_q"):
                first, second = (getattr(draw, name) for draw in draws)
                assert (first is None) == (second is None), f"{promise}: {name} is there only once"
                if first is not None:
                    identical(first, second, f"{promise}: {name}")

        check_draws(lambda: self.make().draw(batch, vectors(batch), generator(5)), compare)

    def test_a_draw_changes_neither_the_batch_nor_the_vectors(self) -> None:
        source, batch = self.make(), self.batches("query")[0]
        encoded = vectors(batch)
        given = {"query": batch.query, "item": batch.item, "owner": batch.owner}
        given |= {"positives": batch.positives.indices, "queries": encoded.queries, "items": encoded.items}
        copies = {name: tensor.clone() for name, tensor in given.items()}
        source.draw(batch, encoded, generator())
        identical(given, copies, "a draw must not change what it is given")

    def test_a_draw_that_stands_for_the_catalogue_estimates_its_sum(self) -> None:
        """Over batches, the mean of I / N exp(s - log_q) is the sum over all negatives of the query."""
        source, taken = self.make(), table(positives())
        if not source.stands_for_catalogue:
            pytest.skip("it does not stand for the catalogue")
        exponentials = torch.rand(N_QUERIES, N_ITEMS, generator=generator(1), dtype=torch.float64) + 0.5
        total, count = torch.zeros(2, N_QUERIES, dtype=torch.float64)
        for epoch in range(300):
            for batch in self.batches("query", epoch):
                draw = source.draw(batch, vectors(batch), generator(epoch))
                terms = exponentials[batch.query].gather(1, columns(draw, len(batch.positives)))
                terms = terms if draw.log_q is None else terms * torch.exp(-draw.log_q)
                mask = draw.mask(terms.size(1))
                estimate = (terms if mask is None else terms.masked_fill(mask, 0)).sum(1) * N_ITEMS / terms.size(1)
                total[batch.query] += estimate
                count[batch.query] += 1
        expected = exponentials.masked_fill(taken, 0).sum(1)
        ratio = float((total / count / expected).mean())
        promise = "stands_for_catalogue: the corrected sum over a draw must be that over all negatives, on average"
        assert abs(ratio - 1) < 0.03, f"{promise}. It is {ratio:.3f} times that"

    @EACH_ORDER
    def test_a_model_learns_from_them(self, order: Order) -> None:
        for loss in self.losses:
            negatives = (self.negatives, self.settings)
            check_training(run_config(loss=loss, negatives=negatives, epochs=5, batch_size=32, order=order))


def positives() -> Ragged:
    """Every item has a query; most queries have few items, the first has all but two of them."""
    taken = torch.rand(N_QUERIES, N_ITEMS, generator=generator(7)) < 0.15
    taken[torch.arange(N_ITEMS) % N_QUERIES, torch.arange(N_ITEMS)] = True
    taken[0, :-2], taken[0, -2:] = True, False
    rows, items = taken.nonzero().T
    return ragged_from_pairs(rows, items, N_QUERIES)


def table(lists: Ragged) -> Tensor:
    flags = torch.zeros(len(lists), N_ITEMS, dtype=torch.bool)
    flags[lists.owner(), lists.indices] = True
    return flags


def vectors(batch: Batch) -> Encoded:
    stream = generator(3)
    everyone = torch.randn(N_QUERIES, DIM, generator=stream)
    return Encoded(everyone[batch.query], torch.randn(N_ITEMS, DIM, generator=stream))


def columns(draw: Draw, n_queries: int) -> Tensor:
    """The items of each query's columns, (Q, N)."""
    items = torch.arange(N_ITEMS) if draw.items is None else draw.items
    return items.expand(n_queries, -1) if items.dim() == 1 else items


def check_items(draw: Draw, layout: str, n_queries: int) -> None:
    if layout == "catalogue":
        assert draw.items is None, "with layout = 'catalogue' items must be None: all of them"
        return
    assert draw.items is not None, f"with layout = {layout!r} a draw must have items"
    assert draw.items.dtype == torch.int64, f"items must be of int64, got {draw.items.dtype}"
    expected, shape = {"shared": ((), "(N,)"), "own": ((n_queries,), f"(Q, N) = ({n_queries}, N)")}[layout]
    got = tuple(draw.items.shape)
    assert got[:-1] == expected, f"with layout = {layout!r} items must be {shape}, got {got}"
    inside = bool(((draw.items >= 0) & (draw.items < N_ITEMS)).all())
    assert inside, f"items must be from 0 to {N_ITEMS - 1}"


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
