"""SoftmaxLoss@K (SL@K): the softmax loss of positives weighted by their nearness to the top K."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf.errors import ConfigError, at_least, one_of, positive
from topshelf.losses.base import (
    FOR_COSINES,
    TEMPERATURES,
    WEIGHT_TEMPERATURES,
    Defaults,
    Extras,
    Loss,
    Reduction,
    margins,
    negative_weights,
    owners,
    widened,
    zero_unless,
)
from topshelf.losses.checks import check_batch
from topshelf.losses.softmax import partition_of, softmax_loss
from topshelf.losses.tables import first_rows
from topshelf.thresholds import sampled_thresholds

Activation = Literal["sigmoid", "exponential"]

# e^60 is 1e26: room for products and sums in float32. Only weight="exponential" can reach it.
_MAX_EXPONENT = 60.0
# With cosines every weight is then within 0.001 of a half: the softmax loss at half the size.
WEAKEST = 500.0


def slatk_loss(
    positive: Tensor,
    negative: Tensor | None = None,
    owner: Tensor | None = None,
    *,
    threshold: Tensor,
    tau: float,
    tau_weight: float,
    weight: Activation = "sigmoid",
    distance: Activation = "exponential",
    detach_weight: bool = False,
    keep_hits: bool = False,
    mask: Tensor | None = None,
    log_q: Tensor | None = None,
    log_partition: Tensor | None = None,
) -> Tensor:
    r"""Softmax loss that weights each positive by its nearness to its query's top K.

    .. math:: \sigma_w(s_i - \beta) \cdot \log \sum_j \sigma_d(s_j - s_i), \qquad
              \sigma_w(x) = \frac{1}{1 + e^{-x/\tau_w}}, \quad \sigma_d(x) = e^{x/\tau}

    Shapes: positive s_i (P,); negative s_j (Q, N); owner (P,), default one query per positive; threshold β, each
        query's K-th best score (Q,), never differentiated; mask (Q, N), True where a negative does not count; log_q
        (N,) or (Q, N), 0 for a uniform draw; log_partition (Q,), the log of the sum of exp(s_j / tau), in place of
        negative; returns (P,), unreduced. A positive without negatives costs 0.
    Settings: ``weight`` is σ_w and ``distance`` σ_d (the paper's table of activation functions; σ_d = sigmoid needs
        the negatives themselves and is no upper bound); ``detach_weight`` stops the gradient through the weight,
        which otherwise pushes badly ranked positives down; ``keep_hits`` keeps the number of hits H of the paper's
        equation 3.3d: weights are divided by it and its logarithm is subtracted (needs all positives of a query).
    Use when: the metric is NDCG@K, and K is small against the catalogue.
    Cost: O(QN + P), as the softmax loss; O(PN) with σ_d = sigmoid.
    Paper: Yang et al., Breaking the Top-K Barrier (SL@K), KDD 2025, equation 3.5; an upper bound of -log DCG@K when
        the sum runs over all items and at least two positives are in the top K (theorem 3.2).
    Relations: a constant weight of one gives ``softmax_loss``. A constant added to the log partition does not
        change the softmax loss's gradient, but this one's: see ``effective_n`` in the documentation.
    """
    if distance == "exponential":
        losses = softmax_loss(positive, negative, owner, tau=tau, mask=mask, log_q=log_q, log_partition=log_partition)
    else:
        losses = _sigmoid_distance(positive, negative, owner, tau, mask, log_q)
    given_owner, owner = owner, owners(positive, threshold.numel(), owner)
    level = (threshold.detach() / -tau_weight).index_select(0, owner)
    near = torch.add(level, widened(positive), alpha=1 / tau_weight)  # (P,), (s - β) / τ_w in one pass each way
    if detach_weight:
        near = near.detach()
    weights = torch.sigmoid(near) if weight == "sigmoid" else near.clamp(max=_MAX_EXPONENT).exp()
    if keep_hits:
        if given_owner is None:
            raise ConfigError("keep_hits needs all positives of each query: pass owner (P,), got none")
        if negative is not None:
            rivals = negative_weights(negative, mask, log_q).sum(1) > 0
        else:
            rivals = partition_of(None, log_partition, tau, mask, log_q) != -torch.inf
        kept = _with_hits(weights * losses, positive, threshold, owner)
        return zero_unless(rivals[owner], kept)
    return weights * losses


def _sigmoid_distance(
    positive: Tensor,
    negative: Tensor | None,
    owner: Tensor | None,
    tau: float,
    mask: Tensor | None,
    log_q: Tensor | None,
) -> Tensor:
    if negative is None:
        raise ConfigError('distance="sigmoid" needs negative (Q, N); a log_partition does not determine it')
    owner = owners(positive, negative.size(0), owner)
    above = margins(positive, negative, owner) / tau  # (P, N)
    wide = [None if x is None else x.expand(negative.shape)[owner] for x in (mask, log_q)]
    total = partition_of(F.logsigmoid(above), None, 1.0, *wide)  # (P,)
    return zero_unless(total != -torch.inf, total.masked_fill(total == -torch.inf, 0.0))


def _with_hits(losses: Tensor, positive: Tensor, threshold: Tensor, owner: Tensor) -> Tensor:
    """Divide by the hits H of each query and subtract log H, an equal share of it from each of its positives."""
    n_queries = threshold.numel()
    is_hit = (widened(positive) >= threshold[owner]).to(losses.dtype)
    hits = losses.new_zeros(n_queries).index_add(0, owner, is_hit.detach()).clamp(min=1)
    shares = torch.bincount(owner, minlength=n_queries)[owner]
    return losses / hits[owner] - hits.log()[owner] / shares


class SLatK(Loss):
    """Module form of :func:`slatk_loss`; it owns the thresholds of its queries.

    ``n_queries`` is the number of all queries (users); ``k`` the length of the recommended list. The thresholds
    start at 0, as in the paper, and the caller updates them: the trainer does it by the chosen estimator, and in your
    own loop ``update_threshold`` does it from the scores at hand. A call with ``threshold (Q,)`` uses that instead.
    Without ``n_queries`` the loss has no state, and every call must pass ``threshold``: for queries that are too many
    for a table or that never come back, with the thresholds of the batch (:mod:`topshelf.thresholds`).
    """

    formula = staticmethod(slatk_loss)
    ranges = FOR_COSINES | {
        "loss.tau": TEMPERATURES,
        "loss.tau_weight": WEIGHT_TEMPERATURES,
        "threshold.every": (5, 20),
    }
    needs: tuple[str, ...] = ("log_partition", "query")
    keeps_thresholds = True
    defaults = Defaults(effective_n=1000)
    raced: ClassVar[Mapping[str, tuple[float, ...]]] = {"tau_weight": (3.0, 5.0, WEAKEST)}
    threshold: Tensor  # (n_queries,), a table: saved, resumed, equal on all processes

    def __init__(
        self,
        n_queries: int | None = None,
        k: int = 20,
        *,
        tau: float = 0.2,
        tau_weight: float = 3.0,
        weight: Activation = "sigmoid",
        distance: Activation = "exponential",
        detach_weight: bool = False,
        keep_hits: bool = False,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        self.k = at_least("k", k, 1)
        self.tau = positive("tau", tau)
        self.tau_weight = positive("tau_weight", tau_weight)
        self.weight: Activation = one_of("weight", weight, get_args(Activation))
        self.distance: Activation = one_of("distance", distance, get_args(Activation))
        self.detach_weight = detach_weight
        self.keep_hits = keep_hits
        self.keeps_thresholds = n_queries is not None
        rivals = "log_partition" if distance == "exponential" else "negative"
        self.needs = (rivals, "query" if self.keeps_thresholds else "threshold")
        if keep_hits:
            self.needs, self.scope = (*self.needs, "whole_queries"), "query"
        if n_queries is not None:
            self.register_table("threshold", n_queries)

    def each(self, positive: Tensor, negative: Tensor | None, owner: Tensor | None, extras: Extras) -> Tensor:
        return super().each(positive, negative, owner, extras._replace(threshold=self.thresholds(extras)))

    @torch.no_grad()
    def update_threshold(
        self,
        query: Tensor,
        positive: Tensor,
        negative: Tensor,
        owner: Tensor | None = None,
        *,
        mask: Tensor | None = None,
    ) -> None:
        """Set the thresholds of ``query (Q,)`` to their K-th best score among the positives and negatives given.

        The paper's estimate. It needs *all* positives of a query and some hundreds of different negatives; with a few
        positives of a shuffled batch it is far too low. For a query that occurs twice it takes all positives and the
        negatives of the first row. In a distributed run every process calls it for its own queries, with empty tensors
        where it has none; afterwards all of them have the new thresholds.
        """
        self._check_table("update_threshold")
        check_batch(self.index_sizes(), positive=positive, negative=negative, owner=owner, query=query, mask=mask)
        owner = owners(positive, query.numel(), owner)
        rows = first_rows(query)[owner]  # the positives of all rows of a query count for its first row
        self._refuse_few(query, negative, rows, mask)
        values = sampled_thresholds(widened(positive), widened(negative), rows, self.k, mask=mask)
        self.write("threshold", query, values)
        self.synchronise()

    def _refuse_few(self, query: Tensor, negative: Tensor, owner: Tensor, mask: Tensor | None) -> None:
        """The K-th best of fewer than K scores is unknown."""
        n = torch.full_like(query, negative.size(1)) if mask is None else (~mask).sum(1)
        n = n + torch.bincount(owner, minlength=query.numel())
        few = n[first_rows(query)] < self.k
        if bool(few.any()):
            row = int(few.int().argmax())
            raise ConfigError(
                f"k must be <= the number of scores given for a query, got k={self.k} and {int(n[row])} scores of "
                f"query {int(query[row])}; pass all its positives and more negatives"
            )

    def resize(self, n_queries: int) -> None:
        """Keep the thresholds of the queries that stay, and start new ones at 0."""
        self._check_table("resize")
        resized = self.threshold.new_zeros(at_least("n_queries", n_queries, 0))
        kept = min(n_queries, self.threshold.numel())
        resized[:kept] = self.threshold[:kept]
        self.threshold = resized

    def _check_table(self, method: str) -> None:
        if not self.keeps_thresholds:
            raise ConfigError(
                f"{method} needs a table of thresholds, and this SLatK was made without n_queries; give n_queries, or "
                "pass threshold (Q,) with each call"
            )
