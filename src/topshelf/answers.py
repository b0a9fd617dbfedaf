"""What a serving engine answers: plain values, the same in Python, over HTTP and in the client."""

from __future__ import annotations

from dataclasses import dataclass, field

Id = str | int


@dataclass(slots=True)
class Listed:
    """An item in a list."""

    item: Id
    score: float | None
    """None in a list of popular items, and for items that the run does not know."""
    title: str | None = None
    because: list[Id] = field(default_factory=list)
    """Own items of the user that speak most for this one, where reasons were asked for."""


@dataclass(slots=True)
class Answer:
    """The list of one query, best first."""

    items: list[Listed]
    user: Id | None
    variant: str
    """Which of the runs that are served answered."""
    version: str
    """The id of that run."""
    fallback: str | None = None
    """Why the list is the popular one: unknown_user, no_history or model_takes_no_history. None: the model's list."""
    unknown_items: int = 0
    """How many of the item ids in the query are not in the run."""


@dataclass(slots=True)
class SimilarAnswer:
    """The items most similar to one item; empty if the run does not know it."""

    item: Id
    similar: list[Listed]
    is_known: bool
    variant: str
    version: str


@dataclass(slots=True)
class RankedDocument:
    """A document of a query: its place in the request, from 0, and its score."""

    document: int
    score: float


@dataclass(slots=True)
class RankAnswer:
    """The documents of one query, best first."""

    query: Id | None
    documents: list[RankedDocument]
    variant: str
    version: str


@dataclass(slots=True)
class Recorded:
    """What became of events: stored now, or known before by their id."""

    stored: int
    duplicates: int


@dataclass(slots=True)
class VariantState:
    """A run that is served."""

    name: str
    version: str
    run: str
    task: str
    model: str
    share: float
    """Percent of the users."""
    users: int
    items: int
    k: int
    takes: list[str]
    """Kinds of queries that the model encodes: rows (known users), history, sequence."""
    index: str
    recall: float | None
    """Share of the exact top k that an approximate index finds, measured when it was loaded."""
    columns: list[str]
    """Columns of the item attributes that filters can use."""
    features: list[str]
    """Features of the documents, for a run of task ranking."""
    previous: str | None
    """The version that a rollback goes back to."""


@dataclass(slots=True)
class Change:
    """A switch of versions, and what was checked before it."""

    variant: str
    version: str
    previous: str | None
    queries: int
    """Sample queries that the new version answered."""
    overlap: float | None
    """Mean share of the old version's list that is also in the new one's, over the sample."""
    seconds: float
