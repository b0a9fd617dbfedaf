"""What the registries hold, as plain values: for the command line, the documents and the tuner."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from topshelf.losses import LISTWISE, LOSSES

# Constructor arguments that the data decides, not the user.
GIVEN = ("self", "n_queries", "n_items", "n_positives", "reduction")


def describe() -> list[dict[str, Any]]:
    """One row a loss: name, form ("ragged" or "graded"), one-line summary, settings with defaults, search ranges."""
    return [*_rows("ragged", LOSSES), *_rows("graded", LISTWISE)]


def summary(cls: type[Any]) -> str:
    """The first sentence of a loss's documentation."""
    return (inspect.getdoc(cls.formula) or "").partition("\n\n")[0]


def settings(cls: type[Any]) -> dict[str, Any]:
    """The settings of a loss and their defaults; the constructor is the schema."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.name not in GIVEN}


def _rows(form: str, registry: Mapping[str, type[Any]]) -> list[dict[str, Any]]:
    return [
        {"name": name, "form": form, "summary": summary(cls), "settings": settings(cls), "ranges": dict(cls.ranges)}
        for name, cls in registry.items()
    ]
