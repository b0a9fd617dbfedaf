"""Two versions of a run: how far their lists are the same, and what changed for whom."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor

from topshelf.artifact import Artifact
from topshelf.data import IdMap
from topshelf.data.ids import UNKNOWN
from topshelf.errors import DataError, at_least, whole
from topshelf.queries import QuerySet
from topshelf.ranking import NO_ITEM
from topshelf.reprs import html_table, lines

_BLOCK = 1 << 18  # places of lists at once
_GONE = NO_ITEM - 1  # an item that the new version does not have


@dataclass(frozen=True, eq=False)
class Changes:
    """Lists of the users that both versions know, without what each of them has.

    facts   numbers of both versions, by name: old, new
    shares  of all users that both know: ``overlap``, the mean share of a list's items that both lists have;
            ``unchanged``, the share of users with the same list in the same order; ``taken``, of the items that left a
            list, the share that the user has got since; ``fresh``, the share of the new lists' places that hold items
            which the old version does not know
    people  the users whose lists have changed most: user, overlap, and titles or ids of the items that came and left
    """

    k: int
    users: int
    facts: dict[str, tuple[float, float]]
    shares: dict[str, float]
    people: pl.DataFrame

    def __repr__(self) -> str:
        return lines(f"Changes(K = {self.k}, {self.users:,} users of both)", self._facts())

    def _repr_html_(self) -> str:
        return html_table(f"Changes, K = {self.k}, {self.users:,} users of both", [], self._facts())

    def _facts(self) -> list[tuple[str, str]]:
        both = [(name, f"{old:,.6g} to {new:,.6g}") for name, (old, new) in self.facts.items()]
        return [*both, *((name, f"{share:.1%}") for name, share in self.shares.items())]

    def to_json(self) -> dict[str, Any]:
        """As JSON: the same names."""
        facts = {name: {"old": old, "new": new} for name, (old, new) in self.facts.items()}
        return {"k": self.k, "users": self.users, **facts, **self.shares, "people": self.people.to_dicts()}


def changes(
    old: str | Path | Artifact, new: str | Path | Artifact, *, k: int | None = None, people: int = 10
) -> Changes:
    """Compare the lists of two versions of a run; ``k`` is the length of a list, by default the old run's K.

    Versions may have other users and items: ids say who and what is the same.
    """
    first, second = (one if isinstance(one, Artifact) else Artifact.open(one) for one in (old, new))
    k = first.config.k if k is None else at_least("k", whole("k", k), 1)
    k = min(k, len(first.items), len(second.items))
    at_least("people", whole("people", people), 0)
    rows = torch.from_numpy(first.users.find(second.users.values).copy())  # of the new users, among the old ones
    here = (rows != UNKNOWN).nonzero().squeeze(1)
    if not here.numel():
        raise DataError(
            f"two versions must share users, got {len(first.users):,} and {len(second.users):,} others; compare runs "
            "of the same data"
        )
    place = torch.from_numpy(second.items.find(first.items.values).copy())  # of the old items, among the new ones
    place[place == UNKNOWN] = _GONE
    tally = _Tally(first, second, place, k)
    for some in here.split(max(1, _BLOCK // k)):
        tally.add(rows[some], some)
    return Changes(k, here.numel(), tally.facts(), tally.shares(), tally.most_changed(people))


class _Tally:
    """What is summed over blocks of users."""

    def __init__(self, old: Artifact, new: Artifact, place: Tensor, k: int) -> None:
        self.old, self.new, self.place, self.k = old, new, place, k
        self.is_fresh = torch.ones(len(new.items), dtype=torch.bool)
        self.is_fresh[place[place >= 0]] = False
        self.listed = {"old": torch.zeros(len(old.items)), "new": torch.zeros(len(new.items))}
        self.overlaps: list[Tensor] = []
        self.rows: list[tuple[Tensor, Tensor]] = []
        self.n_left = self.n_taken = self.n_same = 0

    def add(self, old_rows: Tensor, new_rows: Tensor) -> None:
        before, after = _lists(self.old, old_rows, self.k), _lists(self.new, new_rows, self.k)
        for name, some in (("old", before), ("new", after)):
            self.listed[name] += torch.bincount(some[some >= 0], minlength=len(self.listed[name])).float()
        moved = torch.where(before >= 0, self.place[before.clamp(min=0)], NO_ITEM)  # as items of the new version
        is_there = (moved.unsqueeze(2) == after.unsqueeze(1)) & (after >= 0).unsqueeze(1)
        stays = is_there.any(2)
        n_listed = torch.maximum((before >= 0).sum(1), (after >= 0).sum(1)).clamp(min=1)
        self.overlaps.append(stays.sum(1) / n_listed)
        self.rows.append((old_rows, new_rows))
        self.n_same += int((moved == after).all(1).sum())
        left = (before >= 0) & ~stays
        owner = torch.arange(len(new_rows)).unsqueeze(1).expand_as(moved)[left]
        seen = self.new.seen.select(new_rows)
        self.n_left += int(left.sum())
        self.n_taken += int((seen.find(owner, moved[left]) >= 0).sum())

    def facts(self) -> dict[str, tuple[float, float]]:
        listed, counts = self.listed, {"old": self.old.counts, "new": self.new.counts}
        cover = {name: float((some > 0).float().mean()) for name, some in listed.items()}
        popular = {
            name: float((some * _rank_share(counts[name])).sum() / some.sum().clamp(min=1))
            for name, some in listed.items()
        }
        sizes = [(float(len(a)), float(len(b))) for a, b in zip(self._ids(self.old), self._ids(self.new), strict=True)]
        return {
            "known_users": sizes[0],
            "known_items": sizes[1],
            "listed_items": (float((listed["old"] > 0).sum()), float((listed["new"] > 0).sum())),
            "coverage": (cover["old"], cover["new"]),
            "popularity": (popular["old"], popular["new"]),
        }

    def shares(self) -> dict[str, float]:
        overlaps, places = torch.cat(self.overlaps), self.listed["new"]
        return {
            "overlap": float(overlaps.mean()),
            "unchanged": self.n_same / max(1, overlaps.numel()),
            "taken": self.n_taken / max(1, self.n_left),
            "fresh": float(places[self.is_fresh].sum() / places.sum().clamp(min=1)),  # lists may be empty
            "fresh_items_listed": float((places[self.is_fresh] > 0).float().mean()) if self.is_fresh.any() else 0.0,
        }

    def most_changed(self, n: int) -> pl.DataFrame:
        overlaps = torch.cat(self.overlaps)
        order = torch.argsort(overlaps, stable=True)[:n]
        old_rows, new_rows = (torch.cat([pair[at] for pair in self.rows])[order] for at in (0, 1))
        came, left = [], []
        if len(order):
            before, after = _lists(self.old, old_rows, self.k).tolist(), _lists(self.new, new_rows, self.k).tolist()
            for one, other in zip(before, after, strict=True):
                then, now = _named(self.old, one), _named(self.new, other)
                came.append([title for id, title in now.items() if id not in then])
                left.append([title for id, title in then.items() if id not in now])
        return pl.DataFrame(
            {
                "user": self.new.users.take(new_rows.numpy()),
                "overlap": overlaps[order].numpy(),
                "came": pl.Series(came, dtype=pl.List(pl.String)),
                "left": pl.Series(left, dtype=pl.List(pl.String)),
            }
        )

    @staticmethod
    def _ids(version: Artifact) -> tuple[IdMap, IdMap]:
        return version.users, version.items


def _lists(version: Artifact, rows: Tensor, k: int) -> Tensor:
    return version.rank(QuerySet(rows=rows), k, exclude=version.seen.select(rows)).items


def _named(version: Artifact, places: list[int]) -> dict[str, str]:
    there = [place for place in places if place >= 0]
    ids = [str(id) for id in version.items.ids(there)]
    return dict(zip(ids, ids if version.titles is None else [version.titles[place] for place in there], strict=True))


def _rank_share(counts: Tensor) -> Tensor:
    """For each item, the share of items that are less popular: 1 for the most popular, (I,)."""
    order = torch.argsort(counts, stable=True)
    return torch.empty(len(counts)).scatter_(0, order, torch.arange(len(counts)) / max(1, len(counts) - 1))
