"""The registered losses as plain values, for the command line, the documentation and the tuner."""

from __future__ import annotations

from typing import Any

from topshelf.losses import LISTWISE, LOSSES
from topshelf.registry import row


def describe() -> list[dict[str, Any]]:
    """One row per loss: name, form ("ragged" or "graded"), one-line summary, when to use it, cost, paper, relations,
    settings with defaults, search ranges."""
    return [
        *(row(name, "ragged", cls, cls.documented()) for name, cls in LOSSES.items()),
        *(row(name, "graded", cls, cls.documented()) for name, cls in LISTWISE.items()),
    ]
