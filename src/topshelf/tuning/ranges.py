"""What is searched: the range of every setting, from the loss, the model and the user, and the config of a point."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from topshelf import registry
from topshelf.config import BaseConfig, make_config, merged, overrides
from topshelf.errors import ConfigError
from topshelf.registry import SearchSpace
from topshelf.training.build import loss_class, model_class, resolve

SECTIONS = ("model", "loss", "negatives", "threshold", "train")
# These change the budget, the measure or the machine, not the method.
NOT_SEARCHED = {
    f"train.{name}"
    for name in ("epochs", "validate_every", "patience", "refit", "checkpoint_seconds", "device", "workspace_mib")
}
FORMS = "name=value,value,... or name=low:high[:log]"


@dataclass(frozen=True)
class Choice:
    """A list of values; numbers are kept in order."""

    values: tuple[Any, ...]

    @property
    def is_ordered(self) -> bool:
        return all(_is_number(value) for value in self.values)

    def __contains__(self, value: Any) -> bool:
        return value in self.values

    def including(self, value: Any) -> Choice:
        values = self.values if value in self.values else (*self.values, value)
        return Choice(tuple(sorted(values)) if all(_is_number(one) for one in values) else values)

    def __str__(self) -> str:
        return ", ".join(text(value) for value in self.values)


@dataclass(frozen=True)
class Interval:
    """The numbers from ``low`` to ``high``, on a linear or logarithmic scale; whole numbers only if ``whole``."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigError(f"a range must have low < high, got {self.low!r}:{self.high!r}")
        if self.log and not self.low > 0:
            raise ConfigError(f"a logarithmic range must have low > 0, got {self.low!r}:{self.high!r}")

    def __contains__(self, value: Any) -> bool:
        return _is_number(value) and self.low <= value <= self.high

    def including(self, value: Any) -> Interval:
        if not _is_number(value):
            raise ConfigError(
                f"a range of numbers must hold the default, which is {value!r}; set a number as the default, or give a "
                "list of values"
            )
        if self.log and not value > 0:
            raise ConfigError(
                f"a logarithmic range cannot hold the default, which is {value!r}; set another default, or give a "
                "list of values"
            )
        return Interval(min(self.low, value), max(self.high, value), self.log, self.whole)

    def __str__(self) -> str:
        return f"{text(self.low)} to {text(self.high)}{', logarithmic' if self.log else ''}"


Range = Choice | Interval


@dataclass(frozen=True)
class Space:
    """A config and the ranges of some of its settings. Every range holds the config's value, the default."""

    base: BaseConfig
    ranges: dict[str, Range]
    default: dict[str, Any]

    def config(self, settings: Mapping[str, Any]) -> BaseConfig:
        """The resolved config with these settings."""
        return applied(self.base, settings)

    @property
    def size(self) -> float:
        """The number of points; infinite with an interval."""
        return math.prod(
            len(range_.values) if isinstance(range_, Choice) else math.inf for range_ in self.ranges.values()
        )

    def grid(self, seed: int) -> Iterator[dict[str, Any]]:
        """Every point once: the default, then the others in the seed's order."""
        names, lists = list(self.ranges), []
        for name, range_ in self.ranges.items():
            if not isinstance(range_, Choice):
                raise ConfigError(f"a grid needs lists of values, got {name}={range_}; give {name}=value,value,...")
            lists.append(range_.values)
        yield dict(self.default)
        shape = tuple(map(len, lists))
        for place in _order(math.prod(shape), seed):
            point = {
                name: values[i] for name, values, i in zip(names, lists, np.unravel_index(place, shape), strict=True)
            }
            if point != self.default:
                yield point


def space(config: BaseConfig, given: Mapping[str, Any] | None = None) -> Space:
    """The space of a config: the ranges of its model and loss, overridden by ``given``.

    A range is a :class:`Choice`, an :class:`Interval`, a sequence of values, or a text such as "0.1,0.2" or
    "1e-3:0.1:log"; None excludes a setting from the search.
    """
    known = settings_of(resolve(config))
    chosen: dict[str, Range | None] = {name: Choice(tuple(values)) for name, values in default_ranges(config).items()}
    for name, wanted in (given or {}).items():
        if name not in known:
            raise ConfigError(f"{name} cannot be searched here; accepted: {', '.join(known)}")
        chosen[name] = None if wanted is None else _checked(config, name, wanted, known[name])
    ranges = {name: range_.including(known[name]) for name, range_ in chosen.items() if range_ is not None}
    ranges = {name: range_ for name, range_ in ranges.items() if range_ != Choice((known[name],))}
    if not ranges:
        method = config.model.name if is_closed_form(config) else f"{config.model.name} with {config.loss.name}"
        remedy = f"; give a range: {FORMS}, of {', '.join(known)}" if known else ": it has no settings"
        raise ConfigError(f"{method} has nothing to search{remedy}")
    return Space(config, ranges, {name: known[name] for name in ranges})


