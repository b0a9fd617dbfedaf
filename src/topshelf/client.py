"""A client of topshelf serve, with the standard library alone.

>>> from topshelf.client import Client
>>> with Client("http://127.0.0.1:8000", key="ts_...") as client:  # doctest: +SKIP
...     client.recommend(user="42", k=10).items
"""

from __future__ import annotations

import http.client
import json
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from topshelf.answers import (
    Answer,
    Change,
    Id,
    Listed,
    RankAnswer,
    RankedDocument,
    Recorded,
    SimilarAnswer,
    VariantState,
)
from topshelf.errors import ConfigError, TopshelfError

_CHANGE = 3600.0  # seconds for a change of versions: building an index takes long
_LONGEST_WAIT = 5.0  # seconds before a request is tried again, whatever the server says


class ServerError(TopshelfError):
    """The server refused, or could not be reached (status 0)."""

    def __init__(self, status: int, message: str, request: str = "") -> None:
        super().__init__(f"{message} (status {status}{f', request {request}' if request else ''})")
        self.status, self.request = status, request


class Client:
    """Connections are kept, one per thread. Requests that the server was too busy for are tried again.

    ``retries``: how often, also after a lost connection; events are safe to repeat, because each gets an id.
    """

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 10.0, retries: int = 2) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"url must be like http://127.0.0.1:8000, got {url!r}")
        self._parts, self._path = parts, parts.path.rstrip("/")
        self._timeout, self._retries = timeout, retries
        self._headers = {"content-type": "application/json"} | (
            {} if key is None else {"authorization": f"Bearer {key}"}
        )
        self._local = threading.local()
        self._open: set[http.client.HTTPConnection] = set()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in list(self._open):
            connection.close()
        self._open.clear()
        self._local = threading.local()

    def recommend(
        self, *, user: Id | None = None, history: Sequence[Id] = (), k: int | None = None, **options: Any
    ) -> Answer:
        """The list of one user. ``options``: exclude, allow, filter, explain, filter_seen, variant."""
        return self.recommend_many([_given(user=user, history=list(history) or None)], k=k, **options)[0]

    def recommend_many(
        self, queries: Iterable[Mapping[str, Any]], *, k: int | None = None, **options: Any
    ) -> list[Answer]:
        """The lists of several users: mappings such as {"user": 42} or {"history": [7, 12]}."""
        body = {"queries": [dict(query) for query in queries], **_given(k=k, **options)}
        return [_answer(one) for one in self.call("/recommend", body)["answers"]]

    def similar(self, items: Sequence[Id], k: int = 10, variant: str | None = None) -> list[SimilarAnswer]:
        answers = self.call("/similar", {"items": list(items), "k": k, **_given(variant=variant)})["answers"]
        return [SimilarAnswer(**{**one, "similar": [Listed(**some) for some in one["similar"]]}) for one in answers]

    def score(
        self, items: Sequence[Id], *, user: Id | None = None, history: Sequence[Id] = (), variant: str | None = None
    ) -> Answer:
        body = {"items": list(items), "history": list(history), **_given(user=user, variant=variant)}
        return _answer(self.call("/score", body)["answers"][0])

    def rank(self, queries: Iterable[Mapping[str, Any]], variant: str | None = None) -> list[RankAnswer]:
        """Documents of queries, best first: mappings such as {"query": "q1", "documents": [{"clicks": 3}]}."""
        body = {"queries": [dict(query) for query in queries], **_given(variant=variant)}
        answers = self.call("/rank", body)["answers"]
        return [RankAnswer(**{**one, "documents": [RankedDocument(**d) for d in one["documents"]]}) for one in answers]

    def history(self, user: Id, variant: str | None = None) -> Answer:
        return _answer(self.call("/history", {"user": user, **_given(variant=variant)})["answers"][0])

    def search(self, text: str, k: int = 20, variant: str | None = None) -> Answer:
        return _answer(self.call("/search", {"text": text, "k": k, **_given(variant=variant)})["answers"][0])

    def record(self, events: Iterable[Mapping[str, Any]]) -> Recorded:
        """Store events: mappings with user and item. Those without an id get one, so that a retry stores them once."""
        named = [{"id": uuid.uuid4().hex, **event} for event in events]
        return Recorded(**self.call("/events", {"events": named}))

    def variants(self) -> list[VariantState]:
        return [VariantState(**one) for one in self.call("/model")["variants"]]

    def reload(self, run: str | None = None, *, variant: str = "a", share: float | None = None) -> Change:
        return Change(
            **self.call("/admin/reload", {"variant": variant, **_given(run=run, share=share)}, is_repeatable=False)
        )

    def rollback(self, variant: str = "a") -> Change:
        return Change(**self.call("/admin/rollback", {"variant": variant}, is_repeatable=False))

    def set_shares(self, shares: Mapping[str, float]) -> list[VariantState]:
        return [VariantState(**one) for one in self.call("/admin/shares", {"shares": dict(shares)})["variants"]]

    def forget(self, user: Id) -> int:
        """Delete the stored events of a user; the number of them."""
        return int(self.call("/admin/forget", {"user": user})["deleted"])

    def is_ready(self) -> bool:
        try:
            return bool(self._once("GET", "/health/ready", b"")[0] == 200)
        except (OSError, http.client.HTTPException):
            return False

    def call(self, path: str, body: Mapping[str, Any] | None = None, *, is_repeatable: bool = True) -> Any:
        """The JSON that a route answers, for a body, or for GET without one.

        What is not repeatable is sent once on a new connection: a lost answer may be that of a done change.
        """
        method, content = ("GET", b"") if body is None else ("POST", json.dumps(body).encode())
        if not is_repeatable:
            self._connection().close()
            self._connection().timeout = _CHANGE
        try:
            return self._answered(method, path, content, self._retries, is_repeatable)
        finally:
            if not is_repeatable:
                self._connection().close()
                self._connection().timeout = self._timeout

    def _answered(self, method: str, path: str, content: bytes, left: int, is_repeatable: bool) -> Any:
        while True:
            was_used = self._connection().sock is not None
            try:
                status, headers, answer = self._once(method, path, content)
            except (OSError, http.client.HTTPException) as error:
                if was_used:  # the server closes idle connections: that is no failure, the next one is new
                    continue
                if left <= 0 or not is_repeatable:
                    raise ServerError(0, f"{self._parts.netloc} cannot be reached: {error}") from error
                status, headers, answer = 0, {}, b""
            if status == 200:
                return json.loads(answer)
            if status not in (0, 429, 503) or left <= 0:
                raise _error(status, answer)
            left -= 1
            time.sleep(min(_LONGEST_WAIT, float(headers.get("retry-after", 0.1))))

    def _once(self, method: str, path: str, content: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = self._connection()
        try:
            connection.request(method, self._path + path, content, self._headers)
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return response.status, headers, response.read()
        except BaseException:
            connection.close()  # the next request opens it again
            raise

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
            connection = kind(str(self._parts.hostname), self._parts.port, timeout=self._timeout)
            self._local.connection = connection
            self._open.add(connection)
        return connection


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _answer(content: Mapping[str, Any]) -> Answer:
    return Answer(**{**content, "items": [Listed(**one) for one in content["items"]]})


def _error(status: int, content: bytes) -> ServerError:
    try:
        told = json.loads(content)
        return ServerError(status, told["error"], told.get("request", ""))
    except (ValueError, KeyError, TypeError):
        return ServerError(status, content[:200].decode(errors="replace") or "no answer")
