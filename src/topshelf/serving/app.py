"""The HTTP application: routes, errors, OpenAPI."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException

from topshelf.errors import TopshelfError
from topshelf.serving.guard import FAILED, METRICS, REQUEST_ID, App, Guard
from topshelf.serving.keys import KeyRing
from topshelf.serving.page import add_page
from topshelf.serving.refusals import status_of
from topshelf.serving.routes import ROUTES, Route, lists, sent
from topshelf.serving.service import Service

OPENAPI = "/openapi.json"
_REF = "#/components/schemas/{model}"
_ERRORS = {
    400: "The body is no JSON.", 401: "No key, or a wrong one.", 403: "The key's role is too weak.",
    408: "The body came too slowly.", 409: "What is served does not have this.", 413: "The body is too long.",
    415: "The body is not of type application/json.", 422: "Something in the body is not right; `error` says what.",
    429: "The key asks too often.", 503: "Busy, or shutting down; try again after `Retry-After` seconds.",
}  # fmt: skip


@dataclass(slots=True)
class Problem:
    """Every error."""

    error: str
    """What is wrong, and what would be right."""
    request: str
    """Id of the request, which the log has too."""


def create_app(service: Service) -> App:
    """The application around a service, which it closes when it ends. The guard is around all of it."""
    app, settings = _routed(service), service.settings
    roles: dict[str, str | None] = {route.path: route.role for route in ROUTES} | {OPENAPI: "read"}
    roles |= add_page(app) if settings.page else {}
    if settings.open_metrics:
        roles[METRICS] = None
    guard: App = Guard(
        app,
        settings=settings,
        observed=service.observed,
        keys=None if settings.keys is None else KeyRing(settings.keys, settings.limits.rate),
        roles=roles,
        is_full=service.is_full,
        direct={"/recommend": partial(lists, service)},
    )
    if not settings.cors_origins:
        return guard
    origins, names = list(settings.cors_origins), ["authorization", "content-type", "x-api-key", "x-request-id"]
    return CORSMiddleware(guard, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=names)


def _routed(service: Service) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(title="topshelf", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.state.service = service
    for route in ROUTES:
        _add(app, route)
    app.add_route(OPENAPI, lambda request: sent(request.app.openapi()), methods=["GET"], include_in_schema=False)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    for kind in (TopshelfError, HTTPException, Exception):
        app.add_exception_handler(kind, _failed)
    return app


def _add(app: FastAPI, route: Route) -> None:
    """A route that reads its body itself; what it takes is told to OpenAPI here."""
    more: dict[str, Any] = {}
    if route.body is not None:
        schema = {"$ref": _REF.format(model=route.body.__name__)}
        more["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if route.role is not None:
        more["security"] = [{"key": []}]
    shown: dict[int | str, dict[str, Any]] = {
        200: {"content": {"application/json": {"example": route.example}}} if route.answer else {"description": "Text."}
    }
    if route.answer is not None:
        shown[200]["model"] = route.answer
    wrong = _errors_of(route)
    shown |= {status: {"model": Problem, "description": text} for status, text in _ERRORS.items() if status in wrong}
    summary = (route.handler.__doc__ or "").partition(".")[0]
    app.add_api_route(
        route.path, route.handler, methods=[route.method], responses=shown, openapi_extra=more, summary=summary,
        response_class=PlainTextResponse if route.answer is None else JSONResponse,
        operation_id=route.path.strip("/").replace("/", "_"),
    )  # fmt: skip


def _errors_of(route: Route) -> set[int]:
    found = {503} if route.path != "/health/live" else set()
    if route.role is not None:
        found |= {401, 403, 429}
    if route.body is not None:
        found |= {400, 408, 409, 413, 415, 422}
    return found


def _described(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        description = "Lists from a topshelf run. Every answer says which version of which variant made it."
        made = get_openapi(
            title="topshelf", version=metadata.version("topshelf"), description=description, routes=app.routes
        )
        taken = [(route.body, "validation") for route in ROUTES if route.body is not None]
        schemas = models_json_schema(taken, ref_template=_REF)[1]["$defs"]  # type: ignore[arg-type]
        made["components"]["schemas"] |= schemas
        made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        app.openapi_schema = made
    return app.openapi_schema


async def _failed(request: Request, error: Exception) -> Response:
    """Errors in the form of the guard's answers."""
    status, text, headers = 500, FAILED, {}
    if isinstance(error, HTTPException):
        status, text, headers = error.status_code, str(error.detail), dict(error.headers or {})
    elif isinstance(error, TopshelfError):
        status, text = status_of(error), str(error)
        headers = {"retry-after": "1"} if status == 503 else {}
    answer = sent({"error": text, "request": request.scope.get(REQUEST_ID, "")}, status)
    answer.headers.update(headers)
    return answer