def default_ranges(config: BaseConfig) -> SearchSpace:
    """The ranges that the loss and the model define; the model's, if both define one."""
    config = resolve(config)  # refuses unknown names
    model: SearchSpace = dict(model_class(config).searched(config.model.settings))
    return model if is_closed_form(config) else {**loss_class(config).ranges, **model}


def settings_of(config: BaseConfig) -> dict[str, Any]:
    """The settings that may be searched, with the config's values; a closed-form model has only its own settings."""
    sections = ("model",) if is_closed_form(config) else SECTIONS
    values = config.model_dump()
    for section, cls in (("model", model_class(config)), ("loss", loss_class(config))):
        unset = {name: None for name, value in registry.settings(cls).items() if value is None}  # not in the config
        values[section] = {**unset, **values[section]}
    return {
        f"{section}.{key}": value
        for section in sections
        if section in values
        for key, value in values[section].items()
        if key != "name" and f"{section}.{key}" not in NOT_SEARCHED
    }


def is_closed_form(config: BaseConfig) -> bool:
    return model_class(config).is_closed_form


def applied(config: BaseConfig, settings: Mapping[str, Any]) -> BaseConfig:
    """The resolved config with settings given by their dotted names."""
    return resolve(assigned(config, settings))


def assigned(config: BaseConfig, settings: Mapping[str, Any]) -> BaseConfig:
    """The same, not resolved: no class that it names is imported."""
    nested: dict[str, Any] = {}
    for name, value in settings.items():
        section, _, key = name.partition(".")
        nested.setdefault(section, {})[key] = value
    return make_config(merged(config.model_dump(), nested))


def parse(assignments: Sequence[str]) -> dict[str, str]:
    """Ranges by name from ``name=...`` texts."""
    result = {}
    for assignment in assignments:
        name, equals, wanted = (part.strip() for part in assignment.partition("="))
        if not equals or not name:
            raise ConfigError(f"--range takes {FORMS}, such as loss.tau=0.1,0.2; got {assignment!r}")
        result[name] = wanted
    return result


def text(value: Any) -> str:
    """A value as a user writes it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _checked(config: BaseConfig, name: str, wanted: Any, default: Any) -> Range:
    """A range from the user; every value of it (both ends of an interval) is tried on the config."""
    if isinstance(wanted, Iterable) and not isinstance(wanted, str):
        wanted = list(wanted)
    try:
        range_ = _range(wanted, default)
        ends = range_.values if isinstance(range_, Choice) else (range_.low, range_.high)
        accepted = [settings_of(applied(config, {name: end}))[name] for end in ends]
        if isinstance(range_, Choice):
            if any(isinstance(value, list | tuple) for value in accepted):
                raise ConfigError("a setting that is a list cannot be searched; fix it with --set")
            range_ = Choice(tuple(dict.fromkeys(accepted)))
        range_.including(default)
        return range_
    except ConfigError as error:
        values = wanted.values if isinstance(wanted, Choice) else wanted
        shown = ",".join(map(str, values)) if isinstance(values, list | tuple) else values
        raise ConfigError(f"range {name}={shown}: {error}") from None


def _range(wanted: Any, default: Any) -> Range:
    if isinstance(wanted, Interval):
        return _whole(wanted) if isinstance(default, int) and not isinstance(default, bool) else wanted
    if isinstance(wanted, Choice):
        return wanted
    if isinstance(wanted, str):
        if ":" in wanted:
            return _interval(wanted, default)
        wanted = [overrides([f"value={part}"])["value"] for part in wanted.split(",") if part.strip()]
    if not isinstance(wanted, list):
        raise ConfigError(f"a range must be a list of values, an Interval or a text, got {type(wanted).__name__}")
    if not wanted:
        raise ConfigError(f"it is empty; give {FORMS}")
    return Choice(tuple(wanted))


def _interval(wanted: str, default: Any) -> Interval:
    ends, log = wanted.split(":"), False
    if len(ends) == 3 and ends[2].strip() == "log":
        ends, log = ends[:2], True
    try:
        low, high = (float(end) for end in ends)
    except ValueError:
        raise ConfigError(f"a range of numbers is low:high or low:high:log, got {wanted!r}") from None
    if default is not None and not _is_number(default):
        raise ConfigError(f"the setting is not a number (it is {default!r}); give {FORMS.partition(' or ')[0]}")
    whole = isinstance(default, int) or (default is None and all(end.strip().isdigit() for end in ends))
    return _whole(Interval(low, high, log)) if whole else Interval(low, high, log)


def _whole(wanted: Interval) -> Interval:
    if not (float(wanted.low).is_integer() and float(wanted.high).is_integer()):
        raise ConfigError(f"the setting is a whole number, got {text(wanted.low)}:{text(wanted.high)}")
    return Interval(int(wanted.low), int(wanted.high), wanted.log, whole=True)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _order(n: int, seed: int) -> Iterator[int]:
    """0 to n - 1 in the seed's order, drawn one by one: a grid can be far larger than the budget."""
    generator, seen = random.Random(seed), set[int]()
    while len(seen) < n:
        place = generator.randrange(n)
        if place not in seen:
            seen.add(place)
            yield place
