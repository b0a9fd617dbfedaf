"""When and how the thresholds in a loss's buffer are moved during training."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf import thresholds
from topshelf.config import ThresholdSettings
from topshelf.losses import Loss
from topshelf.models import Model
from topshelf.negatives import Population, Shared, draw_negatives, sampled_scores
from topshelf.ragged import Ragged
from topshelf.training.batches import Batch, Batches
from topshelf.training.objective import InStep, Scored

# Scores of one block of queries; bounds the memory of a refresh.
_BLOCK_CELLS = 2**24
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
            rows = Batches(self.positives, self.n_items, order="query", size=1).queries
            for block in rows.split(max(1, _BLOCK_CELLS // max(self.n_items, self.settings.n))):
                self.loss.threshold[block] = self._sampled(queries[block], items, block, generator)

    def _sampled(self, queries: Tensor, items: Tensor, block: Tensor, generator: torch.Generator) -> Tensor:
        n, k = self.settings.n, self.loss.k
        if self.settings.estimator == "iid":
            ids = torch.randint(self.n_items, (block.numel(), n), generator=generator).to(block.device)
            return thresholds.iid_thresholds(sampled_scores(queries, items, ids), k, self.n_items)
        chosen = self.positives.select(block)
        owner = chosen.owner()
        positive = (queries[owner] * items[chosen.indices]).sum(1)
        ids = draw_negatives(chosen, n, self.n_items, generator).sort(1).values
        # An item drawn twice counts once; else the estimate could be above the exact threshold.
        repeated = F.pad(ids[:, 1:] == ids[:, :-1], (1, 0))
        scores = sampled_scores(queries, items, ids)
        return thresholds.sampled_thresholds(positive, scores, owner, k, mask=repeated)

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
