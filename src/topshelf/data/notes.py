"""What the reading of a source left out or left open, to be shown before training."""

from __future__ import annotations

import shlex
from dataclasses import dataclass


@dataclass(frozen=True)
class Notes:
    """Counts and names that the readers collect; :meth:`lines` says them in words.

    ``repeats`` are rows whose user and item were there already, of ``rows`` in all.
    ``unknown_cells`` are NaN cells of a matrix. ``unused_times`` are columns that look like a time and are not
    used, ``time`` the one that was guessed instead, where there is one.
    ``unread_times`` are unused columns with the name of a time, whose values do not look like one.
    ``guessed`` are the columns that the user did not name, each with what it was taken for.
    """

    repeats: int = 0
    rows: int = 0
    unknown_cells: int = 0
    unused_times: tuple[str, ...] = ()
    time: str | None = None
    unread_times: tuple[str, ...] = ()
    guessed: tuple[tuple[str, str], ...] = ()

    def __add__(self, other: Notes) -> Notes:
        return Notes(
            self.repeats + other.repeats,
            self.rows + other.rows,
            self.unknown_cells + other.unknown_cells,
            tuple(dict.fromkeys(self.unused_times + other.unused_times)),
            self.time or other.time,
            tuple(dict.fromkeys(self.unread_times + other.unread_times)),
            self.guessed or other.guessed,
        )

    def lines(self, kind: str | None = None) -> tuple[str, ...]:
        """One sentence for each thing to know; ``kind`` is the split's, where it is known."""
        lines = []
        if self.unused_times:
            lines.append(self._about_times(kind))
        if self.unread_times:
            lines.append(self._about_names(kind))
        if self.repeats:
            lines.append(
                f"{self.repeats:,} of {self.rows:,} rows repeat a user and an item; each pair counts once, as in its "
                "first row"
            )
        if self.unknown_cells:
            lines.append(f"{self.unknown_cells:,} cells of the matrix are NaN and taken as unknown")
        return tuple(lines)

    def _about_times(self, kind: str | None) -> str:
        names, several = _listed(self.unused_times), len(self.unused_times) > 1
        looks = f"column{'s' if several else ''} {names} look{'' if several else 's'} like a time"
        option = f"--time-column {shlex.quote(self.unused_times[0])} (in Python timestamp={self.unused_times[0]!r})"
        if self.time is not None:
            return (
                f"times are taken from column {self.time!r}; {looks} too and {'are' if several else 'is'} not used. "
                f"To change it: {option}"
            )
        use = f"Use {self.unused_times[0]!r}" if several else "Use it"
        return f"{looks} and {'are' if several else 'is'} not used{self._random(kind)}. {use}: {option}"

    def _about_names(self, kind: str | None) -> str:
        several = len(self.unread_times) > 1
        return (
            f"column{'s' if several else ''} {_listed(self.unread_times)} {'have' if several else 'has'} the name of a "
            f"time but no values that can be read as times, and {'are' if several else 'is'} not used"
            f"{self._random(kind)}. Write the times as 2020-12-31 or as numbers to use them"
        )

    def _random(self, kind: str | None) -> str:
        return "; the split is random" if kind == "ratio" and self.time is None else ""


NO_NOTES = Notes()


def _listed(names: tuple[str, ...]) -> str:
    shown = [repr(name) for name in names]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
