"""A bench on disk, shared by any number of plans, processes and machines.

BENCH/
  cells/KEY/         the run folder of a cell
  studies/KEY/       the search of a case, with choose = "tuned"
  results/KEY.json   what a finished cell measured; a cell with this file is never run again
  results/KEY.parquet   its metrics per user
  failures/KEY.json  why a cell has no result
  claims/KEY         a lock that the process of a running cell holds; that of a killed process is free

Every file is replaced as a whole. Nothing in it is ever unpickled.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from topshelf import files
from topshelf.errors import CheckpointError, ConfigError

FORMAT = 1
_LOOK = 0.5  # seconds; a process that looks who runs a cell holds its lock for a moment
_KEY = re.compile(r"[0-9a-f]{20}")
_RESULT: dict[str, Any] = {"format": int, "key": str, "metrics": dict, "seconds": (int, float), "best_epoch": int}
_RESULT |= {"config": dict, "fingerprints": dict, "epochs": int}


class Ledger(Protocol):
    """Which cells are finished, failed and running."""

    def claim(self, key: str) -> Any:
        """A context that gives True if this process may run the cell, and holds it meanwhile."""

    def results(self) -> dict[str, dict[str, Any]]:
        """What every finished cell measured, by key."""

    def failures(self) -> dict[str, dict[str, Any]]:
        """Why cells have no result, by key."""

    def finish(self, key: str, result: dict[str, Any], per_user: pl.DataFrame) -> None: ...

    def fail(self, key: str, failure: dict[str, Any]) -> None: ...

    def running(self) -> set[str]:
        """The cells that a process runs now."""

    def per_user(self, key: str) -> pl.DataFrame:
        """The metrics per user of a finished cell."""


class BenchFolder:
    """The folder of a bench, and its ledger."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def make(self) -> BenchFolder:
        """The folder, made if it is not there; refused if it holds something else."""
        if self.path.exists() and not self.exists and not files.is_free(self.path):
            raise ConfigError(f"--out must be a bench or a new folder, and {self.path} holds something else")
        try:
            for name in ("cells", "studies", "results", "failures", "claims"):
                (self.path / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make the folder {self.path}: {files.reason(error)}; choose another") from None
        return self

    @classmethod
    def open(cls, path: str | Path) -> BenchFolder:
        folder = cls(path)
        if not folder.exists:
            raise CheckpointError(f"{path} is not a bench: it has no folder results; topshelf bench run makes one")
        return folder

    @property
    def exists(self) -> bool:
        return (self.path / "results").is_dir() and (self.path / "claims").is_dir()

    def cell(self, key: str) -> Path:
        return self.path / "cells" / key

    def study(self, key: str) -> Path:
        return self.path / "studies" / key

    @contextmanager
    def claim(self, key: str) -> Iterator[bool]:
        with files.claimed(self.path / "claims" / key, wait=_LOOK) as is_ours:
            yield is_ours and not self._result(key).exists()

    def running(self) -> set[str]:
        return {key for key in self._keys("claims", "") if self._is_held(key)}

    def _is_held(self, key: str) -> bool:
        with files.claimed(self.path / "claims" / key) as is_free:
            return not is_free

    def results(self) -> dict[str, dict[str, Any]]:
        return {key: _checked(self._result(key), key) for key in self._keys("results", ".json")}

    def failures(self) -> dict[str, dict[str, Any]]:
        return {key: files.read_sealed(self._failure(key)) for key in self._keys("failures", ".json")}

    def finish(self, key: str, result: dict[str, Any], per_user: pl.DataFrame) -> None:
        self._write_users(key, per_user)
        files.write_sealed(self._result(key), {"format": FORMAT, "key": key, **result})
        with suppress(OSError):
            self._failure(key).unlink()

    def copy(self, other: BenchFolder, key: str, per_user: pl.DataFrame) -> None:
        """Take over a finished cell of another bench as it is, with these values per user."""
        self._write_users(key, per_user)
        files.write_bytes(self._result(key), other._result(key).read_bytes())

    def _write_users(self, key: str, per_user: pl.DataFrame) -> None:
        path = self.path / "results" / f"{key}.parquet"
        files.write(path, lambda file: per_user.write_parquet(file, compression_level=19))

    def fail(self, key: str, failure: dict[str, Any]) -> None:
        files.write_sealed(self._failure(key), {"format": FORMAT, "key": key, **failure})

    def per_user(self, key: str) -> pl.DataFrame:
        path = self.path / "results" / f"{key}.parquet"
        try:
            return read_users(path.read_bytes())
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{path} is damaged: {files.reason(error)}; delete it with its .json, and run again"
            ) from None

    def _result(self, key: str) -> Path:
        return self.path / "results" / f"{key}.json"

    def _failure(self, key: str) -> Path:
        return self.path / "failures" / f"{key}.json"

    def _keys(self, name: str, suffix: str) -> list[str]:
        folder = self.path / name
        if not folder.is_dir():  # results that were committed without the rest
            return []
        found = (one.name.removesuffix(suffix) for one in folder.iterdir() if one.name.endswith(suffix))
        return sorted(key for key in found if _KEY.fullmatch(key))


def _checked(path: Path, key: str) -> dict[str, Any]:
    try:
        content = files.read_sealed(path, is_always_sealed=True)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; delete it, and run the cell again") from None
    return checked_result(content, key, str(path))


def checked_result(content: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    """A result, refused if it was not written by a bench: its numbers go into tables."""
    wrong = [name for name, kind in _RESULT.items() if not isinstance(content.get(name), kind)]
    if not wrong and (content["format"] != FORMAT or content["key"] != key):
        wrong = ["its format or key"]
    if not wrong and not _are_numbers(content["metrics"]):
        wrong = ["metrics"]
    if wrong:
        raise CheckpointError(
            f"{where} is damaged, or of another version: {wrong[0]} is not as expected; delete it, and run the cell "
            "again"
        )
    return content


def _are_numbers(metrics: dict[str, Any]) -> bool:
    """Whether these are the means of at least one protocol."""
    parts = list(metrics.values())
    return bool(parts) and all(
        isinstance(part, dict) and part and all(isinstance(value, int | float) for value in part.values())
        for part in parts
    )


def read_users(content: bytes) -> pl.DataFrame:
    """The metrics per user of a Parquet file; a ValueError says what is wrong with it."""
    try:
        frame = pl.read_parquet(io.BytesIO(content))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise ValueError(files.reason(error)) from None
    if any(not kind.is_float() for kind in frame.dtypes):
        raise ValueError("it must hold columns of numbers alone")
    return frame
