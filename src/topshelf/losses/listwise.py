"""Losses of graded lists, and what they share: ListNet, ListMLE, RankNet.

A batch holds Q queries with a list of L places each: ``scores (Q, L)``, ``relevance (Q, L)``, finite grades of at least
0, and ``mask (Q, L)``, True where a place is padding. No relevance may be negative, because its gain would be; this is
not checked, which would make a GPU wait. Grades may be of any size: gains are divided by that of the list's best, so
that 2^y never overflows. A query whose places all have one relevance (no positive, a single place, only padding) says
nothing about order: with every listwise loss it costs 0.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topshelf.errors import ConfigError, one_of, positive
from topshelf.losses.base import FOR_DOT_PRODUCTS, ModuleForm, Reduction, log_sum_exp, reduce, widened, zero_unless
from topshelf.registry import Recorded, SearchSpace

Ties = Literal["together", "place"]


class ListwiseLoss(ModuleForm, Recorded, nn.Module):
    """Base of the losses of graded lists. A subclass sets ``formula`` and, where they differ, ``ranges``."""

    # The paper names no search space for its ranking task; this is its optimizer's for scores without bounds.
    ranges: ClassVar[SearchSpace] = FOR_DOT_PRODUCTS

    def forward(self, scores: Tensor, relevance: Tensor, mask: Tensor | None = None) -> Tensor:
        """The loss of a batch: a number, or (Q,) with reduction "none". The mean counts queries that cost 0.

        Shapes: scores (Q, L); relevance (Q, L), at least 0; mask (Q, L), True where a place is padding.
        """
        if scores.dim() != 2:
            raise ConfigError(f"scores must be (Q, L), a list of each query, got {tuple(scores.shape)}")
        if not scores.is_floating_point():
            raise ConfigError(
                f"scores must be of floating-point numbers, got {scores.dtype}; convert them with .float()"
            )
        for name, value in (("relevance", relevance), ("mask", mask)):
            if value is not None and value.shape != scores.shape:
                raise ConfigError(f"{name} must be {tuple(scores.shape)} as scores is, got {tuple(value.shape)}")
        if mask is not None and mask.dtype != torch.bool:
            raise ConfigError(f"mask must be of bool, True where a place is padding, got {mask.dtype}")
        return reduce(self.each(scores, relevance, mask), self.reduction)

    if TYPE_CHECKING:
        __call__ = forward  # nn.Module's takes and returns anything

    def begin_epoch(self, epoch: int) -> None:
        """Called before each epoch, counted from 1; for losses whose parts train in turn."""

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """The loss's own parameters as groups of an optimizer, for a model trained at ``learning_rate``."""
        parameters = list(self.parameters())
        return [{"params": parameters, "lr": learning_rate, "weight_decay": 0.0}] if parameters else []

    def each(self, scores: Tensor, relevance: Tensor, mask: Tensor | None) -> Tensor:
        """The loss of every query, (Q,)."""
        return self.call_formula(scores=scores, relevance=relevance, mask=mask)


class Lists(NamedTuple):
    """The input of every listwise loss; scores and relevance are 0 at padding."""

    scores: Tensor  # (Q, L)
    relevance: Tensor  # (Q, L), in the dtype of scores
    real: Tensor  # (Q, L), True where a place is not padding
    varied: Tensor  # (Q,), True where relevance differs between places


def lists_of(scores: Tensor, relevance: Tensor, mask: Tensor | None) -> Lists:
    """Half precision widened, padding set to 0, and lists without places given one of padding."""
    scores = widened(scores)
    real = torch.ones_like(scores, dtype=torch.bool) if mask is None else ~mask
    relevance = relevance.detach().to(scores.dtype)
    if scores.size(1) == 0:
        scores, relevance, real = (F.pad(x, (0, 1)) for x in (scores, relevance, real))
    highest = relevance.masked_fill(~real, -math.inf).amax(1)
    lowest = relevance.masked_fill(~real, math.inf).amin(1)
    return Lists(scores.masked_fill(~real, 0.0), relevance.masked_fill(~real, 0.0), real, highest > lowest)


def gains_of(relevance: Tensor) -> Tensor:
    """The gain of each place, 2^y - 1, over 2^m, (Q, L); m is the list's highest relevance, rounded down.

    The factor is a power of two, which costs no digits; it keeps high grades from overflowing, and every loss here
    divides by a sum of gains.
    """
    top = relevance.amax(1, keepdim=True).floor()
    return torch.exp2(relevance - top) - torch.exp2(-top)


def differences(values: Tensor) -> Tensor:
    """v_i - v_j of all pairs of a list, (Q, L) to (Q, L, L)."""
    return values.unsqueeze(2) - values.unsqueeze(1)


def ordered_pairs(relevance: Tensor, real: Tensor) -> Tensor:
    """True where place i is more relevant than place j, neither padding, (Q, L, L)."""
    return (relevance.unsqueeze(2) > relevance.unsqueeze(1)) & real.unsqueeze(2) & real.unsqueeze(1)


def positives_of(relevance: Tensor, real: Tensor, positive_from: float | None) -> Tensor:
    """True at positives, (Q, L): any relevance above 0, or from ``positive_from`` up."""
    return real & (relevance > 0 if positive_from is None else relevance >= positive_from)


