"""LLPAUC: the lower-left partial area under the ROC curve, as a min-max."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topshelf.errors import at_most, one_of, positive
from topshelf.losses.base import (
    FOR_COSINES,
    Extras,
    Loss,
    Reduction,
    ascending,
    counted,
    mean_over,
    widened,
    zero_unless,
)

Link = Literal["half", "sigmoid", "none"]

_SETS = {
    "a": (0.0, 1.0),
    "b": (0.0, 1.0),
    "gamma": (-1.0, 1.0),
    "s_plus": (-math.inf, math.inf),
    "s_minus": (-math.inf, math.inf),
    "theta_a": (0.0, math.inf),
    "theta_b": (0.0, math.inf),
}


class Saddle(NamedTuple):
    """The numbers that LLPAUC's min-max is over, besides the model: each a Tensor without axes."""

    a: Tensor  # centre of the top positives, minimised
    b: Tensor  # centre of the top negatives, minimised
    gamma: Tensor  # maximised
    s_plus: Tensor  # minus the level below which a positive's loss counts, maximised
    s_minus: Tensor  # the level above which a negative's loss counts, minimised
    theta_a: Tensor  # multiplier of a + gamma >= 0, minimised
    theta_b: Tensor  # multiplier of gamma + 1 - b >= 0, minimised


def llpauc_loss(
    positive: Tensor,
    negative: Tensor,
    owner: Tensor | None = None,
    *,
    saddle: Saddle,
    alpha: float,
    beta: float,
    link: Link = "half",
    sharpness: float = 5.0,
    mask: Tensor | None = None,
    log_q: Tensor | None = None,
) -> Tensor:
    r"""Squared AUC loss of the best-scored positives against the best-scored negatives, as a min-max.

    .. math:: -s_+ - \tfrac{1}{\alpha} r\bigl(-(p_i-a)^2 + 2(1+\gamma) p_i - s_+\bigr)
              + s_- + \tfrac{1}{\beta} \operatorname{mean}_j r\bigl((n_j-b)^2 + 2(1+\gamma) n_j - s_-\bigr)
              - \gamma^2 + \theta_a (a+\gamma) + \theta_b (\gamma+1-b), \qquad
              r(x) = \tfrac{1}{\kappa} \log(1+e^{\kappa x})

    Shapes: positive, of which p_i is the link, (P,); negative, of which n_j is the link, (Q, N); owner (P,), default
        one query per positive; saddle, the seven numbers; mask (Q, N), True where a negative does not count; log_q (N,)
        or (Q, N), 0 for a uniform draw, else the mean over negatives is weighted by 1/q; returns (P,), unreduced. A
        positive without negatives costs 0.
    Settings: alpha α, the share of positives that count; beta β, that of negatives; sharpness κ (5 as published; the
        larger, the closer to exact shares; a smaller β needs a larger κ); ``link`` maps scores to [0, 1]: "half"
        (1 + s) / 2, "sigmoid" (on dot products: the released code), "none" (scores that lie there already).
    Derivation: over all pairs :math:`E(1-p+n)^2 - 1 = \min_{a,b} \max_\gamma E\,l_+(p) + E\,l_-(n) - \gamma^2`, where
        :math:`l_+ = (p-a)^2 - 2(1+\gamma)p` and :math:`l_- = (n-b)^2 + 2(1+\gamma)n`; at the saddle a and b are the
        means of p and n, and γ = b - a. On [0, 1], l_+ falls if a + γ >= 0 and l_- rises if γ + 1 - b >= 0, so the
        top positives are those of least l_+, the top negatives those of greatest l_-. The mean of the least α is
        :math:`\max_s s - E(s-l)_+/\alpha`, here s = -s_+; of the greatest β, :math:`\min_s s + E(l-s)_+/\beta`. The
        hinge is smoothed to r, and θ >= 0 are the multipliers of the two conditions.
    Use when: Recall@K or Precision@K is the metric, and only the heads of both lists should count.
    Cost: O(QN + P).
    Paper: Shi et al., Lower-left partial AUC, WWW 2024, on the saddle form of Ying et al., NIPS 2016. The SL@K paper
        feeds it cosines, whose width of 2 breaks the two conditions (they need p - n <= 1): "half" is its score with
        the margin doubled. In the code released with it γ and s_+ are minimised too, so it is no min-max.
    Relations: α = β = 1 and a large κ give the squared AUC loss of all pairs.
    """
    owner, weights = counted(positive, negative, owner, mask, log_q)
    p, n = _linked(widened(positive), link), _linked(widened(negative), link)
    slope = 2 * (1 + saddle.gamma)
    gain = slope * p - (p - saddle.a).square() - saddle.s_plus  # (P,)
    cost = slope * n + (n - saddle.b).square() - saddle.s_minus  # (Q, N)
    of_negatives = mean_over(_smooth_hinge(cost, sharpness), weights) / beta  # (Q,)
    of_positives = -_smooth_hinge(gain, sharpness) / alpha
    levels = saddle.s_minus - saddle.s_plus - saddle.gamma.square()
    bounds = saddle.theta_a * (saddle.a + saddle.gamma) + saddle.theta_b * (saddle.gamma + 1 - saddle.b)
    losses = of_positives + of_negatives.index_select(0, owner) + levels + bounds
    return zero_unless((weights.sum(1) > 0)[owner], losses)


