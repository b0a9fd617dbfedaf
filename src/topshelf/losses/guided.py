"""GuidedRec: binary cross-entropy guided by a network that learns to predict DCG."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from topshelf.errors import at_least, positive
from topshelf.losses.base import Defaults, Loss, Reduction, counted, mean_over, widened, zero_unless


class Surrogate(nn.Module):
    """Predicts the DCG of a list with one positive and any number of negatives, in any order."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.pair = nn.Linear(2, hidden)
        self.pooled = nn.Linear(hidden + 1, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(self, positive: Tensor, negative: Tensor, weights: Tensor) -> Tensor:
        """Positive (P,), its negatives (P, N), both in [0, 1], and their weights (P, N) to a DCG in (0, 1), (P,)."""
        pairs = torch.stack([positive.unsqueeze(1).expand_as(negative), negative], -1)  # (P, N, 2)
        # Scores sit close to 1/2: cosines are in [-1, 1], so their sigmoids in [0.27, 0.73].
        seen = F.silu(self.pair(8 * pairs - 4)) * weights.unsqueeze(-1)
        total = weights.sum(1, keepdim=True)  # (P, 1)
        pooled = seen.sum(1) / torch.where(total > 0, total, torch.ones_like(total))  # (P, hidden)
        worst = 1 / torch.log2(2 + total)  # the DCG of the last place, which encodes the length of the list
        predicted: Tensor = self.out(F.silu(self.pooled(torch.cat([pooled, worst], 1))))
        return torch.sigmoid(predicted).squeeze(1)

    def frozen(self, positive: Tensor, negative: Tensor, weights: Tensor) -> Tensor:
        """The same prediction, without a gradient to the network."""
        parameters = {name: value.detach() for name, value in self.named_parameters()}
        predicted: Tensor = functional_call(self, parameters, (positive, negative, weights))
        return predicted


def guidedrec_loss(
    positive: Tensor,
    negative: Tensor,
    owner: Tensor | None = None,
    *,
    surrogate: Surrogate,
    guidance: float = 1.0,
    tau: float = 1.0,
    mask: Tensor | None = None,
    log_q: Tensor | None = None,
) -> Tensor:
    r"""Binary cross-entropy minus the DCG that a network predicts, plus that network's own error.

    .. math:: -\log y_i - \operatorname{mean}_j \log(1 - y_j) - \lambda f(y_i, \{y_j\})
              + \bigl(f(\bar y_i, \{\bar y_j\}) - 1/\log_2(1 + \pi_i)\bigr)^2, \qquad y = \frac{1}{1 + e^{-s/\tau}}

    Shapes: positive s_i (P,); negative s_j (Q, N); owner (P,), default one query per positive; surrogate f, a network;
        guidance λ; π_i is the rank of the positive among itself and its negatives; mask (Q, N), True where a negative
        does not count; log_q (N,) or (Q, N), 0 for a uniform draw, else a negative counts 1/q in means and in π;
        returns (P,), unreduced. A positive without negatives costs 0.
    Gradients: not the derivative of the value. The first f has a gradient by the scores only, the second, on detached
        scores (barred), by the network only.
    Use when: a learned surrogate of DCG is needed for comparison.   Cost: O(PNh), h the network's width; keep N small.
    Paper: Rashed et al., A guided learning approach for item recommendation via surrogate loss learning, SIGIR 2021.
        The code released with the SL@K paper takes three optimizer steps per batch (cross-entropy, fit, guidance) and
        weights the positive by its 9 negatives; this is one step, with their mean: the same up to the factor 9.
        By default a run draws those 9 (``negatives.n``). The SL@K paper's appendix D.4 names 1000 (MovieLens: 200)
        for every loss that samples; that costs O(PNh) with N = 1000.
    Relations: guidance 0 is binary cross-entropy.
    """
    owner, weights = counted(positive, negative, owner, mask, log_q)
    weights = weights[owner]  # (P, N)
    up, down = widened(positive) / tau, F.embedding(owner, widened(negative) / tau)  # (P,), (P, N)
    losses = F.softplus(-up) + mean_over(F.softplus(down), weights)
    y_up, y_down = torch.sigmoid(up), torch.sigmoid(down)
    predicted = surrogate(y_up.detach(), y_down.detach(), weights)
    place = 1 + (weights * (down > up.unsqueeze(1))).sum(1)
    errors = (predicted - 1 / torch.log2(1 + place)).square()
    losses = losses - guidance * surrogate.frozen(y_up, y_down, weights) + errors
    return zero_unless(weights.sum(1) > 0, losses)


class GuidedRec(Loss):
    """Module form of :func:`guidedrec_loss`; it owns the network, ``hidden`` wide, learning at ``surrogate_rate``.

    The rate depends on the number of steps: 0.001 for the paper's thousands of batches of pairs, 0.01 (shipped) for the
    few of query order, where at 0.001 guidance gains nothing in 20 epochs of MovieLens-100K.
    """

    formula = staticmethod(guidedrec_loss)
    defaults = Defaults(n=9)

    def __init__(
        self,
        *,
        tau: float = 1.0,
        guidance: float = 1.0,
        hidden: int = 32,
        surrogate_rate: float = 1e-3,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        self.tau = positive("tau", tau)
        self.guidance = at_least("guidance", guidance, 0.0)
        self.surrogate = Surrogate(at_least("hidden", hidden, 1))
        self.pair_copies = 12 + 6 * hidden  # the network sees (P, N, hidden)
        self.surrogate_rate = self.own_rate = positive("surrogate_rate", surrogate_rate)
