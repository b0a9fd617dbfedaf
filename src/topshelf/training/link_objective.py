"""What a training step of links minimises: edges of the graph against pairs of nodes that are none."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf import thresholds
from topshelf.errors import ConfigError, at_least, one_of
from topshelf.graphs import LinkGraph
from topshelf.losses import Loss
from topshelf.models.link_base import LinkModel
from topshelf.training.link_batches import LinkBatch, LinkBatches, LinkDraw, LinkNegatives
from topshelf.training.objective import StepResult

LINK_ESTIMATORS = ("sampled", "weighted", "exact")


class LinkThresholds:
    """The one owner of a loss's thresholds over nodes: each query's K-th best score.

    ``estimator``: "sampled", the K-th best of the step's negatives and the query's known edges; "weighted", with each
    negative counted as the many that it stands for; "exact", over all nodes. ``scope``: "batch", made from the scores
    of the step itself and used in it; "table", written after the steps of every ``every``-th epoch, used from then on.
    """

    def __init__(self, loss: Loss, graph: LinkGraph, *, estimator: str, scope: str = "batch", every: int = 1) -> None:
        self.loss, self.graph = loss, graph
        self.estimator = one_of("threshold.estimator", estimator, LINK_ESTIMATORS)
        self.scope = one_of("threshold.scope", scope, ("batch", "table"))
        self.every = at_least("threshold.every", every, 1)
        self._is_due = True

    def begin_epoch(
        self,
        epoch: int,
        model: LinkModel | None = None,  # noqa: ARG002
        generator: torch.Generator | None = None,  # noqa: ARG002
        *,
        is_resumed: bool = False,  # noqa: ARG002
    ) -> None:
        """Note whether the steps of this epoch, counted from 1, write the table."""
        self._is_due = epoch % self.every == 0

    def after_step(self, batch: LinkBatch, encoded: None, generator: torch.Generator) -> None:
        """Nothing: the thresholds are written in the step, which has the scores."""

    @torch.no_grad()
    def of_step(
        self, model: LinkModel, nodes: Tensor, batch: LinkBatch, draw: LinkDraw, graph: LinkGraph
    ) -> Tensor | None:
        """The thresholds that the loss of this step is given, (Q,); None where it takes those of its table."""
        if self.scope == "batch":
            return self._estimate(model, nodes, batch, draw, graph)
        if self._is_due:
            values = self._estimate(model, nodes, batch, draw, graph)
            query, row = torch.unique(batch.query, return_inverse=True)
            first = torch.full_like(query, row.numel()).scatter_reduce(
                0, row, torch.arange(row.numel(), device=row.device), "amin"
            )
            self._next = (query, values[first].to(self.loss.threshold.dtype))
        return None

    def write(self) -> None:
        """Write what the step found, after its loss was taken."""
        if self.scope == "table" and self._is_due:
            query, values = self._next
            self.loss.threshold[query] = values

    def _estimate(self, model: LinkModel, nodes: Tensor, batch: LinkBatch, draw: LinkDraw, graph: LinkGraph) -> Tensor:
        if draw.is_all:  # nothing needs to be scored again
            return _kth(draw.scores.detach(), batch.kept, self.loss.k)
        if self.estimator == "exact":
            return self._exact(model, nodes, batch, graph)
        owner, scores, counts = self._known(model, nodes, batch, graph)
        if self.estimator == "sampled":
            return thresholds.sampled_thresholds(scores, draw.scores.detach(), owner, self.loss.k, mask=draw.mask)
        n_negatives = graph.n_nodes - 1 - counts
        return thresholds.weighted_thresholds(
            scores, draw.scores.detach(), owner, self.loss.k, n_negatives, mask=draw.mask
        )

    def _known(
        self, model: LinkModel, nodes: Tensor, batch: LinkBatch, graph: LinkGraph
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The scores of all known edges of the queries: their owners, the scores, and how many per query."""
        owners, pairs = [], []
        for side, lists in enumerate((self.graph.targets, self.graph.sources)):
            rows = (batch.side == side).nonzero().squeeze(1)
            chosen = lists.select(batch.kept[rows]) if rows.numel() else lists.slice(0, 0)
            owner = rows[chosen.owner()]
            kept = batch.kept[owner]
            owners.append(owner)
            pairs.append(torch.stack([kept, chosen.indices] if side == 0 else [chosen.indices, kept], dim=1))
        owner = torch.cat(owners)
        scores = model.score_all(nodes.detach(), torch.cat(pairs), graph)
        return owner, scores, torch.bincount(owner, minlength=batch.query.numel())

    def _exact(self, model: LinkModel, nodes: Tensor, batch: LinkBatch, graph: LinkGraph) -> Tensor:
        levels = nodes.new_empty(batch.query.numel())
        everyone = torch.arange(graph.n_nodes, device=nodes.device)
        for side in (0, 1):
            rows = (batch.side == side).nonzero().squeeze(1)
            for part in rows.split(256):
                kept = batch.kept[part]
                scores = model.score_others(nodes.detach(), kept, everyone, graph, side=side)
                levels[part] = _kth(scores, kept, self.loss.k)
        return levels


