"""A run folder that answers: the engine for Python, and the HTTP server around it (docs/serving.md).

The engine needs nothing beyond topshelf; the server needs ``pip install 'topshelf[serve]'``.
"""

from __future__ import annotations

from topshelf.serving.bodies import DocumentQuery, Event, Query
from topshelf.serving.engine import Engine
from topshelf.serving.settings import ServeSettings, read_settings

__all__ = ["DocumentQuery", "Engine", "Event", "Query", "ServeSettings", "read_settings"]
