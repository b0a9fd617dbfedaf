"""AdvInfoNCE: a softmax loss whose negatives are reweighted by an adversary."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from topshelf.drawing import sampled_scores
from topshelf.errors import at_least, positive
from topshelf.losses.base import (
    FOR_COSINES,
    TEMPERATURES,
    Extras,
    Loss,
    Reduction,
    ascending,
    sampled_log_partition,
    widened,
)
from topshelf.losses.softmax import sampled_softmax_loss

# Only directions enter the hardness; the length decides how far a step of adversary_rate turns a vector.
_START_DEVIATION = 0.1


def advinfonce_loss(
    positive: Tensor,
    negative: Tensor,
    owner: Tensor | None = None,
    *,
    hardness: Tensor,
    tau: float,
    negative_weight: float = 64.0,
    mask: Tensor | None = None,
    log_q: Tensor | None = None,
) -> Tensor:
    r"""Softmax loss against negatives that an adversary has reweighted.

    .. math:: \log\Bigl(1 + w \sum_j N p_j \, e^{(s_j - s_i)/\tau}\Bigr), \qquad p = \operatorname{softmax}_j(h_j)

    Shapes: positive s_i (P,); negative s_j (Q, N); owner (P,), default one query per positive; hardness h_j (Q, N), log
        of each negative's probability p_j, up to a constant of each query; negative_weight w; mask (Q, N), True where a
        negative does not count, neither in N nor in p; log_q (N,) or (Q, N), 0 for a uniform draw, else each negative
        stands for 1/q in every sum, N included; returns (P,), unreduced. A positive without negatives costs 0.
    Use when: the softmax loss is needed with its distributional robustness made explicit and learned.
    Cost: O(QN + P), and O(QNd) for the module's hardness.
    Paper: Zhang et al., Empowering collaborative filtering with principled adversarial contrastive loss, NeurIPS 2023;
        the released code is this formula with plain exponentials, which overflow at small tau.
    Relations: equal hardness gives the softmax loss with the positive in its sum and w as the weight of the negatives.
    """
    log_n = sampled_log_partition(torch.zeros_like(negative), 1.0, mask, log_q)  # (Q,), -inf without negatives
    log_z = sampled_log_partition(hardness, 1.0, mask, log_q)  # (Q,)
    shift = torch.where(log_n == -math.inf, torch.zeros_like(log_z), log_n - log_z)
    logits = widened(negative) / tau + hardness + shift.unsqueeze(1)
    partition = sampled_log_partition(logits, 1.0, mask, log_q) + math.log(negative_weight)
    return sampled_softmax_loss(positive, None, owner, tau=tau, log_partition=partition)


class AdvInfoNCE(Loss):
    """Module form of :func:`advinfonce_loss`; it owns the adversary, which maximises the loss.

    The adversary is a vector a per query and per item; the hardness of a negative is cos(a_u, a_j). In every
    ``every``-th epoch only the adversary is trained, at ``adversary_rate``, in the others only the model
    (``begin_epoch``); the other one gets no gradient at all. In a loop that never calls ``begin_epoch`` both are
    trained at every step. In evaluation mode only the model gets gradients. The vectors start in random directions, as
    in the original, so p starts near uniform: cosines spread by 1 / sqrt(adversary_dim), 0.125. (Equal vectors would
    have no gradient.)
    """

    formula = staticmethod(advinfonce_loss)
    ranges = FOR_COSINES | {"loss.tau": TEMPERATURES}
    needs = ("negative", "query", "negative_item")

    def __init__(
        self,
        n_queries: int,
        n_items: int,
        *,
        tau: float = 0.2,
        negative_weight: float = 64.0,
        adversary_dim: int = 64,
        adversary_rate: float = 5e-5,
        every: int = 5,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        self.tau = positive("tau", tau)
        self.negative_weight = positive("negative_weight", negative_weight)
        self.adversary_rate = self.own_rate = positive("adversary_rate", adversary_rate)
        self.every = at_least("every", every, 2)  # at 1 the model would never be trained
        self.turn: Literal["both", "adversary", "model"] = "both"
        dim = at_least("adversary_dim", adversary_dim, 1)
        self.query_adversary = nn.Parameter(torch.randn(at_least("n_queries", n_queries, 0), dim) * _START_DEVIATION)
        self.item_adversary = nn.Parameter(torch.randn(at_least("n_items", n_items, 0), dim) * _START_DEVIATION)

    def index_sizes(self) -> dict[str, int]:
        return {"query": self.query_adversary.size(0), "negative_item": self.item_adversary.size(0)}

    def begin_epoch(self, epoch: int) -> None:
        self.turn = "adversary" if epoch % self.every == 0 else "model"

    def hardness(self, query: Tensor, negative_item: Tensor) -> Tensor:
        """Cosines of the adversary's vectors: query (Q,) and negative_item (N,) or (Q, N) to (Q, N)."""
        queries = F.normalize(F.embedding(query, self.query_adversary), dim=-1)
        if negative_item.dim() == 1:
            return queries @ F.normalize(F.embedding(negative_item, self.item_adversary), dim=-1).T
        if self.item_adversary.size(0) <= negative_item.numel():  # else fewer vectors are drawn than there are
            return sampled_scores(queries, F.normalize(self.item_adversary, dim=-1), negative_item)
        items = F.normalize(F.embedding(negative_item, self.item_adversary), dim=-1)  # (Q, N, d)
        return (items @ queries.unsqueeze(2)).squeeze(2)

    def each(self, positive: Tensor, negative: Tensor, owner: Tensor | None, extras: Extras) -> Tensor:
        assert extras.query is not None
        assert extras.negative_item is not None
        hardness = self.hardness(extras.query, extras.negative_item)
        turn = self.turn if self.training else "model"
        hardness = hardness.detach() if turn == "model" else ascending(hardness)
        if turn == "adversary":
            positive, negative = positive.detach(), negative.detach()
        batch = {"positive": positive, "negative": negative, "owner": owner, **extras._asdict()}
        return self.call_formula(hardness=hardness, **batch)
