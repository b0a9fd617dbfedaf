"""Full-catalogue evaluation: two protocols, every cut-off from one ranking, one value a user.

A number means little without its protocol, so an :class:`Evaluation` carries it.

``standard``  training and validation items are masked; users with nothing to find are left out and counted.
``paper``     only training items are masked, so validation items take places as misses; users with nothing to
              find count as 0. This is how the published numbers were made.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from topshelf import kernels
from topshelf.data import Interactions
from topshelf.errors import ConfigError, DataError, at_least, one_of
from topshelf.metrics import METRICS, auc, catalogue_coverage, item_exposure, ndcg_at_k, popularity_lift
from topshelf.ragged import Ragged, merge
from topshelf.ranking import Queries, check_lists, ranked_rows, ranked_tiles
from topshelf.statistics import PairedResult, bootstrap_intervals, paired_test

PROTOCOLS = ("standard", "paper")
CUTOFFS = (5, 10, 20, 50)
Lists = Ragged | Interactions
BLOCK = 1 << 13  # users whose lists are scored at once


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The metrics of one model on one set of users.

    protocol    which items were masked and which users count
    cutoffs     the K of "ndcg@K" and its kin, ascending
    users       (n,) index of each evaluated query, ascending
    per_user    "ndcg@20" -> (n,) float64, one value a user of ``users``; "auc" is NaN where it is undefined
    n_skipped   queries left out because they have nothing to find
    extras      figures of the lists as a whole: "coverage@20", "popularity_lift@20"
    fingerprint of the relevant and the masked lists: evaluations can be compared only where it is the same
    """

    protocol: str
    cutoffs: tuple[int, ...]
    users: Tensor
    per_user: dict[str, Tensor]
    n_skipped: int = 0
    extras: dict[str, float] = field(default_factory=dict)
    fingerprint: int = 0

    def mean(self) -> dict[str, float]:
        """Mean over users; a NaN (an undefined AUC) is left out of its mean."""
        return {name: float(values.nanmean()) for name, values in self.per_user.items()}

    def intervals(self, level: float = 0.95, seed: int = 0, n_resamples: int = 1000) -> dict[str, tuple[float, float]]:
        """Percentile bootstrap interval of each mean; users are resampled, together for all metrics."""
        found: dict[str, tuple[float, float]] = {}
        for names in self._names_by_defined_users():
            defined = ~self.per_user[names[0]].isnan()
            values = torch.stack([self.per_user[name][defined] for name in names], 1)
            if values.size(0) == 0:
                found |= dict.fromkeys(names, (math.nan, math.nan))
                continue
            low, high = bootstrap_intervals(values.numpy(), level, n_resamples, seed)
            found |= {name: (float(low[j]), float(high[j])) for j, name in enumerate(names)}
        return {name: found[name] for name in self.per_user}

    def to_json(self, level: float = 0.95, seed: int = 0, n_resamples: int = 1000) -> dict[str, Any]:
        """Means, intervals and counts, ready for ``json.dump``; what is undefined becomes None."""
        intervals = self.intervals(level, seed, n_resamples)
        return {
            "protocol": self.protocol,
            "cutoffs": list(self.cutoffs),
            "n_evaluated": self.users.numel(),
            "n_skipped": self.n_skipped,
            "mean": {name: _number(value) for name, value in self.mean().items()},
            "interval_level": level,
            "interval": {name: [_number(low), _number(high)] for name, (low, high) in intervals.items()},
            "extras": {name: _number(value) for name, value in self.extras.items()},
        }

    def _names_by_defined_users(self) -> list[list[str]]:
        """Metrics that are defined for all users, then each of the others: one resampling a group."""
        partial = [name for name, values in self.per_user.items() if bool(values.isnan().any())]
        whole = [name for name in self.per_user if name not in partial]
        return ([whole] if whole else []) + [[name] for name in partial]


