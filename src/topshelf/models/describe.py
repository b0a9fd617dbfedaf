"""The registered models as plain values, for the command line, the docs and the tuner."""

from __future__ import annotations

from typing import Any

from topshelf.models import MODELS, Model
from topshelf.models.lists import LIST_MODELS
from topshelf.registry import row


def describe() -> list[dict[str, Any]]:
    """One row per model: name, form ("trained" or "closed form"), one-line summary, when to use it, cost, paper,
    relations, whether it takes new users, settings with defaults, search ranges."""
    return [
        {**row(name, "closed form" if cls.is_closed_form else "trained", cls, cls), "new_users": takes_new_users(cls)}
        for name, cls in MODELS.items()
    ]


def describe_lists() -> list[dict[str, Any]]:
    """The same of the models that rank documents; their form is "documents"."""
    return [row(name, "documents", cls, cls) for name, cls in LIST_MODELS.items()]


def takes_new_users(cls: type[Model]) -> bool:
    """Whether new users can be scored from their items, in order or not, without training again."""
    return not cls.takes.isdisjoint({"history", "sequence"})