def _linked(scores: Tensor, link: Link) -> Tensor:
    if link == "half":
        return (1 + scores) / 2
    return torch.sigmoid(scores) if link == "sigmoid" else scores


def _smooth_hinge(x: Tensor, sharpness: float) -> Tensor:
    return F.softplus(x * sharpness) / sharpness


class LLPAUC(Loss):
    """Module form of :func:`llpauc_loss`; it owns the seven numbers, of which ``gamma`` and ``s_plus`` are maximised.

    They start at the saddle of an untrained model, all linked scores 1/2, and are clamped to their sets (a, b in
    [0, 1], γ in [-1, 1], θ >= 0) before every use. They learn at ``saddle_rate``, whatever the model's rate. In the
    released code they learn at the model's rate, s_plus, s_minus and γ at twice that; but all seven are on a scale of
    1, and under Adam at the paper's 0.1 they change by 0.1 to 0.2 per step and circle the saddle.
    """

    formula = staticmethod(llpauc_loss)
    ranges = FOR_COSINES | {"loss.alpha": (0.1, 0.3, 0.5, 0.7, 0.9), "loss.beta": (0.01, 0.1)}

    def __init__(
        self,
        *,
        alpha: float = 0.7,
        beta: float = 0.01,
        link: Link = "half",
        sharpness: float = 5.0,
        saddle_rate: float = 0.01,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        self.alpha = at_most("alpha", positive("alpha", alpha), 1.0)
        self.beta = at_most("beta", positive("beta", beta), 1.0)
        self.link: Link = one_of("link", link, get_args(Link))
        self.sharpness = positive("sharpness", sharpness)
        self.saddle_rate = self.own_rate = positive("saddle_rate", saddle_rate)
        self.a, self.b = _number(0.5), _number(0.5)
        self.gamma, self.theta_a, self.theta_b = _number(0.0), _number(0.0), _number(0.0)
        self.s_plus = _number(1 - _log_odds(self.alpha) / self.sharpness)
        self.s_minus = _number(1 - _log_odds(self.beta) / self.sharpness)

    def saddle(self) -> Saddle:
        """The seven numbers within their sets; in training mode the parameters themselves are clamped."""
        if self.training:
            with torch.no_grad():
                for name, (least, most) in _SETS.items():
                    getattr(self, name).clamp_(least, most)
        # Copies, because the next batch's clamp changes the parameters in place.
        inside = {name: getattr(self, name).clone().clamp(*_SETS[name]) for name in Saddle._fields}
        return Saddle(**inside)._replace(**{name: ascending(inside[name]) for name in ("gamma", "s_plus")})

    def each(self, positive: Tensor, negative: Tensor, owner: Tensor | None, extras: Extras) -> Tensor:
        batch = {"positive": positive, "negative": negative, "owner": owner, **extras._asdict()}
        return self.call_formula(saddle=self.saddle(), **batch)


def _number(value: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(value))


def _log_odds(share: float) -> float:
    """Log of share / (1 - share), kept within what a level can use."""
    share = min(max(share, 1e-6), 1 - 1e-6)
    return math.log(share / (1 - share))
