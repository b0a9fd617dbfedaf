"""Drawings of matplotlib as parts of a page: colours of the theme, short names, texts that the mouse shows."""

from __future__ import annotations

import re
from html import escape
from urllib.parse import unquote

from topshelf import charts

# Colours that a page draws in its own, so that plots can be read in dark mode; a file of SVG keeps them as they are.
_THEME = {colour: f"s{place}" for place, colour in enumerate(charts.COLOURS, start=1)}
_THEME |= dict.fromkeys(("#000000", "#262626"), "ink")
_THEME |= dict.fromkeys(("#777777", "#999999", "#808080"), "muted")
_THEME |= dict.fromkeys(("#aaaaaa", "#b0b0b0", "#bbbbbb", "#cccccc", "#dddddd"), "line")
_PAINT = re.compile(r"\b(fill|stroke): (#[0-9a-f]{6})\b")
_TIP = re.compile(rf'<g id="{charts.TIP}([^"]*)">')
_PROLOGUE = re.compile(r"<metadata>.*?</metadata>|<!--.*?-->", re.DOTALL)
_USED = re.compile(r'href="#([^"]+)"|url\(#([^)]+)\)')
_WIDTH = re.compile(r'<svg [^>]*?width="([\d.]+)pt"')


def inline(svg: bytes, alt: str, number: int = 0) -> str:
    """The drawing as an element with a text for readers who cannot see it; ``number`` is its place on the page."""
    text = svg[svg.index(b"<svg") :].decode()
    text = _PROLOGUE.sub("", text)
    text = _TIP.sub(lambda found: f'<g class="tip"><title>{escape(unquote(found[1]))}</title>', text)
    text = _PAINT.sub(_painted, _with_own_names(text, f"d{number}-"))
    return re.sub(r"\s*\n\s*", "\n", text).replace("<svg ", f'<svg role="img" aria-label="{escape(alt)}" ', 1)


def width(svg: bytes) -> float:
    """In pixels; 0 where the drawing does not say."""
    found = _WIDTH.search(svg[:2000].decode(errors="replace"))
    return float(found[1]) * 4 / 3 if found else 0.0


def _painted(found: re.Match[str]) -> str:
    what, colour = found.groups()
    if colour == "#ffffff":
        return f"{what}: var(--card)" if what == "fill" else found[0]  # white lines are drawn upon colours
    name = _THEME.get(colour)
    return found[0] if name is None else f"{what}: var(--{name})"


def _with_own_names(text: str, prefix: str) -> str:
    """Without ids that nothing refers to; the others are those of this drawing alone."""
    used = {one or other for one, other in _USED.findall(text)}
    text = re.sub(r' id="([^"]+)"', lambda m: f' id="{prefix}{m[1]}"' if m[1] in used else "", text)
    return _USED.sub(lambda m: f'href="#{prefix}{m[1]}"' if m[1] else f"url(#{prefix}{m[2]})", text)
