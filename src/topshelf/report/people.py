"""Example people: what they have, what each run lists for them, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from topshelf.artifact import Artifact
from topshelf.data import Dataset
from topshelf.page import Cell, Page
from topshelf.queries import QuerySet
from topshelf.ragged import Ragged
from topshelf.reasons import reasons
from topshelf.recommender import Recommender
from topshelf.report.shown import Shown

# Where among all users, by how much they have, the people are taken from: typical ones, not chosen ones.
_AT = (0.1, 0.3, 0.5, 0.7, 0.9)
LISTED, OWN, WHY = 10, 12, 3
MOST_RUNS = 4  # side by side
HIT = "✓ test"


@dataclass(frozen=True, eq=False)
class Lister:
    """What a run lists. ``wanted`` are the held-out items of its users; None where they are excluded as seen."""

    run: Shown
    artifact: Artifact
    owned: Ragged
    exclude: Ragged | None
    wanted: Ragged | None

    @classmethod
    def of(cls, run: Shown, titles: Any) -> Lister:
        recommender = Recommender.of(run.fitted)
        if titles is not None:
            recommender.set_titles(titles)
        artifact, fitted = recommender.artifact, run.fitted
        if not isinstance(fitted.dataset, Dataset) or fitted.through == "all" or not fitted.task.has("test"):
            keeps = not getattr(fitted.config.data, "exclude_seen", True)
            return cls(run, artifact, artifact.taken, None if keeps else artifact.seen, None)
        split = fitted.dataset.split  # only what was learned and validated is excluded, so that test items can be hits
        return cls(run, artifact, split.seen(fitted.through), split.seen("valid"), split.lists("test"))

    def listed(self, row: int) -> list[Cell]:
        """The list of a user, each item with the user's own items that speak for it."""
        rows = torch.tensor([row])
        exclude = None if self.exclude is None else self.exclude.select(rows)
        places = self.artifact.rank(QuerySet(rows=rows), LISTED, exclude=exclude).items
        # Numbers alone, such as popularities, point in one direction: no item is nearer than another.
        n = WHY if self.artifact.vectors.size(1) > 1 else 0
        because = reasons(self.artifact, self.owned.select(rows), places, n)[0]
        wanted = set() if self.wanted is None else set(self.wanted.select(rows).indices.tolist())
        return [
            Cell(self.title(item), self._why(because[at]), hit=HIT if item in wanted else "")
            for at, item in enumerate(places[0].tolist())
            if item >= 0
        ]

    def own(self, row: int) -> list[int]:
        """What a user has: the latest first where the order is known, else the most popular, which readers may know."""
        items = self.owned.select(torch.tensor([row])).indices
        if (events := self.artifact.events) is not None:
            done = events.select(torch.tensor([row])).indices
            known = done[torch.isin(done, items)]  # without those to be found
            return [int(item) for item in dict.fromkeys(known.flip(0).tolist())]
        popular = self.artifact.counts[items].argsort(descending=True, stable=True)
        return [int(item) for item in items[popular]]

    def title(self, item: int) -> str:
        titles = self.artifact.titles
        return str(self.artifact.items.ids([item])[0]) if titles is None else titles[item]

    def _why(self, because: Tensor) -> str:
        named = [self.title(item) for item in because.tolist() if item >= 0]
        return f"because of {'; '.join(named)}" if named else ""


def people_section(page: Page, runs: Sequence[Shown], titles: Any = None) -> None:
    page.heading("People")
    shown = runs[:MOST_RUNS]
    listers = [Lister.of(run, titles) for run in shown]
    first = listers[0]
    page.paragraph(_explained(listers))
    if len(runs) > len(shown):
        page.paragraph(f"The lists of the first {MOST_RUNS} runs are shown.", note=True)
    for place, row in enumerate(typical(first)):
        _person(page, listers, row, is_open=place == 0)


def _explained(listers: Sequence[Lister]) -> str:
    order = "latest" if listers[0].artifact.events is not None else "most popular"
    text = f"People from the least to the most active. Their own items: the {order} first. "
    if any(lister.wanted is not None for lister in listers):
        text += f"An item marked {HIT} is in the person's test part, which the model has not seen. "
    exact = ["history" in lister.artifact.model.kinds for lister in listers]
    shares, near = "by the score that each alone would give it", "by the cosine of their vectors: what is near"
    how = shares if all(exact) else near if not any(exact) else f"{shares}, or, without histories, {near}"
    return f"{text}Small: the own items that speak most for the listed one, {how}."


def typical(lister: Lister) -> list[int]:
    """People from the least to the most active, by their rows."""
    counts = lister.owned.counts
    asked = counts > 0
    if lister.wanted is not None:
        asked = asked & (lister.wanted.counts > 0)
    users = asked.nonzero().squeeze(1)
    users = users[counts[users].argsort(stable=True)]
    return list(dict.fromkeys(int(users[int(at * len(users))]) for at in _AT)) if len(users) else []


def _person(page: Page, listers: Sequence[Lister], row: int, *, is_open: bool) -> None:
    first = listers[0]
    user = first.artifact.users.ids([row])[0]
    own = first.own(row)
    with page.details(f"User {user}: {len(own):,} items", is_open=is_open):
        more = [f"and {len(own) - OWN:,} more"] if len(own) > OWN else []
        page.chips([*(first.title(item) for item in own[:OWN]), *more])
        columns = []
        for lister in listers:
            place = lister.artifact.users.get(str(user))
            columns.append([Cell("not in this run's data")] if place is None else lister.listed(place))
        rows: list[Sequence[str | Cell]] = []
        for at in range(max(map(len, columns))):
            rows.append((str(at + 1), *(column[at] if at < len(column) else Cell("") for column in columns)))
        header = ("", *(lister.run.name for lister in listers))
        page.table(header, rows, caption=f"The list of user {user}", numbers=False, sortable=False)
