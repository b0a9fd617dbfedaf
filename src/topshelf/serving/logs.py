"""Log lines as JSON. Nothing of a request's body, address or ids is in them unless the settings ask for it."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson

LOGGER = logging.getLogger("topshelf.serving")
REQUEST = "request"  # the event of a line per request
_PAUSE = 0.1  # seconds between writes
_MOST_LINES = 1000


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
        about = None if error is None else (type(error), error, error.__traceback__)
        extra = {"fields": fields}
        # As Logger.log, without looking for the caller, which takes as long as the rest.
        LOGGER.handle(LOGGER.makeRecord(LOGGER.name, level, "", 0, event, (), about, extra=extra))


class Together(logging.Handler):
    """Writes the lines of requests some at a time: each write gives the interpreter up, and waits to have it again.

    All other lines are written at once, with what came before them.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream, self._lines, self._is_closed = stream, list[str](), threading.Event()
        threading.Thread(target=self._keep_writing, name="topshelf-logs", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record) + "\n")
        if record.msg != REQUEST or len(self._lines) >= _MOST_LINES:
            self.flush()

    def flush(self) -> None:
        with self.lock or nullcontext():
            lines, self._lines = self._lines, []
            if lines:
                self.stream.write("".join(lines))
                self.stream.flush()

    def close(self) -> None:
        self._is_closed.set()
        self.flush()
        super().close()

    def _keep_writing(self) -> None:
        while not self._is_closed.wait(_PAUSE):
            with suppress(OSError, ValueError):  # standard error is closed: there is nowhere to say it
                self.flush()


@contextmanager
def written_logs(level: int = logging.INFO) -> Iterator[None]:
    """Send our lines, and those of uvicorn, to standard error as JSON, while the block runs."""
    handler = Together(sys.stderr)
    handler.setFormatter(JsonLines())
    loggers = [logging.getLogger(name) for name in ("topshelf.serving", "uvicorn", "uvicorn.error")]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    try:
        for logger in loggers:
            is_inner = logger.name == "uvicorn.error"
            logger.handlers, logger.propagate = ([] if is_inner else [handler]), is_inner
            logger.setLevel(level if logger is LOGGER else logging.WARNING)
        yield
    finally:
        handler.close()
        for logger, (handlers, propagates, older) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagates
            logger.setLevel(older)
