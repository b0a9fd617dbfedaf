"""The file of a benchmark: what it found, the command that found it, when, and on what."""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# As the topshelf command does, before torch is imported: threads that wait by spinning starve each other.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from topshelf.files import write_text
from topshelf.training.folder import environment


def write(file: Path | None, command: str, **found: Any) -> None:
    """Nothing without a file; what else an older one has stays in it."""
    if file is None:
        return
    older = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    result = {"command": command, "date": datetime.now(UTC).date().isoformat(), "environment": environment(), **found}
    write_text(file, json.dumps(older | result, indent=1) + "\n")


def check_names(parser: ArgumentParser, option: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Refuse what would be left out in silence."""
    if unknown := [name for name in given if name not in known]:
        parser.error(f"{option} must be of: {'; '.join(known)}, got {'; '.join(unknown)}")


def check_quick(parser: ArgumentParser, options: Namespace) -> None:
    """Refuse a quick call whose rows would be taken for whole ones."""
    if options.quick and options.json and options.json.exists():
        parser.error(f"--quick must have a new file, got --json {options.json}")


def held(file: Path | None, name: str = "rows") -> list[dict[str, Any]]:
    """What an earlier call has left in a file."""
    return list(json.loads(file.read_text(encoding="utf-8"))[name]) if file and file.exists() else []
