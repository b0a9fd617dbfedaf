"""Named datasets that cannot be downloaded for the user: they are looked for among the user's files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from topshelf.data.download import cache_folder, verify
from topshelf.errors import ConfigError, DataError

RESEARCH = "for research; not ours to pass on, see the source"


@dataclass(frozen=True)
class LocalDataset:
    """What is known of such a dataset. ``files``: names that its file, zip or folder may have.

    ``sha256`` None: the file is not verified. ``folder``: where the files of the task are inside of TOPSHELF_DATA.
    """

    folder: ClassVar[str]
    name: str
    title: str
    files: tuple[str, ...]
    recipe: str = field(kw_only=True)
    licence: str = field(kw_only=True, default=RESEARCH)
    address: str | None = field(kw_only=True, default=None)
    sha256: str | None = field(kw_only=True, default=None)

    def found(self) -> Path | None:
        """Its file or folder, in ``TOPSHELF_DATA`` or the cache; None if it is not there."""
        cache = cache_folder()
        folders = [cache, cache / self.folder]
        if chosen := os.environ.get("TOPSHELF_DATA"):
            folders = [Path(chosen), Path(chosen) / self.folder, *folders]
        places = [folder / file for folder in folders for file in self.files]
        return next((path for path in places if path.exists()), None)

    def locate(self) -> Path:
        """Its file or folder; a file is verified where a checksum is known."""
        path = self.found()
        if path is not None:
            return path if path.is_dir() else verify(path, self.sha256)
        chosen = os.environ.get("TOPSHELF_DATA")
        raise DataError(
            f"{self.name} ({self.title}) is not here, and topshelf cannot download it: {self.licence}. Get it"
            f"{f' from {self.address}' if self.address else ''}, and put it as {' or '.join(self.files)} into the "
            f"folder that the environment variable TOPSHELF_DATA names ({f'now {chosen}' if chosen else 'not set'}) "
            f"or its folder {self.folder}, or into {cache_folder()}. Layout: {self.recipe}."
        )

    def refuse(self, settings: Mapping[str, object]) -> None:
        """Refuse settings that say how a file is read."""
        for setting, value in settings.items():
            if value is not None:
                raise ConfigError(
                    f"data.{setting} must be left out for {self.name}, which comes prepared; got {value!r}"
                )

    def check_counts(self, counts: dict[str, int], path: Path) -> None:
        """Refuse data of other counts than are known: they are another dataset."""
        for what, count in counts.items():
            if count != getattr(self, what):
                raise DataError(
                    f"{path} must hold {getattr(self, what):,} {what} to be {self.name}, got {count:,}. Layout: "
                    f"{self.recipe}. To use it as it is, give its path as data.source."
                )
