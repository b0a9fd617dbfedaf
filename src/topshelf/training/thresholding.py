"""When and how the thresholds in a loss's buffer are moved during training."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from topshelf import kernels, thresholds
from topshelf.config import ThresholdSettings
from topshelf.losses import Loss
from topshelf.models import Model
from topshelf.negatives import Dealt, Population, Shared, deal_negatives
from topshelf.ragged import Ragged
from topshelf.ranking import best_scores
from topshelf.training.batches import Batch, Batches
from topshelf.training.objective import InStep, Scored

# Queries that share a draw. The more, the cheaper is a refresh and the more alike are the errors of its queries.
BLOCK = 512
DEFAULT_RATE = 0.5  # of the incremental estimator


class ThresholdSchedule:
    """Moves a loss's thresholds by the chosen estimator: every few epochs for all queries, or at every step.

    ``in_steps``: the steps score the whole catalogue, each query once an epoch; exact thresholds, and the counts that
    the incremental estimator follows, are then read off those scores for the price of one look at them.
    """

    def __init__(
        self, loss: Loss, settings: ThresholdSettings, positives: Ragged, n_items: int, *, in_steps: bool = False
    ) -> None:
        self.loss, self.settings, self.positives, self.n_items = loss, settings, positives, n_items
        self.in_steps = in_steps
        self.population = Population.of(positives, n_items)

    def in_step(self, epoch: int) -> InStep:
        """What the objective is to do to the thresholds of its batch, before it takes the loss."""
        if not self.in_steps:
            return None
        if self.settings.estimator == "incremental":
            return ("follow", self.settings.rate or DEFAULT_RATE)
        return "exact" if self.settings.estimator == "exact" and epoch % self.settings.every == 0 else None

    def before_epoch(self, epoch: int, model: Model, generator: torch.Generator) -> None:
        """Refresh all thresholds in epochs divisible by ``every``, unless the steps do it, as in algorithm C.1."""
        if self.settings.estimator in thresholds.EVERY_STEP or epoch % self.settings.every or self.in_step(epoch):
            return
        with torch.no_grad():
            queries, items = model.encode()
            assert isinstance(queries, Tensor)
            if self.settings.estimator == "exact":
                self.loss.threshold.copy_(thresholds.exact_thresholds(queries, items, self.loss.k))
                return
            rows, lists = self._ranked
            self.loss.threshold[rows] = drawn_thresholds(
                self.settings.estimator,
                queries[rows],
                items,
                lists,
                self.loss.k,
                self.settings.n,
                generator,
                names=rows,
            ).to(self.loss.threshold.dtype)

    @cached_property
    def _ranked(self) -> tuple[Tensor, Ragged]:
        """The queries that have both positives and negatives, and their positives."""
        rows = Batches(self.positives, self.n_items, order="query", size=1).queries
        return rows, self.positives.select(rows)

    @torch.no_grad()
    def after_step(self, batch: Batch, scored: Scored, generator: torch.Generator) -> None:
        """Follow the quantile from the step's own vectors, looking at ``n`` items shared by the batch."""
        settings = self.settings
        if settings.estimator not in thresholds.EVERY_STEP or (self.in_steps and settings.estimator == "incremental"):
            return
        draw = Shared(settings.n).draw(batch.positives, batch.item, self.population, generator)
        scores = scored.queries @ scored.items[draw.items].T
        now = self.loss.threshold[batch.query]
        if settings.estimator == "regression":
            moved = thresholds.regression_step(now, scores, self.loss.k, self.n_items, rate=settings.rate or 0.1)
        else:
            # All positives of the queries are looked at, whichever of them the batch trains on.
            owner = batch.positives.owner()
            positive = (scored.queries[owner] * scored.items[batch.positives.indices]).sum(1)
            moved = thresholds.incremental_step(
                now,
                positive,
                scores,
                owner,
                self.loss.k,
                self.n_items - batch.positives.counts,
                mask=draw.mask(scores.size(1)),
                rate=settings.rate or DEFAULT_RATE,
            )
        # A query may come twice (pairs with negatives of their own); its first row decides, in a fixed order.
        query, row = torch.unique(batch.query, return_inverse=True)
        first = torch.full_like(query, row.numel()).scatter_reduce(
            0, row, torch.arange(row.numel(), device=row.device), "amin"
        )
        self.loss.threshold[query] = moved[first]


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
    """Thresholds by one of the estimators that look at ``n`` drawn items (``thresholds.DRAWN``).

    Shapes: queries (Q, d); items (I, d); positives, Q lists, none of them empty or all items; names (Q,), what queries
        are called in errors; returns (Q,).
    The queries of a block look at the same items, so that one product scores them. Each query's own draw is as the
    estimator wants it: ``iid`` uniform and independent over the catalogue, else uniform over its negatives without
    replacement. Errors of one block's queries are therefore alike, in one refresh; the next one draws anew.
    """
    queries, items = (x.detach().to(torch.promote_types(x.dtype, torch.float32)) for x in (queries, items))
    names = torch.arange(queries.size(0), device=queries.device) if names is None else names
    found = queries.new_empty(queries.size(0))
    for start in range(0, queries.size(0), block):
        part = slice(start, min(start + block, queries.size(0)))
        if estimator == "iid":
            drawn = torch.randint(items.size(0), (n,), generator=generator).to(items.device)
            place = thresholds.iid_place(n, k, items.size(0))
            found[part] = best_scores(queries[part], items[drawn], place, names=names[part])[:, -1]
            continue
        lists = positives.slice(part.start, part.stop)
        dealt = deal_negatives(lists, n, items.size(0), generator)
        columns = items[dealt.items]
        most = min(k, columns.size(0))
        best = best_scores(queries[part], columns, most, names=names[part], exclude=dealt.exclude, stop=dealt.stop)
        stands_for = dealt.counts if estimator == "sampled" else items.size(0) - lists.counts
        found[part] = _weighted_kth(_list_scores(queries[part], items, lists), best, lists, stands_for, dealt, k)
    return found


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
