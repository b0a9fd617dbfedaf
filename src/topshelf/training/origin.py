"""Where a run comes from, beside its config: the runs before it, and how the parts of a blend were trained.

Kept in a run folder as origin.json, if there is anything to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topshelf import files
from topshelf.config import BaseConfig, class_names, make_config
from topshelf.errors import CheckpointError, TopshelfError
from topshelf.registry import check_allowed
from topshelf.training.folder import RunFolder

FILE = "origin.json"


@dataclass(frozen=True)
class TrainedPart:
    """A part of a blend: the config that it was trained with, and the epochs that validation chose."""

    config: Any
    best_epoch: int


@dataclass(frozen=True)
class Origin:
    """``run``: the id of the folder that a model was loaded from. ``lineage``: what was done to its data since the
    first training, oldest first. ``parts``: of a blend.
    """

    run: str | None = None
    lineage: tuple[dict[str, Any], ...] = ()
    parts: tuple[TrainedPart, ...] = ()


NO_ORIGIN = Origin()


def save_origin(folder: RunFolder, origin: Origin) -> Sequence[Path]:
    """Write the file, and return it; nothing for a run that was trained from the start."""
    if not origin.lineage and not origin.parts:
        return ()
    path = folder.path / FILE
    parts = [
        {"config": part.config.model_dump(mode="json", exclude_none=True), "best_epoch": part.best_epoch}
        for part in origin.parts
    ]
    files.write_sealed(path, {"lineage": list(origin.lineage), "parts": parts})
    return (path,)


def load_origin(folder: RunFolder) -> Origin:
    """The origin of the run in a folder, checked; it may name classes that are allowed alone."""
    path = folder.path / FILE
    if not path.exists():
        return Origin(folder.run)
    folder.check_data_files(path)
    content = files.read_sealed(path, is_always_sealed=True)
    try:
        lineage, parts = content["lineage"], content["parts"]
        if not isinstance(lineage, list) or not all(isinstance(one, dict) for one in lineage):
            raise ValueError(f"lineage must be a list of objects, got {lineage!r}")
        return Origin(folder.run, tuple(lineage), tuple(_part(one, path) for one in parts))
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, TopshelfError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None


def _part(content: Any, path: Path) -> TrainedPart:
    best = content["best_epoch"]
    if type(best) is not int or best < 0:
        raise ValueError(f"best_epoch must be a whole number, got {best!r}")
    config: BaseConfig = make_config(content["config"])
    check_allowed(class_names(config), path)
    return TrainedPart(config, best)
