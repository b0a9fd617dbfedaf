"""A diagnosis as JSON that it can be made again from: its tables and plots, without the run.

``to_json`` of a diagnosis is for people and leaves out the values per user. This form has them: five digits each, a
list of numbers as one text, and at most 4000 of the scores and weights, which is what a density is drawn from.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from topshelf.diagnose.measures import PLOTTED, thinned
from topshelf.diagnose.run import Diagnosis
from topshelf.errors import CheckpointError


def stored(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis as plain values."""
    kept = replace(diagnosis, scores=_thinned(diagnosis.scores))
    if diagnosis.weights is not None:
        kept = replace(kept, weights=_thinned(diagnosis.weights))
    return dict(_plain(kept))


def restored(content: Any, where: str) -> Diagnosis:
    """The diagnosis of :func:`stored`; refused if it is anything else. ``where`` is what an error names."""
    try:
        found: Diagnosis = _made(Diagnosis, content)
        _check(found)
        return found
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} is damaged, or of another version: {error}; run its cell again") from None


def _check(found: Diagnosis) -> None:
    """Refuse what no plot could show: parts that are missing, or lists that do not belong together."""
    for name in ("gradients", "estimates", "timings", "bounds"):
        if not getattr(found, name):
            raise ValueError(f"{name} must not be empty")
    pairs = [(one.exact, one.estimate) for one in (*found.estimates, *([found.held] if found.held else []))]
    pairs += [(found.weights.distance, found.weights.values)] if found.weights else []
    for one in found.gradients:
        for part in (one.by_positive, one.by_user, one.by_pair):
            pairs.append((np.asarray(part.log10_edges[1:]), np.asarray(part.log10_shares)))
            if not part.curve or "5%" not in part.top:
                raise ValueError("gradients must have a curve and the share of the top 5%")
    if any(not len(first) or len(first) != len(second) for first, second in pairs):
        raise ValueError("it has an empty list, or lists of different lengths")
    if not all(len(values) for values in vars(found.scores).values()):
        raise ValueError("scores must not be empty")


def _thinned(part: Any) -> Any:
    """A dataclass with fewer values in each of its arrays."""
    arrays = {name: value for name, value in vars(part).items() if isinstance(value, np.ndarray)}
    return replace(part, **{name: thinned(value, PLOTTED) for name, value in arrays.items()})


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, np.ndarray) or (isinstance(value, list) and all(isinstance(one, float) for one in value)):
        return " ".join(f"{one:.5g}" for one in value) if len(value) else []
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _made(kind: Any, value: Any) -> Any:
    """A value of the type; a ValueError if it is not one."""
    origin = get_origin(kind)
    if isinstance(kind, UnionType):
        return None if value is None else _made(next(one for one in get_args(kind) if one is not type(None)), value)
    if is_dataclass(kind):
        return _dataclass(kind, value)
    if kind is np.ndarray or kind == list[float]:
        return _numbers(kind, value)
    if origin is list:
        return [_made(get_args(kind)[0], one) for one in _checked(list, value)]
    if origin is dict:
        return {_checked(str, name): _made(get_args(kind)[1], one) for name, one in _checked(dict, value).items()}
    if kind is float:
        return _finite(value)
    return _checked(kind, value)


def _dataclass(kind: Any, value: Any) -> Any:
    hints, given = get_type_hints(kind), _checked(dict, value)
    if set(given) != set(hints):
        wrong = sorted(set(given) ^ set(hints))
        raise ValueError(f"{kind.__name__} must have {', '.join(hints)}; {wrong[0]!r} is not as expected")
    return kind(**{name: _made(hint, given[name]) for name, hint in hints.items()})


def _numbers(kind: Any, value: Any) -> Any:
    numbers = [_finite(float(one)) for one in _checked(str, value).split()] if value != [] else []
    return numbers if kind == list[float] else np.asarray(numbers, dtype=np.float64)


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"must be a finite number, got {value!r}")
    return float(value)


def _checked(kind: Callable[..., Any], value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"must be of type {getattr(kind, '__name__', kind)}, got {value!r:.60}")
    return value
