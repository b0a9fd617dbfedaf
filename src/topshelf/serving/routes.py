"""The routes: what each takes, answers, and needs as a role. Handlers are a few lines over the service."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson
import pydantic
from fastapi import Request, Response
from pydantic_core import ErrorDetails

from topshelf.answers import Answer, Change, RankAnswer, Recorded, SimilarAnswer, VariantState
from topshelf.errors import ConfigError
from topshelf.serving import bodies
from topshelf.serving.guard import BODY, METRICS
from topshelf.serving.observed import CONTENT_TYPE
from topshelf.serving.refusals import BadJsonError
from topshelf.serving.service import Service

B = TypeVar("B", bound=pydantic.BaseModel)
_MOST_CHARACTERS = 40  # of a wrong text that an error shows
_MOST_FINDINGS = 5


@dataclass(slots=True)
class Answers:
    """One answer per query, in their order."""

    answers: list[Answer]


@dataclass(slots=True)
class SimilarAnswers:
    answers: list[SimilarAnswer]


@dataclass(slots=True)
class RankAnswers:
    answers: list[RankAnswer]


@dataclass(slots=True)
class Variants:
    variants: list[VariantState]


@dataclass(slots=True)
class Health:
    status: str


@dataclass(slots=True)
class Deleted:
    deleted: int


@dataclass(slots=True)
class StoredEvents:
    events: list[dict[str, Any]]
    last: int
    """Number of the last event, for the next call."""


def body_of(request: Request, schema: type[B]) -> B:
    return checked_body(request.scope[BODY], schema)


def checked_body(content: bytes, schema: type[B]) -> B:
    try:
        return schema.model_validate_json(content or b"{}")
    except pydantic.ValidationError as error:
        findings = error.errors(include_url=False, include_context=False)
        if findings[0]["type"] == "json_invalid":
            raise BadJsonError(f"the body must be JSON: {findings[0]['msg']}") from None
        texts = [_finding(one) for one in findings[:_MOST_FINDINGS]]
        more = f"; and {len(findings) - _MOST_FINDINGS} more" if len(findings) > _MOST_FINDINGS else ""
        raise ConfigError("; ".join(texts) + more) from None


def _finding(one: ErrorDetails) -> str:
    """Where it is, the rule, and a short form of what was sent."""
    value, where = one["input"], ".".join(map(str, one["loc"])) or "the body"
    if one["type"] in ("missing", "value_error"):  # nothing was sent; our own rules say what they were given
        return f"{where}: {one['msg']}"
    if isinstance(value, str):
        value = value[:_MOST_CHARACTERS]
    is_short = isinstance(value, str | float | None) or (isinstance(value, int) and value.bit_length() <= 64)
    return f"{where}: {one['msg']}, got {value!r}" if is_short else f"{where}: {one['msg']}"


def sent(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


def service_of(request: Request) -> Service:
    return request.app.state.service


async def lists(service: Service, content: bytes) -> bytes:
    """The body of /recommend to its answer; the guard calls this without the cost of a framework in between."""
    body = checked_body(content, bodies.RecommendBody)
    return await service.recommend(body.asked())


async def recommend(request: Request) -> Response:
    """Lists of known users, of new ones by history, or of several of both."""
    content = await lists(service_of(request), request.scope[BODY])
    return Response(content, media_type="application/json")


async def similar(request: Request) -> Response:
    """The items most similar to each of some items, by the cosine of their vectors."""
    body, service = body_of(request, bodies.SimilarBody), service_of(request)
    return sent({"answers": await service.do(lambda: service.engine.similar(body.items, body.k, body.variant))})


async def score(request: Request) -> Response:
    """Scores of given items for a user or a history, in their order. Items that the user has are scored too."""
    body, service = body_of(request, bodies.ScoreBody), service_of(request)
    return sent({"answers": [await service.do(lambda: service.engine.score(body.query(), body.items))]})


async def rank(request: Request) -> Response:
    """The documents of queries, best first, by a run of task ranking."""
    body, service = body_of(request, bodies.RankBody), service_of(request)
    return sent({"answers": await service.do(lambda: service.engine.rank(body.queries, body.variant))})


async def history(request: Request) -> Response:
    """What a user has: the items of the run's data, then those of the stored events. Scores are null."""
    body, service = body_of(request, bodies.HistoryBody), service_of(request)
    return sent({"answers": [await service.do(lambda: service.engine.history(body.user, body.variant))]})


async def search(request: Request) -> Response:
    """Items whose title or id has a text in it, the most popular first. Scores are null."""
    body, service = body_of(request, bodies.SearchBody), service_of(request)
    return sent({"answers": [await service.do(lambda: service.engine.search(body.text, body.k, body.variant))]})


async def events(request: Request) -> Response:
    """Store what users did. When this answers, the events are on disk, and the next list has them."""
    return sent(await service_of(request).record(body_of(request, bodies.EventsBody).events))


async def model(request: Request) -> Response:
    """What is served: versions, shares, sizes, what the model takes, columns for filters, recall of an index."""
    return sent({"variants": service_of(request).engine.states()})


