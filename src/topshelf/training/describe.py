"""The models and losses of every task as plain values, for the command line and for Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from topshelf.errors import one_of
from topshelf.losses import describe as of_losses
from topshelf.models import describe as of_models
from topshelf.training.build import REGISTRIES


def models(task: str | None = None) -> list[dict[str, Any]]:
    """The rows of :func:`topshelf.models.describe.describe` for a task, or for all of them.

    Each has ``tasks``, those that have this class under this name; a name of two classes has two rows.
    """
    return _rows(task, lambda name: REGISTRIES[name].models, of_models.describe)


def losses(task: str | None = None) -> list[dict[str, Any]]:
    """The same of the losses."""
    return _rows(task, lambda name: REGISTRIES[name].losses, of_losses.describe)


def _rows(
    task: str | None,
    registry: Callable[[str], Mapping[str, type[Any]]],
    describe: Callable[[Mapping[str, type[Any]]], list[dict[str, Any]]],
) -> list[dict[str, Any]]:
    rows: dict[tuple[str, type[Any]], dict[str, Any]] = {}
    for owner in REGISTRIES if task is None else [one_of("task", task, REGISTRIES)]:
        classes = registry(owner)
        for row in describe(classes):
            tasks = [name for name in REGISTRIES if registry(name).get(row["name"]) is classes[row["name"]]]
            rows.setdefault((row["name"], classes[row["name"]]), {**row, "tasks": tasks})
    return list(rows.values())
