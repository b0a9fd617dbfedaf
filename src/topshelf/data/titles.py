"""Titles of items from a table of the reader's own: CSV, TSV, Parquet, a frame, or a mapping of ids to titles."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from topshelf.data import readers
from topshelf.data.columns import attempt
from topshelf.data.frames import of_frame
from topshelf.data.ids import UNKNOWN, IdMap
from topshelf.data.layouts import UNQUOTED, fields
from topshelf.data.names import KNOWN_NAMES, is_known
from topshelf.errors import DataError

_SEPARATORS = ("\t", "|", ";", ",")
_TITLE_NAMES = "title itemtitle movietitle producttitle booktitle name itemname moviename productname titel bezeichnung"
_TITLES = {name: place for place, name in enumerate([*_TITLE_NAMES.split(), "description", "label"])}
_ITEMS = {name: place for place, name in enumerate(["id", *KNOWN_NAMES["item"].split()])}


def read_titles(source: Any, items: IdMap, known: list[str] | None = None) -> list[str]:
    """The title of every item, in the order of ``items``; an item without one keeps the known one, or is its id.

    ``source`` is a file, a polars or pandas frame, or a mapping. Of a table, the columns with the item and its title
    are found by their names; without a known name, the item's is the one that has most of the items, and the title's
    the first of the others. So a file of purchases serves too.
    """
    if isinstance(source, Mapping):
        table = pl.DataFrame({"item": [str(id) for id in source], "title": [str(title) for title in source.values()]})
        where = "titles"
    else:
        where = str(source) if isinstance(source, str | Path) else "titles"
        table = _columns(_table(source), items, where)
    table = table.drop_nulls().unique("item", keep="first", maintain_order=True)
    places = items.find(table["item"])
    if not (places != UNKNOWN).any():
        like = ", ".join(map(str, items.ids(range(min(3, len(items))))))
        got = ", ".join(table["item"].head(3).to_list()) or "no row"
        raise DataError(f"{where} must name items of the run, such as {like}; it has {table.height:,} others, {got}")
    titles = [str(id) for id in items.values.to_list()] if known is None else list(known)
    for place, title in zip(places.tolist(), table["title"].to_list(), strict=True):
        if place != UNKNOWN:
            titles[place] = title
    return titles


def _table(source: Any) -> pl.DataFrame:
    """Every column as text."""
    if isinstance(source, str | Path):
        return _file(Path(source))
    frame = of_frame(source, "titles")
    return frame.take(frame.names, None).select(pl.all().cast(pl.String, strict=False))


def _file(path: Path) -> pl.DataFrame:
    if not path.is_file():
        raise DataError(f"{path} does not exist, or is not a file. Give a CSV, TSV or Parquet file of titles.")
    if path.suffix.lower() in readers.PARQUET:
        frame = attempt(lambda: readers.scan_parquet(path).collect(), str(path))
        return frame.select(pl.all().cast(pl.String, strict=False))
    head = readers.head(path, str(path))
    separator = next((one for one in _SEPARATORS if one in head[0]), None)
    if separator is None:
        raise DataError(f"{path} must have two columns, an item and its title; its first line is {head[0][:80]!r}.")
    has_header = any(_title_place(name) is not None for name in fields(head[0], separator))
    options: dict[str, Any] = {"quote_char": None if separator in UNQUOTED else '"', "truncate_ragged_lines": True}
    return attempt(
        lambda: pl.read_csv(
            path, separator=separator, has_header=has_header, infer_schema=False, glob=False, **options
        ),
        str(path),
    )


def _columns(table: pl.DataFrame, items: IdMap, where: str) -> pl.DataFrame:
    """The item and its title."""
    table = table.select(pl.all().str.strip_chars())
    titles = {name: place for name in table.columns if (place := _title_place(name)) is not None}
    title = min(titles, key=titles.__getitem__) if titles else None
    item = _item_column(table.drop(title or []), items)
    title = title or next((name for name in table.columns if name != item), None)
    if item is None or title is None:
        raise DataError(f"{where} must have a column with the item and one with its title, got {table.columns}.")
    return table.select(item=item, title=title)


def _item_column(table: pl.DataFrame, items: IdMap) -> str | None:
    """The column that is named like it, if it has any of the items; else the one that has most of them."""
    found = {name: int((items.find(table[name].drop_nulls().unique()) != UNKNOWN).sum()) for name in table.columns}
    named = min((name for name in found if _plain(name) in _ITEMS), key=lambda name: _ITEMS[_plain(name)], default=None)
    return named if named is not None and found[named] else max(found, key=found.__getitem__, default=named)


def _title_place(name: str) -> int | None:
    """How well a name says title: as one of the known names, or by its end; None for others, and names of users."""
    plain = _plain(name)
    if plain in _TITLES or is_known(name, "user"):
        return _TITLES.get(plain)
    ends = [place for word, place in _TITLES.items() if plain.endswith(word)]
    return len(_TITLES) + min(ends) if ends else None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.partition(":")[0].lower())
