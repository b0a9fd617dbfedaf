"""Helpers for every plot: figures, colours, legends, files. matplotlib is an extra, imported when a figure is made."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can tell apart; dashes tell lines apart in grey.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#333333")
BLUE, RED, GREEN = COLOURS[:3]
GREY = "#999999"
DASHES = ("-", "--", "-.", ":")
TIP = "tip:"  # how the name of an element begins that has a text for the mouse
NO_PLOTS = "No plots: matplotlib is not installed (pip install 'topshelf[plot]')."


def can_plot() -> bool:
    return find_spec("matplotlib") is not None


def figure(width: float, height: float, panels: int = 1, *, rows: int = 1) -> tuple[Figure, list[Any]]:
    """A figure and its axes, side by side, in ``rows`` from left to right."""
    from matplotlib.figure import Figure  # not pyplot, which would choose a backend for the caller

    drawing = Figure(figsize=(width, height))
    drawing.set_layout_engine("constrained", hspace=0.08)  # between the rows
    grid = list(drawing.subplots(rows, -(-panels // rows), squeeze=False).flat)
    axes = grid[:panels]
    for unused in grid[panels:]:
        unused.remove()
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
    return drawing, axes


def render(drawing: Figure, kind: str = "svg", *, title: str | None = None) -> bytes:
    """The figure as a file, without a date: the same figure gives the same file. ``title`` says what an SVG shows."""
    from matplotlib import rc_context

    content, described = io.BytesIO(), {"Date": None, **({} if title is None else {"Title": title})}
    with rc_context({"svg.hashsalt": "topshelf"}):  # else the names of clip paths are random
        drawing.savefig(content, format=kind, dpi=130, metadata=described if kind == "svg" else None)
    return content.getvalue()


def bars(axes: Any, labels: Sequence[str], values: Sequence[float], texts: Sequence[str]) -> None:
    """Horizontal bars from top to bottom, each followed by its text."""
    axes.barh(range(len(values)), values, color=BLUE, height=0.6)
    for place, (value, text) in enumerate(zip(values, texts, strict=True)):
        axes.annotate(text, (value, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(range(len(labels)), [plain(label) for label in labels])
    axes.invert_yaxis()


def legend_above(axes: Any, columns: int) -> None:
    """A legend above the axes, where it hides nothing."""
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, frameon=False, fontsize=9)


def whole_numbers(axis: Any) -> None:
    axis.get_major_locator().set_params(integer=True)


def percent(*axes: Any) -> None:
    for axis in axes:
        axis.set_major_formatter(lambda value, _: f"{100 * value:g}%")


def tip(artist: Any, text: str) -> None:
    """A text that a page shows where the mouse is over the artist (:mod:`topshelf.page`)."""
    artist.set_gid(TIP + quote(text))
    artist.set_in_layout(False)  # points lie inside their axes, and measuring hundreds of them takes seconds


def line(place: int, label: str) -> dict[str, Any]:
    """The style of the line at this place of a legend."""
    style = {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[place % len(DASHES)], "linewidth": 1.8}
    return {**style, "label": plain(label)}


def milliseconds(seconds: float) -> str:
    """A time of a step as a label."""
    value = 1000 * seconds
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def plain(text: str) -> str:
    """Text that matplotlib draws as it is: it would read a formula between dollar signs."""
    return text.replace("$", r"\$")
