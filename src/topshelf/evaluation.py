"""Evaluation of rankings: of a whole catalogue, of candidates, or of lists that come from anywhere.

A number means little without its protocol and without what users with nothing to find are worth, so an
:class:`Evaluation` carries both.

``standard``  training and validation items are masked; users with nothing to find are left out and counted ("skip").
``paper``     only training items are masked, so validation items take places as misses; users with nothing to
              find count as 0 ("zero"). This is how the published numbers were made.
``given``     the lists or the :class:`topshelf.evalset.EvalSet` came from elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from topshelf import kernels
from topshelf.data import Interactions
from topshelf.errors import ConfigError, DataError, at_least, one_of
from topshelf.evalset import EMPTY, NEXT_ITEM, OWN_PROTOCOL, PROTOCOLS, EvalSet, ItemLists, list_set, protocol_set
from topshelf.item_table import ItemTable, ItemVectors
from topshelf.measurement import BLOCK, in_blocks, measure, ranked_places
from topshelf.metrics import GAINS, METRICS, catalogue_coverage, ndcg_at_k, popularity_lift
from topshelf.ragged import Ragged
from topshelf.ranked_lists import first_places, read_lists, warn_of_misses
from topshelf.ranking import NO_ITEM, QueryVectors, ranked_tiles
from topshelf.reprs import by_cutoff, cut, html_table, text_table
from topshelf.statistics import PairedResult, bootstrap_intervals, paired_test
from topshelf.world import ALONE, World

CUTOFFS = (5, 10, 20, 50)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The metrics of one model on one set of users.

    protocol    which items were masked
    cutoffs     the K of "ndcg@K" and the others, ascending
    users       (n,) index of each evaluated query, ascending
    per_user    "ndcg@20" -> (n,) float64, one value per user of ``users``; "auc" is NaN where it is undefined
    n_skipped   queries left out because they have nothing to find
    extras      figures of the lists as a whole: "coverage@20", "popularity_lift@20"
    fingerprint of the relevant and the masked lists: evaluations can be compared only where it is the same
    empty       queries with nothing to find: "skip", left out; "zero" or "one", worth 0 or 1 in every metric at K
    gain        of NDCG: "binary", or of graded relevance "exponential" or "linear"
    units       what the numbers are means over: "users", "queries", "edges"
    """

    protocol: str
    cutoffs: tuple[int, ...]
    users: Tensor
    per_user: dict[str, Tensor]
    n_skipped: int = 0
    extras: dict[str, float] = field(default_factory=dict)
    fingerprint: int = 0
    empty: str = "skip"
    gain: str = "binary"
    units: str = "users"

    def __repr__(self) -> str:
        table = text_table(*by_cutoff(self.mean()))
        return cut("\n".join([f"Evaluation({self._title()})", *(f"  {line}" for line in table)]))

    def _repr_html_(self) -> str:
        return html_table(self._title(), *by_cutoff({**self.mean(), **self.extras}))

    def _title(self) -> str:
        return f"{self.users.numel():,} {self.units}; {conditions(vars(self))}"

    def mean(self) -> dict[str, float]:
        """Mean over users; a NaN (an undefined AUC) is left out of its mean."""
        return {name: float(values.nanmean()) for name, values in self.per_user.items()}

    def intervals(self, level: float = 0.95, seed: int = 0, n_resamples: int = 1000) -> dict[str, tuple[float, float]]:
        """Percentile bootstrap interval of each mean; users are resampled, together for all metrics."""
        intervals: dict[str, tuple[float, float]] = {}
        for names in self._names_by_defined_users():
            defined = ~self.per_user[names[0]].isnan()
            values = torch.stack([self.per_user[name][defined] for name in names], 1)
            if values.size(0) == 0:
                intervals |= dict.fromkeys(names, (math.nan, math.nan))
                continue
            low, high = bootstrap_intervals(values.numpy(), level, n_resamples, seed)
            intervals |= {name: (float(low[j]), float(high[j])) for j, name in enumerate(names)}
        return {name: intervals[name] for name in self.per_user}

    def to_json(self, level: float = 0.95, seed: int = 0, n_resamples: int = 1000) -> dict[str, Any]:
        """Means, intervals and counts, ready for ``json.dump``; what is undefined becomes None."""
        intervals = self.intervals(level, seed, n_resamples)
        return {
            "protocol": self.protocol,
            "empty": self.empty,
            "gain": self.gain,
            "units": self.units,
            "cutoffs": list(self.cutoffs),
            "n_evaluated": self.users.numel(),
            "n_skipped": self.n_skipped,
            "mean": {name: _number(value) for name, value in self.mean().items()},
            "interval_level": level,
            "interval": {name: [_number(low), _number(high)] for name, (low, high) in intervals.items()},
            "extras": {name: _number(value) for name, value in self.extras.items()},
        }

    def _names_by_defined_users(self) -> list[list[str]]:
        """Metrics that are defined for all users, then each of the others: one resampling per group."""
        partial = [name for name, values in self.per_user.items() if bool(values.isnan().any())]
        whole = [name for name in self.per_user if name not in partial]
        return ([whole] if whole else []) + [[name] for name in partial]


