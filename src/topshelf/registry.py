"""What a class of a registry says of itself, as plain values: the docstring and the constructor are the only source."""

from __future__ import annotations

import inspect
import re
from typing import Any

# The named parts of a docstring, in the order of house style.
LABELS = ("Shapes", "Settings", "Derivation", "Use when", "Cost", "Paper", "Relations")
# Constructor arguments that the data decides, not the user.
GIVEN = ("self", "n_queries", "n_items", "n_positives", "reduction")
# A part begins on a line of its own, or after three spaces.
_BEGINNING = re.compile(rf"(?:^|\n| {{3}})(?=(?:{'|'.join(LABELS)}):\s)")
# The values that a search tries by default, by the dotted name of the setting: "loss.tau": (0.1, 0.2).
SearchSpace = dict[str, tuple[float | int | str, ...]]
_MARKUP = re.compile(r"``(.+?)``|:\w+:`~?(.+?)`")


def row(name: str, form: str, cls: type[Any], documented: object) -> dict[str, Any]:
    """A registered class as plain values; ``documented`` has its documentation."""
    text = documentation(documented)
    told = {label: plain(words) for paragraph in paragraphs(text) for label, words in parts(paragraph) if label}
    return {
        "name": name,
        "form": form,
        "summary": plain(summary(text)),
        "use_when": told.get("Use when", ""),
        "cost": told.get("Cost", ""),
        "paper": told.get("Paper", ""),
        "relations": told.get("Relations", ""),
        "about_settings": told.get("Settings", ""),
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
    found = []
    for text in _BEGINNING.split(paragraph):
        words = " ".join(text.split())
        label, _, rest = words.partition(": ")
        if words:
            found.append((label, rest) if label in LABELS else ("", words))
    return found


def settings(cls: type[Any]) -> dict[str, Any]:
    """The settings and their defaults; the constructor is the schema."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.name not in GIVEN}


def plain(text: str) -> str:
    """A line of reStructuredText without its markup, for a terminal."""
    return _MARKUP.sub(lambda found: found[1] or found[2], text)


def first_sentence(text: str) -> str:
    return re.split(r"(?<=\.) (?=[A-Z(])", text)[0]
