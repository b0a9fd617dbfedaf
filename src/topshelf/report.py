"""A page of HTML with tables and plots, in one file that can be mailed."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from topshelf.files import write_text

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { text-align: left; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid #8884; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
tr.best td { font-weight: 600; }
p.note { color: #777; font-size: .9rem; }
svg { max-width: 100%; height: auto; background: #fff; }
"""
_NUMBER = re.compile(r"[+-]?[\d,]*\.?\d+(e[+-]?\d+)?")


class Page:
    """Parts put one under another; everything that comes from data is escaped."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._parts: list[str] = []

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def paragraph(self, text: str, *, note: bool = False) -> None:
        self._parts.append(f"<p{' class=note' if note else ''}>{escape(text)}</p>")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], *, best: int | None = None) -> None:
        """Rows of texts; columns of numbers are set to the right, the row ``best`` is bold."""
        is_number = [_are_numbers([row[column] for row in rows]) for column in range(len(header))]
        head = "".join(_cell("th", text, number) for text, number in zip(header, is_number, strict=True))
        body = [
            f"<tr{' class=best' if place == best else ''}>"
            + "".join(_cell("td", text, number) for text, number in zip(row, is_number, strict=True))
            + "</tr>"
            for place, row in enumerate(rows)
        ]
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
        self._parts.append(f"<div class=wide>{table}</div>")

    def intervals(
        self, labels: Sequence[str], centres: Sequence[float], ends: Sequence[tuple[float, float]], axis: str
    ) -> None:
        """A plot of points with their intervals. Without matplotlib the page says how to get it."""
        try:
            from matplotlib.figure import Figure  # not pyplot, whose backend is the caller's
        except ImportError:
            self.paragraph("For a plot here: pip install 'topshelf[plot]'.", note=True)
            return
        figure = Figure(figsize=(7, 0.6 + 0.5 * len(labels)), layout="constrained")
        axes = figure.subplots()
        for place, (centre, (low, high)) in enumerate(zip(centres, ends, strict=True)):
            axes.plot([low, high], [place, place], color="#446", linewidth=2)
            axes.plot([centre], [place], "o", color="#c33")
            axes.annotate(f"{centre:.4f}", (centre, place), (0, 7), textcoords="offset points", ha="center", fontsize=9)
        axes.set_yticks(range(len(labels)), [_plain(label) for label in labels])
        axes.set_ylim(len(labels) - 0.4, -0.7)
        axes.set_xlabel(_plain(axis))
        axes.spines[["top", "right"]].set_visible(False)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg")
        self.drawing(drawn.getvalue())

    def drawing(self, svg: str) -> None:
        """A drawing of our own making, as SVG; what comes before its first tag is left out."""
        self._parts.append(svg[svg.index("<svg") :])

    def html(self) -> str:
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n<title>{escape(self.title)}</title>\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<style>{_STYLE}</style></head>\n<body><h1>{escape(self.title)}</h1>\n"
            + "\n".join(self._parts)
            + "\n</body></html>\n"
        )

    def write(self, path: str | Path) -> None:
        write_text(path, self.html())


def _cell(tag: str, text: str, number: bool) -> str:
    """A cell; the head of a column may break after a dot, for the names of settings are long."""
    shown = escape(text).replace(".", ".<wbr>") if tag == "th" else escape(text)
    return f"<{tag}{' class=number' if number else ''}>{shown}</{tag}>"


def _plain(text: str) -> str:
    """Text that matplotlib draws as it is: between dollars it would read a formula."""
    return text.replace("$", r"\$")


def _are_numbers(texts: Sequence[str]) -> bool:
    """Whether a column holds numbers and nothing else but gaps."""
    filled = [text for text in texts if text]
    return bool(filled) and all(_NUMBER.fullmatch(text) for text in filled)
