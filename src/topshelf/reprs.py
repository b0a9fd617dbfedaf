"""How results look when they are printed, or end a cell of a notebook: a few short lines, or a small table."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence, Sized
from dataclasses import fields, is_dataclass
from typing import Any

MOST = 900  # characters of a repr
_MOST_VALUE = 80  # of one value in it


def brief(instance: Any) -> str:
    """The repr of a dataclass: its fields by their sizes where they are large."""
    shown = (f"{field.name}={sketch(getattr(instance, field.name))}" for field in fields(instance) if field.repr)
    return cut(f"{type(instance).__name__}({', '.join(shown)})")


def brief_tuple(instance: Any) -> str:
    """The same of a named tuple."""
    shown = (f"{name}={sketch(value)}" for name, value in zip(instance._fields, instance, strict=True))
    return cut(f"{type(instance).__name__}({', '.join(shown)})")


def sketch(value: object) -> str:
    """A value in a few words: arrays and tables by type and shape, collections by their length."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if value is None or isinstance(value, bool | int | float | str):
        return cut(repr(value), _MOST_VALUE)
    if isinstance(value, dict | list | tuple | set | frozenset):
        text = repr(value) if _is_plain(value) else ""
        return text if 0 < len(text) <= _MOST_VALUE else f"{type(value).__name__} of {len(value):,}"
    if is_dataclass(value) or not isinstance(value, Sized):
        text = cut(repr(value), 2 * _MOST_VALUE) if type(value).__repr__ is not object.__repr__ else ""
        return text if 0 < len(text) <= _MOST_VALUE else f"{type(value).__name__}(...)"
    return f"{type(value).__name__} of {len(value):,}"


def lines(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """A repr of several lines: what it is, and below it facts with their names; those that are None are left out."""
    facts = [(name, str(value)) for name, value in rows if value is not None]
    width = max((len(name) for name, _ in facts), default=0)
    return cut("\n".join([title, *(f"  {name:<{width}}  {cut(value, 110)}" for name, value in facts)]))


def html_table(title: str, header: Sequence[object], rows: Iterable[Sequence[object]], note: str = "") -> str:
    """A table for a notebook, without scripts or styles of its own; every text is escaped."""

    def cells(values: Sequence[object], kind: str) -> str:
        return "".join(f"<{kind}>{html.escape(cut(str(value), 200))}</{kind}>" for value in values)

    head = f"<thead><tr>{cells(header, 'th')}</tr></thead>" if header else ""
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    below = f"<p>{html.escape(note)}</p>" if note else ""
    caption = f"<caption>{html.escape(title)}</caption>"
    return f"<div><table>{caption}{head}<tbody>{body}</tbody></table>{below}</div>"


def cut(text: str, most: int = MOST) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _is_plain(value: Any) -> bool:
    """Whether a collection is small and holds single values only."""
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    return len(value) <= 8 and all(part is None or isinstance(part, bool | int | float | str) for part in parts)


def by_cutoff(means: dict[str, float], most: int = 6) -> tuple[list[str], list[list[str]]]:
    """Means named ``metric@K`` as a table, a row per metric and a column per K; of many K the first ones."""
    pairs = [(*name.partition("@")[::2], value) for name, value in means.items()]
    cutoffs = sorted({k for _, k, _ in pairs if k}, key=int)[:most]
    found = {(metric, k): f"{value:.4f}" for metric, k, value in pairs}
    rows = [
        [metric, *(found.get((metric, k), "") for k in cutoffs or [""])] for metric in dict(pair[:2] for pair in pairs)
    ]
    wide = [row for row in rows if any(row[1:])]
    alone = [[metric, value, *[""] * (len(cutoffs) - 1)] for (metric, k), value in found.items() if not k and cutoffs]
    return ["", *(f"@{k}" for k in cutoffs or [""])], [*wide, *alone]


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table: the first column to the left, the others to the right."""
    table = [list(header), *map(list, rows)]
    widths = [max(len(row[place]) for row in table) for place in range(len(header))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(text.rjust(n) for text, n in zip(row[1:], widths[1:], strict=True))]
        ).rstrip()
        for row in table
    ]
