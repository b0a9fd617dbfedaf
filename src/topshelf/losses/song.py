"""SONG and SONG@K: NDCG by compositional optimization, with a moving average of every positive's smooth rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from topshelf.errors import at_least, at_most, one_of, positive
from topshelf.losses.base import (
    FOR_COSINES,
    GAMMAS,
    Extras,
    Loss,
    Reduction,
    counted,
    mean_over,
    owners,
    widened,
    zero_unless,
)
from topshelf.losses.smooth_ranks import smooth_rank
from topshelf.losses.tables import first_rows

SongForm = Literal["paper", "original"]
Rank = Literal["sum", "mean"]
_UNSEEN = -1.0  # a smooth rank is never negative


def _song(
    positive: Tensor,
    negative: Tensor,
    owner: Tensor | None,
    n_items: int,
    form: Rank,
    gamma: float,
    average: Tensor | None,
    query: Tensor | None,
    mask: Tensor | None,
    log_q: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The losses (P,), and the moving averages after this step (P,)."""
    owner, weights = counted(positive, negative, owner, mask, log_q)
    rank = smooth_rank(positive, negative, owner, n_items=n_items, query=query, mask=mask, log_q=log_q)
    rank = rank if form == "sum" else rank / n_items
    rivals = (weights.sum(1) > 0)[owner]
    with torch.no_grad():
        before = torch.full_like(rank, _UNSEEN) if average is None else average.to(rank.dtype)
        updated = torch.where(before < 0, rank, before + gamma * (rank - before))
    # The value is the moving average's; the gradient goes on to the estimate of this step.
    through = updated + (rank - rank.detach())
    return zero_unless(rivals, -1 / torch.log2(1 + through)), torch.where(rivals, updated, before)


def song_loss(
    positive: Tensor,
    negative: Tensor,
    owner: Tensor | None = None,
    *,
    n_items: int,
    rank: Rank = "sum",
    gamma: float = 1.0,
    average: Tensor | None = None,
    query: Tensor | None = None,
    mask: Tensor | None = None,
    log_q: Tensor | None = None,
) -> Tensor:
    r"""Minus the discount of each positive's smooth rank, whose moving average makes the gradient (SONG).

    .. math:: -\frac{1}{\log_2(1 + g_i)}, \quad g_i \leftarrow (1 - \gamma) g_i + \gamma \hat g_i, \quad
              \hat g_i = \sum_p \max(0, s_p - s_i + 1)^2 +
              (|I| - P_u) \operatorname{mean}_j \max(0, s_j - s_i + 1)^2, \qquad
              \nabla = \frac{\nabla \hat g_i}{\log_2^2(1 + g_i) (1 + g_i) \ln 2}

    Shapes: positive s_i, s_p (P,), p over the P_u positives of i's query that are in the batch, i among them; negative
        s_j (Q, N), a uniform sample of the other items; owner (P,), default one query per positive; average g_i (P,)
        before this step, negative where there is none yet, default none; n_items |I|; query (Q,), rows of the same
        query share their positives; mask (Q, N), True where a negative does not count; log_q (N,) or (Q, N), 0 for a
        uniform draw, else the mean is weighted by 1/q; returns (P,), unreduced. A positive without negatives costs 0.
    Settings: ``gamma`` is the weight of the new value, at 1 the loss is plain DCG of smooth ranks. ĝ estimates the
        paper's sum over all items, and equals it where positives and negatives are all of them; it is at least 1, so
        values are in [-1, 0]. ``rank="mean"`` divides ĝ by |I|: this is no rank, and values go down to
        -1/log2(1 + 1/|I|), but its uneven gradients and its low quality are closer to what the SL@K paper reports
        (docs/losses/measured.md).
    Use when: as the paper's baseline.
    Cost: O(PN + P log P), and one number per training positive of state.
    Paper: Qiu et al., Large-scale stochastic optimization of NDCG surrogates (SONG), ICML 2022; SL@K, appendix A.
        The original divides by each query's ideal DCG and multiplies by its number of positives.
    Relations: ``song_at_k_loss`` with a constant weight of one.
    """
    return _song(positive, negative, owner, n_items, rank, gamma, average, query, mask, log_q)[0]


def song_at_k_loss(
    positive: Tensor,
    negative: Tensor,
    owner: Tensor | None = None,
    *,
    threshold: Tensor | None,
    n_items: int,
    rank: Rank = "sum",
    gamma: float = 1.0,
    average: Tensor | None = None,
    form: SongForm = "paper",
    query: Tensor | None = None,
    mask: Tensor | None = None,
    log_q: Tensor | None = None,
) -> Tensor:
    r"""SONG with each positive weighted by its nearness to its query's top K (SONG@K).

    .. math:: -\frac{\sigma(s_i - \beta)}{\log_2(1 + g_i)}, \qquad
              \nabla = \frac{\sigma(s_i - \beta)}{\log_2^2(1 + g_i) (1 + g_i) \ln 2} \nabla \hat g_i

    Shapes: as ``song_loss``, with g_i and ĝ_i as there; threshold β, each query's K-th best score (Q,), None for a
        weight of one; no gradient flows through the weight σ(s_i - β).
    Settings: ``gamma`` and ``rank`` as in ``song_loss``; ``form="original"`` is the weight of the SONG authors' code,
        2σ(2(s_i - β)).
    Use when: as the paper's baseline for NDCG@K; a weight of σ(s - β) hardly varies over cosine scores.
    Cost: O(PN + P log P), and one number per training positive and per query of state.
    Paper: Qiu et al. (K-SONG), ICML 2022; SL@K, appendix A.
    Relations: ``song_loss`` with a constant weight of one.
    """
    losses = _song(positive, negative, owner, n_items, rank, gamma, average, query, mask, log_q)[0]
    return losses if threshold is None else losses * _nearness(positive, threshold, owner, form)


