"""What can be asked: the queries of the engine, which are also the bodies of the HTTP routes."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Annotated, Any

import pydantic
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

MOST_REASONS = 20
MOST_DOCUMENTS = 10_000  # in one request
_LATEST = 4102444800.0  # the year 2100: later times are milliseconds by mistake

Whole = Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)]
Text = Annotated[StrictStr, Field(min_length=1, max_length=512)]
Id = Text | Whole
Ids = list[Id]


class Body(BaseModel):
    """Unknown names are refused."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, frozen=True)


class Options(Body):
    k: Annotated[StrictInt, Field(ge=1)] | None = None
    """Length of the list; default: that of the run."""
    exclude: Ids = []
    """Items to leave out."""
    allow: Ids | None = None
    """The only items that may be listed."""
    filter: Annotated[StrictStr, Field(max_length=2000)] | None = None
    """Condition on item attributes, such as `category = 'book' and price < 20`."""
    explain: Annotated[StrictInt, Field(ge=0, le=MOST_REASONS)] = 0
    """Number of own items to name as reasons per listed item."""
    filter_seen: bool | None = None
    """Whether items that the user has are left out; default: as the run was measured."""
    variant: Annotated[StrictStr, Field(max_length=32)] | None = None
    """Ask this variant; default: that of the user."""


class Query(Options):
    """One list: of a known user, of a new one by history, or of both together."""

    user: Id | None = None
    """Id of the user. One that the run does not know gets the popular list, unless there are events or a history."""
    history: Ids = []
    """Items of the user, oldest first, after those that the run and the events have."""


class RecommendBody(Query):
    """One query, or several under `queries`; the other fields are then their defaults."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"user": "42", "k": 10},
                {"history": ["7", "12"], "k": 5, "filter": "price < 20", "explain": 2},
                {"queries": [{"user": "42"}, {"history": ["7"]}], "k": 10},
            ]
        }
    )
    queries: Annotated[list[Query], Field(min_length=1)] | None = None
    """Several queries, answered in order."""

    @pydantic.model_validator(mode="after")
    def _one_or_many(self) -> RecommendBody:
        if self.queries is not None and ({"user", "history"} & self.model_fields_set):
            raise ValueError("give user and history inside queries, or leave queries out")
        return self

    def asked(self) -> list[Query]:
        if self.queries is None:
            return [self]
        given = {name: getattr(self, name) for name in self.model_fields_set if name != "queries"}
        if not given:
            return list(self.queries)
        own = [{name: getattr(query, name) for name in query.model_fields_set} for query in self.queries]
        return [Query.model_construct(**{**given, **one}) for one in own]


class SimilarBody(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"items": ["7"], "k": 5}]})
    items: Annotated[Ids, Field(min_length=1)]
    """Items to find similar ones of."""
    k: Annotated[StrictInt, Field(ge=1)] = 10
    """Length of each list."""
    variant: Annotated[StrictStr, Field(max_length=32)] | None = None
    """Ask this variant; default: the first."""


class ScoreBody(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"user": "42", "items": ["7", "12"]}]})
    items: Annotated[Ids, Field(min_length=1)]
    """Items to score, answered in this order."""
    user: Id | None = None
    """Id of the user."""
    history: Ids = []
    """Items of the user, oldest first."""
    variant: Annotated[StrictStr, Field(max_length=32)] | None = None
    """Ask this variant; default: that of the user."""

    def query(self) -> Query:
        return Query.model_construct(user=self.user, history=self.history, variant=self.variant)


class HistoryBody(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"user": "42"}]})
    user: Id
    """Id of the user."""
    variant: Annotated[StrictStr, Field(max_length=32)] | None = None
    """Ask this variant; default: that of the user."""


class SearchBody(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "star", "k": 10}]})
    text: Text
    """Part of an item's title or id; upper and lower case are the same."""
    k: Annotated[StrictInt, Field(ge=1)] = 20
    """Most items to list."""
    variant: Annotated[StrictStr, Field(max_length=32)] | None = None
    """Ask this variant; default: the first."""


Number = Annotated[float, Field(allow_inf_nan=False, strict=True)]


class DocumentQuery(Body):
    query: Id | None = None
    """Name of the query, given back."""
    documents: Annotated[list[list[Number] | dict[str, Number]], Field(min_length=1)]
    """Features of each document: numbers in the order of the run's features, or by their names."""


class RankBody(Body):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"queries": [{"query": "q1", "documents": [{"clicks": 3}, {"clicks": 1}]}]}],
        }
    )
    queries: Annotated[list[DocumentQuery], Field(min_length=1)]
    """Queries with their documents."""
    variant: Annotated[StrictStr, Field(max_length=32)] | None = None
    """Ask this variant; default: the first."""


class Event(Body):
    """A user and an item."""

    user: Id
    """Id of the user."""
    item: Id
    """Id of the item; one that the run does not know is kept for the next training."""
    id: Text | None = None
    """Id of the event: one that is stored is not stored again. Without it, a repeated call is a second event."""
    time: Annotated[float, Field(strict=True)] | Annotated[StrictStr, Field(max_length=64)] | None = None
    """When it happened: seconds since 1970, or ISO 8601; default: now."""
    weight: Number | None = None
    """A rating or weight, kept for training."""
    kind: Text | None = None
    """What happened, such as click; kept for training."""

    @pydantic.field_validator("time")
    @classmethod
    def _seconds(cls, value: Any) -> float | None:
        if isinstance(value, str):
            try:
                moment = datetime.fromisoformat(value)
            except ValueError:
                raise ValueError("must be seconds since 1970 or ISO 8601, such as 2026-01-31T12:00:00Z") from None
            value = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        if value is not None and not (math.isfinite(value) and 0 <= value < _LATEST):
            raise ValueError("must be seconds from 1970 to 2100; milliseconds are divided by 1000")
        return value


class EventsBody(Body):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"events": [{"id": "order-17", "user": "42", "item": "7"}]}]}
    )
    events: Annotated[list[Event], Field(min_length=1)]
    """Events, stored together: all of them, or none."""


class ReloadBody(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"run": "shop-2026-11-18"}, {}]})
    run: Annotated[StrictStr, Field(max_length=1000)] | None = None
    """Run folder, inside the folder of runs; default: the variant's own, read again."""
    variant: Annotated[StrictStr, Field(pattern=r"^[a-z0-9_-]{1,32}$")] = "a"
    """Variant to change; a new name is added."""
    share: Annotated[float, Field(ge=0, le=100)] | None = None
    """Percent of the users, for a new variant."""


class RollbackBody(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"variant": "a"}]})
    variant: Annotated[StrictStr, Field(max_length=32)] = "a"
    """Variant that goes back to its previous version."""


class SharesBody(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"shares": {"a": 90, "b": 10}}]})
    shares: Annotated[dict[str, Annotated[float, Field(ge=0, le=100)]], Field(min_length=1, max_length=16)]
    """Percent of the users per variant, 100 together; a variant that is left out is removed."""


class ForgetBody(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"user": "42"}]})
    user: Id
    """User whose events are deleted."""


class ExportBody(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"after": 0, "limit": 1000}]})
    after: Annotated[StrictInt, Field(ge=0, lt=2**63)] = 0
    """Number of the last event that the caller has."""
    limit: Annotated[StrictInt, Field(ge=1, le=100_000)] = 10_000
    """Most events in the answer."""
