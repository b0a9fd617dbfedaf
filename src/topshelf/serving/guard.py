"""What every request passes before its route: limits, host, key, rate, body; and what is counted and logged after it.

It is one ASGI middleware, because each further one costs every request.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

import orjson
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter

from topshelf.errors import TopshelfError
from topshelf.serving.keys import ANYBODY, Key, KeyRing
from topshelf.serving.logs import REQUEST, log
from topshelf.serving.observed import Observed
from topshelf.serving.refusals import status_of
from topshelf.serving.settings import LOOPBACK, ServeSettings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

METRICS = "/metrics"
FAILED = "the server failed; its log has the request id"
BODY = "topshelf.body"
REQUEST_ID = "topshelf.request"
ADMITTED = "topshelf.admitted"  # the connection has found room for it
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_SECURITY = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
_POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'")
_JSON = ((b"content-type", b"application/json"),)
_RETRY = "1"
_OTHER = "other"
_SHED = b"HTTP/1.1 503 Service Unavailable\r\n" + b"".join(
    b"%b: %b\r\n" % header for header in (*_JSON, (b"retry-after", _RETRY.encode()), *_SECURITY, _POLICY)
)
_BUSY = "the server is busy; try again"
_PAUSE = 1.0  # seconds between lines of the log on refused requests


class _RefusedError(Exception):
    def __init__(self, status: int, error: str, reason: str, headers: dict[str, str] | None = None) -> None:
        self.status, self.error, self.reason, self.headers = status, error, reason, headers or {}


class Guard:
    """``roles``: the role that each path needs, None for open ones; others need read. ``is_full``: back-pressure.

    ``direct``: paths whose bodies are answered here, without the framework, whose share of the time would be large.
    """

    def __init__(
        self,
        app: App,
        *,
        settings: ServeSettings,
        observed: Observed,
        keys: KeyRing | None,
        roles: dict[str, str | None],
        is_full: Callable[[str], bool],
        direct: Mapping[str, Callable[[bytes], Awaitable[bytes]]],
    ) -> None:
        self.direct = direct
        self.app, self.settings, self.observed, self.roles, self.is_full = app, settings, observed, roles, is_full
        self.keys = keys
        self.limiter = SlidingWindowCounterRateLimiter(MemoryStorage())
        self.hosts = {*LOOPBACK, settings.host, *settings.hosts}
        # Not a random number each: asking the system for one gives the interpreter up, and waits to have it again.
        self._prefix, self._numbers = secrets.token_hex(4).encode(), itertools.count()
        self.in_flight = 0
        observed.in_flight.set_function(lambda: self.in_flight)
        self._largest = settings.limits.body_kib << 10
        self._counted: dict[tuple[str, int], Any] = {}
        self._timed: dict[str, Any] = {}
        self._shed_reason = observed.refused.labels("overload")
        self._n_shed, self._said = 0, 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request = given if _REQUEST_ID.fullmatch(given) else self._new_id()
        scope[REQUEST_ID] = request.decode()
        answer = _Answer(send, request)
        self.in_flight += 1
        key: Key | None = None
        try:
            key = self._admitted(scope, headers)
            body = await self._body(headers, receive)
            scope[BODY] = body
            async with asyncio.timeout(self._seconds(scope["path"])):
                if scope["path"] in self.direct and scope["method"] == "POST":
                    await answer.give(200, await self.direct[scope["path"]](body))
                else:
                    await self.app(scope, _replay(body, receive), answer)
        except _RefusedError as refused:
            self.observed.refused.labels(refused.reason).inc()
            await answer.refuse(refused.status, refused.error, refused.headers)
        except TopshelfError as error:
            status = status_of(error)
            self.observed.refused.labels("unavailable" if status == 503 else "body").inc()
            await answer.refuse(status, str(error), {"retry-after": _RETRY} if status == 503 else None)
        except TimeoutError:
            self.observed.refused.labels("timeout").inc()
            await answer.refuse(503, "the request took too long", {"retry-after": _RETRY})
        except Exception as error:  # noqa: BLE001  the caller gets an answer, never a traceback
            log("failed", level=40, error=error, request=scope[REQUEST_ID], route=self._route(scope))
            await answer.refuse(500, FAILED)
        finally:
            self.in_flight -= 1
            self._record(scope, answer.status, time.perf_counter() - began, key)

    def _new_id(self) -> bytes:
        return b"%b-%x" % (self._prefix, next(self._numbers))

    def _admitted(self, scope: Scope, headers: dict[bytes, bytes]) -> Key:
        """The caller's key; refused where something is not right."""
        path = scope["path"]
        role = self.roles.get(path, "read")
        if ADMITTED not in scope and self.is_shed(path, itself=1):
            raise _RefusedError(503, _BUSY, "overload", {"retry-after": _RETRY})
        if self.keys is None:
            self._check_host(headers)
            key = ANYBODY
        elif role is None:
            return ANYBODY
        else:
            key = self._key(headers, role)
        if scope["method"] == "POST" and not headers.get(b"content-type", b"").startswith(b"application/json"):
            # Pages on other hosts can send other types without asking; this one makes the browser ask first.
            raise _RefusedError(415, "the body must be of content-type application/json", "type")
        return key

    def is_shed(self, path: str, itself: int = 0) -> bool:
        """Whether there is no room for the request; health, metrics and administration always have some.

        ``itself``: 1 where the request is counted already.
        """
        if self.in_flight - itself < self.settings.limits.in_flight and not self.is_full(path):
            return False
        return self.roles.get(path, "read") in ("read", "write") and path != METRICS

    def shed(self, path: str, headers: Sequence[tuple[bytes, bytes]], more: Sequence[tuple[bytes, bytes]]) -> bytes:
        """The whole answer to a request that is refused before it is looked at; ``more``: further headers of it."""
        given = next((value for name, value in headers if name == b"x-request-id"), b"")
        request = given if _REQUEST_ID.fullmatch(given) else self._new_id()
        self._counter(path if path in self.roles else _OTHER, 503).inc()
        self._shed_reason.inc()
        self._n_shed += 1
        now = time.monotonic()
        if now - self._said > _PAUSE:
            log("shed", level=30, requests=self._n_shed)
            self._said, self._n_shed = now, 0
        body = orjson.dumps({"error": _BUSY, "request": request.decode()})
        lines = b"".join([b"%b: %b\r\n" % header for header in more])
        return b"%b%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n%b" % (_SHED, lines, request, len(body), body)

    def _seconds(self, path: str) -> float | None:
        """How long a request may take; loading a run takes what it takes."""
        return None if self.roles.get(path) == "admin" else self.settings.limits.timeout_s

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        """Without keys, a page of another host must not reach this server under its own name (DNS rebinding)."""
        host = headers.get(b"host", b"").decode("latin-1")
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if name not in self.hosts and not self.settings.open:
            raise _RefusedError(403, "the host of this request is not known here (setting hosts)", "host")

    def _key(self, headers: dict[bytes, bytes], role: str) -> Key:
        assert self.keys is not None
        scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        text = token.strip() if scheme.lower() == "bearer" else headers.get(b"x-api-key", b"").decode("latin-1")
        if not text:
            raise _RefusedError(
                401, "a key is needed: Authorization: Bearer KEY", "no_key", {"www-authenticate": "Bearer"}
            )
        key = self.keys.find(text)
        if key is None:
            raise _RefusedError(401, "the key is not valid", "wrong_key", {"www-authenticate": "Bearer"})
        if not key.may(role):
            raise _RefusedError(403, f"the key has the role {key.role}, and {role} is needed", "weak_key")
        if key.rate is not None and not self.limiter.hit(key.rate, key.id):
            until = max(1, round(self.limiter.get_window_stats(key.rate, key.id).reset_time - time.time()))
            raise _RefusedError(429, f"the key may ask {key.rate}", "rate", {"retry-after": str(until)})
        return key

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """The whole body, refused while it comes where it is too long or too slow."""
        length = headers.get(b"content-length", b"0")
        if length == b"0" and b"transfer-encoding" not in headers:
            return b""
        if length.isdigit() and int(length) > self._largest:
            raise _RefusedError(413, f"the body must have at most {self._largest} bytes", "size")
        message = await receive()
        if not message.get("more_body"):
            return self._fitting(message.get("body", b""))
        parts, n = [message.get("body", b"")], len(message.get("body", b""))
        try:
            async with asyncio.timeout(self.settings.limits.timeout_s):
                while message.get("more_body") and n <= self._largest:
                    message = await receive()
                    parts.append(message.get("body", b""))
                    n += len(parts[-1])
        except TimeoutError:
            raise _RefusedError(408, "the body came too slowly", "slow_body") from None
        return self._fitting(b"".join(parts))

    def _fitting(self, body: bytes) -> bytes:
        if len(body) > self._largest:
            raise _RefusedError(413, f"the body must have at most {self._largest} bytes", "size")
        return body

    def _route(self, scope: Scope) -> str:
        """The path of a known route: others may hold anything."""
        return scope["path"] if scope["path"] in self.roles else _OTHER

    def _counter(self, route: str, status: int) -> Any:
        if (route, status) not in self._counted:
            self._counted[route, status] = self.observed.requests.labels(route, str(status))
        return self._counted[route, status]

    def _record(self, scope: Scope, status: int, seconds: float, key: Key | None) -> None:
        route = self._route(scope)
        self._counter(route, status).inc()
        if route not in self._timed:
            self._timed[route] = self.observed.seconds.labels(route)
        self._timed[route].observe(seconds)
        fields: dict[str, Any] = {"request": scope[REQUEST_ID], "route": route, "status": status}
        fields["ms"] = round(seconds * 1000, 2)
        if key is not None and key is not ANYBODY:
            fields["key"] = key.id
        if self.settings.log_personal and scope.get("client"):
            fields["address"] = scope["client"][0]
        log(REQUEST, **fields)


class _Answer:
    """The way back: adds the headers of every answer, and remembers the status."""

    def __init__(self, send: Send, request: bytes) -> None:
        self._send, self._request = send, request
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = message["headers"] = list(message.get("headers", ()))
            headers += _SECURITY
            headers.append((b"x-request-id", self._request))
            if not any(name.lower() == _POLICY[0] for name, _ in headers):
                headers.append(_POLICY)
        await self._send(message)

    async def refuse(self, status: int, error: str, headers: dict[str, str] | None = None) -> None:
        if self.status:  # an answer has begun: nothing can be added to it
            return
        given = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        await self.give(status, orjson.dumps({"error": error, "request": self._request.decode()}), given)

    async def give(self, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        fixed = [*_JSON, (b"content-length", b"%d" % len(body))]
        await self({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
        await self({"type": "http.response.body", "body": body})


def _replay(body: bytes, receive: Receive) -> Receive:
    is_given = False

    async def again() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
