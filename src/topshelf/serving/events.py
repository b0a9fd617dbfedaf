"""What users do while the server runs: durable when acknowledged, and seen by the next answer.

Events are in an SQLite file in WAL mode with synchronous=FULL. One thread writes; it takes everything that waits into
one transaction, so that many requests share the cost of one sync. A request is answered after its transaction is on
disk. The latest events of a user are read from the file on first use and kept while there is room.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import polars as pl
from filelock import FileLock, Timeout

from topshelf.answers import Id, Recorded
from topshelf.errors import ConfigError, DataError
from topshelf.list_files import check_name, write_lists
from topshelf.serving.bodies import Event
from topshelf.serving.refusals import OverloadedError, UnavailableError
from topshelf.serving.settings import EventSettings

_FORMAT = 1
_APPLICATION = 0x746F7073  # "tops"
_SCHEMA = """
CREATE TABLE events (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, user TEXT NOT NULL,
                     item TEXT NOT NULL, time REAL NOT NULL, weight REAL, kind TEXT) STRICT;
CREATE INDEX events_of_users ON events (user, time, seq);
"""
_INSERT = "INSERT OR IGNORE INTO events (id, user, item, time, weight, kind) VALUES (?, ?, ?, ?, ?, ?)"
_LATEST = "SELECT item FROM events WHERE user = ? ORDER BY time DESC, seq DESC LIMIT ?"
_EXPORT = "SELECT seq, user, item, time, weight, kind, id FROM events WHERE seq > ? ORDER BY seq LIMIT ?"
_TRANSACTION = 5000  # events at most in one
_BLOCK = 100_000  # rows of an export at once
_COLUMNS = {
    "seq": pl.Int64, "user": pl.String, "item": pl.String, "timestamp": pl.Float64, "rating": pl.Float64,
    "kind": pl.String, "event": pl.String,
}  # fmt: skip


class EventStore:
    """The events of a server. One process holds the file at a time."""

    def __init__(self, path: str | Path, settings: EventSettings | None = None) -> None:
        self.path, self.settings = Path(path), settings or EventSettings()
        self.observe: Callable[[int, float], None] = lambda _n, _seconds: None
        self._lock_file = _held(self.path)
        try:
            self._writing = _opened(self.path)
            self._reading = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
        except sqlite3.Error as error:
            self._lock_file.release()
            raise DataError(f"{self.path} cannot be used for events: {error}. Give another file") from None
        except DataError:
            self._lock_file.release()
            raise
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._waiting: queue.SimpleQueue[tuple[Sequence[tuple], Future[Recorded]] | None] = queue.SimpleQueue()
        self._n_waiting, self._is_closed = 0, False
        self._writer = threading.Thread(target=self._write, name="topshelf-events", daemon=True)
        self._writer.start()

    @property
    def waiting(self) -> int:
        return self._n_waiting

    def submit(self, events: Sequence[Event]) -> Future[Recorded]:
        """The events are on disk when the future has its result."""
        now = time.time()
        rows = [
            (
                one.id if one.id is not None else uuid.uuid4().hex,
                str(one.user),
                str(one.item),
                one.time if one.time is not None else now,
                one.weight,
                one.kind,
            )
            for one in events
        ]
        done: Future[Recorded] = Future()
        with self._lock:
            if self._is_closed:
                raise UnavailableError("the events are closed: the server is shutting down")
            if self._n_waiting + len(rows) > self.settings.queue and self._n_waiting:
                raise OverloadedError(
                    f"{self._n_waiting} events wait to be stored (events.queue {self.settings.queue})"
                )
            self._n_waiting += len(rows)
            self._waiting.put((rows, done))
        return done

    def record(self, events: Sequence[Event]) -> Recorded:
        """Store events, and return when they are on disk."""
        return self.submit(events).result()

    def of(self, user: Id) -> tuple[str, ...]:
        """Items of the user's latest events, oldest first."""
        name = str(user)
        with self._lock:
            found = self._kept.get(name)
            if found is not None:
                self._kept.move_to_end(name)
                return found
            # Under the lock: a write that commits meanwhile forgets the user after this.
            rows = self._reading.execute(_LATEST, (name, self.settings.per_user)).fetchall()
            found = self._kept[name] = tuple(row[0] for row in reversed(rows))
            if len(self._kept) > self.settings.cached_users:
                self._kept.popitem(last=False)
            return found

    def forget(self, user: Id) -> int:
        """Delete the events of a user; the number of them."""
        with self._lock, closing(sqlite3.connect(self.path, timeout=30)) as connection, connection:
            connection.execute("PRAGMA secure_delete=ON")
            n = connection.execute("DELETE FROM events WHERE user = ?", (str(user),)).rowcount
            self._kept.pop(str(user), None)
        return n

    def after(self, number: int, limit: int) -> list[dict[str, object]]:
        """Events after that number, in order."""
        with self._lock:
            rows = self._reading.execute(_EXPORT, (number, limit)).fetchall()
        return [dict(zip(_COLUMNS, row, strict=True)) for row in rows]

    def count(self) -> int:
        with self._lock:
            return int(self._reading.execute("SELECT count(*) FROM events").fetchone()[0])

    def close(self) -> None:
        """Store what was accepted, and release the file."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._waiting.put(None)
        self._writer.join()
        self._reading.close()
        self._lock_file.release()

    def _write(self) -> None:
        """The writer's thread."""
        is_open = True
        while is_open:
            first = self._waiting.get()
            batch, n = [], 0
            while first is not None:
                batch.append(first)
                n += len(first[0])
                if n >= _TRANSACTION or self._waiting.empty():
                    break
                first = self._waiting.get()
            is_open = first is not None
            if batch:
                self._store(batch, n)
        self._writing.close()

    def _store(self, batch: list[tuple[Sequence[tuple], Future[Recorded]]], n: int) -> None:
        began = time.perf_counter()
        results: list[Recorded] = []
        try:
            self._writing.execute("BEGIN IMMEDIATE")
            for rows, _ in batch:
                stored = sum(self._writing.execute(_INSERT, row).rowcount for row in rows)
                results.append(Recorded(stored, len(rows) - stored))
            self._writing.execute("COMMIT")
        except sqlite3.Error as error:
            if self._writing.in_transaction:
                self._writing.execute("ROLLBACK")
            failure = UnavailableError(f"the events could not be stored: {error}; send them again")
            self._finish(batch, n, [failure] * len(batch))
            return
        self._finish(batch, n, results)
        self.observe(n, time.perf_counter() - began)

    def _finish(
        self, batch: list[tuple[Sequence[tuple], Future[Recorded]]], n: int, results: Sequence[Recorded | Exception]
    ) -> None:
        with self._lock:
            self._n_waiting -= n
            for rows, _ in batch:
                for row in rows:
                    self._kept.pop(row[1], None)
        for (_, done), result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                done.set_exception(result)
            else:
                done.set_result(result)


