"""Configs that name classes of another package: nothing is imported because a file says so."""

from __future__ import annotations

import tomllib
from functools import partial
from pathlib import Path
from typing import Any

from faults.edits import Case
from topshelf import files
from topshelf.config import make_config, to_toml
from topshelf.training.folder import RunFolder

TRAP = "faults.trap:Class"
BLEND = "topshelf.models.blend:Blend"  # imported already, so its name is allowed; those in it are not
NESTED = {"name": BLEND, "weights": [1.0], "parts": [{"name": TRAP}]}
SECTIONS: dict[str, dict[str, Any]] = {
    "model.name": {"model": {"name": TRAP}},
    "loss.name": {"loss": {"name": TRAP}},
    "negatives.kind": {"negatives": {"kind": TRAP}},
    "threshold.estimator": {"threshold": {"estimator": TRAP}},
    "a part of a blend": {"model": {"name": "blend", "weights": [1.0], "parts": [{"name": TRAP}]}},
    "a part of a class that blends": {"model": NESTED},
    "a part of a part": {"model": {"name": "blend", "weights": [1.0], "parts": [NESTED]}},
}


def cases() -> dict[str, Case]:
    """Each alone, and with a run.json that agrees."""
    return {
        f"config.toml: {what} of another package{', agreed' * agreed}": partial(_name, changes, agreed)
        for what, changes in SECTIONS.items()
        for agreed in (False, True)
    }


def changed(text: str, changes: dict[str, Any]) -> str:
    """A config with other sections."""
    return to_toml(make_config({**tomllib.loads(text), **changes}))


def _name(changes: dict[str, Any], agreed: bool, folder: Path) -> None:
    run = RunFolder(folder)
    first = run.config.read_text().splitlines()[0]  # the id
    run.config.write_text(f"{first}\n{changed(run.config.read_text(), changes)}")
    if agreed:
        files.write_sealed(
            run.identity_file, {**files.read_sealed(run.identity_file), "config": run.config.read_text()}
        )
