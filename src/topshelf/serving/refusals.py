"""Requests that are refused for a reason that is not in them."""

from __future__ import annotations

from topshelf.errors import ConfigError, TopshelfError


class BadJsonError(ConfigError):
    """The body is no JSON; HTTP 400."""


class UnavailableError(TopshelfError):
    """The server cannot do it now; HTTP 503."""


class OverloadedError(UnavailableError):
    """More is waiting than the server can do in time; HTTP 503 with Retry-After."""


class ConflictError(TopshelfError):
    """What is served, or its settings, do not have it; HTTP 409."""


_STATUS: tuple[tuple[type[TopshelfError], int], ...] = (
    (UnavailableError, 503),
    (ConflictError, 409),
    (BadJsonError, 400),
)


def status_of(error: TopshelfError) -> int:
    """The HTTP status of an error of ours: by default, something in the body is not right."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 422)
