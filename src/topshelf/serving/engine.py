"""The engine: a run folder answers, with or without a server around it.

>>> from topshelf.serving import Engine, Query
>>> with Engine("runs/shop") as engine:  # doctest: +SKIP
...     engine.recommend(Query(user="42", k=10)).items
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from topshelf.answers import Answer, Change, Id, RankAnswer, Recorded, SimilarAnswer, VariantState
from topshelf.config import checked
from topshelf.errors import at_most
from topshelf.serving.bodies import DocumentQuery, Event, Query
from topshelf.serving.documents import LoadedRanker
from topshelf.serving.events import EventStore
from topshelf.serving.loaded import Found, Loaded, Prepared
from topshelf.serving.refusals import ConflictError
from topshelf.serving.settings import ServeSettings
from topshelf.serving.versions import Deployment, Variant, Versions


class Engine:
    """Answers from a run folder. Its methods may be called from several threads.

    ``settings`` are those of a server (docs/serving.md); the ones about HTTP do not matter here. ``more`` are single
    ones, such as ``attributes="items.csv"`` or ``events={"path": "events.db"}``.
    """

    def __init__(self, run: str | Path | None = None, *, settings: ServeSettings | None = None, **more: Any) -> None:
        if settings is None:
            settings = checked(ServeSettings, {"run": None if run is None else str(run), **more})
        self.settings = settings
        self.versions = Versions(settings)
        self.events: EventStore | None = None
        if settings.events.path is not None:
            self.events = EventStore(settings.events.path, settings.events)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Store the events that were accepted, and release their file."""
        if self.events is not None:
            self.events.close()

    def recommend(self, query: Query | None = None, **fields: Any) -> Answer:
        """One list: ``recommend(Query(user=42))`` or ``recommend(user=42)``."""
        return self.recommend_many([checked(Query, fields) if query is None else query])[0]

    def recommend_many(self, queries: Iterable[Query]) -> list[Answer]:
        """The lists of known and new users together, in order."""
        return self.answer(self.prepare(list(queries)))

    def prepare(self, queries: Sequence[Query]) -> list[Prepared]:
        """Queries as the runs of this moment take them, and with the events of this moment."""
        deployment = self.versions.current
        asked = [self._prepared(query, deployment) for query in queries]
        self.versions.recent.extend(queries)
        return asked

    def _prepared(self, query: Query, deployment: Deployment) -> Prepared:
        self._check(query)
        variant = deployment.choose(query.user, query.variant)
        happened: Sequence[str] = ()
        if self.events is not None and query.user is not None:
            happened = self.events.of(query.user)
        return _lists(variant).prepare(query, variant.name, happened)

    def _check(self, query: Query) -> None:
        limits = self.settings.limits
        if query.k is not None:
            at_most("k", query.k, limits.k, "limits.k")
        longest = max(len(query.history), len(query.exclude), len(query.allow or ()))
        at_most("the number of item ids", longest, limits.ids, "limits.ids")

    def answer(self, asked: Sequence[Prepared]) -> list[Answer]:
        """The answers to prepared queries, each from the version that it was prepared for."""
        return [one.loaded.shown(one, *some) for one, some in zip(asked, self.find(asked), strict=True)]

    def find(self, asked: Sequence[Prepared]) -> list[Found]:
        """The same as scores and items by their index in the query's run."""
        runs = {id(one.loaded): one.loaded for one in asked}
        if len(runs) == 1:
            return asked[0].loaded.find(asked)
        found: dict[int, Found] = {}
        for run in runs.values():
            places = [place for place, one in enumerate(asked) if one.loaded is run]
            found |= dict(zip(places, run.find([asked[place] for place in places]), strict=True))
        return [found[place] for place in range(len(asked))]

    def similar(self, items: Sequence[Id], k: int = 10, variant: str | None = None) -> list[SimilarAnswer]:
        """The items most similar to each of ``items``, by the cosine of their vectors."""
        at_most("k", k, self.settings.limits.k, "limits.k")
        at_most("the number of items", len(items), self.settings.limits.queries, "limits.queries")
        chosen = self.versions.current.choose(None, variant)
        return _lists(chosen).similar(items, k, chosen.name)

    def score(self, query: Query, items: Sequence[Id]) -> Answer:
        """The scores of given items for a user or a history, in their order; what was seen is scored too."""
        at_most("the number of items", len(items), self.settings.limits.ids, "limits.ids")
        one = self.prepare([query])[0]
        return one.loaded.score(one, items)

    def rank(self, queries: Sequence[DocumentQuery], variant: str | None = None) -> list[RankAnswer]:
        """The documents of queries, best first, by a run of task ranking."""
        at_most("the number of queries", len(queries), self.settings.limits.queries, "limits.queries")
        chosen = self.versions.current.choose(None, variant)
        if not isinstance(chosen.run, LoadedRanker):
            raise ConflictError("the run that is served recommends items; documents need a run of task ranking")
        return chosen.run.rank(queries, chosen.name)

    def history(self, user: Id, variant: str | None = None) -> Answer:
        """What a user has: the items of the run's data, then those of the stored events."""
        chosen = self.versions.current.choose(user, variant)
        happened = () if self.events is None else self.events.of(user)
        listed = _lists(chosen).history(user, happened)
        return Answer(listed, user, chosen.name, chosen.run.version, None if listed else "no_history")

    def search(self, text: str, k: int = 20, variant: str | None = None) -> Answer:
        """Items whose title or id has the text in it, the most popular first."""
        at_most("k", k, self.settings.limits.k, "limits.k")
        chosen = self.versions.current.choose(None, variant)
        return Answer(_lists(chosen).search(text, k), None, chosen.name, chosen.run.version)

    def record(self, events: Sequence[Event]) -> Recorded:
        """Store events; they are on disk, and the next answer has them, when this returns."""
        return self.event_store().record(events)

    def event_store(self) -> EventStore:
        if self.events is None:
            raise ConflictError(
                "this server stores no events: set events.path to a file (topshelf serve --events FILE)"
            )
        return self.events

    def reload(self, run: str | None = None, variant: str = "a", share: float | None = None) -> Change:
        """Switch to another run, or read the same folder and its attributes again; see :class:`Versions`."""
        return self.versions.reload(run, variant, share)

    def rollback(self, variant: str = "a") -> Change:
        return self.versions.rollback(variant)

    def states(self) -> list[VariantState]:
        return self.versions.states()


def _lists(variant: Variant) -> Loaded:
    if not isinstance(variant.run, Loaded):
        raise ConflictError(
            "the run that is served ranks documents; lists of items need a run of interactions or sequences"
        )
    return variant.run