async def reload(request: Request) -> Response:
    """Load a run beside the one that is served, check it, and switch. An empty body reads the same folder again."""
    return sent(await service_of(request).reload(body_of(request, bodies.ReloadBody)))


async def rollback(request: Request) -> Response:
    """Switch back to the version before, at once."""
    return sent(await service_of(request).rollback(body_of(request, bodies.RollbackBody).variant))


async def shares(request: Request) -> Response:
    """Change how many users get which variant; one that is left out is removed."""
    return sent({"variants": service_of(request).set_shares(body_of(request, bodies.SharesBody).shares)})


async def forget(request: Request) -> Response:
    """Delete the events of a user."""
    body, service = body_of(request, bodies.ForgetBody), service_of(request)
    return sent({"deleted": await service.do(lambda: service.engine.event_store().forget(body.user))})


async def export(request: Request) -> Response:
    """Stored events in the order they came, for training."""
    body, service = body_of(request, bodies.ExportBody), service_of(request)
    found = await service.do(lambda: service.engine.event_store().after(body.after, body.limit))
    return sent({"events": found, "last": found[-1]["seq"] if found else body.after})


async def live(_request: Request) -> Response:
    """Whether the process answers at all."""
    return sent({"status": "live"})


async def ready(request: Request) -> Response:
    """Whether it should get requests: 503 while it shuts down."""
    is_draining = service_of(request).is_draining
    return sent({"status": "draining" if is_draining else "ready"}, 503 if is_draining else 200)


async def metrics(request: Request) -> Response:
    """Metrics for Prometheus."""
    return Response(service_of(request).observed.text(), media_type=CONTENT_TYPE)


@dataclass(frozen=True)
class Route:
    method: str
    path: str
    role: str | None  # that a key must have; None: no key
    handler: Callable[[Request], Awaitable[Response]]
    answer: type | None
    body: type[pydantic.BaseModel] | None = None
    example: dict[str, Any] = field(default_factory=dict)


_VERSION = {"variant": "a", "version": "9f86d081884c7d65"}
_LISTED = {"item": "7", "score": 1.25, "title": "A book", "because": []}
_ANSWER = {"items": [_LISTED], "user": "42", **_VERSION, "fallback": None, "unknown_items": 0}
_CHANGE = {**_VERSION, "previous": "60303ae22b998861", "queries": 100, "overlap": 0.83, "seconds": 0.7}
_DOCUMENTS = [{"document": 1, "score": 2.5}, {"document": 0, "score": 0.5}]
_STATE = {
    "name": "a", "version": "9f86d081884c7d65", "run": "shop", "task": "interactions", "model": "mf", "share": 100.0,
    "users": 1000, "items": 500, "k": 20, "takes": ["rows"], "index": "exact", "recall": None, "columns": ["price"],
    "features": [], "previous": None,
}  # fmt: skip
_EVENT = {
    "seq": 1, "user": "42", "item": "7", "timestamp": 1763467200.0, "rating": None, "kind": None, "event": "order-17",
}  # fmt: skip

ROUTES = (
    Route("POST", "/recommend", "read", recommend, Answers, bodies.RecommendBody, {"answers": [_ANSWER]}),
    Route(
        "POST", "/similar", "read", similar, SimilarAnswers, bodies.SimilarBody,
        {"answers": [{"item": "7", "similar": [_LISTED], "is_known": True, **_VERSION}]},
    ),
    Route("POST", "/score", "read", score, Answers, bodies.ScoreBody, {"answers": [_ANSWER]}),
    Route(
        "POST", "/rank", "read", rank, RankAnswers, bodies.RankBody,
        {"answers": [{"query": "q1", "documents": _DOCUMENTS, **_VERSION}]},
    ),
    Route("POST", "/history", "read", history, Answers, bodies.HistoryBody, {"answers": [_ANSWER]}),
    Route("POST", "/search", "read", search, Answers, bodies.SearchBody, {"answers": [_ANSWER]}),
    Route("GET", "/model", "read", model, Variants, None, {"variants": [_STATE]}),
    Route("POST", "/events", "write", events, Recorded, bodies.EventsBody, {"stored": 1, "duplicates": 0}),
    Route("POST", "/admin/reload", "admin", reload, Change, bodies.ReloadBody, _CHANGE),
    Route("POST", "/admin/rollback", "admin", rollback, Change, bodies.RollbackBody, _CHANGE),
    Route("POST", "/admin/shares", "admin", shares, Variants, bodies.SharesBody, {"variants": [_STATE]}),
    Route("POST", "/admin/forget", "admin", forget, Deleted, bodies.ForgetBody, {"deleted": 3}),
    Route("POST", "/admin/events", "admin", export, StoredEvents, bodies.ExportBody, {"events": [_EVENT], "last": 1}),
    Route("GET", "/health/live", None, live, Health, None, {"status": "live"}),
    Route("GET", "/health/ready", None, ready, Health, None, {"status": "ready"}),
    Route("GET", METRICS, "read", metrics, None),
)  # fmt: skip
