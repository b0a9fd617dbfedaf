"""The lists of all users of a run, as parts: what `topshelf recommend RUN --out FOLDER` writes."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from topshelf import registry
from topshelf.errors import at_least, whole
from topshelf.list_files import write_lists
from topshelf.parts.folder import PartsFolder, run_identity
from topshelf.parts.processes import fill
from topshelf.recommender import Recommender

PART_ROWS = 1_000_000  # of a part, by default


@dataclass(frozen=True)
class _Job:
    run: Path
    out: Path
    k: int | None
    filter_seen: bool | None
    why: int
    titles: Any
    part_users: int | None
    allow: tuple[str, ...]


def recommend_parts(
    run: str | Path,
    out: str | Path,
    k: int | None = None,
    *,
    filter_seen: bool | None = None,
    why: int = 0,
    titles: Any = None,
    part_users: int | None = None,
    processes: int = 1,
    allow: Collection[str] = (),
    quiet: bool = True,
) -> int:
    """Write the lists of all users of a run to a folder of Parquet parts; returns the number of rows.

    The parts one after the other are the table of :meth:`topshelf.Recommender.recommend`, to the last bit, however
    many processes wrote them. Each has ``part_users`` users, by default those of a million rows. The same call goes on
    where a stopped one was, and helps one that runs, on this machine or another that sees the folders. It returns when
    all parts are there. A folder with parts of another run, k or settings is refused. ``processes``: of this machine,
    which share its processors; a script that starts some needs ``if __name__ == "__main__":``.
    """
    part_users = None if part_users is None else at_least("part_users", whole("part_users", part_users), 1)
    job = _Job(Path(run), Path(out), k, filter_seen, why, titles, part_users, registry.allowed(allow))
    return fill(_open, job, processes, quiet=quiet).finish()


@dataclass(frozen=True)
class _Writer:
    """Writes the lists of ranges of users."""

    folder: PartsFolder
    recommender: Recommender
    k: int
    filter_seen: bool
    why: int

    def __call__(self, number: int, users: range) -> None:
        ids = self.recommender.artifact.users.values[users.start : users.stop]
        options: dict[str, Any] = {"filter_seen": self.filter_seen, "why": self.why}
        write_lists(self.folder.part(number), self.recommender.recommend_blocks(ids, self.k, **options))

    def finish(self) -> int:
        """Say how many rows all parts have."""
        parts = [self.folder.part(number) for number in range(self.folder.n_parts)]
        n_rows = sum(pl.scan_parquet(part, glob=False).select(pl.len()).collect().item() for part in parts)
        self.folder.finish({"kind": "lists", "rows": n_rows})
        return n_rows


def _open(job: _Job) -> _Writer:
    identity = run_identity(job.run)
    recommender = Recommender.load(job.run, allow=job.allow)
    if job.titles is not None:
        recommender.set_titles(job.titles)
    artifact = recommender.artifact
    k = artifact.config.k if job.k is None else at_least("k", whole("k", job.k), 1)
    options: dict[str, Any] = {"k": k, "filter_seen": recommender.filters(job.filter_seen), "why": job.why}
    titles = None if artifact.titles is None else hashlib.sha256("\n".join(artifact.titles).encode()).hexdigest()
    identity |= {"kind": "lists", "n_users": len(artifact.users), **options, "titles_sha256": titles}
    usual = max(1, PART_ROWS // min(k, len(artifact.items)))
    return _Writer(PartsFolder.begin(job.out, identity, job.part_users, usual), recommender, **options)
