"""Where a study is kept: SQLite in its folder, or any database that SQLAlchemy reaches. Nothing is ever unpickled."""

from __future__ import annotations

import re
import sqlite3
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.exceptions import ExperimentalWarning, OptunaError, StorageInternalError
from optuna.storages import InMemoryStorage, RDBStorage
from optuna.study import Study
from sqlalchemy.exc import ArgumentError, IntegrityError, ProgrammingError, SQLAlchemyError

from topshelf import files
from topshelf.errors import CheckpointError, ConfigError, at_least, positive
from topshelf.tuning import queue, search
from topshelf.tuning.folder import Definition

_BUSY = 60  # seconds to wait for a database that another process writes to
_ATTEMPTS = 20  # two processes may create the tables of a database at the same time; one of them tries again
_LOST = (
    "its trials cannot be read. Restore it from a copy; without one they are lost, and the study must begin again with "
    "another --out"
)
_SECRET = re.compile("passw|pwd|secret|token|odbc_connect", re.IGNORECASE)  # parts of a url that hold passwords


@dataclass(frozen=True)
class Limits:
    """What a process may spend, and where: checked when it is made."""

    trials: int | None
    timeout: float | None
    storage: str | None
    quiet: bool
    page: bool = True

    def __post_init__(self) -> None:
        if self.trials is not None:
            at_least("trials", self.trials, 1)
        if self.timeout is not None:
            positive("timeout", self.timeout)
        if self.storage is not None:
            object.__setattr__(self, "storage", check_url(self.storage))


class _Connection(sqlite3.Connection):
    """SQLite with a write-ahead log: safe against kills, and fast for a trial's thirty small writes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.execute("PRAGMA journal_mode = WAL").close()
        self.execute("PRAGMA synchronous = NORMAL").close()


@contextmanager
def open_study(url: str | None, definition: Definition, *, is_new: bool = False) -> Iterator[Study]:
    """The study at a url; created if it ``is_new`` and not there. Without a url it is kept in memory."""
    with _quiet():
        if url is None:
            yield _study(InMemoryStorage(), definition, is_new)
            return
        with _closing(_connect(url)) as storage:
            try:
                yield _study(storage, definition, is_new)
            except (SQLAlchemyError, StorageInternalError) as error:
                raise CheckpointError(f"the study's storage {shown(url)} failed: {_reason(error)}") from error


def _study(storage: RDBStorage | InMemoryStorage, definition: Definition, is_new: bool) -> Study:
    sampler = search.SlotSampler(definition.space, definition.config.seed)
    given: dict[str, Any] = {"storage": storage, "study_name": definition.name, "sampler": sampler}
    given["pruner"] = search.pruner(definition.config.train)
    try:
        if is_new:
            sampler.study = optuna.create_study(**given, direction="maximize", load_if_exists=True)
        else:
            sampler.study = optuna.load_study(**given)
    except KeyError:
        raise CheckpointError(f"the study's storage has no study {definition.name}: {_LOST}") from None
    return sampler.study


def check_database(url: str) -> None:
    """Refuse a study's SQLite database that is missing, empty or damaged. Nothing is created."""
    path = _file(sqlalchemy.make_url(url))
    if path is None:
        return
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: {_LOST}")
    try:
        if not path.stat().st_size and not path.with_name(f"{path.name}-wal").exists():
            raise CheckpointError(f"{path} is empty: {_LOST}")
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=_BUSY)) as database:
            database.text_factory = lambda raw: raw.decode(errors="replace")  # damaged names can be shown
            (answer,) = database.execute("PRAGMA quick_check(1)").fetchone()
            missing = _optuna_columns() - _columns(database)
    except (OSError, sqlite3.Error, UnicodeDecodeError) as error:  # the last: a message that quotes damaged text
        raise CheckpointError(f"the study's storage {shown(url)} cannot be opened: {error}; {_LOST}") from None
    if answer != "ok":
        raise CheckpointError(f"{path} is damaged ({str(answer).splitlines()[0]}): {_LOST}")
    if missing and missing != _optuna_columns():  # with all of them missing, there is no study; see _study
        raise CheckpointError(f"{path} is damaged (it has no column {'.'.join(min(missing))}): {_LOST}")


