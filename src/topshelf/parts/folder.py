"""A folder of parts, each of a range of users, that any number of processes and machines fill together.

FOLDER/
  part-00000.parquet ...   moved into place when it is whole: a part that is there is done
  _topshelf/parts.json     which run and settings the parts are of; parts of anything else are refused
  _topshelf/claims/00000   a lock that the process that writes a part holds; that of a killed process is free
  _topshelf/result.json    written when every part is there

A process takes the parts that are not there and that no other process holds, until none is left. So a stopped command
goes on where it was, and the same command on another machine helps. Should a lock not work on some shared disk, two
processes write the same part twice, with the same content.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from topshelf import files
from topshelf.errors import CheckpointError, ConfigError
from topshelf.progress import progress_bar
from topshelf.terminal import TextColumn
from topshelf.training.folder import RunFolder

FORMAT = 1
OWN = "_topshelf"  # Spark, pyarrow and others leave out names with an underscore
_PART = re.compile(r"part-(\d{5,})\.parquet")
_POLL = 0.5  # seconds between two looks at the parts of other processes

Write = Callable[[int, range], object]  # of a part: its number, and its users


class PartsFolder:
    """The folder, and what it holds parts of."""

    def __init__(self, path: str | Path, content: Mapping[str, Any]) -> None:
        self.path, self.content = Path(path), dict(content)
        self.n_users, self.part_users = int(content["n_users"]), int(content["part_users"])

    @classmethod
    def begin(cls, path: str | Path, identity: Mapping[str, Any], part_users: int | None, usual: int) -> PartsFolder:
        """The folder, made if it is not there; refused if it holds something else, or parts of something else.

        ``part_users`` are those of a part; by default what the folder has, else ``usual``.
        """
        folder = Path(path)
        if not manifest(folder).exists() and not files.is_free(folder) and _holds_others(folder):
            raise ConfigError(
                f"--out must be a new or empty folder, or one that holds these parts, got {path}, which is not"
            )
        try:
            (folder / OWN / "claims").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make the folder {path}: {files.reason(error)}; choose another --out") from None
        with files.claimed(folder / OWN / "claims" / "begin", wait=-1):  # two processes may begin at once
            if not manifest(folder).exists():
                content = {"format": FORMAT, **identity, "part_users": part_users or usual}
                files.write_sealed(manifest(folder), content)
        found = cls.open(folder)
        found._check({**identity, **({} if part_users is None else {"part_users": part_users})})
        return found

    @classmethod
    def open(cls, path: str | Path) -> PartsFolder:
        """A folder that was begun."""
        if not manifest(path).is_file():
            raise CheckpointError(f"{path} is not a folder of parts: it has no {OWN}/{manifest(path).name}")
        content = files.read_sealed(manifest(path), is_always_sealed=True)
        sizes = [content.get(name) for name in ("n_users", "part_users")]
        if content.get("format") != FORMAT or not all(type(size) is int and size > 0 for size in sizes):
            raise CheckpointError(f"{manifest(path)} is damaged, or of a newer version of topshelf")
        return cls(path, content)

    def _check(self, wanted: Mapping[str, Any]) -> None:
        differing = [
            f"{name} is {self.content.get(name)!r}, not {value!r}"
            for name, value in wanted.items()
            if self.content.get(name) != value
        ]
        if differing:
            raise ConfigError(
                f"{self.path} holds parts of something else ({differing[0]}); choose another --out, or "
                "delete the folder"
            )

    @property
    def n_parts(self) -> int:
        return -(-self.n_users // self.part_users)

    def users(self, number: int) -> range:
        """The users of a part, by their place among all of them."""
        return range(number * self.part_users, min((number + 1) * self.part_users, self.n_users))

    def part(self, number: int) -> Path:
        return self.path / f"part-{number:05}.parquet"

    def beside(self, number: int) -> Path:
        """A second file of a part, written before it; readers of the parts do not see it."""
        return self.path / OWN / f"{number:05}.parquet"

    def done(self) -> set[int]:
        """The parts that are there."""
        found = (_PART.fullmatch(path.name) for path in self.path.iterdir())
        return {int(match[1]) for match in found if match} & set(range(self.n_parts))

    def check_whole(self) -> None:
        """Refuse to read a folder that is not finished."""
        if n_left := self.n_parts - len(self.done()):
            raise CheckpointError(
                f"{self.path} is not finished: {n_left} of {self.n_parts} parts are missing. Give the command that "
                "began it again"
            )

    def work(self, write: Write, *, quiet: bool = True) -> None:
        """Write parts until all are there, with those of other processes; what another process left is written too."""
        with self._watched(quiet) as watch:
            while left := sorted(set(range(self.n_parts)) - self.done()):
                wrote = False
                for number in left:
                    with files.claimed(self.path / OWN / "claims" / f"{number:05}") as is_ours:
                        if is_ours and not self.part(number).exists():
                            write(number, self.users(number))
                            wrote = True
                    watch()
                if not wrote:
                    time.sleep(_POLL)
            watch()

    @contextmanager
    def _watched(self, quiet: bool) -> Iterator[Callable[[], None]]:
        """The users of the parts that are there as progress, by whichever process."""
        counted = TextColumn("{task.completed:,.0f}/{task.total:,.0f} users")
        with progress_bar(quiet, counted) as progress:
            task = progress.add_task("writing parts", total=self.n_users, shown="")

            def watch() -> None:
                done = self.done()
                n = sum(len(self.users(number)) for number in done)
                progress.update(task, completed=n, shown=f"{len(done):,}/{self.n_parts:,} parts")

            watch()
            yield watch

    def finish(self, result: Mapping[str, Any]) -> None:
        """Say what all parts together are; every process says the same."""
        files.write_sealed(self.path / OWN / "result.json", dict(result))

    def result(self) -> dict[str, Any]:
        self.check_whole()
        return files.read_sealed(self.path / OWN / "result.json", is_always_sealed=True)


def _holds_others(folder: Path) -> bool:
    """Whether it is a file, or a folder with anything but what a process that was stopped at once leaves."""
    return not folder.is_dir() or [one.name for one in folder.iterdir()] != [OWN]


def manifest(path: str | Path) -> Path:
    return Path(path) / OWN / "parts.json"


def run_identity(path: str | Path) -> dict[str, Any]:
    """What tells a run from any other; refused if it is not finished, because its model may still change."""
    folder = RunFolder.open(path)
    if not folder.is_finished:
        raise ConfigError(f"{path} is not finished, and parts must be of one model: topshelf train --resume {path}")
    return {"run": folder.run, "model_sha256": files.digest(folder.model)}
