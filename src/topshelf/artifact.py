"""What serving needs: vectors, ids, items per user, titles. Recommender and command line are thin over it.

A run folder's ``artifact.safetensors`` is memory-mapped, so opening it is fast at any size. It has the vectors of items
and of known queries. Models that make query vectors from histories (EASE and similar) are loaded on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from topshelf import registry
from topshelf.config import CatalogueConfig, SequenceConfig, class_names, of_task
from topshelf.data import IdMap, Split, through_refit
from topshelf.data.ids import UNKNOWN
from topshelf.errors import CheckpointError, DataError, at_least, whole
from topshelf.item_table import ItemTable, ItemVectors, rows_of
from topshelf.models import Model
from topshelf.queries import Context, EventLists, QuerySet
from topshelf.ragged import Ragged
from topshelf.ranking import QueryVectors, top_k
from topshelf.reprs import brief_tuple
from topshelf.training import Fitted, load
from topshelf.training.build import model_class
from topshelf.training.folder import RunFolder
from topshelf.training.run import load_model
from topshelf.training.tasks.catalogue import popularity

_ROUNDING = 1e-6  # counts are float32: those above 2^24 are rounded
_UNIT_BLOCK = 1 << 26  # bytes of unit vectors at once: an item-item model has n_items vectors of length n_items


class Ranked(NamedTuple):
    """The best k items per query, best first; -1 and -inf where there are fewer items.

    Queries without a history get the most popular items; their scores are NaN.
    """

    scores: Tensor  # (Q, k)
    items: Tensor  # (Q, k)

    def __repr__(self) -> str:
        return brief_tuple(self)


@dataclass(eq=False)
class Artifact:
    """A fitted model, ready to recommend.

    config     the run's; its k is the default length of a list
    users      ids of the known queries, by row; items: ids of the items; titles: theirs, where known
    seen       all items per known user, in training or not; never recommended to them again
    taken      the same without low ratings: the history that new interactions are added to
    n_learned  (U,) number of training items per known user
    counts     (I,) number of training interactions per item: its popularity
    events     what each known user did, in order and with repeats; None if the data do not say
    """

    config: CatalogueConfig
    users: IdMap
    items: IdMap
    titles: list[str] | None
    seen: Ragged
    taken: Ragged
    n_learned: Tensor
    counts: Tensor
    _stored: dict[str, Tensor]  # "queries" and "items" where the vectors are kept
    _load: Callable[[], Model]
    _load_events: Callable[[], Ragged | None]
    asks_events: bool = False  # known users are asked by all that they did, not by what was learned of them

    def __repr__(self) -> str:
        return f"Artifact({self.config.model.name}: {len(self.users):,} users, {len(self.items):,} items)"

    @classmethod
    def of(cls, fitted: Fitted) -> Artifact:
        """From a model in memory."""
        split = fitted.dataset.split
        ids = (split.users, split.items, fitted.dataset.titles)
        state = fitted.task.answers(fitted.model, fitted.through)
        assert state is not None
        return cls._from(state, fitted.config, *ids, lambda: fitted.model, lambda: split)

    @classmethod
    def open(cls, path: str | Path, *, allow: Collection[str] = ()) -> Artifact:
        """From a run folder. An unfinished run, or one of an earlier version, is loaded as a whole."""
        registry.allow(allow)
        folder = RunFolder.open(path)
        config = of_task(folder.load_config(), CatalogueConfig, "a list of recommended items")
        if not folder.is_finished or not folder.artifact.exists():
            return cls.of(load(path))
        state = folder.load_artifact()
        folder.load_metrics(folder.artifact)  # which has its checksum
        users, items, titles = folder.load_ids()
        try:
            _check(state, len(users), len(items), asks_events=isinstance(config, SequenceConfig))
        except (ValueError, DataError) as error:
            raise CheckpointError(f"{folder.artifact} is damaged, or does not fit its folder: {error}") from None

        def encoder() -> Model:
            if any(":" in name for setting, name in class_names(config).items() if setting.startswith("model.")):
                return load(path).model  # a class of another package may need anything of the data
            model = load_model(folder, config, len(users), len(items))
            if "events" in state:
                return model  # it is asked by what users did, which is here
            if "learned" in state:
                model.attach(Context(_lists(state["learned"]), model.n_items, events))
            elif "sequence" in model.kinds:
                return load(path).model  # what it learned from is in the data alone
            return model

        def events() -> EventLists | None:
            part = split().events(through_refit(config.train.refit))
            return None if part is None else EventLists(part.ragged(), part.times())

        def split() -> Split:
            return load(path).dataset.split

        return cls._from(state, config, users, items, titles, encoder, split)

    @classmethod
    def _from(
        cls,
        state: dict[str, Any],
        config: CatalogueConfig,
        users: IdMap,
        items: IdMap,
        titles: list[str] | None,
        encoder: Callable[[], Model],
        load_split: Callable[[], Split],
    ) -> Artifact:
        def events() -> Ragged | None:
            if "events" in state:
                return _lists(state["events"])
            return None if (happened := load_split().events("all")) is None else happened.ragged()

        stored: dict[str, Tensor] = {name: state[name] for name in ("queries", "items") if name in state}
        seen = _lists(state["seen"])
        taken = _lists(state["taken"]) if "taken" in state else seen
        columns = (state["n_learned"], state["counts"])
        return cls(
            config, users, items, titles, seen, taken, *columns, stored, encoder, events, asks_events="events" in state
        )

    @cached_property
    def model(self) -> Model:
        """The encoder; loaded on first use."""
        return self._load()

    @cached_property
    def events(self) -> Ragged | None:
        """What each known user did; read from the data on first use where the artifact does not keep it."""
        return self._load_events()

    @cached_property
    def vectors(self) -> ItemVectors:
        """Vectors of all items, (I, d), on the CPU."""
        if "items" in self._stored:
            return self._stored["items"]
        with torch.no_grad():
            return self.model.encode_items().cpu()

    @torch.no_grad()
    def encode(self, queries: QuerySet) -> QueryVectors:
        """Vectors of the queries; refused if the model cannot encode their kind."""
        if queries.rows is not None:
            queries = queries if queries.is_all else QuerySet(rows=queries.rows.clamp(min=0))
            if "queries" in self._stored:
                return queries.take(self._stored["queries"])
            queries = self._as_asked(queries)
        self.model.check_takes(queries.kind)
        return self.model.encode_queries(queries)

    def _as_asked(self, queries: QuerySet) -> QuerySet:
        """Known users as what they did, in order or as a set, where the run asks them so."""
        if not self.asks_events or self.model.kinds == {"rows"}:
            return queries
        rows, events = queries.known_rows(), self.events
        if "sequence" in self.model.kinds and events is not None:
            return QuerySet(sequence=events.select(rows))
        return QuerySet(history=self.seen.select(rows))

    def rank(
        self,
        queries: QuerySet,
        k: int | None = None,
        *,
        exclude: Ragged | None = None,
        allow: Tensor | None = None,
    ) -> Ranked:
        """The best ``k`` items per query.

        ``exclude``: one list per query of items to leave out, such as ``seen.select(rows)``. ``allow (A,)``: the items
        that may be recommended, for all queries, such as those in stock; all when None. Queries without training
        items, rows of -1, and empty histories get the most popular items, without scores.
        """
        self._check(queries, exclude)
        allowed = None if allow is None else _allowed(allow, len(self.items))
        n = len(self.items) if allowed is None else allowed.numel()
        k = min(self.config.k if k is None else at_least("k", whole("k", k), 1), n)
        if exclude is not None and allowed is not None:
            exclude = _places(exclude, allowed, len(self.items))
        scores, items = self._best(self.encode(queries), self.vectors, k, exclude, allowed)
        unknown = (~self.is_known(queries)).nonzero().squeeze(1)
        if unknown.numel():
            lists = None if exclude is None else exclude.select(unknown)
            popular = self._best(torch.ones(unknown.numel(), 1), self.counts.unsqueeze(1), k, lists, allowed)[1]
            scores[unknown], items[unknown] = torch.nan, popular
        return Ranked(scores, items)

    def similar(self, rows: Tensor, k: int = 10) -> Ranked:
        """The ``k`` items most similar to each item of ``rows (R,)``, by cosine; the item is left out."""
        _check_range("rows", rows, 0, len(self.items))
        vectors = self.vectors
        n_items, parts = vectors.size(0), []
        k = min(at_least("k", whole("k", k), 1), n_items)
        wanted = F.normalize(vectors[rows], dim=1)
        for start, unit in self._unit_blocks():
            inside = (rows >= start) & (rows < start + unit.size(0))
            itself = Ragged(F.pad(inside.long().cumsum(0), (1, 0)), rows[inside] - start)
            scores, items = top_k(wanted, unit, min(k, unit.size(0)), exclude=itself)
            parts.append((scores, torch.where(items < 0, items, items + start)))
        scores, items = (torch.cat(some, 1) for some in zip(*parts, strict=True))
        best, order = scores.sort(dim=1, descending=True, stable=True)  # ties stay in item order
        return Ranked(best[:, :k], items.gather(1, order[:, :k]))

    def _check(self, queries: QuerySet, exclude: Ragged | None) -> None:
        """Refuse indices that are not there: compiled code trusts them."""
        n_users, n_items = len(self.users), len(self.items)
        if queries.rows is not None:
            _check_range("rows", queries.rows, UNKNOWN, n_users)
        if queries.history is not None:
            queries.history.check(n_items, "history", unique=True)
        if queries.sequence is not None:
            queries.sequence.check(n_items, "sequence")
        if exclude is not None and exclude is not self.seen:  # which was checked when it was read
            exclude.check(n_items, "exclude", n_lists=len(queries))

    @cached_property
    def _unit(self) -> ItemVectors:
        vectors = self.vectors
        return vectors.unit() if isinstance(vectors, ItemTable) else F.normalize(vectors, dim=1)

    def _unit_blocks(self) -> list[tuple[int, ItemVectors]] | Any:
        """Blocks of unit item vectors, each with its first item; cached if they all fit one block."""
        vectors = self.vectors
        width = max(1, _UNIT_BLOCK // (4 * vectors.size(1)))
        if width >= vectors.size(0) or isinstance(vectors, ItemTable):
            return [(0, self._unit)]
        starts = range(0, vectors.size(0), width)
        return ((start, F.normalize(vectors[start : start + width], dim=1)) for start in starts)

    def _best(
        self, queries: QueryVectors, items: ItemVectors, k: int, exclude: Ragged | None, allowed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if allowed is None:
            return top_k(queries, items, k, exclude=exclude)
        scores, places = top_k(queries, rows_of(items, allowed), k, exclude=exclude)
        return scores, torch.where(places < 0, places, allowed[places.clamp(min=0)])

    def is_known(self, queries: QuerySet) -> Tensor:
        """Which queries the model has something of, (Q,); the others get the most popular items."""
        if queries.rows is not None:
            reads = self.asks_events and model_class(self.config).takes != {"rows"}
            n = self.seen.counts if reads else self.n_learned  # what came after training is read too
            return (queries.rows >= 0) & (n[queries.rows.clamp(min=0)] > 0)
        lists = queries.history if queries.history is not None else queries.sequence
        return torch.ones(len(queries), dtype=torch.bool) if lists is None else lists.counts > 0


def _lists(state: dict[str, Tensor]) -> Ragged:
    return Ragged(state["indptr"], state["indices"])


def _check_range(name: str, rows: Tensor, least: int, n: int) -> None:
    """Refuse indices below ``least``, 0 or UNKNOWN, or from ``n`` on."""
    if not rows.numel():
        return
    low, high = (int(end) for end in torch.aminmax(rows))
    if low < least or high >= n:
        unknown = ", or -1 for an unknown user" if least == UNKNOWN else ""
        raise DataError(f"{name} must be from 0 to {n - 1}{unknown}, got {low} to {high}")


def _allowed(allow: Tensor, n_items: int) -> Tensor:
    """Items that may be recommended, ascending, so that ties stay in item order."""
    allowed = torch.unique(torch.as_tensor(allow, dtype=torch.int64))
    if not allowed.numel() or int(allowed[0]) < 0 or int(allowed[-1]) >= n_items:
        got = "none" if not allowed.numel() else f"{int(allowed[0])} to {int(allowed[-1])}"
        raise DataError(f"allow must hold at least one item index from 0 to {n_items - 1}, got {got}")
    return allowed


def _places(lists: Ragged, allowed: Tensor, n_items: int) -> Ragged:
    """Lists of items as places among the allowed ones; others are dropped."""
    place = torch.full((n_items,), -1)
    place[allowed] = torch.arange(allowed.numel())
    places = place[lists.indices]
    is_there = places >= 0
    return Ragged(F.pad(is_there.cumsum(0), (1, 0))[lists.indptr], places[is_there])


def _check(state: dict[str, Any], n_users: int, n_items: int, *, asks_events: bool) -> None:
    """What a file says must fit the ids and itself: compiled code trusts the lists, and rankings the numbers."""
    given = [name for name in ("queries", "items", "learned") if name in state]
    if given not in (["queries", "items"], ["learned"]):
        raise ValueError(f"it must have vectors of queries and items, or what was learned, got {given or 'neither'}")
    lists = {name: _checked_lists(state, name, n_users, n_items) for name in ("seen", "taken", "learned")}
    n_learned = _column(state, "n_learned", torch.int64, n_users)
    counts = _column(state, "counts", torch.float32, n_items)
    seen, learned = lists["seen"], lists["learned"]
    if seen is None:
        raise ValueError("it has no lists of what is seen")
    taken = seen if lists["taken"] is None else lists["taken"]
    if bool((n_learned < 0).any() | (n_learned > taken.counts).any() | (taken.counts > seen.counts).any()):
        raise ValueError("what was learned must be among what was taken, and that among what is seen")
    total, learned_total = float(counts.sum(dtype=torch.float64)), int(n_learned.sum())
    if not bool((counts >= 0).all()) or not abs(total - learned_total) <= _ROUNDING * learned_total:
        raise ValueError(f"counts must be {learned_total} in all, as n_learned says, got {total:g}")
    if (_checked_lists(state, "events", n_users, n_items, unique=False) is not None) != asks_events:
        raise ValueError("it must have what users did, in order, for a run of sequences, and for no other")
    if "queries" in state:
        _check_vectors(state["queries"], state["items"], n_users, n_items)
    if learned is None:
        return
    if not torch.equal(learned.counts, n_learned) or not torch.equal(popularity(learned, n_items), counts):
        raise ValueError("n_learned and counts must be those of the learned lists")


def _checked_lists(
    state: dict[str, Any], name: str, n_users: int, n_items: int, *, unique: bool = True
) -> Ragged | None:
    if name not in state:
        return None
    if not isinstance(state[name], dict) or state[name].keys() != {"indptr", "indices"}:
        raise ValueError(f"{name} must be lists, got {type(state[name]).__name__}")
    return _lists(state[name]).check(n_items, name, n_lists=n_users, unique=unique)


def _column(state: dict[str, Any], name: str, dtype: torch.dtype, n: int) -> Tensor:
    values = state.get(name)
    if not isinstance(values, Tensor) or values.dtype != dtype or tuple(values.shape) != (n,):
        raise ValueError(f"{name} must be {n} numbers of {dtype}, got {_described(values)}")
    return values


def _check_vectors(queries: Any, items: Any, n_users: int, n_items: int) -> None:
    """Infinite ones are refused here: they would be listed first, or leave lists short, without a message."""
    for name, vectors, n in (("queries", queries, n_users), ("items", items, n_items)):
        is_table = isinstance(vectors, Tensor) and vectors.dim() == 2 and vectors.size(0) == n and vectors.numel()
        if not is_table or vectors.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"{name} must be {n} vectors of float32 or float64, got {_described(vectors)}")
        if not all(torch.isfinite(end) for end in torch.aminmax(vectors)):  # one pass, and no copy
            raise ValueError(f"the vectors of {name} must be finite numbers, got NaN or inf")
    if queries.size(1) != items.size(1) or queries.dtype != items.dtype:
        raise ValueError(
            f"vectors of queries and items must be of one length and type, got {_described(queries)} and "
            f"{_described(items)}"
        )


def _described(value: Any) -> str:
    return f"{tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
