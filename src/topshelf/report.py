"""A page of HTML with tables and plots, in a single file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from topshelf import charts
from topshelf.files import write_text

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { text-align: left; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid #8884; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
tr.best td { font-weight: 600; }
p.note { color: #777; font-size: .9rem; }
svg { max-width: 100%; height: auto; background: #fff; }
.wide svg { min-width: 36rem; }
.plot svg { display: block; width: 100%; max-width: 32rem; }
"""
_NUMBER = re.compile(r"[+-]?[\d,]*\.?\d+(e[+-]?\d+)?%?|[<–]")  # a dash stands for none
_WIDTH = 4.4  # inches of a plot that a phone shows whole: its letters stay as large as the text beside it


class Page:
    """A page built from top to bottom; all text is escaped."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._parts: list[str] = []

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def paragraph(self, text: str, *, note: bool = False) -> None:
        self._parts.append(f"<p{' class=note' if note else ''}>{escape(text)}</p>")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], *, best: int | None = None) -> None:
        """A table of texts; columns of numbers are right-aligned, and the row ``best`` is bold."""
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
        """A plot of points with their intervals; without matplotlib, a note on how to install it."""
        if not charts.can_plot():
            self.paragraph(charts.NO_PLOTS, note=True)
            return
        figure, (axes,) = charts.figure(_WIDTH, 0.6 + 0.45 * len(labels))
        for place, (centre, (low, high)) in enumerate(zip(centres, ends, strict=True)):
            axes.plot([low, high], [place, place], color=charts.BLUE, linewidth=2)
            axes.plot([centre], [place], "o", color=charts.RED)
            axes.annotate(f"{centre:.4f}", (centre, place), (0, 7), textcoords="offset points", ha="center", fontsize=9)
        axes.set_yticks(range(len(labels)), [charts.plain(label) for label in labels])
        axes.set_ylim(len(labels) - 0.4, -0.7)
        axes.set_xlabel(charts.plain(axis))
        self._parts.append(f"<div class=plot>{_inline(charts.render(figure))}</div>")

    def drawing(self, svg: bytes, *, alt: str = "") -> None:
        """An SVG drawing of :mod:`topshelf.charts`; on a narrow screen it is scrolled, not made too small to read.

        ``alt`` is what it shows, for those who cannot see it.
        """
        said = f' role=img aria-label="{escape(alt)}"' if alt else ""
        self._parts.append(f"<div class=wide{said}>{_inline(svg)}</div>")

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
    """A cell; a column's heading may break after the dot in a name of a setting, which is long, not in a number."""
    shown = re.sub(r"\.(?=[a-z])", ".<wbr>", escape(text)) if tag == "th" else escape(text)
    return f"<{tag}{' class=number' if number else ''}>{shown}</{tag}>"


def _inline(svg: bytes) -> str:
    """A drawing as part of a page; what precedes its first tag is dropped."""
    return svg[svg.index(b"<svg") :].decode()


def _are_numbers(texts: Sequence[str]) -> bool:
    """Whether all texts that are not empty are numbers, or intervals such as 0.1 to 0.2 or 0.15 (0.1 to 0.2)."""
    parts = [part for text in texts for part in re.split(r"[ ()±]+|\bto\b", text) if part]
    return bool(parts) and all(_NUMBER.fullmatch(part) for part in parts)
