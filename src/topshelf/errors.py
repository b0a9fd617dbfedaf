"""The exception tree, and the few value checks every constructor uses.

TopshelfError            anything a user can fix; the command line prints it without a traceback
├── ConfigError          a setting is unknown, out of range, or does not fit another one (also a ValueError)
├── DataError            a file or table of interactions cannot be used
├── CheckpointError      a checkpoint or run folder cannot be read or written
└── TrainingError        training had to stop; the last good checkpoint is kept
    └── WorldError       another process of the run has ended or does not answer

TopshelfWarning          a note to the user, though nothing is wrong; the command line prints it as one
"""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable
from typing import TypeVar

Number = TypeVar("Number", int, float)
Choice = TypeVar("Choice", bound=str)

_LEAST_START = 4  # letters of a name from which its beginning is taken for it
_MOST_OFFERED = 3  # names with the same beginning that a message offers


class TopshelfError(Exception):
    """Base of every error that a user can fix."""


class ConfigError(TopshelfError, ValueError):
    """A setting is unknown, out of range, or does not fit another one."""


class DataError(TopshelfError):
    """A file or table of interactions cannot be used."""


class CheckpointError(TopshelfError):
    """A checkpoint or run folder cannot be read or written."""


class TopshelfWarning(UserWarning):
    """A note to the user, though nothing is wrong."""


class TrainingError(TopshelfError):
    """Training had to stop; the last good checkpoint is kept."""


class WorldError(TrainingError):
    """Another process of the run has ended or does not answer."""


def positive(name: str, value: Number) -> Number:
    if not value > 0:  # phrased so NaN fails too
        raise ConfigError(f"{name} must be > 0, got {value!r}")
    return _finite(name, value)


def whole(name: str, value: object) -> int:
    """A whole number of any type."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or float(value) % 1 != 0:  # NaN and inf too
        raise ConfigError(f"{name} must be a whole number, got {value!r}")
    return int(float(value))


def at_least(name: str, value: Number, least: Number) -> Number:
    if not value >= least:
        raise ConfigError(f"{name} must be >= {least}, got {value!r}")
    return _finite(name, value)


def at_most(name: str, value: Number, most: Number, why: str = "") -> Number:
    if not value <= most:
        raise ConfigError(f"{name} must be <= {most}{f' ({why})' if why else ''}, got {value!r}")
    return value


def one_of(name: str, value: Choice, choices: Iterable[str]) -> Choice:
    choices = list(choices)
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {value!r}{suggestion(value, choices)}")
    return value


def suggestion(value: object, choices: Iterable[str]) -> str:
    """The choice that a misspelt value is closest to, as the end of a message; empty where none is close."""
    close = closest(value, choices)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def closest(value: object, choices: Iterable[str]) -> list[str]:
    """The choices that a value may stand for: written in another way (SL@K), misspelt, or the first word only."""
    plain: dict[str, list[str]] = {}
    for choice in choices:
        plain.setdefault(_plain(choice), []).append(choice)
    wanted = _plain(str(value))
    found = [name for name in plain if name == wanted]
    if not found and len(wanted) >= _LEAST_START:
        found = [name for name in plain if name.startswith(wanted)][:_MOST_OFFERED]
    found = found or difflib.get_close_matches(wanted, plain, n=1, cutoff=0.75)
    return [choice for name in found for choice in plain[name]]


def _plain(name: str) -> str:
    return name.lower().replace("@", "at").replace("-", "").replace("_", "").replace(" ", "")


def _finite(name: str, value: Number) -> Number:
    if value == math.inf:
        raise ConfigError(f"{name} must be finite, got {value!r}")
    return value
