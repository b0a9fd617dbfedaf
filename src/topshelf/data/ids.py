"""The map between external ids and dense indices."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from topshelf.data.columns import narrow
from topshelf.errors import DataError

UNKNOWN = -1
_FEW = 10  # ids asked for are few if there are more than this many times as many known ones
_TABLE = 1_000_000  # of at most so many ids a table in memory is kept once few are asked for: about 100 bytes each


class IdMap:
    """Dense index to external id and back. Ids are integers or text; others (UUIDs) become text."""

    def __init__(self, values: pl.Series) -> None:
        values = narrow(values)
        self.values = (values if values.dtype == pl.Int64 else values.cast(pl.String)).alias("id")
        if self.values.null_count() or _n_different(self.values) != len(self.values):
            raise DataError(f"ids must be unique and present, got {len(values)} of which {values.n_unique()} differ.")

    @classmethod
    def range(cls, n: int) -> IdMap:
        """The ids 0 to n - 1, each its own index."""
        return cls(pl.int_range(n, eager=True))

    @classmethod
    def sorted_from(cls, ids: pl.Series) -> IdMap:
        """Distinct ids in order: integers by value, text by character (so "10" comes before "9")."""
        return cls(ids.unique().sort())

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"IdMap({len(self)} ids, {self.values.dtype})"

    def ids(self, index: Any) -> list[Any]:
        """External ids of dense indices."""
        return self.take(np.asarray(index, dtype=np.int64).ravel()).to_list()

    def take(self, index: np.ndarray) -> pl.Series:
        """External ids of dense indices, as a column. Numbers go through NumPy, which is faster for a few."""
        if self.values.dtype == pl.Int64:
            return pl.Series(self.values.to_numpy()[index])
        return self.values.gather(index)

    def index(self, ids: Any) -> np.ndarray:
        """Dense indices of external ids, or of one id; an unknown id is an error."""
        if isinstance(ids, (str, int, float, np.generic)):
            ids = [ids]
        elif not hasattr(ids, "__len__"):
            ids = list(ids)  # named again in the message
        index = self.find(ids)
        if (index == UNKNOWN).any():
            unknown = [value for value, place in zip(ids, index.tolist(), strict=True) if place == UNKNOWN]
            first = ", ".join(repr(value) for value in unknown[:5])
            raise DataError(
                f"{len(unknown)} of {len(index)} ids are unknown, such as {first}. "
                f"The {len(self)} known ids are like {self.ids(range(min(3, len(self))))}."
            )
        return index

    def find(self, ids: Any) -> np.ndarray:
        """Dense indices of external ids, UNKNOWN for those that are not here."""
        if not isinstance(ids, pl.Series | np.ndarray) and _FEW * len(ids) < len(self) <= _TABLE:
            return np.array([self._places.get(self._key(id), UNKNOWN) for id in ids], dtype=np.int64)
        wanted = self._series(ids)
        if _FEW * len(wanted) < len(self) and self._is_sorted:  # a join would look at every known id
            place = np.minimum(self.values.search_sorted(wanted).to_numpy(), len(self) - 1).astype(np.int64)
            is_here = (self.values[place] == wanted).fill_null(False).to_numpy()
            return np.where(is_here, place, UNKNOWN)
        numbered = pl.DataFrame({"id": self.values}).with_row_index("index")
        joined = pl.DataFrame({"id": wanted}).join(numbered, on="id", how="left", maintain_order="left")["index"]
        return joined.cast(pl.Int64).fill_null(UNKNOWN).to_numpy()

    def get(self, id: Any) -> int | None:
        """Dense index of one id, or None."""
        place = int(self.find([id])[0])
        return None if place == UNKNOWN else place

    @cached_property
    def _places(self) -> dict[Any, int]:
        return {id: place for place, id in enumerate(self.values.to_list())}

    @cached_property
    def _is_sorted(self) -> bool:
        return self.values.is_sorted()

    def similar(self, id: Any) -> Any:
        """A known id that differs only in what spreadsheets add and take away (00141, 141, 141.0), or None."""
        return self._plain_ids.get(_plain(id))

    @cached_property
    def _plain_ids(self) -> dict[str, Any]:
        return {_plain(value): value for value in self.values.to_list()}

    def _key(self, id: Any) -> Any:
        """The id as it is kept, or None where it cannot be one of ours: the one rule for ids from outside."""
        if isinstance(id, bytes):
            id = id.decode(errors="replace")
        if self.values.dtype == pl.String:
            text = str(id)
            return text if text.isascii() or text.encode(errors="replace").decode() == text else None
        try:  # the command line and HTTP hand over integer ids as text
            key = int(id)
        except (TypeError, ValueError, OverflowError):
            return None
        # int() rounds 4.9 down and reads "4_0" as 40 and "007" as 7; none of them is an id of ours.
        is_same = str(key) == id if isinstance(id, str) else bool(key == id)
        return key if is_same and -(2**63) <= key < 2**63 else None

    def _series(self, ids: Any) -> pl.Series:
        """Many ids at once, by the same rule as :meth:`_key`."""
        if isinstance(ids, pl.Series) and ids.dtype == pl.String and self.values.dtype == pl.Int64:
            numbers = ids.cast(pl.Int64, strict=False)
            return numbers.set((numbers.cast(pl.String) != ids).fill_null(True), None)  # "007" is not 7
        if isinstance(ids, pl.Series) and (ids.dtype.is_integer() or ids.dtype == pl.String):
            return ids.cast(self.values.dtype, strict=False)
        if isinstance(ids, np.ndarray) and ids.dtype.kind in "iu":
            return pl.Series(ids).cast(self.values.dtype, strict=False)
        return pl.Series([self._key(value) for value in ids], dtype=self.values.dtype)


def _n_different(values: pl.Series) -> int:
    return len(set(values.to_list())) if len(values) < 100 else values.n_unique()  # polars takes a moment for any


def _plain(id: Any) -> str:
    text = str(id).strip().casefold()
    return (text.removesuffix(".0").lstrip("0") or "0") if text.removesuffix(".0").isdecimal() else text
