"""What a worker of an engine does: open a run once per process, and list items for batches of users."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

    from topshelf.recommender import Recommender


@dataclass(frozen=True)
class Lister:
    """The lists of batches of users; the engine sends it to its workers."""

    path: str
    run: str | None
    model: str
    k: int | None
    filter_seen: bool | None
    allow: tuple[str, ...]

    @classmethod
    def of(cls, run: str | Path, k: int | None, filter_seen: bool | None, allow: Collection[str]) -> Lister:
        """For a run folder, refused if it is not finished. Relative paths are those of this process."""
        from topshelf import registry
        from topshelf.parts.folder import run_identity

        identity = run_identity(run)
        path = str(Path(run).resolve())
        return cls(path, identity["run"], identity["model_sha256"], k, filter_seen, registry.allowed(allow))

    def __call__(self, users: pl.Series) -> pl.DataFrame:
        """One row per place, the users in the order given."""
        return _opened(self).recommend(users, self.k, filter_seen=self.filter_seen)

    def columns(self) -> dict[str, Any]:
        """The columns of the lists, with their Polars types."""
        import polars as pl

        users = _opened(self).artifact.users.values
        return dict(self(pl.Series(users[:1])).schema)


@cache
def _opened(lister: Lister) -> Recommender:
    """The recommender of this process; the vectors are mapped from the file, so processes share their memory."""
    if "torch" not in sys.modules:  # which reads it at import: threads that wait by spinning starve each other
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from topshelf.errors import CheckpointError
    from topshelf.recommender import Recommender
    from topshelf.training.folder import RunFolder

    if (found := RunFolder.open(lister.path).run) != lister.run:
        raise CheckpointError(f"{lister.path} must hold the run {lister.run} on every worker, got {found}")
    return Recommender.load(lister.path, allow=lister.allow)
