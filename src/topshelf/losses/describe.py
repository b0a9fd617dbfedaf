"""The registered losses as plain values, for the command line, the documentation and the tuner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topshelf.losses import LOSSES, Loss
from topshelf.registry import row


def describe(registry: Mapping[str, type[Any]] = LOSSES) -> list[dict[str, Any]]:
    """One row per loss: name, form ("ragged" or "graded"), one-line summary, when to use it, cost, paper, relations,
    settings with defaults, search ranges."""
    return [
        row(name, "ragged" if issubclass(cls, Loss) else "graded", cls, cls.documented())
        for name, cls in registry.items()
    ]
