"""Classes by name: those of the registries, and classes of other packages as ``"package.module:Class"``.

The description of a class, as plain values, comes from its docstring and its constructor only.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from topshelf.errors import CheckpointError, ConfigError, one_of

T = TypeVar("T")
# The values that tuning searches, by the name of a run's setting ("loss.tau").
SearchSpace = dict[str, tuple[float | int | str, ...]]

# The named parts of a docstring, in their order.
LABELS = ("Shapes", "Settings", "Derivation", "Use when", "Cost", "Paper", "Relations")
# Constructor arguments that depend on the data, not on the user.
GIVEN = (
    "self", "n_queries", "n_items", "n_features", "n_positives", "n_nodes", "is_directed", "reduction",
)  # fmt: skip
# A part begins on a new line, or after three spaces.
_BEGINNING = re.compile(rf"(?:^|\n| {{3}})(?=(?:{'|'.join(LABELS)}):\s)")
_MARKUP = re.compile(r"``(.+?)``|:\w+:`~?(.+?)`")


class Recorded:
    """Base of a run's components: an instance keeps its constructor's arguments, so it can replace a name."""

    def __new__(cls, *args: Any, **settings: Any) -> Any:
        if cls.__init__ is object.__init__ and (args or settings):
            raise TypeError(f"{cls.__name__}() takes no arguments, got {[*args, *settings]}")
        instance = super().__new__(cls)
        instance.__dict__["_constructed_with"] = (args, settings)
        return instance


def lookup(setting: str, name: str, registry: Mapping[str, type[T]], base: type[T]) -> type[T]:
    """The class that a setting names: one in the registry, or ``"package.module:Class"``, which is imported."""
    if ":" not in name:
        if name not in registry and "." in name:
            raise ConfigError(
                f"{setting} must be a name or 'package.module:Class', got {name!r}; put a colon before the class"
            )
        return registry[one_of(setting, name, registry)]
    module_name, _, path = name.partition(":")
    try:
        value: Any = importlib.import_module(module_name)
    except Exception as error:  # an imported module may raise anything
        raise ConfigError(
            f"{setting} is {name!r}, but {module_name} cannot be imported: {type(error).__name__}: {error}. Install "
            "it, or put its folder on PYTHONPATH"
        ) from error
    for part in path.split("."):
        value = getattr(value, part, None)
    if not (isinstance(value, type) and issubclass(value, base)):
        got = "nothing of that name" if value is None else repr(value)
        raise ConfigError(f"{setting} must name a subclass of topshelf's {base.__name__}, got {got} for {name!r}")
    return value


_ALLOWED: set[str] = set()


def allow(packages: Collection[str]) -> None:
    """Let run folders and studies name classes of these packages, for the rest of the process."""
    _ALLOWED.update([packages] if isinstance(packages, str) else packages)


def allowed(packages: Collection[str] = ()) -> tuple[str, ...]:
    """These packages, which are allowed from now on, and those that were before: for another process."""
    allow(packages)
    return tuple(sorted(_ALLOWED))


def check_allowed(names: Mapping[str, str], where: object) -> None:
    """Refuse classes in a file that the caller has neither imported nor allowed: importing runs their code.

    ``names`` are by setting. An allowed package includes its submodules.
    """
    for setting, name in names.items():
        module = name.partition(":")[0]
        package = module.partition(".")[0]
        is_allowed = any(module == one or module.startswith(f"{one}.") for one in _ALLOWED)
        if ":" in name and module not in sys.modules and not is_allowed:
            raise CheckpointError(
                f"{where} has {setting} = {name!r}, a class of another package, which is imported only if you allow "
                f"it. If you trust it: import {module} first, or allow its package (in Python "
                f"topshelf.load(path, allow=[{package!r}]), on the command line --allow {package})"
            )


def named(value: Any, registry: Mapping[str, type[T]], base: type[T], setting: str) -> dict[str, Any]:
    """A component as its name and settings, from a name, a class, or an instance.

    An instance gives its class and constructor arguments; learned values are not kept.
    """
    if isinstance(value, str):
        return {"name": value}
    cls = value if isinstance(value, type) else type(value)
    if not issubclass(cls, base):
        raise ConfigError(
            f"{setting} must be a name, settings with a name, or a class or an instance of {base.__name__}, "
            f"got {value!r}"
        )
    name = next((name for name, one in registry.items() if one is cls), f"{cls.__module__}:{cls.__qualname__}")
    if isinstance(value, type):
        return {"name": name}
    args, settings = value.__dict__["_constructed_with"]
    signature = inspect.signature(cls.__init__)
    bound = dict(signature.bind(value, *args, **settings).arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            bound |= bound.pop(parameter.name, {})
    if bound.get("reduction", "mean") != "mean":
        raise ConfigError(f"training takes the mean: {setting}.reduction must be 'mean', got {bound['reduction']!r}")
    return {"name": name, **{key: one for key, one in bound.items() if key not in GIVEN}}


def row(name: str, form: str, cls: type[Any], documented: object) -> dict[str, Any]:
    """A registered class as plain values; ``documented`` has its docstring."""
    text = documentation(documented)
    labelled = {label: plain(words) for paragraph in paragraphs(text) for label, words in parts(paragraph) if label}
    return {
        "name": name,
        "form": form,
        "summary": plain(summary(text)),
        "use_when": labelled.get("Use when", ""),
        "cost": labelled.get("Cost", ""),
        "paper": labelled.get("Paper", ""),
        "relations": labelled.get("Relations", ""),
        "about_settings": labelled.get("Settings", ""),
        "settings": settings(cls),
        "ranges": dict(cls.ranges),
    }


def documentation(documented: object) -> str:
    return inspect.getdoc(documented) or ""


def summary(text: str) -> str:
    """The first paragraph, on one line."""
    return " ".join(text.partition("\n\n")[0].split())


def paragraphs(text: str) -> list[str]:
    """All but the first; a formula is one that begins with ``.. math::``."""
    return re.split(r"\n\s*\n", text.partition("\n\n")[2].replace(".. math::\n\n", ".. math::\n"))


def parts(paragraph: str) -> list[tuple[str, str]]:
    """The named parts of a paragraph, (label, text on one line); the label is empty for text before the first."""
    labelled = []
    for text in _BEGINNING.split(paragraph):
        words = " ".join(text.split())
        label, _, rest = words.partition(": ")
        if words:
            labelled.append((label, rest) if label in LABELS else ("", words))
    return labelled


def settings(cls: type[Any]) -> dict[str, Any]:
    """The settings and their defaults; the constructor is the schema."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    named = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]  # object's are others
    return {parameter.name: parameter.default for parameter in named if parameter.name not in GIVEN}


def plain(text: str) -> str:
    """A line of reStructuredText without its markup, for a terminal."""
    return _MARKUP.sub(lambda match: match[1] or match[2], text)


def first_sentence(text: str) -> str:
    return re.split(r"(?<=\.) (?=[A-Z(])", text)[0]