def export_events(path: str | Path, out: str | Path, after: int = 0) -> tuple[int, int]:
    """Write the events after number ``after`` as Parquet, CSV or JSON lines for training.

    Returns the number of rows, and the number of the last event, for the next export. The server may run meanwhile.
    """
    path, out = Path(path), Path(out)
    check_name("--out", out)
    if not path.is_file():
        raise DataError(f"{path} does not exist: it is the file of the setting events.path")
    last = after
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
        ) as connection:
            _check_format(connection, path)

            def blocks() -> Iterator[pl.DataFrame]:
                nonlocal last
                while rows := connection.execute(_EXPORT, (last, _BLOCK)).fetchall():
                    last = rows[-1][0]
                    yield pl.DataFrame(rows, schema=_COLUMNS, orient="row").drop("seq")

            n = write_lists(out, _at_least_one(blocks(), path, after))
    except sqlite3.Error as error:
        raise DataError(f"{path} cannot be read as a file of events: {error}") from None
    return n, last


def _at_least_one(blocks: Iterator[pl.DataFrame], path: Path, after: int) -> Iterator[pl.DataFrame]:
    first = next(blocks, None)
    if first is None:
        raise DataError(f"{path} has no events after number {after}: there is nothing to write")
    yield first
    yield from blocks


def _held(path: Path) -> FileLock:
    if not path.parent.is_dir():
        raise ConfigError(f"events.path: the folder {path.parent} does not exist; make it first")
    lock = FileLock(f"{path}.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ConfigError(f"{path} is in use by another server; give each server its own events.path") from None
    except OSError as error:
        raise DataError(f"{path} cannot be used for events: {error}") from None
    return lock


def _opened(path: Path) -> sqlite3.Connection:
    """The file's connection for writing; a new file gets its tables."""
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=30)
    try:
        if connection.execute("PRAGMA schema_version").fetchone()[0] == 0:
            connection.executescript(
                f"BEGIN; {_SCHEMA} PRAGMA application_id={_APPLICATION}; PRAGMA user_version={_FORMAT}; COMMIT;"
            )
        _check_format(connection, path)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def _check_format(connection: sqlite3.Connection, path: Path) -> None:
    marks = tuple(connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
    if marks != (_APPLICATION, _FORMAT):
        raise DataError(f"{path} is no file of events of this version of topshelf; give another events.path")