def conditions(evaluation: Mapping[str, Any]) -> str:
    """What a number must be shown with, from :meth:`Evaluation.to_json`; files of earlier versions name less."""
    protocol, units = evaluation["protocol"], evaluation.get("units", "users")
    if units == "edges":  # each is to be found
        return f"protocol {protocol}; every edge is ranked against its own negatives"
    empty = EMPTY[evaluation.get("empty") or PROTOCOLS[protocol]]
    gain = evaluation.get("gain", "binary")
    graded = "" if gain == "binary" else f"; NDCG of {gain} gains"
    return f"protocol {protocol}; {units} with nothing to find {empty}{graded}"


def check_json(evaluation: Any) -> None:
    """Refuse what :meth:`Evaluation.to_json` did not make: numbers that come from a file."""
    cutoffs = evaluation["cutoffs"]
    means, extras = evaluation["mean"], evaluation["extras"]
    units = evaluation.get("units", "users")
    names = METRICS if units == "users" else {name.partition("@")[0] for name in means if "@" in name}
    numbers = [means[f"{name}@{k}"] for name in names for k in cutoffs]
    numbers += [end for k in cutoffs for end in evaluation["interval"][f"ndcg@{k}"]]
    numbers += [value for values in (means, extras) for value in values.values() if value is not None]
    numbers += [evaluation["n_evaluated"], evaluation["n_skipped"]]
    if not cutoffs or not all(isinstance(number, int | float) for number in [*cutoffs, *numbers]):
        raise ValueError("an evaluation must have cutoffs, and numbers for each of them")
    if units == "users":
        protocols = [*PROTOCOLS, OWN_PROTOCOL, *NEXT_ITEM.values()] if "empty" in evaluation else PROTOCOLS
        one_of("protocol", evaluation["protocol"], protocols)
    elif not isinstance(evaluation["protocol"], str) or not isinstance(units, str):
        raise ValueError("the protocol and the units of an evaluation must be text")
    one_of("empty", evaluation.get("empty", "skip"), EMPTY)
    one_of("gain", evaluation.get("gain", "binary"), ["binary", *GAINS])


def evaluate(
    queries: QueryVectors | np.ndarray,
    items: ItemVectors | np.ndarray,
    relevant: ItemLists,
    *,
    train: ItemLists,
    valid: ItemLists | None = None,
    protocol: str = "standard",
    empty: str | None = None,
    cutoffs: Sequence[int] = CUTOFFS,
    auc: bool = True,
    item_counts: Tensor | np.ndarray | None = None,
) -> Evaluation:
    """Rank the whole catalogue for every user and measure the lists; the score is the dot product.

    Shapes: queries (U, d), or anything that gives rows (:class:`topshelf.ranking.QueryVectors`); items (I, d);
        relevant, train, valid: U lists each; item_counts (I,): popularity, default that in ``train``. NumPy arrays
        serve as tensors, :class:`topshelf.data.Interactions` as lists of their users.
    ``empty`` overrides the protocol's rule for users with nothing to find: "skip", "zero" or "one".
    To evaluate on validation items, pass them as ``relevant`` and leave ``valid`` out.
    Cost: one matrix product and two passes over the scores; ``auc`` adds a pass over a user's scores for each of the
        relevant items. Memory is bounded by the workspace of the ranking.
    """
    vectors, table = _vectors("queries", queries), _vectors("items", items)
    evalset, train_counts = protocol_set(relevant, train, valid, protocol, empty, len(vectors), table.size(0))
    counts = train_counts if item_counts is None else item_counts
    return evaluate_set(vectors, table, evalset, cutoffs, auc=auc, item_counts=counts)


