"""What the registry holds, as plain values: for the command line, the documents and the tuner."""

from __future__ import annotations

from typing import Any

import torch

from topshelf.models import MODELS, Model
from topshelf.registry import row


def describe() -> list[dict[str, Any]]:
    """One row a model: name, form ("trained" or "closed form"), one-line summary, when to use it, cost, paper,
    relations, whether it takes new users, settings with defaults, search ranges."""
    return [
        {**row(name, "closed form" if cls.is_closed_form else "trained", cls, cls), "new_users": takes_new_users(cls)}
        for name, cls in MODELS.items()
    ]


def takes_new_users(cls: type[Model]) -> bool:
    """Whether users that came after training can be scored from their items, without training again.

    They can where nothing that was learned belongs to one user, and where a model has ``solve`` for them.
    """
    if hasattr(cls, "solve"):
        return True
    n_users = 1009  # a size that nothing else has
    with torch.random.fork_rng(devices=[]):
        learned = cls(n_users, 2).state_dict().values()
    return all(n_users not in tensor.shape for tensor in learned)
