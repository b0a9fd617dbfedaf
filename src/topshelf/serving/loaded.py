"""A run that is loaded to answer: queries as the model takes them, and their lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from topshelf.answers import Answer, Id, Listed, SimilarAnswer
from topshelf.artifact import Artifact
from topshelf.config import SequenceConfig
from topshelf.data.ids import UNKNOWN
from topshelf.queries import QuerySet
from topshelf.ragged import Ragged
from topshelf.ranking import QueryVectors
from topshelf.reasons import reasons
from topshelf.serving.approximate import Index
from topshelf.serving.attributes import Attributes, Selections
from topshelf.serving.bodies import Query
from topshelf.serving.scoring import best_items, best_of, candidate_scores, ragged

NOTHING = np.zeros(0, np.int64)
Found = tuple[list[Any], list[int]]  # scores (None in a popular list) and items of one list


@dataclass(slots=True)
class Prepared:
    """A query in the terms of the run that answers it."""

    loaded: Loaded
    variant: str
    user: Id | None
    k: int
    explain: int
    row: int
    kind: str  # rows, history, sequence, or popular
    history: np.ndarray  # what the model gets of a query that is no row
    owned: np.ndarray  # what the user has, for reasons
    exclude: np.ndarray
    mask: np.ndarray | None
    allowed: np.ndarray | None
    fallback: str | None
    unknown: int


@dataclass(eq=False)
class Loaded:
    """A run of recommendations or next items, with what its answers need beside it. It does not change."""

    path: Path
    version: str
    artifact: Artifact
    selections: Selections
    index: Index | None = None
    exact_below: float = 0.1
    item_ids: list[Id] = field(init=False)

    def __post_init__(self) -> None:
        artifact = self.artifact
        self.item_ids = artifact.items.values.to_list()
        self.kinds = artifact.model.kinds
        self.vectors = artifact.vectors
        self.seen, self.taken = _Lists(artifact.seen), _Lists(artifact.taken)
        self.events = _Lists(events) if "sequence" in self.kinds and (events := artifact.events) is not None else None
        self.is_known = artifact.is_known(QuerySet.known(len(artifact.users))).numpy()
        self.popular = torch.sort(artifact.counts, descending=True, stable=True).indices.numpy()
        config = artifact.config
        self.filters_seen = config.data.exclude_seen if isinstance(config, SequenceConfig) else True

    @property
    def attributes(self) -> Attributes:
        return self.selections.attributes

    def prepare(self, query: Query, variant: str, happened: Sequence[str] = ()) -> Prepared:
        """The query for this run; ``happened`` are the items of the user's stored events, oldest first."""
        row, unknown = UNKNOWN, 0
        if query.user is not None:
            place = self.artifact.users.get(query.user)
            row = UNKNOWN if place is None else place
        new, excluded = NOTHING, NOTHING
        if happened or query.history:
            new, unknown = self._new_items(row, happened, query.history)
        if query.exclude:
            excluded, n = self._indices(query.exclude)
            unknown += n
        allowed = None
        if query.allow is not None:
            allowed, n = self._indices(query.allow)
            allowed, unknown = np.unique(allowed), unknown + n
        kind, history, fallback = self._kind(row, new, query.user is not None)
        has_own = self.filters_seen if query.filter_seen is None else query.filter_seen
        exclude = self.seen.of(row) if has_own else NOTHING
        if len(excluded) or (has_own and len(new)):
            exclude = _union(exclude, excluded, *([new] if has_own else []))
        mask = None if query.filter is None else self.selections.of(query.filter)
        if mask is not None and allowed is not None:
            allowed, mask = allowed[mask[allowed]], None
        k = self.artifact.config.k if query.k is None else query.k
        owned = _union(self.taken.of(row), new) if query.explain else NOTHING
        return Prepared(
            self, variant, query.user, min(k, len(self.item_ids)), query.explain, row, kind, history, owned,
            exclude, mask, allowed, fallback, unknown,
        )  # fmt: skip

    def _new_items(self, row: int, happened: Sequence[str], history: Sequence[Id]) -> tuple[np.ndarray, int]:
        """Items after those of the run's data, in order. Events that the run has learned from are left out."""
        past, _ = self._indices(happened)
        given, unknown = self._indices(history)
        if row != UNKNOWN and self.events is not None and len(past):
            past = past[_overlap(self.events.of(row), past) :]
        return np.concatenate([past, given]), unknown

    def _indices(self, ids: Sequence[Id]) -> tuple[np.ndarray, int]:
        """Known items among the ids, in their order, and how many are not known."""
        found = self.artifact.items.find(list(ids)) if ids else NOTHING
        is_here = found != UNKNOWN
        return found[is_here], int(len(found) - is_here.sum())

    def _kind(self, row: int, new: np.ndarray, is_named: bool) -> tuple[str, np.ndarray, str | None]:
        """How the model is asked, with what, and why it is not asked at all."""
        is_user = row != UNKNOWN
        if len(new):
            if "sequence" in self.kinds and (not is_user or self.events is not None):
                before = self.events.of(row) if self.events is not None else NOTHING
                return "sequence", np.concatenate([before, new]), None
            if "history" in self.kinds:
                return "history", _union(self.taken.of(row), new), None
            if not is_user:
                return "popular", NOTHING, "model_takes_no_history"
        if not is_user:
            return "popular", NOTHING, "unknown_user" if is_named else "no_history"
        if not self.is_known[row]:
            return "popular", NOTHING, "no_history"
        return "rows", NOTHING, None

    def answer(self, asked: Sequence[Prepared]) -> list[Answer]:
        """The lists of some queries of this run, together."""
        return [self.shown(one, *some) for one, some in zip(asked, self.find(asked), strict=True)]

    def find(self, asked: Sequence[Prepared]) -> list[Found]:
        """The same as scores and items by their index."""
        found: list[Found] = [([], [])] * len(asked)
        for kind in ("rows", "history", "sequence"):
            places = [place for place, one in enumerate(asked) if one.kind == kind]
            if places:
                lists = self._ranked(kind, [asked[place] for place in places])
                for place, some in zip(places, lists, strict=True):
                    found[place] = some
        for place, one in enumerate(asked):
            if one.kind == "popular":
                items = self._popular(one).tolist()
                found[place] = [None] * len(items), items
        return found

    def encode(self, kind: str, asked: Sequence[Prepared]) -> QueryVectors:
        """Vectors (Q, d) of queries of one kind."""
        if kind == "rows":
            queries = QuerySet(rows=torch.tensor([one.row for one in asked]))
        else:
            lists = ragged([one.history for one in asked])
            queries = QuerySet(history=lists) if kind == "history" else QuerySet(sequence=lists)
        return self.artifact.encode(queries)

    def _ranked(self, kind: str, asked: list[Prepared]) -> list[Found]:
        vectors = self.encode(kind, asked)
        found: list[Found | None] = [None] * len(asked)
        for place, one in enumerate(asked):
            candidates = self._narrow(one)
            if candidates is not None:
                scores, items = best_of(vectors[torch.tensor([place])], self.vectors, one.k, candidates)
                found[place] = scores.tolist(), items.tolist()
        if self.index is not None and isinstance(vectors, Tensor) and vectors.layout == torch.strided:
            self._approximate(vectors, asked, found)
        rest = [place for place, some in enumerate(found) if some is None]
        if rest:
            some = vectors if len(rest) == len(asked) and isinstance(vectors, Tensor) else vectors[torch.tensor(rest)]
            chosen = [asked[place] for place in rest]
            k, exclude = max(one.k for one in chosen), ragged([one.exclude for one in chosen])
            scores, items = best_items(some, self.vectors, k, exclude, [one.mask for one in chosen])
            lengths = (items >= 0).sum(1).tolist()
            for place, n, *row in zip(rest, lengths, scores.tolist(), items.tolist(), strict=True):
                n = min(n, asked[place].k)
                found[place] = row[0][:n], row[1][:n]
        return [some for some in found if some is not None]

    def _narrow(self, one: Prepared) -> np.ndarray | None:
        """The only items that may be listed, without those to leave out, where they are few; else None."""
        if one.allowed is None and one.mask is not None:
            n_items = len(self.item_ids)
            if int(np.count_nonzero(one.mask)) <= max(one.k, self.exact_below * n_items):
                return np.setdiff1d(np.nonzero(one.mask)[0], one.exclude, assume_unique=True)
        return None if one.allowed is None else np.setdiff1d(one.allowed, one.exclude, assume_unique=True)

    def _approximate(self, vectors: Tensor, asked: list[Prepared], found: list[Found | None]) -> None:
        """Fill in what the index finds; lists that come out short stay None and are made exactly."""
        assert self.index is not None
        by_mask: dict[int, list[int]] = {}
        for place, one in enumerate(asked):
            if found[place] is None:
                by_mask.setdefault(id(one.mask), []).append(place)
        for places in by_mask.values():
            some = [asked[place] for place in places]
            k, chosen = max(one.k for one in some), vectors[torch.tensor(places)]
            lists = self.index.search(chosen, k, [one.exclude for one in some], some[0].mask)
            for place, items in zip(places, lists, strict=True):
                if items is not None:
                    scores, best = best_of(vectors[place : place + 1], self.vectors, asked[place].k, np.sort(items))
                    found[place] = scores.tolist(), best.tolist()

    def _popular(self, one: Prepared) -> np.ndarray:
        order = self.popular
        if one.allowed is not None:
            order = order[np.isin(order, one.allowed)]
        elif one.mask is not None:
            order = order[one.mask[order]]
        order = order[: one.k + len(one.exclude)]
        return order[~np.isin(order, one.exclude)][: one.k]

    def shown(self, one: Prepared, scores: Sequence[float | None], places: Sequence[int]) -> Answer:
        ids, titles = self.item_ids, self.artifact.titles
        names = [None] * len(places) if titles is None else [titles[place] for place in places]
        listed = [Listed(ids[at], value, name, []) for at, value, name in zip(places, scores, names, strict=True)]
        if one.explain and one.kind != "popular" and len(one.owned) and places:
            found = reasons(self.artifact, ragged([one.owned]), torch.tensor([places]), one.explain)[0]
            for some, own in zip(listed, found.tolist(), strict=True):
                some.because = [ids[at] for at in own if at >= 0]
        return Answer(listed, one.user, one.variant, self.version, one.fallback, one.unknown)

    def score(self, one: Prepared, items: Sequence[Id]) -> Answer:
        """Scores of given items, in their order; None for those that are not known, and without a model's answer."""
        found = self.artifact.items.find(list(items))
        is_here = found != UNKNOWN
        values: list[float | None] = [None] * len(items)
        if one.kind != "popular" and is_here.any():
            scores = candidate_scores(
                self.encode(one.kind, [one])[torch.tensor([0])], self.vectors, torch.from_numpy(found[is_here])
            )
            for place, value in zip(np.nonzero(is_here)[0].tolist(), scores.tolist(), strict=True):
                values[place] = value
        listed = [
            Listed(item, value, self._title(place)) for item, value, place in zip(items, values, found, strict=True)
        ]
        unknown = one.unknown + int(len(items) - is_here.sum())
        return Answer(listed, one.user, one.variant, self.version, one.fallback, unknown)

    def similar(self, items: Sequence[Id], k: int, variant: str) -> list[SimilarAnswer]:
        found = self.artifact.items.find(list(items))
        rows = found[found != UNKNOWN]
        ranked = self.artifact.similar(torch.from_numpy(rows), k) if len(rows) else ((), ())
        lists = iter(zip(*ranked, strict=True))
        answers = []
        for item, place in zip(items, found.tolist(), strict=True):
            listed = []
            if place != UNKNOWN:
                scores, others = next(lists)
                listed = [
                    Listed(self.item_ids[at], score, self._title(at))
                    for score, at in zip(scores.tolist(), others.tolist(), strict=True)
                    if at >= 0
                ]
            answers.append(SimilarAnswer(item, listed, place != UNKNOWN, variant, self.version))
        return answers

    def history(self, user: Id, happened: Sequence[str]) -> list[Listed]:
        """The user's items, in order where the run knows it, then those of the stored events; each once."""
        place = self.artifact.users.get(user)
        row = UNKNOWN if place is None else place
        known = (self.events or self.taken).of(row)
        new, _ = self._new_items(row, happened, ())
        places = dict.fromkeys([*known.tolist(), *new.tolist()])
        return [Listed(self.item_ids[at], None, self._title(at)) for at in places]

    def search(self, text: str, n: int) -> list[Listed]:
        """Items whose title or id has the text in it, the most popular first."""
        ids = self.artifact.items.values.cast(pl.String)
        found = ids.str.to_lowercase().str.contains(text.lower(), literal=True)
        if self.artifact.titles is not None:
            titles = pl.Series(self.artifact.titles, dtype=pl.String).fill_null("")
            found = found | titles.str.to_lowercase().str.contains(text.lower(), literal=True)
        order = self.popular[found.to_numpy()[self.popular]][:n]
        return [Listed(self.item_ids[at], None, self._title(at)) for at in order.tolist()]

    def _title(self, place: int) -> str | None:
        titles = self.artifact.titles
        return None if titles is None or place == UNKNOWN else titles[place]


class _Lists:
    """Lists of a Ragged as NumPy views: a row takes a microsecond."""

    def __init__(self, lists: Ragged) -> None:
        self.indptr, self.indices = lists.indptr.numpy(), lists.indices.numpy()

    def of(self, row: int) -> np.ndarray:
        return NOTHING if row == UNKNOWN else self.indices[self.indptr[row] : self.indptr[row + 1]]


def _union(*lists: np.ndarray) -> np.ndarray:
    """Ascending, without repeats."""
    return np.unique(np.concatenate(lists))


def _overlap(before: np.ndarray, new: np.ndarray) -> int:
    """How many of the first new items are the last ones before: the run has learned from those events."""
    for n in range(min(len(before), len(new)), 0, -1):
        if np.array_equal(before[-n:], new[:n]):
            return n
    return 0
