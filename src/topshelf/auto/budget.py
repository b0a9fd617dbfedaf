"""A budget of time, and how much of it is left."""

from __future__ import annotations

import math
import re
import time

from topshelf.errors import ConfigError

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*([smh]?)")
LEAST = 1.0  # second


def seconds_of(budget: str | float) -> float:
    """Seconds of a budget such as "90s", "10m", "1.5h", or a number of seconds."""
    match = _FORM.fullmatch(budget.strip().lower()) if isinstance(budget, str) else None
    if match:
        value = float(match[1]) * _UNITS[match[2] or "s"]
    elif isinstance(budget, int | float) and not isinstance(budget, bool):
        value = float(budget)
    else:
        raise ConfigError(f"budget must be a time such as 90s, 10m or 2h, got {budget!r}")
    if not math.isfinite(value) or value < LEAST:
        raise ConfigError(f"budget must be at least {LEAST:g} s, got {budget!r}")
    return value


def shown(seconds: float) -> str:
    """A time as people say it."""
    if 0 < seconds < 1:
        return f"{seconds:.1g} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


class Clock:
    """Counts down a budget; what earlier calls spent of it counts too."""

    def __init__(self, total: float, spent: float = 0.0) -> None:
        self.total = total
        self._began = time.monotonic() - spent

    @property
    def spent(self) -> float:
        return time.monotonic() - self._began

    @property
    def left(self) -> float:
        return self.total - self.spent
