"""The outcome of a study, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from topshelf.config import BaseConfig
from topshelf.reprs import lines
from topshelf.tuning.ranges import Range, text

STATES = ("complete", "pruned", "failed", "interrupted", "running")


@dataclass(frozen=True)
class TrialRow:
    """One trial. ``score`` is its best validation NDCG@K, or None.

    ``state`` is "complete"; "pruned" (stopped early, because it was worse than others); "failed" (its settings do not
    fit the data); "interrupted" (its process was stopped or died, and it was queued again); or "running". ``slot`` is
    its place in the budget: its number, unless an earlier trial was interrupted.
    """

    number: int
    state: str
    settings: dict[str, Any]
    score: float | None = None
    is_default: bool = False
    best_epoch: int = 0
    epochs: int = 0
    seconds: float = 0.0
    note: str = ""
    history: dict[int, float] = field(default_factory=dict)
    slot: int | None = None


@dataclass(frozen=True)
class Budget:
    """The budget of a study, and what was spent of it; give equal budgets to methods that you compare."""

    trials: int
    epochs: int
    timeout: float | None
    spent: dict[str, int]
    spent_epochs: int
    spent_seconds: float

    @classmethod
    def of(cls, rows: Sequence[TrialRow], trials: int, epochs: int, timeout: float | None) -> Budget:
        spent = {state: sum(row.state == state for row in rows) for state in STATES}
        seconds = round(sum(row.seconds for row in rows), 3)
        return cls(trials, epochs, timeout, spent, sum(row.epochs for row in rows), seconds)

    def __str__(self) -> str:
        each = f" of at most {self.epochs} epochs" if self.epochs else ", fitted in closed form"
        limit = "" if self.timeout is None else f", none begun after {self.timeout:g} s"
        states = ", ".join(f"{count} {state}" for state, count in self.spent.items() if count) or "nothing yet"
        epochs = f"{self.spent_epochs:,} epochs, " if self.epochs else ""
        return (
            f"budget: {self.trials} trials{each}, the first with the defaults{limit}; "
            f"spent: {states}; {epochs}{self.spent_seconds:,.1f} s of training and validation"
        )


@dataclass(frozen=True)
class Tuned:
    """A study in its current state: its trials, the best one as a config, and the budget.

    ``importances`` are the shares of the difference between good and bad trials that each setting explains. They sum to
    1, and are empty with fewer than four complete trials or a single setting.
    """

    method: str
    data: str
    metric: str
    sampler: str
    ranges: dict[str, Range]
    rows: list[TrialRow]
    config: BaseConfig | None
    budget: Budget
    importances: dict[str, float]
    folder: Path | None = None
    validated: str = "users with nothing to find left out"

    def __repr__(self) -> str:
        best = self.best
        facts = [
            ("best", best and described(best, self.metric)),
            ("trials", f"{len(self.rows):,}"),
            ("searched", ", ".join(self.ranges)),
            ("folder", self.folder),
        ]
        return lines(f"Tuned({self.method} on {self.data}, validation {self.metric})", facts)

    @property
    def best(self) -> TrialRow | None:
        return best_of(self.rows)

    @property
    def default(self) -> TrialRow | None:
        """The trial of the defaults, if it is complete."""
        return next((row for row in self.rows if row.is_default and row.state == "complete"), None)

    def to_json(self) -> dict[str, Any]:
        best = self.best
        return {
            "method": self.method,
            "data": self.data,
            "metric": f"validation {self.metric}",
            "sampler": self.sampler,
            "ranges": {name: str(range_) for name, range_ in self.ranges.items()},
            "budget": asdict(self.budget),
            "best": None if best is None else best.number,
            "importances": self.importances,
            "trials": [asdict(row) for row in self.rows],
        }


def best_of(rows: Sequence[TrialRow]) -> TrialRow | None:
    """The complete trial with the highest score; of equal scores, the one with the first slot."""
    complete = [row for row in rows if row.state == "complete" and row.score is not None]
    return max(complete, key=lambda row: (row.score, -(row.number if row.slot is None else row.slot)), default=None)


def described(row: TrialRow, metric: str) -> str:
    """A trial in one line."""
    parts = [f"trial {row.number}" + (" (the defaults)" if row.is_default else ""), row.state]
    if row.score is not None:
        parts.append(f"{metric} {row.score:.4f}" + (f" at epoch {row.best_epoch}" if row.best_epoch else ""))
    parts.append(f"{row.seconds:.1f} s")
    if row.note:
        parts.append(row.note)
    settings = ", ".join(f"{name} {text(value)}" for name, value in row.settings.items())
    return f"{'; '.join(parts)}; {settings}"
