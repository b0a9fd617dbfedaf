"""A larger dataset with the structure of a real one: a fractal expansion, as in arXiv 1901.08910, made block by block.

The Kronecker product of a small matrix with the interactions puts a copy of the data into every block (i, j), as often
as the small matrix says, and dropout makes each copy another one. User (i, u) takes item (j, v) only if u took v, so
popularity and what is taken together stay real inside a block; the small matrix is made of the data's own singular
vectors, so they do between blocks too. Unlike in the paper its rows and columns are balanced: the counts of users and
items keep the shape that they have in the data, and do not become more uneven with each expansion.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy import sparse
from scipy.sparse.linalg import svds

from topshelf import files
from topshelf.data.datasets import read_source
from topshelf.data.interactions import Interactions
from topshelf.data.sampling import draw_distinct
from topshelf.errors import ConfigError, at_least, whole

ROWS = 1 << 20  # interactions of a part, about
RANK = 32  # singular vectors that the small matrix is made of
FLOOR = 0.05  # of the small matrix's mean: every block has something
BALANCING = 200  # rounds; the sums are then equal to a few in a thousand
ROUNDS = 50  # of redrawing repeated pairs


@dataclass(frozen=True)
class Expansion:
    """Interactions to be made of a real dataset: so many users and items, about so many pairs."""

    data: Interactions
    users: int
    items: int
    interactions: int
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("users", "items", "interactions"):
            at_least(name, whole(name, getattr(self, name)), 1)
        for name, least in (("users", self.data.n_users), ("items", self.data.n_items)):
            if getattr(self, name) < least:
                raise ConfigError(
                    f"{name} must be at least {least}, as many as the data have, got {getattr(self, name)}"
                )
        if not self.users <= self.interactions <= self.users * self.items // 4:
            raise ConfigError(
                f"interactions must be at least one for each of {self.users:,} users and at most a quarter of all "
                f"pairs, got {self.interactions:,}"
            )

    @property
    def n_parts(self) -> int:
        return -(-self.interactions // ROWS)

    def parts(self) -> Iterator[pl.DataFrame]:
        """Tables of users and items; every user is in one of them, and every part has users of all kinds."""
        return (self.part(number) for number in range(self.n_parts))

    def part(self, number: int) -> pl.DataFrame:
        """One of the tables, the same whatever was made before it."""
        generator = np.random.default_rng([self.seed, 1, number])
        users = np.arange(number, self.users, self.n_parts)
        row, own = users // self.data.n_users, self._names[users % self.data.n_users]
        counts, flat = self.data.counts[own], self._flat
        n_blocks = self._small.shape[1]

        def draw(chosen: np.ndarray) -> np.ndarray:
            at = row[chosen]
            block = np.searchsorted(flat, at + generator.random(len(chosen)), side="right") - at * n_blocks
            place = (generator.random(len(chosen)) * counts[chosen]).astype(np.int64)
            item = (
                self.data.indices[self.data.indptr[own[chosen]] + place]
                + block.clip(0, n_blocks - 1) * self.data.n_items
            )
            # The last block may be cut; what would be outside is in another one.
            spare = generator.integers(max(1, self.items // self.data.n_items), size=len(chosen)) * self.data.n_items
            return np.where(item < self.items, item, item % self.data.n_items + spare)

        most = np.maximum(1, counts * (self.items // self.data.n_items) // 2)
        needed = np.minimum(np.maximum(1, generator.poisson(self._rate * counts)), most)
        keys = draw_distinct(needed, np.empty(0, dtype=np.int64), self.items, draw, ROUNDS)
        keys = generator.permutation(keys)
        return pl.DataFrame({"user": users[keys // self.items], "item": self._shuffled[keys % self.items]})

    @cached_property
    def _names(self) -> np.ndarray:
        """The users of the data who have something, in random order, as often as needed to fill a block row."""
        known = np.random.default_rng([self.seed, 0]).permutation(np.flatnonzero(self.data.counts))
        return np.resize(known, self.data.n_users)

    @cached_property
    def _shuffled(self) -> np.ndarray:
        """So that the number of an item tells nothing about it."""
        return np.random.default_rng([self.seed, 2]).permutation(self.items)

    @cached_property
    def _small(self) -> np.ndarray:
        shape = (-(-self.users // self.data.n_users), -(-self.items // self.data.n_items))
        return balanced(reduced(self.data, shape, np.random.default_rng([self.seed, 3])))

    @cached_property
    def _flat(self) -> np.ndarray:
        """The rows of the small matrix as shares that add up, row i from i to i + 1, one after another."""
        sums = np.cumsum(self._small, axis=1)
        shares = sums / sums[:, -1:]
        return np.ravel(shares + np.arange(len(shares))[:, None])

    @cached_property
    def _rate(self) -> float:
        """How many interactions a user has for each of the original; nobody is left without one."""
        counts = self.data.counts[self._names].astype(np.float64)
        wanted, low, high = self.interactions / self.users, 0.0, self.interactions / self.users
        for _ in range(100):
            middle = (low + high) / 2
            mean = float((middle * counts + np.exp(-middle * counts)).mean())  # of max(1, Poisson)
            low, high = (middle, high) if mean < wanted else (low, middle)
        return (low + high) / 2


def reduced(data: Interactions, shape: tuple[int, int], generator: np.random.Generator) -> np.ndarray:
    """A small matrix of the data's leading singular vectors.

    Its users and items are taken evenly from the least to the most active ones, again and again where it needs more.
    """
    matrix = sparse.csr_array((np.ones(len(data)), data.indices, data.indptr), shape=(data.n_users, data.n_items))
    rank = min(RANK, min(matrix.shape) - 1)
    if rank < 1:
        return np.ones(shape)
    left, values, right = svds(matrix, k=rank, v0=np.ones(min(matrix.shape)))
    rows, cols = (
        _evenly(counts, n, generator) for counts, n in zip((data.counts, data.item_counts), shape, strict=True)
    )
    small = (left[rows] * values) @ right[:, cols]
    return np.maximum(small, FLOOR * max(float(small.mean()), 1e-12))


def _evenly(counts: np.ndarray, n: int, generator: np.random.Generator) -> np.ndarray:
    """So many places, evenly from the lowest count to the highest, in random order."""
    order = np.argsort(counts, kind="stable")
    return generator.permutation(order[(2 * np.arange(n) + 1) * len(order) // (2 * n)])


def balanced(matrix: np.ndarray) -> np.ndarray:
    """A positive matrix with its rows and columns scaled in turn until their sums are about equal."""
    for _ in range(BALANCING):
        matrix = matrix / matrix.mean(axis=0, keepdims=True)
        matrix = matrix / matrix.mean(axis=1, keepdims=True)
    return matrix


def expand(
    source: str | Path, out: str | Path, *, users: int, items: int, interactions: int, seed: int = 0
) -> dict[str, Any]:
    """Write a fractal expansion of a source as Parquet parts into a folder, which is data like any file.

    A part is in memory at a time. Returns how many users, items and interactions were wanted, and how many were made.
    """
    expansion = Expansion(read_source(source).interactions(), users, items, interactions, seed)
    made = 0
    with files.new_folder(out) as fresh:
        for number, part in enumerate(expansion.parts()):
            files.write(fresh / f"part-{number:05}.parquet", part.write_parquet)
            made += len(part)
        facts = {"source": str(source), "users": users, "items": items, "interactions": made, "seed": seed}
        files.write_text(fresh / "expansion.json", json.dumps(facts, indent=2) + "\n")
    return facts
