"""The file of a benchmark: what it found, the command that found it, when, and on what."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from topshelf.training.checkpoint import write_text
from topshelf.training.folder import environment


def write(file: Path | None, command: str, **found: Any) -> None:
    """Nothing without a file; what else an older one has stays in it."""
    if file is None:
        return
    older = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    result = {"command": command, "date": datetime.now(UTC).date().isoformat(), "environment": environment(), **found}
    write_text(file, json.dumps(older | result, indent=1) + "\n")


def held(file: Path | None, name: str = "rows") -> list[dict[str, Any]]:
    """What an earlier call has left in a file."""
    return list(json.loads(file.read_text(encoding="utf-8"))[name]) if file and file.exists() else []
