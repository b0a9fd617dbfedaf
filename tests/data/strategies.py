"""Small random interactions for the property tests."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import settings
from hypothesis import strategies as st

from topshelf.data import IdMap, Interactions

modest = settings(deadline=None, max_examples=60)


@st.composite
def interactions(draw, with_time: bool = False) -> Interactions:
    """At most 8 users and 10 items; some of them may have no interaction."""
    n_users, n_items = draw(st.integers(1, 8)), draw(st.integers(1, 10))
    pair = st.tuples(st.integers(0, n_users - 1), st.integers(0, n_items - 1))
    pairs = draw(st.lists(pair, min_size=1, max_size=50, unique=True))
    rows, cols = np.array(pairs).T
    size = len(pairs)
    times = np.array(draw(st.lists(st.integers(0, 12), min_size=size, max_size=size))) if with_time else None
    return Interactions.from_indices(rows, cols, IdMap.range(n_users), IdMap.range(n_items), timestamp=times)


def pairs_of(data: Interactions) -> set[tuple[int, int]]:
    return set(zip(data.rows().tolist(), data.indices.tolist(), strict=True))


@st.composite
def event_rows(draw) -> list[tuple[int, int, int, float]]:
    """Rows of user, item, time and rating as a file may hold them: in any order, with repeats and equal times."""
    row = st.tuples(st.integers(0, 5), st.integers(0, 6), st.integers(0, 12), st.sampled_from([1.0, 2.5, 5.0]))
    return draw(st.lists(row, min_size=1, max_size=60))


def table_of(rows: list[tuple[int, int, int, float]], *columns: str) -> pl.DataFrame:
    frame = pl.DataFrame(rows, schema=["user", "item", "timestamp", "rating"], orient="row")
    return frame.select("user", "item", *columns)
