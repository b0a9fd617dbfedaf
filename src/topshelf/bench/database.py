"""A ledger in a database, for machines that share no folder: any that SQLAlchemy reaches.

One row per cell. A process takes a cell by changing its row if it is still free, which the database does for one of
them only; while it runs, it renews the row's time. A cell whose time is old belongs to a process that has died.
"""

from __future__ import annotations

import io
import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import polars as pl
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from topshelf import files
from topshelf.bench.folder import FORMAT, checked_result, read_users
from topshelf.errors import CheckpointError
from topshelf.tuning.storage import check_url, shown

BEAT = 20.0  # seconds between two renewals
DEAD = 120.0  # seconds without one until a cell is free again

_TABLE = sa.Table(
    "topshelf_bench_cells",
    sa.MetaData(),
    sa.Column("key", sa.String(20), primary_key=True),
    sa.Column("state", sa.String(10), nullable=False),  # running, done, failed, free
    sa.Column("owner", sa.String(32), nullable=False),
    sa.Column("beat", sa.Float, nullable=False),
    sa.Column("content", sa.Text, nullable=False, default="{}"),
    sa.Column("per_user", sa.LargeBinary, nullable=True),
)


class DatabaseLedger:
    """Cells by key in one table."""

    def __init__(self, url: str) -> None:
        self.url = check_url(url)
        try:
            # Calls are minutes apart: none keeps a connection, which a server limits and a fork would share.
            self._engine = sa.create_engine(self.url, poolclass=sa.NullPool)
            _TABLE.metadata.create_all(self._engine)
        except (SQLAlchemyError, ImportError) as error:
            raise CheckpointError(f"the bench's storage {shown(url)} cannot be opened: {files.reason(error)}") from None

    @contextmanager
    def claim(self, key: str) -> Iterator[bool]:
        owner = uuid.uuid4().hex
        if not self._take(key, owner):
            yield False
            return
        ended = threading.Event()
        beating = threading.Thread(target=self._keep, args=(key, owner, ended), daemon=True)
        beating.start()
        try:
            yield True
        finally:
            ended.set()
            beating.join()
            mine = (_TABLE.c.key == key) & (_TABLE.c.owner == owner) & (_TABLE.c.state == "running")
            self._execute(sa.update(_TABLE).where(mine).values(state="free", beat=0.0))

    def _take(self, key: str, owner: str) -> bool:
        now = time.time()
        values = {"state": "running", "owner": owner, "beat": now}
        try:
            self._execute(sa.insert(_TABLE).values(key=key, content="{}", **values))
            return True
        except IntegrityError:  # the row is there
            stale = (_TABLE.c.state == "running") & (_TABLE.c.beat < now - DEAD)
            is_free = _TABLE.c.state.in_(["free", "failed"]) | stale
            return self._execute(sa.update(_TABLE).where((_TABLE.c.key == key) & is_free).values(**values)) == 1

    def _keep(self, key: str, owner: str, ended: threading.Event) -> None:
        while not ended.wait(BEAT):
            mine = (_TABLE.c.key == key) & (_TABLE.c.owner == owner)
            with suppress(CheckpointError):  # a database that is away for a moment; the next beat tries again
                self._execute(sa.update(_TABLE).where(mine).values(beat=time.time()))

    def running(self) -> set[str]:
        is_alive = (_TABLE.c.state == "running") & (_TABLE.c.beat >= time.time() - DEAD)
        return {row.key for row in self._rows(sa.select(_TABLE.c.key).where(is_alive))}

    def results(self) -> dict[str, dict[str, Any]]:
        return {key: checked_result(found, key, self._row(key)) for key, found in self._contents("done").items()}

    def failures(self) -> dict[str, dict[str, Any]]:
        return self._contents("failed")

    def finish(self, key: str, result: dict[str, Any], per_user: pl.DataFrame) -> None:
        content = io.BytesIO()
        per_user.write_parquet(content)
        self._put(key, "done", result, content.getvalue())

    def fail(self, key: str, failure: dict[str, Any]) -> None:
        self._put(key, "failed", failure, None)

    def per_user(self, key: str) -> pl.DataFrame:
        rows = self._rows(sa.select(_TABLE.c.per_user).where(_TABLE.c.key == key))
        try:
            return read_users(rows[0].per_user)
        except (IndexError, TypeError, ValueError) as error:
            raise CheckpointError(f"the bench's storage has no values per user of {key}: {error}") from None

    def _put(self, key: str, state: str, content: dict[str, Any], per_user: bytes | None) -> None:
        text = json.dumps(files.sealed({"format": FORMAT, "key": key, **content}))
        values = {"state": state, "content": text, "per_user": per_user, "beat": time.time()}
        if self._execute(sa.update(_TABLE).where(_TABLE.c.key == key).values(**values)) == 0:
            self._execute(sa.insert(_TABLE).values(key=key, owner="", **values))

    def _contents(self, state: str) -> dict[str, dict[str, Any]]:
        rows = self._rows(sa.select(_TABLE.c.key, _TABLE.c.content).where(_TABLE.c.state == state))
        found = {}
        for row in rows:
            try:
                content = json.loads(row.content)
            except (ValueError, RecursionError):
                content = None
            if not isinstance(content, dict) or not files.is_intact(content):
                raise CheckpointError(f"{self._row(row.key)} is damaged: its content does not match its checksum")
            found[row.key] = content
        return found

    def _row(self, key: str) -> str:
        return f"the row {key} of the bench's storage {shown(self.url)}"

    def _rows(self, query: Any) -> list[Any]:
        try:
            with self._engine.connect() as connection:
                return list(connection.execute(query))
        except SQLAlchemyError as error:
            raise CheckpointError(f"the bench's storage {shown(self.url)} failed: {files.reason(error)}") from None

    def _execute(self, statement: Any) -> int:
        try:
            with self._engine.begin() as connection:
                return int(connection.execute(statement).rowcount)
        except IntegrityError:
            raise
        except SQLAlchemyError as error:
            raise CheckpointError(f"the bench's storage {shown(self.url)} failed: {files.reason(error)}") from None
