"""The page: built from top to bottom, all text escaped."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path

from topshelf import charts
from topshelf.files import write_text
from topshelf.page.drawings import inline, width

_NUMBER = re.compile(r"[+-]?[\d,]*\.?\d+(e[+-]?\d+)?%?|[<–]")  # a dash stands for none
WIDTH = 4.4  # inches of a plot that a phone shows whole: its letters stay as large as the text beside it
_WHOLE_ON_PHONES = 500  # pixels: a wider plot is scrolled there, in a box of its own
_SHORT = 20  # letters of a row's name that is not broken over lines
_NAVIGATED = 3  # sections from which a page has a list of them


@dataclass(frozen=True)
class Cell:
    """A cell of a table: a text, a small one below it, and whether it is the best of its column, or a hit."""

    text: str
    note: str = ""
    is_best: bool = False
    hit: str = ""

    def html(self) -> str:
        hit = f" <span class=hit>{escape(self.hit)}</span>" if self.hit else ""
        return escape(self.text) + hit + (f"<small>{escape(self.note)}</small>" if self.note else "")


Texts = Sequence[str | Cell]


class Page:
    """A page built from top to bottom; all text is escaped. ``lead`` says below the title what it is."""

    def __init__(self, title: str, *, lead: str = "", footer: str = "") -> None:
        self.title, self.lead, self.footer = title, lead, footer
        self._sections: list[tuple[str, str, list[str]]] = [("", "", [])]  # prefix, title, content
        self._n_drawings = 0
        self._about = title  # the last title: what a table or drawing without words of its own is about
        self._prefix = ""

    def heading(self, text: str) -> None:
        """The title of a new section."""
        self._sections.append((self._prefix, text, []))
        self._about = _titled(self._prefix, text)

    @contextmanager
    def named(self, prefix: str) -> Iterator[None]:
        """Titles of the sections inside begin with this, where a page has the same sections on several things."""
        before, self._prefix = self._prefix, prefix
        yield
        self._prefix = before

    def subheading(self, text: str) -> None:
        self._add(f"<h3>{escape(text)}</h3>")
        self._about = text

    def paragraph(self, text: str, *, note: bool = False, warning: bool = False) -> None:
        kind = " class=note" if note else " class=warning" if warning else ""
        self._add(f"<p{kind}>{escape(text)}</p>")

    def tiles(self, facts: Sequence[tuple[str, str | Cell]]) -> None:
        """A few numbers to see first, each with its name."""
        parts = (f"<div><dt>{escape(name)}</dt><dd>{_cell(value).html()}</dd></div>" for name, value in facts)
        self._add(f"<dl>{''.join(parts)}</dl>")

    def chips(self, texts: Sequence[str]) -> None:
        """Short texts beside each other."""
        self._add(f"<ul class=chips>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>")

    def command(self, text: str) -> None:
        """A command to type; a button copies it."""
        self._add(f"<div class=command><pre><code>{escape(text)}</code></pre></div>")

    @contextmanager
    def details(self, summary: str, *, is_open: bool = False) -> Iterator[None]:
        """What is added inside can be opened and closed."""
        self._add(f"<details{' open' if is_open else ''}><summary>{escape(summary)}</summary>")
        yield
        self._add("</details>")

    @contextmanager
    def beside(self) -> Iterator[None]:
        """What is added inside stands side by side where there is room."""
        self._add("<div class=beside>")
        yield
        self._add("</div>")

    def table(
        self,
        header: Sequence[str],
        rows: Sequence[Texts],
        *,
        best: int | Collection[int] | None = None,
        caption: str = "",
        numbers: bool = True,
        sortable: bool = True,
    ) -> None:
        """A table of texts; columns of numbers are right-aligned, and the row (or rows) ``best`` is bold.

        Without ``numbers`` no column is one of numbers, whatever is in it, such as ids; a table whose order
        says something is not ``sortable``.
        Without a caption, programs that read the page aloud are told the title above.
        """
        bold = {best} if isinstance(best, int) else set(best or ())
        cells = [[_cell(text) for text in row] for row in rows]
        is_number = [numbers and _are_numbers([row[at].text for row in cells]) for at in range(len(header))]
        head = "".join(_head(text, number) for text, number in zip(header, is_number, strict=True))
        body = []
        for place, row in enumerate(cells):
            places = zip(row, is_number, range(len(header)), strict=True)
            written = "".join(_data(cell, number, is_head=not (column or number)) for cell, number, column in places)
            body.append(f"<tr{' class=best' if place in bold else ''}>{written}</tr>")
        said = caption or self._about
        titled = f"<caption>{escape(said)}</caption>"  # read aloud; what is seen does not scroll with the table
        seen = f"<p class=caption aria-hidden=true>{escape(caption)}</p>" if caption else ""
        kinds = " ".join(kind for kind, holds in (("ordered", not sortable), ("texts", not numbers)) if holds)
        kind = f' class="{kinds}"' if kinds else ""
        table = f"<table{kind}>{titled}<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
        box = f'<div class=wide role=group tabindex=0 aria-label="{escape(said)}">{table}</div>'
        self._add(f"<div class=tabled>{seen}{box}</div>" if seen else box)

    def intervals(
        self, labels: Sequence[str], centres: Sequence[float], ends: Sequence[tuple[float, float]], axis: str
    ) -> None:
        """A plot of points with their intervals; without matplotlib, a note on how to install it."""
        if not charts.can_plot():
            self.paragraph(charts.NO_PLOTS, note=True)
            return
        figure, (axes,) = charts.figure(WIDTH, 0.6 + 0.45 * len(labels))
        texts = []
        for place, (label, centre, (low, high)) in enumerate(zip(labels, centres, ends, strict=True)):
            axes.plot([low, high], [place, place], color=charts.BLUE, linewidth=2)
            (point,) = axes.plot([centre], [place], "o", color=charts.RED)
            axes.annotate(f"{centre:.4f}", (centre, place), (0, 7), textcoords="offset points", ha="center", fontsize=9)
            texts.append(f"{label} {centre:.4f} ({low:.4f} to {high:.4f})")
            charts.tip(point, texts[-1])
        axes.set_yticks(range(len(labels)), [charts.plain(label) for label in labels])
        axes.set_ylim(len(labels) - 0.4, -0.7)
        axes.set_xlabel(charts.plain(axis))
        self.drawing(charts.render(figure), f"{axis}: {'; '.join(texts)}")

    def drawing(self, svg: bytes, alt: str = "") -> None:
        """An SVG drawing of :mod:`topshelf.charts`, with what it shows in words."""
        self.drawings([(svg, alt)])

    def drawings(self, several: Sequence[tuple[bytes, str]]) -> None:
        """Drawings beside each other. On a narrow screen a wide one is scrolled, not made too small to read."""
        parts = []
        for svg, alt in several:
            self._n_drawings += 1
            said = alt or self._about
            kind = " class=wide tabindex=0" if width(svg) > _WHOLE_ON_PHONES else ""
            parts.append(f"<figure{kind}>{inline(svg, said, self._n_drawings)}</figure>")
        self._add(f"<div class=plots>{''.join(parts)}</div>" if len(parts) > 1 else "".join(parts))

    def html(self) -> str:
        style, script = (_part(name) for name in ("style.css", "script.js"))
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n<title>{escape(self.title)}</title>\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">\n'
            f'<link rel="icon" href="data:,">\n<style>{style}</style></head>\n'
            f"<body><a class=skip href=#content>Skip to the content</a>\n<header><h1>{escape(self.title)}</h1>"
            f"{f'<p class=lead>{escape(self.lead)}</p>' if self.lead else ''}</header>\n{self._navigation()}"
            f"<main id=content>\n{self._body()}\n</main>\n"
            f"{f'<footer><p>{escape(self.footer)}</p></footer>' if self.footer else ''}\n"
            f"<script>{script}</script></body></html>\n"
        )

    def write(self, path: str | Path) -> None:
        write_text(path, self.html())

    def _add(self, html: str) -> None:
        self._sections[-1][2].append(html)

    def _navigation(self) -> str:
        """Links to the sections, a list for each prefix."""
        lists: dict[str, list[str]] = {}
        titled = [(prefix, title) for prefix, title, _ in self._sections if title]
        if len(titled) < _NAVIGATED:
            return ""
        for at, (prefix, title) in enumerate(titled, start=1):
            lists.setdefault(prefix, []).append(f'<li><a href="#part-{at}">{escape(title)}</a></li>')
        heads = {prefix: f"<li><b>{escape(prefix)}</b></li>" if prefix else "" for prefix in lists}
        written = "".join(f"<ul>{heads[prefix]}{''.join(links)}</ul>" for prefix, links in lists.items())
        return f'<nav aria-label="Contents">{written}</nav>\n'

    def _body(self) -> str:
        written = []
        for at, (prefix, title, parts) in enumerate(self._sections):
            content = "\n".join(parts)
            if title:
                name = escape(_titled(prefix, title))
                written.append(f'<section id=part-{at} aria-label="{name}"><h2>{name}</h2>\n{content}</section>')
            elif content:
                written.append(f"<section>{content}</section>")
        return "\n".join(written)


def _titled(prefix: str, title: str) -> str:
    return f"{prefix}: {title}" if prefix else title


def _part(name: str) -> str:
    return (resources.files("topshelf.page") / name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    """Nothing is loaded, and no script runs but the page's own: the browser enforces it."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'; base-uri 'none'; "
        "form-action 'none'"
    )


