"""Where a study is kept: SQLite in its folder, or any database that SQLAlchemy reaches. Nothing is ever unpickled."""

from __future__ import annotations

import re
import sqlite3
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.exceptions import ExperimentalWarning, OptunaError, StorageInternalError
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage
from optuna.study import Study
from sqlalchemy.exc import ArgumentError, IntegrityError, ProgrammingError, SQLAlchemyError

from topshelf import files
from topshelf.errors import CheckpointError, ConfigError
from topshelf.tuning import tickets

_BUSY = 60  # seconds to wait for a database that another process writes to
_ATTEMPTS = 20  # two processes may make the tables of a new database at the same moment: one of them tries again
LOST = (
    "its trials cannot be read. Restore it from a copy; without one they are lost, and the study must begin again with "
    "another --out"
)
_SECRET = re.compile("passw|pwd|secret|token|odbc_connect", re.IGNORECASE)  # settings in a url that hold passwords


class _Connection(sqlite3.Connection):
    """SQLite with a write-ahead log: a killed process loses nothing, and a trial's thirty writes wait for no disk."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.execute("PRAGMA journal_mode = WAL").close()
        self.execute("PRAGMA synchronous = NORMAL").close()


@contextmanager
def opened(url: str | None) -> Iterator[BaseStorage]:
    """The storage of a url; None: in memory, for this process alone."""
    if url is None:
        with quiet():
            yield InMemoryStorage()
        return
    storage = _patiently(url, lambda: _connected(url))
    try:
        with quiet():
            yield storage
    except (SQLAlchemyError, StorageInternalError) as error:
        raise CheckpointError(f"the study's storage {shown(url)} failed: {_reason(error)}") from error
    finally:
        storage.remove_session()
        storage.engine.dispose()


def open_study(storage: BaseStorage, name: str, sampler: Any, pruner: Any, *, is_new: bool = False) -> Study:
    """The study of that name; made, if it is not there and may be new."""
    with quiet():
        if is_new:
            return optuna.create_study(
                storage=storage,
                study_name=name,
                direction="maximize",
                sampler=sampler,
                pruner=pruner,
                load_if_exists=True,
            )
        try:
            return optuna.load_study(storage=storage, study_name=name, sampler=sampler, pruner=pruner)
        except KeyError:
            raise CheckpointError(f"the study's storage has no study {name}: {LOST}") from None


def check_database(url: str) -> None:
    """Refuse a SQLite database that is gone, empty or damaged, where a study is known to have been; make nothing."""
    found = sqlalchemy.make_url(url)
    if found.get_backend_name() != "sqlite" or found.database is None or found.database.startswith("file:"):
        return
    path = Path(found.database)
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: {LOST}")
    try:
        if not path.stat().st_size and not path.with_name(f"{path.name}-wal").exists():
            raise CheckpointError(f"{path} is empty: {LOST}")
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=_BUSY)) as database:
            database.text_factory = lambda raw: raw.decode(errors="replace")  # damaged names are shown as they are
            said = database.execute("PRAGMA quick_check(1)").fetchone()
            missing = _columns_of_a_study() - _columns(database)
    except (OSError, sqlite3.Error, UnicodeDecodeError) as error:  # the last of a message that names damaged text
        raise CheckpointError(f"the study's storage {shown(url)} cannot be opened: {error}; {LOST}") from None
    if said != ("ok",):
        raise CheckpointError(f"{path} is damaged ({str(said[0]).splitlines()[0]}): {LOST}")
    if missing and len(missing) < len(_columns_of_a_study()):  # where all are missing, there is no study, which is said
        raise CheckpointError(f"{path} is damaged (it has no column {'.'.join(min(missing))}): {LOST}")


def _columns(database: sqlite3.Connection) -> set[tuple[str, str]]:
    """The tables of a database with the names of their columns."""
    tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {
        (table, row[1]) for table in tables for row in database.execute("SELECT * FROM pragma_table_info(?)", [table])
    }


@cache
def _columns_of_a_study() -> frozenset[tuple[str, str]]:
    """Those that Optuna makes; its heartbeats, in a thread of their own, would fail without one of them."""
    with quiet(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "empty.db"
        storage = RDBStorage(folder_url(path))
        storage.remove_session()
        storage.engine.dispose()
        with closing(sqlite3.connect(path)) as database:
            return frozenset(_columns(database))


def shown(url: str) -> str:
    """A url that can be printed and kept: its password is left out."""
    try:
        found = sqlalchemy.make_url(url)
    except (ArgumentError, ValueError):
        return "of that url"
    hidden = found.update_query_dict({name: "hidden" for name in found.query if _SECRET.search(name)})
    return hidden.render_as_string(hide_password=True)


def folder_url(path: Path) -> str:
    """The url of a study's own database."""
    whole = str(path.resolve())
    url = sqlalchemy.URL.create("sqlite", database=whole).render_as_string()
    if sqlalchemy.make_url(url).database != whole:  # SQLAlchemy 2.0 does not write a ? so that it can be read
        raise ConfigError(f"a study's folder must have no ? or % in its path, got {path.parent}; choose another --out")
    return url


def check_url(url: str) -> str:
    """The url of a database that can be shared, with the whole path of a file, wherever it is used next."""
    try:
        found = sqlalchemy.make_url(url)
        found.get_dialect()
    except (ArgumentError, ValueError):  # the latter of a port that is no number
        kind, is_url, _ = url.partition("://")  # no more than this: there may be a password in the rest
        raise ConfigError(
            "--storage must be the url of a database, such as sqlite:///study.db or postgresql+psycopg://host/name, "
            + (f"got {kind!r} at its beginning" if is_url else "got something without ://")
        ) from None
    if found.get_backend_name() != "sqlite" or (found.database or "").startswith("file:"):
        return url
    if found.database in (None, "", ":memory:"):
        raise ConfigError(f"--storage must be a database with a file or a server, got {url!r}; leave it out")
    return found.set(database=str(Path(found.database).resolve())).render_as_string(hide_password=False)


@contextmanager
def quiet() -> Iterator[None]:
    """Optuna says nothing within it; what is worth saying is said here."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def _connected(url: str) -> RDBStorage:
    is_sqlite = sqlalchemy.make_url(url).get_backend_name() == "sqlite"
    options: dict[str, Any] = {"connect_args": {"timeout": _BUSY, "factory": _Connection}} if is_sqlite else {}
    with warnings.catch_warnings():
        # Heartbeats are marked experimental in Optuna 5.0; without them another machine's dead trials stay running.
        warnings.simplefilter("ignore", ExperimentalWarning)
        return RDBStorage(
            url.replace("{", "{{").replace("}", "}}"),  # Optuna fills in templates
            engine_kwargs=options,
            heartbeat_interval=tickets.HEARTBEAT,
            grace_period=tickets.GRACE,
            heartbeat_stale_trial_callback=tickets.queue_again,
        )


def _patiently(url: str, connect: Callable[[], RDBStorage]) -> RDBStorage:
    for attempt in range(_ATTEMPTS):
        try:
            return connect()
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


def _is_race(error: Exception) -> bool:
    """Whether another process may have been faster; a server that cannot be reached, say, is not asked twice."""
    said = _reason(error).lower()
    return isinstance(error, IntegrityError | ProgrammingError) or "already exists" in said or "locked" in said


def _reason(error: Exception) -> str:
    return files.reason(error.__cause__ or error)