def evaluate_set(
    queries: QueryVectors | np.ndarray,
    items: ItemVectors | np.ndarray,
    evalset: EvalSet,
    cutoffs: Sequence[int] = CUTOFFS,
    *,
    auc: bool = True,
    item_counts: Tensor | np.ndarray | None = None,
) -> Evaluation:
    """:func:`evaluate` for any set of queries: ``queries (Q, d)`` are the vectors of ``evalset.queries``.

    With ``evalset.candidates`` only those are ranked. The popularity lift needs ``item_counts (I,)``.
    """
    vectors, table = _vectors("queries", queries), _vectors("items", items)
    cutoffs = checked_cutoffs(cutoffs, table.size(0))
    if len(vectors) != len(evalset.queries):
        raise DataError(f"queries must be one vector per query ({len(evalset.queries)}), got {len(vectors)}")
    evalset = evalset.checked(table.size(0))
    tiles = ranked_places(vectors, table, evalset, cutoffs[-1], auc)
    return _evaluation(tiles, evalset, cutoffs, table.size(0), item_counts)


def evaluate_lists(
    lists: Any,
    relevant: ItemLists | EvalSet,
    *,
    train: ItemLists | None = None,
    valid: ItemLists | None = None,
    protocol: str | None = None,
    empty: str | None = None,
    cutoffs: Sequence[int] = CUTOFFS,
    item_counts: Tensor | np.ndarray | None = None,
    n_items: int | None = None,
) -> Evaluation:
    """Measure ranked lists from any system by the same metrics; there is no AUC, which needs every score.

    ``lists`` is a Polars or pandas frame with the columns ``user``, ``item``, and ``rank`` (1 is best) or ``score``
        (high is best), as :meth:`topshelf.Recommender.recommend` gives; or a dict, user id -> item ids, best first. Ids
        are those of ``relevant``, which must then be :class:`topshelf.data.Interactions`. Or, by index, a
        :class:`topshelf.ragged.Ragged` in order, or an array (users, places) with -1 at empty places.
    ``relevant``, ``train``, ``valid``, ``protocol`` and ``empty`` are as in :func:`evaluate`, so that the two can be
        compared. Without ``train`` the masked items are unknown: the protocol is "given", ``empty`` "skip" by default.
    ``n_items`` is the size of the catalogue where ``relevant`` is not Interactions.
    A list may be short. A user without a list finds nothing, and an unknown item is a miss; a warning counts both.
    """
    known = relevant if isinstance(relevant, Interactions) else None
    n_items = known.n_items if known is not None else n_items
    if n_items is None:
        raise ConfigError("n_items must be given where relevant is not Interactions, got None")
    cutoffs = checked_cutoffs(cutoffs, n_items)
    evalset, train_counts = list_set(relevant, train, valid, protocol, empty, n_items)
    evalset = evalset.checked(n_items)
    ranked, n_left_out = read_lists(lists, len(evalset.queries), n_items, known)
    places = first_places(ranked, cutoffs[-1])[evalset.evaluated]
    warn_of_misses(places, evalset.evaluated, evalset.exclude, n_left_out)
    counts = train_counts if item_counts is None else item_counts
    return _evaluation([(places.clamp(min=NO_ITEM),)], evalset, cutoffs, n_items, counts)


