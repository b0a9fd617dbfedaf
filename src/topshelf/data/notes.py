"""What the reading of a source left out or left open, for a person to know before training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Notes:
    """Counts and names that the readers collect; :meth:`lines` says them in words.

    ``repeats`` are rows dropped because their user and item were there already, of ``rows`` in all.
    ``unknown_cells`` are NaN cells of a matrix. ``unused_times`` are columns that look like a time and are not
    used, ``time`` the one that was guessed instead, where there is one.
    """

    repeats: int = 0
    rows: int = 0
    unknown_cells: int = 0
    unused_times: tuple[str, ...] = ()
    time: str | None = None

    def __add__(self, other: Notes) -> Notes:
        return Notes(
            self.repeats + other.repeats,
            self.rows + other.rows,
            self.unknown_cells + other.unknown_cells,
            tuple(dict.fromkeys(self.unused_times + other.unused_times)),
            self.time or other.time,
        )

    def lines(self, kind: str | None = None) -> tuple[str, ...]:
        """One sentence for each thing to know; ``kind`` is the split's, where it is known."""
        found = []
        if self.unused_times:
            found.append(self._about_times(kind))
        if self.repeats:
            found.append(
                f"{self.repeats:,} of {self.rows:,} rows repeat a user and an item and are dropped; the first of each "
                "is kept"
            )
        if self.unknown_cells:
            found.append(f"{self.unknown_cells:,} cells of the matrix are NaN and taken as unknown")
        return tuple(found)

    def _about_times(self, kind: str | None) -> str:
        names, first = _listed(self.unused_times), self.unused_times[0]
        several = len(self.unused_times) > 1
        looks = f"column{'s' if several else ''} {names} look{'' if several else 's'} like a time"
        if self.time is not None:
            return (
                f"times are taken from column {self.time!r}; {looks} too and {'are' if several else 'is'} not used. "
                f"To change it: --time-column {first} (in Python timestamp={first!r})"
            )
        is_random = "; the split is random" if kind == "ratio" else ""
        return (
            f"{looks} and {'are' if several else 'is'} not used{is_random}. "
            f"Use it: --time-column {first} (in Python timestamp={first!r})"
        )


NO_NOTES = Notes()


def total(parts: Iterable[Notes]) -> Notes:
    """The notes of several parts as one."""
    whole = Notes()
    for part in parts:
        whole += part
    return whole


def _listed(names: tuple[str, ...]) -> str:
    shown = [repr(name) for name in names]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