def check_json(found: Any) -> None:
    """Refuse what :meth:`Evaluation.to_json` did not make: numbers that come from a file."""
    cutoffs = found["cutoffs"]
    by_cutoff = [f"{name}@{k}" for name in METRICS for k in cutoffs]
    numbers = [found["mean"][name] for name in by_cutoff]
    numbers += [end for k in cutoffs for end in found["interval"][f"ndcg@{k}"]]
    numbers += [value for values in (found["mean"], found["extras"]) for value in values.values() if value is not None]
    numbers += [found["n_evaluated"], found["n_skipped"]]
    if not cutoffs or not all(isinstance(number, int | float) for number in [*cutoffs, *numbers]):
        raise ValueError("an evaluation must have cutoffs, and numbers for each of them")
    one_of("protocol", found["protocol"], PROTOCOLS)


def evaluate(
    queries: Queries | np.ndarray,
    items: Tensor | np.ndarray,
    relevant: Lists,
    *,
    train: Lists,
    valid: Lists | None = None,
    protocol: str = "standard",
    cutoffs: Sequence[int] = CUTOFFS,
    auc: bool = True,
    item_counts: Tensor | np.ndarray | None = None,
) -> Evaluation:
    """Rank the whole catalogue for every query and score the lists; the score is the dot product.

    Shapes: queries (U, d), or anything that gives rows (:class:`topshelf.ranking.Queries`); items (I, d);
        relevant, train, valid: U lists each; item_counts (I,): popularity, of ``train`` when None. NumPy arrays serve
        as tensors, :class:`topshelf.data.Interactions` as lists of their users.
    To evaluate on validation items, pass them as ``relevant`` and leave ``valid`` out.
    Cost: one matrix product and two passes over the scores; ``auc`` adds a pass over a user's scores for each of the
        relevant items. Memory is bounded by the workspace of the ranking.
    """
    vectors, items = _vectors("queries", queries), _vectors("items", items)
    assert isinstance(items, Tensor)
    cutoffs = _check_cutoffs(cutoffs, items.size(0))
    sizes = len(vectors), items.size(0)
    relevant, train = _lists("relevant", relevant, *sizes), _lists("train", train, *sizes)
    valid = None if valid is None else _lists("valid", valid, *sizes)
    masked = _masked(one_of("protocol", protocol, PROTOCOLS), train, valid)
    _check_hidden(relevant, masked, items.size(0))
    users = torch.arange(len(vectors))
    if protocol == "standard":
        users = users[relevant.counts.cpu() > 0]
    if users.numel() == 0:
        raise DataError("relevant must hold at least one item for at least one query, got none to evaluate")
    per_user, exposure = _rank_users(vectors, items, relevant, masked, users, cutoffs, auc)
    if item_counts is None:
        item_counts = torch.bincount(train.indices.cpu(), minlength=items.size(0))
    extras = {f"coverage@{k}": catalogue_coverage(exposure[k]) for k in cutoffs}
    extras |= {
        f"popularity_lift@{k}": popularity_lift(exposure[k], torch.as_tensor(item_counts).cpu()) for k in cutoffs
    }
    n_skipped = len(vectors) - users.numel()
    return Evaluation(protocol, cutoffs, users, per_user, n_skipped, extras, _fingerprint(relevant, masked))


def ndcg(queries: Queries, items: Tensor, relevant: Ragged, exclude: Ragged | None, k: int) -> float:
    """Mean NDCG@k over the queries with relevant items, and nothing else: for validation while training."""
    users = (relevant.counts > 0).nonzero().squeeze(1).cpu()
    if users.numel() == 0:
        raise DataError("relevant must hold at least one item for at least one query, got none")
    check_lists("relevant", relevant, len(queries), items.size(0))
    total = 0.0
    for part, _, indices in _in_blocks(ranked_tiles(queries, items, k, exclude=exclude, rows=users)):
        wanted = _select(relevant, part)
        total += float(ndcg_at_k(kernels.hits(indices, wanted.indptr, wanted.indices), wanted.counts).sum())
    return total / users.numel()