@torch.no_grad()
def _nearness(positive: Tensor, threshold: Tensor, owner: Tensor | None, form: SongForm) -> Tensor:
    """The weight of each positive, (P,), from thresholds (Q,)."""
    over = widened(positive) - threshold[owners(positive, threshold.numel(), owner)]
    return torch.sigmoid(over) if form == "paper" else 2 * torch.sigmoid(2 * over)


class SONG(Loss):
    """Module form of :func:`song_loss`; it owns the moving average of every training positive.

    ``n_items`` is the number of all items, ``n_positives`` that of all training positives.
    """

    formula: ClassVar[Callable[..., Tensor]] = staticmethod(song_loss)
    ranges = FOR_COSINES | {"loss.gamma": GAMMAS}
    needs = ("negative", "pair", "query")
    scope = "query"
    g: Tensor  # (n_positives,), a table; -1 where a positive has not been seen yet

    def __init__(
        self,
        *,
        n_items: int,
        n_positives: int,
        gamma: float = 0.1,
        rank: Rank = "sum",
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        self.n_items = at_least("n_items", n_items, 1)
        self.rank: Rank = one_of("rank", rank, get_args(Rank))
        self.gamma = at_most("gamma", positive("gamma", gamma), 1.0)
        self.register_table("g", n_positives, fill=_UNSEEN, index="pair")

    def each(self, positive: Tensor, negative: Tensor, owner: Tensor | None, extras: Extras) -> Tensor:
        assert extras.pair is not None
        average, batch = self.g[extras.pair], (extras.query, extras.mask, extras.log_q)
        losses, updated = _song(positive, negative, owner, self.n_items, self.rank, self.gamma, average, *batch)
        if self.training:
            self.write("g", extras.pair, updated)
        return losses


class SONGAtK(SONG):
    """Module form of :func:`song_at_k_loss`; it owns moving averages, as :class:`SONG`, and its queries' thresholds.

    The thresholds start at 0. In training mode each step updates those of its queries, after the weights are taken, by
    quantile regression on the step's own scores (paper, appendix C.3), with ``eta`` the paper's η_λ:
    β ← β - η (share of the catalogue scored at or below β - (1 - K/|I|)). Each of a query's positives in the batch
    counts once, its negatives stand for the rest of the catalogue; for a query that occurs twice they are those of its
    first row. Without negatives a threshold stays. A call with ``threshold (Q,)`` uses that and leaves the table alone.
    """

    formula = staticmethod(song_at_k_loss)
    ranges = SONG.ranges | {"loss.eta": (0.1, 0.01, 0.001, 0.0001)}
    threshold: Tensor  # (n_queries,), a table

    def __init__(
        self,
        n_queries: int,
        k: int = 20,
        *,
        n_items: int,
        n_positives: int,
        gamma: float = 0.1,
        eta: float = 0.001,
        form: SongForm = "paper",
        rank: Rank = "sum",
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(n_items=n_items, n_positives=n_positives, gamma=gamma, rank=rank, reduction=reduction)
        self.k = at_least("k", k, 1)
        self.eta = positive("eta", eta)
        self.form: SongForm = one_of("form", form, get_args(SongForm))
        self.register_table("threshold", n_queries)

    def each(self, positive: Tensor, negative: Tensor, owner: Tensor | None, extras: Extras) -> Tensor:
        threshold = self.thresholds(extras)
        losses = super().each(positive, negative, owner, extras)
        if self.training and extras.threshold is None:
            self._follow(threshold, positive, negative, owner, extras)
        return _nearness(positive, threshold, owner, self.form) * losses

    @torch.no_grad()
    def _follow(
        self, threshold: Tensor, positive: Tensor, negative: Tensor, owner: Tensor | None, extras: Extras
    ) -> None:
        assert extras.query is not None
        first = first_rows(extras.query)
        owner, weights = counted(positive, negative, owner, extras.mask, extras.log_q)
        # The positives of all rows of a query count for it, each once; the negatives stand for all the rest.
        row, zero = first[owner], torch.zeros_like(threshold)
        below = (widened(positive) <= threshold[owner]).to(threshold.dtype)
        n_positives, n_below = (zero.index_add(0, row, x)[first] for x in (torch.ones_like(below), below))
        of_negatives = mean_over((widened(negative) <= threshold.unsqueeze(1)).to(weights.dtype), weights)
        share = (n_below + (self.n_items - n_positives) * of_negatives) / self.n_items  # at or below the threshold
        step = self.eta * (share - max(0.0, 1 - self.k / self.n_items))
        self.write("threshold", extras.query, threshold - torch.where(weights.sum(1) > 0, step, 0.0))
