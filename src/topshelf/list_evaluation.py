"""Evaluation of scores of graded lists: NDCG, ERR, MAP, MRR and precision, one value per query."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from topshelf.errors import ConfigError, DataError, at_least, one_of
from topshelf.evalset import EMPTY, OWN_PROTOCOL
from topshelf.evaluation import Evaluation
from topshelf.metrics import GAINS, err_at_k, every_metric, ndcg_at_k

CUTOFFS = (1, 3, 5, 10)


def evaluate_scores(
    scores: Tensor | np.ndarray,
    grades: Tensor | np.ndarray,
    indptr: Tensor | np.ndarray,
    cutoffs: Sequence[int] = CUTOFFS,
    *,
    empty: str = "skip",
    gain: str = "exponential",
    highest: float | None = None,
    protocol: str = OWN_PROTOCOL,
) -> Evaluation:
    """Every metric of lists that are ranked by their scores, best first, equal scores in the order of the lists.

    Shapes: scores (D,); grades (D,), >= 0; indptr (Q + 1,): the documents of query q are indptr[q] to indptr[q + 1].
    Metrics: "ndcg@k", "err@k", "precision@k", "recall@k", "mrr@k", "map@k", "hit_rate@k", "f1@k"; "map" and "mrr" are
        of whole lists. All but NDCG and ERR ask only whether a grade is above 0.
    Settings: ``empty``, queries without any grade above 0: "skip" leaves them out and counts them, "zero" and "one"
        give them that value in every metric; ``gain`` of NDCG, "exponential" (2^y - 1) or "linear"; ``highest``, the
        highest grade of the scale, for ERR (default: of these lists); ``protocol``, its name in the result.
    """
    one_of("empty", empty, EMPTY)
    one_of("gain", gain, GAINS)
    checked = tuple(sorted({at_least("cutoffs", k, 1) for k in cutoffs}))
    if not checked:
        raise ConfigError("cutoffs must name at least one K, got none")
    values, wanted, bounds = _checked(scores, grades, indptr)
    top = float(wanted.max()) if wanted.numel() else 0.0
    per_query = _every_metric(values, wanted, bounds, checked, gain, top if highest is None else max(highest, top))
    n_relevant = _per_query((wanted > 0).double(), bounds)
    queries = torch.arange(bounds.numel() - 1)
    if empty == "skip":
        queries = queries[n_relevant > 0]
    if queries.numel() == 0:
        raise DataError("there must be at least one query with a grade above 0, got none to evaluate")
    if empty == "one":
        per_query = {name: torch.where(n_relevant > 0, value, 1.0) for name, value in per_query.items()}
    return Evaluation(
        protocol,
        checked,
        queries,
        {name: value[queries] for name, value in per_query.items()},
        n_skipped=bounds.numel() - 1 - queries.numel(),
        fingerprint=zlib.crc32(bounds.numpy().tobytes(), zlib.crc32(wanted.numpy().tobytes())),
        empty=empty,
        gain=gain,
        units="queries",
    )


def mean_ndcg(scores: Tensor, grades: Tensor, indptr: Tensor, k: int) -> float:
    """Mean NDCG@k over the queries with something to find, and nothing else: for validation while training."""
    values, wanted, bounds = _checked(scores, grades, indptr)
    ranked, ideal = _ranked_gains(values, wanted, bounds, k, "exponential")
    found = ideal[:, 0] > 0
    if not bool(found.any()):
        raise DataError("there must be at least one query with a grade above 0, got none to evaluate")
    return float(ndcg_at_k(ranked[found], ideal[found]).mean())


def order_of(scores: Tensor, indptr: Tensor) -> Tensor:
    """The documents of each list, best first, equal scores in the order of the list, (D,)."""
    owner = torch.repeat_interleave(torch.arange(indptr.numel() - 1), indptr.diff(), output_size=scores.numel())
    by_score = scores.argsort(descending=True, stable=True)
    return by_score[owner[by_score].argsort(stable=True)]


def _every_metric(
    scores: Tensor, grades: Tensor, indptr: Tensor, cutoffs: tuple[int, ...], gain: str, highest: float
) -> dict[str, Tensor]:
    ranked, ideal = _ranked_gains(scores, grades, indptr, cutoffs[-1], gain)
    order = order_of(scores, indptr)
    n_relevant = _per_query((grades > 0).double(), indptr).long()
    values = every_metric(ranked, n_relevant, cutoffs, ideal)
    in_order = _first_places(grades[order], indptr, cutoffs[-1])
    values |= {f"err@{k}": err_at_k(in_order[:, :k], highest) for k in cutoffs}
    return values | _whole_lists(grades[order] > 0, indptr)


def _whole_lists(hits: Tensor, indptr: Tensor) -> dict[str, Tensor]:
    """MAP and MRR without a cut-off, from the ranked hits (D,)."""
    places = torch.arange(hits.numel()) - torch.repeat_interleave(indptr[:-1], indptr.diff()) + 1
    running = torch.cat([torch.zeros(1, dtype=torch.int64), hits.long().cumsum(0)])
    found = running[1:] - torch.repeat_interleave(running[indptr[:-1]], indptr.diff())  # hits up to each place
    n_relevant = running[indptr[1:]] - running[indptr[:-1]]
    precision = torch.where(hits, found.double() / places, 0.0)
    first = torch.where(hits & (found == 1), 1 / places.double(), 0.0)
    return {"map": _per_query(precision, indptr) / n_relevant.clamp(min=1), "mrr": _per_query(first, indptr)}


def _ranked_gains(scores: Tensor, grades: Tensor, indptr: Tensor, k: int, gain: str) -> tuple[Tensor, Tensor]:
    """The gains at the first k places by score, and those of the best order, (Q, k) each."""
    gains = GAINS[gain](grades)
    by_score, by_gain = order_of(scores, indptr), order_of(gains, indptr)
    return _first_places(gains[by_score], indptr, k), _first_places(gains[by_gain], indptr, k)


def _first_places(values: Tensor, indptr: Tensor, k: int) -> Tensor:
    """The first k values of each list, 0 after its end, (Q, k) float64."""
    places = indptr[:-1].unsqueeze(1) + torch.arange(k)
    inside = places < indptr[1:].unsqueeze(1)
    if values.numel() == 0:
        return torch.zeros(places.shape, dtype=torch.float64)
    return torch.where(inside, values.double()[places.clamp(max=values.numel() - 1)], 0.0)


def _per_query(values: Tensor, indptr: Tensor) -> Tensor:
    """Sums of lists, (D,) to (Q,) float64."""
    owner = torch.repeat_interleave(torch.arange(indptr.numel() - 1), indptr.diff(), output_size=values.numel())
    return torch.zeros(indptr.numel() - 1, dtype=torch.float64).index_add_(0, owner, values.double())


def _checked(
    scores: Tensor | np.ndarray, grades: Tensor | np.ndarray, indptr: Tensor | np.ndarray
) -> tuple[Tensor, Tensor, Tensor]:
    """The three as tensors on the CPU, fit to be ranked."""
    values, wanted, bounds = (torch.as_tensor(given).detach().cpu() for given in (scores, grades, indptr))
    bounds = bounds.long()
    if values.dim() != 1 or values.shape != wanted.shape:
        raise DataError(f"there must be a score per grade, got {tuple(values.shape)} and {tuple(wanted.shape)}")
    if (
        bounds.dim() != 1
        or bounds.numel() < 1
        or bounds[0] != 0
        or bounds[-1] != values.numel()
        or (bounds.diff() < 0).any()
    ):
        raise DataError(f"indptr must ascend from 0 to the number of scores ({values.numel()})")
    if values.isnan().any():
        raise DataError(f"scores must be numbers, got NaN at document {int(values.isnan().int().argmax()) + 1}")
    wanted = wanted.double()
    if not bool(((wanted >= 0) & wanted.isfinite()).all()):
        raise DataError("grades must be finite and >= 0; check the column of the grades")
    return values, wanted, bounds