def _cell(given: str | Cell) -> Cell:
    return given if isinstance(given, Cell) else Cell(given)


def _head(text: str, number: bool) -> str:
    """A column's heading may break after the dot in a name of a setting, which is long, not in a number."""
    shown = re.sub(r"\.(?=[a-z])", ".<wbr>", escape(text))
    if not text:
        return "<td></td>"  # an empty heading says nothing to those who hear it
    return f"<th scope=col{' class=number' if number else ''}>{shown}</th>"


def _data(cell: Cell, number: bool, *, is_head: bool) -> str:
    is_short = is_head and len(cell.text) <= _SHORT
    marks = (("number", number), ("best", cell.is_best), ("short", is_short))
    kinds = " ".join(kind for kind, holds in marks if holds)
    written = f' class="{kinds}"' if kinds else ""
    return f"<th scope=row{written}>{cell.html()}</th>" if is_head else f"<td{written}>{cell.html()}</td>"


def _are_numbers(texts: Sequence[str]) -> bool:
    """Whether all texts that are not empty are numbers, or intervals such as 0.1 to 0.2 or 0.15 (0.1 to 0.2)."""
    parts = [part for text in texts for part in re.split(r"[ ()±]+|\bto\b", text) if part]
    return bool(parts) and all(_NUMBER.fullmatch(part) for part in parts)
