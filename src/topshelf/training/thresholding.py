"""Thresholds while training: the estimators, and the one hook that writes them to the loss's table."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from topshelf import kernels, thresholds
from topshelf.catalogue import Block
from topshelf.drawing import Dealt, deal_negatives, draw_distinct
from topshelf.errors import at_least, positive
from topshelf.losses import Loss
from topshelf.models import Model
from topshelf.negatives import Draw, columns_of
from topshelf.queries import Batch, Encoded, QuerySet
from topshelf.ragged import Ragged
from topshelf.ranking import best_scores
from topshelf.registry import Recorded
from topshelf.training.heads import Reading
from topshelf.training.item_rows import ItemRows

# Queries that share a draw. With more of them a refresh is cheaper, and the errors of its queries more correlated.
BLOCK = 512


class Estimator(Recorded):
    """Base of the threshold estimators. It returns thresholds and writes none; :class:`ThresholdHook` does.

    - ``updates``: "epochs", then it has :meth:`refresh`, or "steps", then it has :meth:`follow`;
    - ``reads``: what it can read off the scores of a step over the whole catalogue, where each query comes once per
      epoch: "kth", the K-th best score, "above", how many items are above the threshold, or None. With either it has
      :meth:`read`, which then takes the place of the other two;
    - ``by_rows``: whether :meth:`follow` reads no more of ``encoded.items`` than ``size(0)`` and rows by their ids.

    Constructor arguments are the settings of the ``threshold`` section.
    """

    updates: ClassVar[Literal["epochs", "steps"]] = "epochs"
    reads: ClassVar[Literal["kth", "above"] | None] = None
    by_rows: ClassVar[bool] = False

    def refresh(
        self, now: Tensor, queries: Tensor, items: Tensor, positives: Ragged, k: int, generator: torch.Generator
    ) -> Tensor:
        """New thresholds (U,) of all training queries.

        Shapes: now (U,); queries (U, d); items (I, d); positives, U lists. A query in no batch may keep its value.
        """
        raise NotImplementedError

    def follow(self, now: Tensor, batch: Batch, encoded: Encoded, k: int, generator: torch.Generator) -> Tensor:
        """New thresholds (Q,) of a batch's queries from the vectors of its step."""
        raise NotImplementedError

    def read(self, now: Tensor, block: Block, loss: Loss) -> Tensor:
        """New thresholds (Q,) of the queries of a block of exact scores."""
        raise NotImplementedError


class Exact(Estimator):
    """The K-th best score over the whole catalogue: the definition."""

    reads: ClassVar[Literal["kth", "above"] | None] = "kth"

    def refresh(
        self,
        now: Tensor,  # noqa: ARG002
        queries: Tensor,
        items: Tensor,
        positives: Ragged,  # noqa: ARG002
        k: int,
        generator: torch.Generator,  # noqa: ARG002
    ) -> Tensor:
        return thresholds.exact_thresholds(queries, items, k)

    def read(self, now: Tensor, block: Block, loss: Loss) -> Tensor:  # noqa: ARG002
        assert block.threshold is not None
        return block.threshold


class Sampled(Estimator):
    """The paper's estimator: all positives and ``n`` drawn negatives, as if there were no other items."""

    name: ClassVar[str] = "sampled"

    def __init__(self, *, n: int = 1000) -> None:
        self.n = at_least("n", n, 1)

    def refresh(
        self, now: Tensor, queries: Tensor, items: Tensor, positives: Ragged, k: int, generator: torch.Generator
    ) -> Tensor:
        counts = positives.counts
        rows = ((counts > 0) & (counts < items.size(0))).nonzero().squeeze(1)  # the others are in no batch
        lists = positives.select(rows)
        drawn = drawn_thresholds(self.name, queries[rows], items, lists, k, self.n, generator, names=rows)
        return now.index_copy(0, rows, drawn.to(now.dtype))


class Weighted(Sampled):
    """``Sampled`` with every drawn negative counted as many as it stands for: about unbiased."""

    name: ClassVar[str] = "weighted"


class IID(Sampled):
    """The quantile of ``n`` uniform draws of the catalogue."""

    name: ClassVar[str] = "iid"


