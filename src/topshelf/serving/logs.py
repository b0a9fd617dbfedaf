"""Log lines as JSON. Nothing of a request's body, address or ids is in them unless the settings ask for it."""

from __future__ import annotations

import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any

import orjson

LOGGER = logging.getLogger("topshelf.serving")


class JsonLines(logging.Formatter):
    """One JSON object per record; ``extra={"fields": {...}}`` adds to it."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = type(record.exc_info[1]).__name__
            line["at"] = _places(record.exc_info[1])
        return orjson.dumps(line, default=str).decode()


def _places(error: BaseException) -> list[str]:
    """Where it happened. Not the message, nor values: both may have ids of users in them."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames[-8:]]


def log(event: str, level: int = logging.INFO, error: BaseException | None = None, **fields: Any) -> None:
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, event, exc_info=error, extra={"fields": fields})


def write_logs(level: int = logging.INFO) -> None:
    """Send our lines, and those of uvicorn, to standard error as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("topshelf.serving", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = ([handler] if name != "uvicorn.error" else []), name == "uvicorn.error"
        logger.setLevel(level if name == "topshelf.serving" else logging.WARNING)
