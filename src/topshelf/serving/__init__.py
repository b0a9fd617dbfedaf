"""A run folder that answers: the engine for Python, and the HTTP server around it (docs/serving.md).

The engine needs nothing beyond topshelf; the server needs ``pip install 'topshelf[serve]'``. Names are imported on
first use: reading events does not need torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topshelf.serving.bodies import DocumentQuery, Event, Query
    from topshelf.serving.engine import Engine
    from topshelf.serving.settings import ServeSettings, read_settings

__all__ = ["DocumentQuery", "Engine", "Event", "Query", "ServeSettings", "read_settings"]

_HOME_OF = {"Engine": "engine", "ServeSettings": "settings", "read_settings": "settings"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'topshelf.serving' has no attribute {name!r}")
    return getattr(import_module(f"topshelf.serving.{_HOME_OF.get(name, 'bodies')}"), name)