class Regression(Estimator):
    """A step down the quantile regression loss after every training step."""

    updates: ClassVar[Literal["epochs", "steps"]] = "steps"
    by_rows: ClassVar[bool] = True

    def __init__(self, *, n: int = 1000, rate: float = 0.1) -> None:
        self.n, self.rate = at_least("n", n, 1), positive("rate", rate)

    def follow(self, now: Tensor, batch: Batch, encoded: Encoded, k: int, generator: torch.Generator) -> Tensor:
        _, scores = _shared_scores(self.n, batch, encoded, generator)
        return thresholds.regression_step(now, scores, k, encoded.items.size(0), rate=self.rate)


class Incremental(Estimator):
    """Follows the quantile after every training step, by the number of items above it."""

    updates: ClassVar[Literal["epochs", "steps"]] = "steps"
    by_rows: ClassVar[bool] = True
    reads: ClassVar[Literal["kth", "above"] | None] = "above"

    def __init__(self, *, n: int = 1000, rate: float = 0.5) -> None:
        self.n, self.rate = at_least("n", n, 1), positive("rate", rate)

    def follow(self, now: Tensor, batch: Batch, encoded: Encoded, k: int, generator: torch.Generator) -> Tensor:
        draw, scores = _shared_scores(self.n, batch, encoded, generator)
        # All positives of the queries count, not only those in the batch.
        owner = batch.positives.owner()
        positive_scores = (encoded.queries[owner] * encoded.items[batch.positives.indices]).sum(1)
        return thresholds.incremental_step(
            now,
            positive_scores,
            scores,
            owner,
            k,
            encoded.items.size(0) - batch.positives.counts,
            mask=draw.mask(scores.size(1)),
            rate=self.rate,
        )

    def read(self, now: Tensor, block: Block, loss: Loss) -> Tensor:
        assert block.above is not None
        return thresholds.counted_step(now, *block.above, loss.tau, loss.k, rate=self.rate)


ESTIMATORS: dict[str, type[Estimator]] = {
    "exact": Exact,
    "sampled": Sampled,
    "iid": IID,
    "weighted": Weighted,
    "regression": Regression,
    "incremental": Incremental,
}


class ThresholdHook:
    """The one owner of a loss's thresholds: every estimator goes through it.

    ``queries`` and ``positives`` are those of the training. ``every``: epochs between two refreshes (the paper's
    T_beta). ``in_steps``: the steps score the whole catalogue, each query once per epoch, so that an estimator that
    can read those scores does, and nothing is scored twice.
    """

    def __init__(
        self,
        loss: Loss,
        estimator: Estimator,
        queries: QuerySet,
        positives: Ragged,
        *,
        every: int = 5,
        in_steps: bool = False,
    ) -> None:
        self.loss, self.estimator, self.queries, self.positives = loss, estimator, queries, positives
        self.every = at_least("every", every, 1)
        self.reads = estimator.reads if in_steps else None
        self._is_due = False

    def begin_epoch(self, epoch: int, model: Model, generator: torch.Generator, *, is_resumed: bool = False) -> None:
        """Refresh all thresholds in epochs divisible by ``every``, unless the steps do it, as in algorithm C.1."""
        is_by_steps = self.estimator.updates == "steps"
        self._is_due = is_by_steps or epoch % self.every == 0
        if not self._is_due or is_by_steps or self.reads is not None or is_resumed:
            return
        with torch.no_grad():
            queries, items = model.encode(self.queries)
            assert isinstance(queries, Tensor)
            assert isinstance(items, Tensor)
            table = self.loss.threshold
            table.copy_(self.estimator.refresh(table, queries, items, self.positives, self.loss.k, generator))

    @torch.no_grad()
    def fill(self, model: Model) -> None:
        """Set all thresholds exactly, for a training that continues with a model: its first epochs need them."""
        queries, items = model.encode(self.queries)
        assert isinstance(queries, Tensor)
        assert isinstance(items, Tensor)  # a trained model's vectors
        self.loss.threshold.copy_(thresholds.exact_thresholds(queries, items, self.loss.k))

    def wanted(self, query: Tensor) -> Reading:
        if self.reads is None or not self._is_due:
            return {}
        return {"k": self.loss.k} if self.reads == "kth" else {"level": self.loss.threshold[query]}

    @torch.no_grad()
    def take(self, query: Tensor, block: Block) -> None:
        table = self.loss.threshold
        now = table[query].to(block.partition.dtype)
        table[query] = self.estimator.read(now, block, self.loss).to(table.dtype)

    @torch.no_grad()
    def after_step(self, batch: Batch, encoded: Encoded, generator: torch.Generator) -> None:
        """Update the thresholds from the step's own vectors."""
        if self.estimator.updates != "steps" or self.reads is not None:
            return
        table = self.loss.threshold
        if not self.estimator.by_rows and isinstance(encoded.items, ItemRows):
            encoded = Encoded(encoded.queries, encoded.items.whole())
        updated = self.estimator.follow(table[batch.query], batch, encoded, self.loss.k, generator)
        # A query may be in the batch twice (pairs with their own negatives); its first row decides, in a fixed order.
        query, row = torch.unique(batch.query, return_inverse=True)
        first = torch.full_like(query, row.numel()).scatter_reduce(
            0, row, torch.arange(row.numel(), device=row.device), "amin"
        )
        table[query] = updated[first]