def compare(first: Evaluation, second: Evaluation, metric: str, **options: Any) -> PairedResult:
    """Paired test of ``first - second`` on one metric; both must be of the same users and protocol.

    Users for whom the metric is undefined are left out. ``options`` go to :func:`paired_test`.
    """
    if first.protocol != second.protocol:
        raise DataError(f"protocols must be the same, got {first.protocol!r} and {second.protocol!r}")
    if first.fingerprint != second.fingerprint:
        raise DataError(
            "both evaluations must be of one split, got different train, validation or test parts; train both models "
            "on the same data with the same seed"
        )
    for evaluation in (first, second):
        one_of("metric", metric, evaluation.per_user)
    (users, first_order), (second_users, second_order) = first.users.sort(), second.users.sort()
    if not torch.equal(users, second_users):
        raise DataError(
            "both evaluations must be of the same users, "
            f"got {users.numel()} and {second_users.numel()} that differ; evaluate both models on one split"
        )
    a, b = first.per_user[metric][first_order], second.per_user[metric][second_order]
    defined = ~(a.isnan() | b.isnan())
    return paired_test(a[defined].numpy(), b[defined].numpy(), **options)


def _rank_users(
    queries: Queries,
    items: Tensor,
    relevant: Ragged,
    masked: Ragged,
    users: Tensor,
    cutoffs: tuple[int, ...],
    with_auc: bool,
) -> tuple[dict[str, Tensor], dict[int, Tensor]]:
    """Every metric at every cut-off from one ranking, and how often each item was listed at each cut-off."""
    names = [f"{name}@{k}" for name in METRICS for k in cutoffs] + ["auc"] * with_auc
    table = torch.empty(len(names), users.numel(), dtype=torch.float64)
    n_items, done = items.size(0), 0
    between = {k: torch.zeros(n_items, dtype=torch.int64) for k in cutoffs}
    ranked: Iterable[tuple[Tensor, ...]] = (
        ranked_rows(queries, items, cutoffs[-1], relevant, exclude=masked, rows=users)
        if with_auc
        else ranked_tiles(queries, items, cutoffs[-1], exclude=masked, rows=users)
    )
    for part, _, indices, *counts in _in_blocks(ranked):
        wanted = _select(relevant, part)
        hits = kernels.hits(indices, wanted.indptr, wanted.indices)
        columns = [metric(hits[:, :k], wanted.counts) for metric in METRICS.values() for k in cutoffs]
        if with_auc:
            columns.append(_user_auc(torch.stack(counts), wanted, n_items - masked.counts[part]))
        torch.stack(columns, out=table[:, done : done + part.numel()])
        done += part.numel()
        for above, k in zip((0, *cutoffs), cutoffs, strict=False):
            between[k] += item_exposure(indices[:, above:k], n_items)
    exposure = torch.stack(list(between.values())).cumsum(0)  # lists are nested: K places hold those of smaller K
    return dict(zip(names, table, strict=True)), dict(zip(cutoffs, exposure, strict=True))


def _in_blocks(ranked: Iterable[tuple[Tensor, ...]]) -> Iterator[tuple[Tensor, ...]]:
    """Tiles of ranked users put together on the CPU: many small operations on each would cost more than its ranking."""
    waiting: list[tuple[Tensor, ...]] = []
    for tile in ranked:
        waiting.append(tuple(tensor.cpu() for tensor in tile))
        if sum(some[0].numel() for some in waiting) >= BLOCK:
            yield tuple(torch.cat(parts) for parts in zip(*waiting, strict=True))
            waiting = []
    if waiting:
        yield tuple(torch.cat(parts) for parts in zip(*waiting, strict=True))


def _user_auc(counts: Tensor, wanted: Ragged, n_candidates: Tensor) -> Tensor:
    """AUC of the users (B,), given how many items are above their relevant ones, and beside them: counts (2, P)."""
    above, equal = torch.zeros(2, len(wanted), dtype=torch.int64).index_add_(1, wanted.owner(), counts)
    return auc(above, equal, wanted.counts, n_candidates)