def surprise(scores: Tensor, real: Tensor, tau: float) -> Tensor:
    """Minus the log-softmax of each place over its list, (Q, L); 0 at padding."""
    logits = (scores / tau).masked_fill(~real, -math.inf)
    # The best place taken off first: near 1e6 a float32 has no digits left for the logarithm.
    logits = logits - logits.detach().amax(1, keepdim=True).clamp(min=torch.finfo(logits.dtype).min)
    partition = log_sum_exp(logits).unsqueeze(1)
    return (partition - logits.masked_fill(~real, 0.0)).masked_fill(~real, 0.0)


def listnet_loss(scores: Tensor, relevance: Tensor, mask: Tensor | None = None, *, tau: float = 1.0) -> Tensor:
    r"""Cross entropy between the softmax of the relevances and the softmax of the scores.

    .. math:: -\sum_i \frac{e^{y_i}}{\sum_j e^{y_j}} \log \frac{e^{s_i/\tau}}{\sum_j e^{s_j/\tau}}

    Shapes: scores s (Q, L); relevance y (Q, L); mask (Q, L), True where a place is padding; returns (Q,), unreduced.
        A query of one relevance throughout costs 0.
    Settings: ``tau`` τ, the temperature of the scores (1 in the publication).
    Use when: grades are few and close together, and a smooth convex loss is needed.   Cost: O(QL).
    Paper: Cao et al., Learning to rank: from pairwise approach to listwise approach, ICML 2007 (the top-one form).
    Relations: ``listwise_softmax_loss`` has shares of the gains 2^y - 1 in place of the softmax of relevance.
    """
    lists = lists_of(scores, relevance, mask)
    truth = torch.exp(-surprise(lists.relevance, lists.real, 1.0)).masked_fill(~lists.real, 0.0)
    return zero_unless(lists.varied, (truth * surprise(lists.scores, lists.real, tau)).sum(1))


class ListNet(ListwiseLoss):
    """Module form of :func:`listnet_loss`."""

    formula = staticmethod(listnet_loss)

    def __init__(self, *, tau: float = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.tau = positive("tau", tau)


def listmle_loss(
    scores: Tensor, relevance: Tensor, mask: Tensor | None = None, *, tau: float = 1.0, ties: Ties = "together"
) -> Tensor:
    r"""Negative log-likelihood of drawing the list in the order of its relevances, best first.

    .. math:: \sum_i \log \sum_{j \in R_i} \exp((s_j - s_i) / \tau)

    Shapes: scores s (Q, L); relevance y (Q, L); mask (Q, L), True where a place is padding; returns (Q,), unreduced.
        A query of one relevance throughout costs 0.
    Settings: ``tau`` τ, the temperature (1 in the publication); ``ties``, what is left to draw from, R_i, when
        relevances are equal (the publication assumes a complete order). "together": all places that are no more
        relevant than i (Breslow's rule for ties in Plackett-Luce models), whatever the order of the places; "place":
        the same less the equally relevant at earlier places, so that the order of the places matters.
    Use when: relevance is close to a complete order.   Cost: O(QL²).
    Paper: Xia et al., Listwise approach to learning to rank: theory and algorithm, ICML 2008.
    Relations: its first term is the softmax loss of the most relevant place.
    """
    lists = lists_of(scores, relevance, mask)
    y_i, y_j = lists.relevance.unsqueeze(2), lists.relevance.unsqueeze(1)
    drawn = y_j > y_i  # (Q, L, L), True where j is out of R_i
    if ties == "place":
        place = torch.arange(lists.scores.size(1), device=scores.device)
        drawn = drawn | ((y_j == y_i) & (place < place.unsqueeze(1)))
    out = drawn | ~(lists.real.unsqueeze(2) & lists.real.unsqueeze(1))
    terms = log_sum_exp((-differences(lists.scores) / tau).masked_fill(out, -math.inf))  # (Q, L)
    return zero_unless(lists.varied, terms.masked_fill(~lists.real, 0.0).sum(1))


class ListMLE(ListwiseLoss):
    """Module form of :func:`listmle_loss`."""

    formula = staticmethod(listmle_loss)

    def __init__(self, *, tau: float = 1.0, ties: Ties = "together", reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.tau = positive("tau", tau)
        self.ties: Ties = one_of("ties", ties, get_args(Ties))


def ranknet_loss(scores: Tensor, relevance: Tensor, mask: Tensor | None = None, *, tau: float = 1.0) -> Tensor:
    r"""Logistic loss of every pair of places with different relevance, averaged over the query's pairs.

    .. math:: \operatorname{mean}_{i, j:\, y_i > y_j} \log(1 + \exp((s_j - s_i) / \tau))

    Shapes: scores s (Q, L); relevance y (Q, L); mask (Q, L), True where a place is padding; returns (Q,), unreduced.
        A query of one relevance throughout costs 0. The publication sums over pairs; the mean keeps a long list from
        outweighing a short one.
    Settings: ``tau`` τ, one over the publication's slope σ.
    Use when: a simple baseline is needed; all wrong pairs count alike, whatever their ranks.   Cost: O(QL²).
    Paper: Burges et al., Learning to rank using gradient descent, ICML 2005.
    Relations: ``listwise_lambdarank_loss`` weights the same pairs; with one positive it is ``bpr_loss``.
    """
    lists = lists_of(scores, relevance, mask)
    pairs = ordered_pairs(lists.relevance, lists.real)
    costs = F.softplus(-differences(lists.scores) / tau).masked_fill(~pairs, 0.0)
    return costs.sum((1, 2)) / pairs.sum((1, 2)).clamp(min=1)


class RankNet(ListwiseLoss):
    """Module form of :func:`ranknet_loss`."""

    formula = staticmethod(ranknet_loss)

    def __init__(self, *, tau: float = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.tau = positive("tau", tau)