def ndcg(
    queries: QueryVectors, items: ItemVectors, relevant: Ragged, exclude: Ragged | None, k: int, world: World = ALONE
) -> float:
    """Mean NDCG@k over the queries with something to find, and nothing else: for validation while training.

    The processes of a ``world`` divide the queries among them, and all get the same number.
    """
    relevant.check_shape("relevant", len(queries))
    users = (relevant.counts > 0).nonzero().squeeze(1).cpu()
    if users.numel() == 0:
        raise DataError("relevant must hold at least one item for at least one query, got none")
    mine = users.tensor_split(world.size)[world.rank]
    values = [torch.empty(0, dtype=torch.float64)]
    tiles = ((indices,) for _, _, indices in ranked_tiles(queries, items, k, exclude=exclude, rows=mine))
    for part, places in in_blocks(mine, tiles, []):
        wanted = relevant.checked_select(part.to(relevant.indptr.device), items.size(0), "relevant").to("cpu")
        values.append(ndcg_at_k(kernels.hits(places, wanted.indptr, wanted.indices), wanted.counts))
    per_user = world.all_rows(torch.cat(values).to(world.device)).cpu()
    return sum(float(block.sum()) for block in per_user.split(BLOCK)) / users.numel()


def compare(first: Evaluation, second: Evaluation, metric: str, **options: Any) -> PairedResult:
    """Paired test of ``first - second`` on one metric; both must be of the same users and protocol.

    Users for whom the metric is undefined are left out. ``options`` go to :func:`paired_test`.
    """
    for name in ("protocol", "empty", "gain"):
        a, b = getattr(first, name), getattr(second, name)
        if a != b:
            raise DataError(f"both evaluations must have the same {name}, got {a!r} and {b!r}")
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
    values = first.per_user[metric][first_order], second.per_user[metric][second_order]
    defined = ~(values[0].isnan() | values[1].isnan())
    return paired_test(*(some[defined].numpy() for some in values), **options)


def _evaluation(
    tiles: Iterable[tuple[Tensor, ...]],
    evalset: EvalSet,
    cutoffs: tuple[int, ...],
    n_items: int,
    item_counts: Tensor | np.ndarray | None,
) -> Evaluation:
    if evalset.evaluated.numel() == 0:
        raise DataError("relevant must hold at least one item for at least one query, got none to evaluate")
    return evaluation_of(evalset, cutoffs, *measure(tiles, evalset, cutoffs, n_items), item_counts)


def evaluation_of(
    evalset: EvalSet,
    cutoffs: tuple[int, ...],
    per_user: dict[str, Tensor],
    exposure: Mapping[int, Tensor],
    item_counts: Tensor | np.ndarray | None,
) -> Evaluation:
    """The evaluation of what :func:`topshelf.measurement.measure` found."""
    extras = {f"coverage@{k}": catalogue_coverage(exposure[k]) for k in cutoffs}
    if item_counts is not None:
        popularity = torch.as_tensor(item_counts).cpu()
        extras |= {f"popularity_lift@{k}": popularity_lift(exposure[k], popularity) for k in cutoffs}
    return Evaluation(
        evalset.protocol,
        cutoffs,
        evalset.evaluated,
        per_user,
        n_skipped=evalset.n_skipped,
        extras=extras,
        fingerprint=evalset.fingerprint(),
        empty=evalset.empty,
        gain="binary" if evalset.grades is None else evalset.gain,
    )


def checked_cutoffs(cutoffs: Sequence[int], n_items: int) -> tuple[int, ...]:
    checked = tuple(sorted({at_least("cutoffs", k, 1) for k in cutoffs}))
    if not checked:
        raise ConfigError("cutoffs must name at least one K, got none")
    if checked[-1] > n_items:
        raise ConfigError(f"cutoffs must be at most the number of items ({n_items}), got {checked[-1]}")
    return checked


def _vectors(name: str, given: Any) -> Any:
    """Vectors (n, d) as a tensor, or what gives rows of them."""
    if isinstance(given, np.ndarray):
        if given.dtype.kind not in "fiub":
            raise DataError(f"{name} must be numbers, got an array of {given.dtype}")
        given = torch.from_numpy(np.require(given, requirements=["C", "W"]))
        given = given if given.is_floating_point() else given.float()
    if name == "items" and not isinstance(given, Tensor | ItemTable):
        raise DataError(f"items must be a tensor or an array (I, d), got {type(given).__name__}")
    if not hasattr(given, "__len__") or not hasattr(given, "__getitem__") or isinstance(given, list | tuple):
        raise DataError(f"{name} must be a tensor or an array (U, d), got {type(given).__name__}")
    if isinstance(given, Tensor) and given.dim() != 2:
        raise DataError(f"{name} must have two axes, one row per vector, got shape {tuple(given.shape)}")
    return given


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
