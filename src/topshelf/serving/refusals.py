"""Requests that are refused for a reason that is not in them."""

from __future__ import annotations

from topshelf.errors import TopshelfError


class UnavailableError(TopshelfError):
    """The server cannot do it now; HTTP 503."""


class OverloadedError(UnavailableError):
    """More is waiting than the server can do in time; HTTP 503 with Retry-After."""


class ConflictError(TopshelfError):
    """What is served, or its settings, do not have it; HTTP 409."""
