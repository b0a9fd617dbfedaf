"""What every loss shares: the ragged form, the reduction, and how masked or unevenly drawn negatives count.

A batch holds Q queries and all P positives of those queries; ``owner (P,)`` says whose each positive is. Without
``owner`` the batch is the textbook's: one query a positive, P = Q.

The modules refuse tensors whose shapes do not fit and indices that are out of range. They blank the scores of masked
negatives, which may be anything, also infinite or NaN. The pure functions check nothing, and most of them want finite
scores at masked places too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf.errors import ConfigError, one_of
from topshelf.losses.checks import check_batch
from topshelf.losses.tables import Tables
from topshelf.registry import Recorded

Reduction = Literal["mean", "sum", "none"]
Negatives = Literal["auto", "catalogue", "shared", "per_query", "in_batch"]
Ranges = dict[str, tuple[float | int | str, ...]]

# The paper's search space of its optimizer, for every loss; "dot" losses go one step lower.
COSINE_RATES = (0.1, 0.01, 0.001)
DOT_RATES = (0.1, 0.01, 0.001, 0.0001)
DECAYS = (0.0, 1e-4, 1e-5, 1e-6)
TEMPERATURES = (0.01, 0.05, 0.1, 0.2, 0.5)


class Extras(NamedTuple):
    """What a loss may be told beside the scores. Which of them it cannot do without is in its ``needs``."""

    query: Tensor | None = None  # (Q,), index of each query, for losses that keep state of queries
    mask: Tensor | None = None  # (Q, N), True where a negative does not count
    log_q: Tensor | None = None  # (N,) or (Q, N), log of how much likelier than uniform a negative was drawn
    log_partition: Tensor | None = None  # (Q,), in place of the negatives
    pair: Tensor | None = None  # (P,), index of each positive among all training positives
    negative_item: Tensor | None = None  # (N,) or (Q, N), index of each negative's item
    query_vector: Tensor | None = None  # (Q, d)
    item_vector: Tensor | None = None  # (P, d), of the positives


_WHAT = {
    "negative": "the scores of negatives (Q, N); a log_partition does not determine it",
    "query": "query (Q,), the index of each query: it keeps state of them",
    "pair": "pair (P,), the index of each positive among all training positives: it keeps state of them",
    "negative_item": "negative_item (N,) or (Q, N), the index of each negative's item",
    "query_vector": "query_vector (Q, d), the vectors of the queries",
    "item_vector": "item_vector (P, d), the vectors of the positives",
}


class Loss(Recorded, Tables):
    """Base of the module forms. A subclass adds checked settings and state to a pure function, nothing else.

    A subclass has ``each``, the losses of a batch's positives, and says:

    - ``formula``: the pure function, whose docstring documents the loss;
    - ``ranges``: what is searched when it is tuned, by the names of a run's settings;
    - ``needs``: which of ``negative`` and :class:`Extras` it cannot do without;
    - ``accepts_partition``: it can take ``log_partition (Q,)``, the log of the partition sum of ``exp(score / tau)``,
      in place of the (Q, N) negatives, and then has an attribute ``tau``;
    - ``is_separable``: the mean over a batch is the mean over its parts;
    - ``ties_positives``: the term of a positive has a gradient by the scores of its query's other positives;
    - ``needs_whole_queries``: all positives of a query must be in the batch (``train.order = "query"``);
    - ``keeps_thresholds``: it has ``k`` and a table ``threshold (n_queries,)`` that somebody else moves;
    - ``preferred_score`` and ``preferred_negatives``: what a run uses when nobody chose; ``n_negatives``: how many are
      drawn for each query when nobody said, None for the paper's N (``negatives.paper_n``: 1000, on MovieLens 200);
    - ``effective_n``: size to which a run scales the sum over negatives when nobody said: 1000 for the paper's N,
      whatever it is on the data, "catalogue" for a sum that stands for the whole catalogue, None where the formula's
      own sum or mean is meant and ``negatives.effective_n`` may not be set;
    - ``pair_copies``: how many tables of (P, N) floats the loss and its backward pass hold at once, for the guard of
      memory.

    Constructor arguments named ``n_queries``, ``n_items`` and ``n_positives`` are filled in by the trainer.
    """

    formula: ClassVar[Callable[..., Tensor]]
    ranges: ClassVar[Ranges] = {}
    needs: tuple[str, ...] = ("negative",)
    accepts_partition: bool = False
    tau: float
    is_separable: bool = True
    ties_positives: bool = False
    needs_whole_queries: bool = False
    keeps_thresholds: ClassVar[bool] = False
    k: int
    threshold: Tensor
    preferred_score: ClassVar[Literal["cosine", "dot"]] = "cosine"
    preferred_negatives: ClassVar[Negatives] = "auto"
    n_negatives: ClassVar[int | None] = None
    effective_n: ClassVar[int | Literal["catalogue"] | None] = None
    pair_copies: int = 12

    def __init__(self, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.reduction: Reduction = one_of("reduction", reduction, ("mean", "sum", "none"))

    def forward(
        self,
        positive: Tensor,
        negative: Tensor | None = None,
        owner: Tensor | None = None,
        *,
        query: Tensor | None = None,
        mask: Tensor | None = None,
        log_q: Tensor | None = None,
        log_partition: Tensor | None = None,
        pair: Tensor | None = None,
        negative_item: Tensor | None = None,
        query_vector: Tensor | None = None,
        item_vector: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch: a number, or (P,) with reduction "none".

        Shapes: positive (P,); negative (Q, N); owner (P,), default one query a positive; the others as in
        :class:`Extras`. In training mode losses with state move it, in evaluation mode they do not. In a distributed
        run every process must make the same calls in training mode, with empty tensors where it has no batch: they
        tell each other what they have written to the loss's tables (:mod:`topshelf.losses.tables`).
        """
        extras = Extras(query, mask, log_q, log_partition, pair, negative_item, query_vector, item_vector)
        for name in self.needs:
            if (negative if name == "negative" else getattr(extras, name)) is None:
                raise ConfigError(f"{type(self).__name__} needs {_WHAT[name]}: pass {name}")
        check_batch(self.index_sizes(), positive=positive, negative=negative, owner=owner, **extras._asdict())
        if self.training and self.is_shared():
            self.synchronise()
        if negative is not None and mask is not None:
            negative = negative.masked_fill(mask, 0.0)  # 0 times infinity is NaN
        losses = self.each(positive, negative, owner, extras)
        if self.training and self.is_shared() and self.has_written():
            self.synchronise()
        return reduce(losses, self.reduction)

    def each(self, positive: Tensor, negative: Any, owner: Tensor | None, extras: Extras) -> Tensor:
        """The loss of every positive, (P,). ``negative`` is a Tensor where ``needs`` says so."""
        raise NotImplementedError

    def begin_epoch(self, epoch: int) -> None:
        """Told before each epoch, counted from 1, by whoever trains; for losses whose parts take turns."""

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """The loss's own parameters as groups of an optimizer, beside a model trained at ``learning_rate``.

        Everything is to be *minimised*: what must ascend has its gradient turned round (:func:`ascending`).
        """
        parameters = list(self.parameters())
        return [{"params": parameters, "lr": learning_rate, "weight_decay": 0.0}] if parameters else []