def _shared_scores(n: int, batch: Batch, encoded: Encoded, generator: torch.Generator) -> tuple[Draw, Tensor]:
    """``n`` items drawn for the whole batch, and their scores (Q, n)."""
    n_items = encoded.items.size(0)
    drawn = draw_distinct(n, n_items, generator).to(batch.item.device)
    return Draw(drawn, columns_of(batch.positives, drawn, n_items)), encoded.queries @ encoded.items[drawn].T


@torch.no_grad()
def drawn_thresholds(
    estimator: str,
    queries: Tensor,
    items: Tensor,
    positives: Ragged,
    k: int,
    n: int,
    generator: torch.Generator,
    *,
    names: Tensor | None = None,
    block: int = BLOCK,
) -> Tensor:
    """Thresholds by "sampled", "weighted" or "iid", which look at ``n`` drawn items.

    Shapes: queries (Q, d); items (I, d); positives, Q lists, none of them empty or all items; names (Q,), what queries
        are called in errors; returns (Q,).
    The queries of a block look at the same items, so that one product scores them. Each query's own draw is as the
    estimator wants it: ``iid`` uniform and independent over the catalogue, else uniform over its negatives without
    replacement. So the errors of one block's queries are correlated within one refresh; the next one draws new items.
    """
    queries, items = (x.detach().to(torch.promote_types(x.dtype, torch.float32)) for x in (queries, items))
    names = torch.arange(queries.size(0), device=queries.device) if names is None else names
    estimates = queries.new_empty(queries.size(0))
    for start in range(0, queries.size(0), block):
        part = slice(start, min(start + block, queries.size(0)))
        if estimator == "iid":
            drawn = torch.randint(items.size(0), (n,), generator=generator).to(items.device)
            place = thresholds.iid_place(n, k, items.size(0))
            estimates[part] = best_scores(queries[part], items[drawn], place, names=names[part])[:, -1]
            continue
        lists = positives.slice(part.start, part.stop)
        dealt = deal_negatives(lists, n, items.size(0), generator)
        columns = items[dealt.items]
        most = min(k, columns.size(0))
        best = best_scores(queries[part], columns, most, names=names[part], exclude=dealt.exclude, stop=dealt.stop)
        stands_for = dealt.counts if estimator == "sampled" else items.size(0) - lists.counts
        scores = _list_scores(queries[part], items, lists)
        estimates[part] = _weighted_kth(scores, best, lists, stands_for, dealt, k)
    return estimates


def _weighted_kth(scores: Tensor, best: Tensor, lists: Ragged, stands_for: Tensor, dealt: Dealt, k: int) -> Tensor:
    """:func:`thresholds.weighted_thresholds` of the best negatives, compiled where it can be."""
    if not kernels.fits(scores, best):
        return thresholds.weighted_thresholds(scores, best, lists.owner(), k, stands_for, n_drawn=dealt.counts)
    level = torch.empty(len(lists), dtype=torch.float32)
    kernels.weighted_kth(best, scores, lists.indptr, stands_for, dealt.counts, k, level)
    return level


def _list_scores(queries: Tensor, items: Tensor, lists: Ragged) -> Tensor:
    """Scores of the listed items, (P,), compiled where they can be."""
    if not kernels.fits(queries, items):
        return (queries[lists.owner()] * items[lists.indices]).sum(1)
    scores = torch.empty(lists.indices.numel(), dtype=torch.float32)
    kernels.list_scores(queries, items, lists.indptr, lists.indices, scores)
    return scores
