r"""How evenly a loss spreads its gradient (the paper's figure 1c).

The *instance* is a positive (u, i): the paper's losses are sums over them. Its gradient is that of its own term of the
loss with respect to the user's vector, :math:`\nabla_u L(u, i)` (the paper's appendix on gradients), over the whole
catalogue, nothing sampled. With cosine scores the part along the vector itself is removed: it would change only the
length, which no score depends on. Two other readings of "instance" are measured too: the *user*, with the sum of the
gradients of its positives, and the *pair* (u, i, j), with :math:`|\partial L(u, i) / \partial s_{uj}|`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf.diagnose.sample import Sample
from topshelf.losses import Loss
from topshelf.losses.base import Extras

TOPS = (0.01, 0.05, 0.2)
_POINTS = 201  # of the curve
_CELLS = 2**22  # positives x items of one block
# Pairs are too many to sort: they are counted in bins of a fiftieth of a decade.
_LOWEST, _HIGHEST, _PER_DECADE = -38, 12, 50
_BINS = (_HIGHEST - _LOWEST) * _PER_DECADE + 1


@dataclass(frozen=True)
class Concentration:
    """The share of the total in the largest instances."""

    n: int
    top: dict[str, float]  # "5%": share of the total in the largest 5% of instances
    curve: list[float]  # cumulative share of the largest 0%, ..., 100%, in equal steps
    log10_edges: list[float]
    log10_shares: list[float]  # share of instances by the log10 of their size, bins of a tenth of a decade
    zero_share: float
    decades: float  # between the 1st and the 99th percentile of the sizes that are not zero


@dataclass(frozen=True)
class Gradients:
    """The gradients of one loss in one state."""

    label: str
    epochs: str
    is_coupled: bool  # the positives of a batch depend on each other: a term's gradient is then the batch's
    by_positive: Concentration
    by_user: Concentration
    by_pair: Concentration


def concentration(sizes: np.ndarray) -> Concentration:
    """Concentration of sizes (n,), none negative."""
    ordered = np.sort(np.asarray(sizes, dtype=np.float64))
    return binned_concentration(np.ones_like(ordered), ordered)


def binned_concentration(counts: np.ndarray, sums: np.ndarray) -> Concentration:
    """The same from bins of similar sizes, in ascending order: the count and the sum per bin."""
    filled = np.asarray(counts) > 0
    counts, sums = (np.asarray(x, dtype=np.float64)[filled][::-1] for x in (counts, sums))  # the largest first
    sizes, n, total = sums / counts, counts.sum(), sums.sum()
    before = np.concatenate([[0.0], np.cumsum(counts)])
    held = np.concatenate([[0.0], np.cumsum(sums)]) / (total if total > 0 else 1.0)

    def share(part: float) -> float:
        wanted = math.ceil(round(part * n, 9))  # whole instances
        return float(np.interp(wanted, before, held))

    some = sizes > 0
    logs, weights = np.log10(sizes[some]), counts[some]
    edges, shares = _log_histogram(logs, weights, n)
    ends = np.quantile(logs, (0.01, 0.99), weights=weights, method="inverted_cdf") if len(logs) else (0.0, 0.0)
    return Concentration(
        n=int(n),
        top={f"{part:.0%}": share(part) for part in TOPS},
        curve=[float(np.interp(part * n, before, held)) for part in np.linspace(0, 1, _POINTS)],
        log10_edges=edges,
        log10_shares=shares,
        zero_share=float(1 - weights.sum() / n) if n else 0.0,
        decades=float(ends[1] - ends[0]),
    )


def _log_histogram(logs: np.ndarray, weights: np.ndarray, n: float) -> tuple[list[float], list[float]]:
    if not len(logs):
        return [0.0, 0.1], [0.0]
    first, last = math.floor(logs.min() * 10), math.floor(logs.max() * 10) + 1
    edges = np.arange(first, last + 1) / 10
    shares = np.histogram(logs, edges, weights=weights)[0] / n
    return edges.tolist(), shares.tolist()


def _counted(sizes: Tensor) -> np.ndarray:
    """The count and the sum of the sizes in every bin, (2, bins)."""
    place = sizes.log10().sub_(_LOWEST).mul_(_PER_DECADE).nan_to_num_(neginf=-1.0).floor_().add_(1)
    place = place.clamp_(0, _BINS - 1).long()
    return torch.stack([torch.bincount(place, weights, _BINS) for weights in (None, sizes.double())]).numpy()


def gradients(
    loss: Loss,
    queries: Tensor,
    items: Tensor,
    sample: Sample,
    *,
    label: str,
    epochs: str = "",
    effective_n: int | None = None,
    log_weight: Tensor | None = None,
) -> Gradients:
    """The gradients of the sample's positives under ``loss``; its state is used and not changed.

    Shapes: queries (n_queries, d); items (I, d). ``effective_n`` scales the sum over negatives as the run does;
    log_weight (I,) is that of every item as a negative.
    """
    norms: list[Tensor] = []
    users = torch.zeros(sample.rows.numel(), items.size(1), dtype=torch.float64)
    bins = np.zeros((2, _BINS))
    was_training = loss.training
    loss.eval()
    scale = math.log(items.size(0) / effective_n) if effective_n else 0.0
    log_q = items.new_full((1,), scale) if log_weight is None else scale - log_weight
    is_unit = has_unit_rows(queries[sample.rows])
    try:
        for owner, query, to_query, to_negative, mask in _instances(loss, queries, items, sample, log_q):
            if is_unit:
                to_query = to_query - (to_query * query).sum(1, keepdim=True) * query
            norms.append(to_query.norm(dim=1).cpu())
            users.index_add_(0, owner.cpu(), to_query.double().cpu())
            if to_negative is not None:
                bins += _counted(to_negative[~mask].abs().cpu())
    finally:
        loss.train(was_training)
    by_positive, by_user = (concentration(sizes.numpy()) for sizes in (torch.cat(norms), users.norm(dim=1)))
    return Gradients(label, epochs, loss.scope == "batch", by_positive, by_user, binned_concentration(*bins))


def has_unit_rows(vectors: Tensor) -> bool:
    """Whether every vector has length one, so that scores are cosines."""
    return bool((vectors.norm(dim=1) - 1).abs().max() < 1e-3)


class InstanceGradients(NamedTuple):
    """The gradients of some instances."""

    owner: Tensor  # (P,), the user of each
    query: Tensor  # (P, d), the vector of that user
    to_query: Tensor  # (P, d), the gradient by it
    to_negative: Tensor | None  # (P, I), the gradient by each item's score
    mask: Tensor  # (P, I), True at the user's positives


def _instances(
    loss: Loss, queries: Tensor, items: Tensor, sample: Sample, log_q: Tensor
) -> Iterator[InstanceGradients]:
    for start, stop in sample.blocks(_CELLS):
        part = sample.part(start, stop)
        split = _by_turns if loss.scope == "query" else _by_rows
        for instances in split(loss, queries[part.rows].detach(), items, part, log_q):
            yield instances._replace(owner=instances.owner + start)


def _by_rows(loss: Loss, vectors: Tensor, items: Tensor, part: Sample, log_q: Tensor) -> Iterator[InstanceGradients]:
    """One row per positive: a single backward pass gives the gradient of every instance."""
    owner = part.owner
    query = vectors[owner].requires_grad_()
    values, negative, mask = _losses(loss, query, items, part, owner, None, log_q)
    yield InstanceGradients(owner, query.detach(), *_gradient(values.sum(), query, negative), mask)


def _by_turns(loss: Loss, vectors: Tensor, items: Tensor, part: Sample, log_q: Tensor) -> Iterator[InstanceGradients]:
    """For a loss that needs one row per user: a backward pass for the first positives of all users, and so on."""
    owner, place, query = part.owner, part.place, vectors.clone().requires_grad_()
    rows = torch.arange(query.size(0), device=owner.device)
    values, negative, mask = _losses(loss, query, items, part, rows, owner, log_q)
    for turn in range(int(part.positives.counts.max())):
        now = place == turn
        mine = owner[now]
        to_query, to_negative = _gradient(values[now].sum(), query, negative)
        to_mine = None if to_negative is None else to_negative[mine]
        yield InstanceGradients(mine, query.detach()[mine], to_query[mine], to_mine, mask[mine])


def _losses(
    loss: Loss, query: Tensor, items: Tensor, part: Sample, rows: Tensor, owner: Tensor | None, log_q: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The losses (P,), the scores of all items (Q, I), and which are positives; ``rows (Q,)``: the user of each row."""
    item = part.positives.indices
    negative = query @ items.T
    mask = torch.zeros(negative.shape, dtype=torch.bool, device=negative.device)
    taken = part.positives.select(rows)
    mask[taken.owner(), taken.indices] = True
    positive = ((query if owner is None else F.embedding(owner, query)) * items[item]).sum(1)
    extras = Extras(
        query=part.rows[rows],
        mask=mask,
        log_q=log_q if log_q.any() else None,
        pair=part.pair(),
        negative_item=torch.arange(items.size(0), device=items.device),
        query_vector=query,
        item_vector=items[item],
    )
    return loss.each(positive, negative, owner, extras), negative, mask


def _gradient(value: Tensor, query: Tensor, negative: Tensor) -> tuple[Tensor, Tensor | None]:
    to_query, to_negative = torch.autograd.grad(value, (query, negative), retain_graph=True, allow_unused=True)
    return (torch.zeros_like(query) if to_query is None else to_query), to_negative
