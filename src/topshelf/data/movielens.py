"""MovieLens 100K out of the package registry: the wheel of RecBole carries its ratings and titles.

The recipe of the paper, applied to that file, gives exactly the paper's train and test;
tests/data/test_movielens.py proves it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl

from topshelf.data.columns import canonical
from topshelf.data.download import fetch_wheel, verify
from topshelf.data.given import given_split, tab_separated
from topshelf.data.interactions import IdMap, Interactions
from topshelf.data.names import GUESS
from topshelf.data.notes import NO_NOTES
from topshelf.data.prepare import prepare
from topshelf.data.splits import Split, ratio_split
from topshelf.data.unpack import member_bytes, open_zip
from topshelf.errors import DataError

WHEEL = "recbole-1.2.1-py3-none-any.whl"
WHEEL_SHA256 = "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407"
FOLDER = "recbole/dataset_example/ml-100k"


def fetch_movielens_from_registry(cache: Path) -> Path:
    """The wheel that holds MovieLens 100K, fetched with pip into ``cache`` unless it is there."""
    return fetch_wheel("recbole==1.2.1", WHEEL, WHEEL_SHA256, Path(cache))


def read_wheel(wheel: Path) -> tuple[Split, list[str]]:
    """The paper's split of MovieLens 100K, and the titles of its items."""
    data, _ = prepare(Interactions.from_canonical(read_ratings(wheel)), min_rating=3, core=10)
    # Pairs alone: the data must not depend on which of the two files, this or the paper's, is there.
    pairs = replace(data, weight=None, timestamp=None, events=None, notes=NO_NOTES)
    train, test = ratio_split(pairs, test_fraction=0.2, seed=0)
    return given_split(train=train, test=test), read_titles(wheel, train.items)


def read_ratings(wheel: Path) -> pl.DataFrame:
    """All 100,000 ratings. Ids stay text, as in the paper's files: they are ordered 1, 10, 100, ..."""
    table = _table(wheel, "ml-100k.inter")
    numbers = (pl.col("rating:float").cast(pl.Float64), pl.col("timestamp:float").cast(pl.Int64))
    return canonical(table.with_columns(*numbers).lazy(), GUESS, f"{wheel} ml-100k.inter").frame


def read_titles(wheel: Path, items: IdMap) -> list[str]:
    """Title and year of each item by dense index; the id where the file has no title."""
    table = _table(wheel, "ml-100k.item")
    rows = table.select("item_id:token", "movie_title:token_seq", "release_year:token").iter_rows()
    titles = {id: f"{title} ({year})" if year else str(title) for id, title, year in rows if title}
    return [titles.get(str(id), str(id)) for id in items.values.to_list()]


def _table(wheel: Path, name: str) -> pl.DataFrame:
    verify(wheel, WHEEL_SHA256)
    with open_zip(wheel) as archive:
        raw = member_bytes(archive, f"{FOLDER}/{name}")
    if raw is None:
        raise DataError(f"{wheel} has no {FOLDER}/{name}. Delete it and fetch it again.")
    return tab_separated(raw, f"{wheel} {name}")