def _columns(database: Any) -> frozenset[tuple[str, str]]:
    """(table, column) of every column of a SQLite database."""
    tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return frozenset(
        (table, row[1]) for table in tables for row in database.execute("SELECT * FROM pragma_table_info(?)", [table])
    )


@cache
def _optuna_columns() -> frozenset[tuple[str, str]]:
    """The columns that Optuna creates. Its heartbeats run in a thread, where a missing column could not be reported."""
    with _quiet(), _closing(RDBStorage("sqlite:///:memory:")) as storage, storage.engine.connect() as connection:
        return _columns(connection.connection.driver_connection)


@contextmanager
def _closing(storage: RDBStorage) -> Iterator[RDBStorage]:
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def shown(url: str) -> str:
    """The url without its password, to be printed and stored."""
    try:
        parsed = sqlalchemy.make_url(url)
    except (ArgumentError, ValueError):
        return "of that url"
    hidden = parsed.update_query_dict({name: "hidden" for name in parsed.query if _SECRET.search(name)})
    return hidden.render_as_string(hide_password=True)


def folder_url(path: Path) -> str:
    """The url of the database in a study's folder."""
    whole = str(path.resolve())
    url = sqlalchemy.URL.create("sqlite", database=whole).render_as_string()
    if sqlalchemy.make_url(url).database != whole:  # SQLAlchemy 2.0 does not escape a ?
        raise ConfigError(f"a study's folder must have no ? or % in its path, got {path.parent}; choose another --out")
    return url


def check_url(url: str) -> str:
    """The url of a database that can be shared; the path of a file is made absolute."""
    try:
        parsed = sqlalchemy.make_url(url)
        parsed.get_dialect()
    except (ArgumentError, ValueError):  # ValueError: a port that is no number
        kind, is_url, _ = url.partition("://")  # no more is shown, because the rest may hold a password
        raise ConfigError(
            "--storage must be the url of a database, such as sqlite:///study.db or postgresql+psycopg://host/name, "
            + (f"got {kind!r} at its beginning" if is_url else "got something without ://")
        ) from None
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ConfigError(f"--storage must be a database with a file or a server, got {url!r}; leave it out")
    path = _file(parsed)
    return url if path is None else parsed.set(database=str(path.resolve())).render_as_string(hide_password=False)


def _file(url: sqlalchemy.URL) -> Path | None:
    """The file of a SQLite database; None for a server, or for SQLite's own kind of url."""
    if url.get_backend_name() != "sqlite" or not url.database or url.database.startswith("file:"):
        return None
    return Path(url.database)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Optuna's log."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def _connect(url: str) -> RDBStorage:
    for attempt in range(_ATTEMPTS):
        try:
            return _connect_once(url)
        except ImportError as error:
            raise ConfigError(
                f"--storage {shown(url)} needs a driver that is not installed ({error.__cause__ or error}); "
                "install it, such as pip install 'psycopg[binary]' for postgresql+psycopg://"
            ) from None
        except (SQLAlchemyError, OptunaError, RuntimeError) as error:
            if attempt + 1 == _ATTEMPTS or not _is_race(error):
                raise CheckpointError(f"the study's storage {shown(url)} cannot be opened: {_reason(error)}") from None
            time.sleep(0.1)
    raise AssertionError("unreachable")


def _connect_once(url: str) -> RDBStorage:
    is_sqlite = sqlalchemy.make_url(url).get_backend_name() == "sqlite"
    with warnings.catch_warnings():
        # Heartbeats are marked experimental in Optuna 5.0; without them, dead trials of other machines stay running.
        warnings.simplefilter("ignore", ExperimentalWarning)
        return RDBStorage(
            url.replace("{", "{{").replace("}", "}}"),  # Optuna treats it as a template
            engine_kwargs={"connect_args": {"timeout": _BUSY, "factory": _Connection}} if is_sqlite else {},
            heartbeat_interval=queue.HEARTBEAT,
            grace_period=queue.GRACE,
            heartbeat_stale_trial_callback=queue.requeue,
        )


def _is_race(error: Exception) -> bool:
    """Whether another process may have been faster; only then is it worth trying again."""
    reason = _reason(error).lower()
    return isinstance(error, IntegrityError | ProgrammingError) or "already exists" in reason or "locked" in reason


def _reason(error: Exception) -> str:
    return files.reason(error.__cause__ or error)