def _is_in(keys: Tensor, lists: Ragged, n_items: int) -> Tensor:
    """Whether ``row * n_items + item`` is in the lists; their own keys are sorted, as lists and rows are."""
    own = lists.owner() * n_items + lists.indices
    if own.numel() == 0:
        return torch.zeros_like(keys, dtype=torch.bool)
    return own[torch.searchsorted(own, keys).clamp_(max=own.numel() - 1)] == keys


def _select(lists: Ragged, rows: Tensor) -> Ragged:
    return lists.select(rows.to(lists.indptr.device)).to("cpu")


def _masked(protocol: str, train: Ragged, valid: Ragged | None) -> Ragged:
    train = train.to("cpu")
    if valid is None or protocol == "paper":
        return train
    masked = merge(train, valid.to("cpu"))
    repeated = (masked.owner().diff() == 0) & (masked.indices.diff() == 0)
    if bool(repeated.any()):
        at = int(repeated.nonzero()[0])
        raise DataError(
            f"train and valid must not share items, got item {int(masked.indices[at])} "
            f"in both for query {int(masked.owner()[at])}; split the data again"
        )
    return masked


def _check_cutoffs(cutoffs: Sequence[int], n_items: int) -> tuple[int, ...]:
    checked = tuple(sorted({at_least("cutoffs", k, 1) for k in cutoffs}))
    if not checked:
        raise ConfigError("cutoffs must name at least one K, got none")
    if checked[-1] > n_items:
        raise ConfigError(f"cutoffs must be at most the number of items ({n_items}), got {checked[-1]}")
    return checked


def _vectors(name: str, given: Any) -> Any:
    """Vectors (n, d) as a tensor, or what hands out rows of them."""
    if isinstance(given, np.ndarray):
        if given.dtype.kind not in "fiub":
            raise DataError(f"{name} must be numbers, got an array of {given.dtype}")
        given = torch.from_numpy(np.ascontiguousarray(given))
        given = given if given.is_floating_point() else given.float()
    if name == "items" and not isinstance(given, Tensor):
        raise DataError(f"items must be a tensor or an array (I, d), got {type(given).__name__}")
    if not hasattr(given, "__len__") or not hasattr(given, "__getitem__") or isinstance(given, list | tuple):
        raise DataError(f"{name} must be a tensor or an array (U, d), got {type(given).__name__}")
    if isinstance(given, Tensor) and given.dim() != 2:
        raise DataError(f"{name} must have two axes, one row per vector, got shape {tuple(given.shape)}")
    return given


def _lists(name: str, given: Lists, n_queries: int, n_items: int) -> Ragged:
    """Lists that may be trusted: one per query, of items that are there, ascending without repeats."""
    if isinstance(given, Interactions):
        given = given.ragged()
    if not isinstance(given, Ragged):
        raise DataError(
            f"{name} must be Interactions or a Ragged, got {type(given).__name__}; Interactions.from_frame and "
            "Interactions.from_csr make them of tables"
        )
    return given.check(n_items, name, n_lists=n_queries, unique=True)


def _check_hidden(relevant: Ragged, masked: Ragged, n_items: int) -> None:
    owner, indices = relevant.owner().cpu(), relevant.indices.cpu()
    hidden = _is_in(owner * n_items + indices, masked, n_items)
    if bool(hidden.any()):
        at = int(hidden.nonzero()[0])
        raise DataError(
            f"a relevant item must not be masked, got item {int(indices[at])} of query {int(owner[at])} "
            "in the training or validation lists too; split the data again"
        )


def _fingerprint(*lists: Ragged) -> int:
    found = 0
    for part in lists:
        for tensor in (part.indptr, part.indices):
            found = zlib.crc32(tensor.cpu().contiguous().numpy().tobytes(), found)
    return found


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