def _kth(scores: Tensor, kept: Tensor, k: int) -> Tensor:
    """The K-th best score of each kept end with all nodes, (Q, N) to (Q,)."""
    scores = scores.scatter(1, kept.unsqueeze(1), -math.inf)  # a node is not listed for itself
    return scores.topk(min(k, scores.size(1) - 1), dim=1).values[:, -1]


class LinkObjective:
    """Edges against negatives, by any loss that takes positive and negative scores.

    ``effective_n``: the sum over N negatives is scaled by effective_n / N, for losses with a partition sum.
    """

    def __init__(
        self,
        model: LinkModel,
        loss: Loss,
        graph: LinkGraph,
        batches: LinkBatches,
        negatives: LinkNegatives,
        *,
        owner: LinkThresholds | None = None,
        effective_n: int | None = None,
    ) -> None:
        if "whole_queries" in loss.needs:
            raise ConfigError(
                f"{type(loss).__name__} needs all positives of a query in its batch, and links come edge by edge; "
                "choose another loss"
            )
        if loss.reduction != "mean":
            raise ConfigError(f"training takes the mean: reduction must be 'mean', got {loss.reduction!r}")
        if effective_n is not None and "log_partition" not in loss.needs:
            raise ConfigError(f"negatives.effective_n scales a partition sum, and {type(loss).__name__} has none")
        self.model, self.loss, self.graph, self.batches = model, loss, graph, batches
        self.negatives, self.owner, self.effective_n = negatives, owner, effective_n
        model.attach(graph)

    @property
    def hooks(self) -> Sequence[LinkThresholds]:
        return [] if self.owner is None else [self.owner]

    def backward(self, batch: LinkBatch, generator: torch.Generator) -> StepResult:
        """The loss of a batch; its gradients are added to the parameters'."""
        value = self(batch, generator)
        value.backward()
        if self.owner is not None:
            self.owner.write()
        return StepResult(float(value.detach()))

    def __call__(self, batch: LinkBatch, generator: torch.Generator) -> Tensor:
        """The differentiable loss of a batch."""
        self.model.train()
        graph = self.graph.without(batch.edge)
        nodes = self.model.encode_nodes(graph)
        positive = self.model.score(nodes, batch.pairs, graph)
        draw = self.negatives.draw(self.model, nodes, batch, (graph, self.graph), generator)
        threshold = None
        if self.owner is not None:
            threshold = self.owner.of_step(self.model, nodes, batch, draw, graph)
        return self.loss(
            positive,
            draw.scores,
            query=batch.query,
            mask=draw.mask,
            log_q=self._log_q(draw.scores),
            threshold=threshold,
            pair=batch.pair,
            negative_item=draw.items,
            query_vector=F.embedding(batch.kept, nodes),
            item_vector=F.embedding(batch.other, nodes),
        )

    def _log_q(self, scores: Tensor) -> Tensor | None:
        if self.effective_n is None:
            return None
        return scores.new_full((scores.size(1),), math.log(scores.size(1) / self.effective_n))