def ascending(value: Tensor) -> Tensor:
    """The same value with its gradient turned round: a descending optimizer then ascends it."""
    return 2 * value.detach() - value  # exact in floating point


def reduce(losses: Tensor, reduction: Reduction) -> Tensor:
    """Mean, sum or nothing over (P,). The mean of no positive at all is 0, so that an empty batch is harmless."""
    if reduction == "none":
        return losses
    total = losses.sum()
    return total if reduction == "sum" else total / max(1, losses.numel())


def owners(positive: Tensor, n_queries: int, owner: Tensor | None) -> Tensor:
    """``owner``, or the textbook's one query a positive."""
    if owner is not None:
        return owner
    if positive.numel() != n_queries:
        raise ConfigError(
            f"without owner there must be one query a positive, got {positive.numel()} positives and {n_queries} "
            "queries; pass owner (P,), the query of each positive"
        )
    return torch.arange(n_queries, device=positive.device)


def widened(scores: Tensor) -> Tensor:
    """Half-precision scores in float32; wider ones as they are."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def margins(positive: Tensor, negative: Tensor, owner: Tensor) -> Tensor:
    """How far each negative is above each positive, s_j - s_i, (P, N)."""
    # F.embedding, not indexing: its backward pass adds in a fixed order.
    return F.embedding(owner, widened(negative)) - widened(positive).unsqueeze(1)


def negative_weights(negative: Tensor, mask: Tensor | None, log_q: Tensor | None) -> Tensor:
    """What each negative counts, (Q, N): 1, over how much likelier than uniform it was drawn, or 0 where masked.

    Scores are weighed by it, so those of masked negatives must be finite, as the modules make them.
    """
    weights = torch.ones_like(widened(negative))
    if log_q is not None:
        weights = weights * torch.exp(-log_q)
    return weights if mask is None else weights.masked_fill(mask, 0.0)


def mean_over(values: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean over the last axis; 0 where nothing counts."""
    total = weights.sum(-1)
    return (values * weights).sum(-1) / torch.where(total > 0, total, torch.ones_like(total))


def sampled_log_partition(negative: Tensor, tau: float, mask: Tensor | None, log_q: Tensor | None) -> Tensor:
    r"""Log of the sum of :math:`e^{s_j/\tau - \log q_j}` over each query's negatives, (Q, N) to (Q,).

    A query without negatives gets -inf.
    """
    logits = widened(negative) / tau
    if log_q is not None:
        logits = logits - log_q
    if mask is not None:
        logits = logits.masked_fill(mask, -math.inf)
    return log_sum_exp(logits)


def log_sum_exp(logits: Tensor) -> Tensor:
    """Log-sum-exp over the last axis, (Q, N) to (Q,), with no NaN in the gradient of a row that is all -inf."""
    if logits.size(-1) == 0:
        return logits.sum(-1) - math.inf  # differentiable, though there is nothing to differentiate by
    # A row of -inf has no gradient; zeros keep its backward pass free of NaN.
    empty = (logits == -math.inf).all(-1)
    total = logits.masked_fill(empty.unsqueeze(-1), 0.0).logsumexp(-1)
    return total.masked_fill(empty, -math.inf)


def without_rivals_zero(losses: Tensor, partition: Tensor) -> Tensor:
    """Zero where the partition (P,) is -inf: a positive with nothing to be ranked against is already in its place."""
    return torch.where(partition == -math.inf, torch.zeros_like(losses), losses)
