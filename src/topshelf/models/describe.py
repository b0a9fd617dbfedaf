"""The registered models as plain values, for the command line, the docs and the tuner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topshelf.models import MODELS, Model
from topshelf.models.base import Trainable
from topshelf.registry import row


def describe(registry: Mapping[str, type[Trainable]] = MODELS) -> list[dict[str, Any]]:
    """One row per model: name, form ("trained" or "closed form"), one-line summary, when to use it, cost, paper,
    relations, settings with defaults, search ranges; for models of users and items, whether they take new users."""
    rows = []
    for name, cls in registry.items():
        described = row(name, "closed form" if cls.is_closed_form else "trained", cls, cls)
        rows.append({**described, "new_users": takes_new_users(cls)} if issubclass(cls, Model) else described)
    return rows


def takes_new_users(cls: type[Model]) -> bool:
    """Whether new users can be scored from their items, in order or not, without training again."""
    return not cls.takes.isdisjoint({"history", "sequence"})
