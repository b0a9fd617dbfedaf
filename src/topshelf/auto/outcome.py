"""What was tried, what won and why, as plain values and as lines that people read."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from topshelf.auto.budget import shown
from topshelf.training import Fitted


@dataclass(frozen=True)
class Tried:
    """A candidate: its best validation score, what it cost, its weight in the result, and why it got no further."""

    name: str
    score: float | None
    trials: int
    seconds: float
    weight: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Auto:
    """The outcome of :func:`topshelf.auto.auto`. ``fitted`` is the model that learned from everything."""

    fitted: Fitted
    tried: list[Tried]
    metric: str
    budget: float
    spent: float
    history: list[tuple[float, float]]  # seconds, and the best validation score so far
    is_stopped: bool = False  # the user ended the search

    @property
    def best(self) -> Tried:
        """The best single candidate by validation."""
        return max((one for one in self.tried if one.score is not None), key=lambda one: one.score or 0.0)

    def to_json(self) -> dict[str, Any]:
        return {
            "metric": f"validation {self.metric}",
            "budget": self.budget,
            "spent": round(self.spent, 1),
            "score": self.fitted.valid_score,
            "tried": [asdict(one) for one in self.tried],
            "history": [[round(seconds, 1), score] for seconds, score in self.history],
            "said": [*self.why(), self.more_budget()],
        }

    def why(self) -> list[str]:
        """Why the result is what it is."""
        used = sorted((one for one in self.tried if one.weight > 0), key=lambda one: -one.weight)
        score, best = self.fitted.valid_score or 0.0, self.best
        if self.is_stopped:
            return [f"{used[0].name}: the best when the search was stopped ({score:.4f} on validation)."]
        if len(used) == 1:
            return [f"{used[0].name} alone: no sum with the others was better on validation ({score:.4f})."]
        parts = " + ".join(f"{one.weight:g} x {one.name}" for one in used)
        gain = f"{score / best.score - 1:+.1%}" if best.score else ""
        return [
            f"A blend, {parts}: {score:.4f} on validation, {gain} against {best.name} alone ({best.score or 0:.4f})."
        ]

    def more_budget(self) -> str:
        """What more time would be spent on, by what the last third of the time has brought."""
        late = [score for seconds, score in self.history if seconds > self.spent * 2 / 3]
        early = [score for seconds, score in self.history if seconds <= self.spent * 2 / 3]
        skipped = [one.name for one in self.tried if one.score is None and "budget" in one.note]
        untried = f" Not tried, because the time was over: {'; '.join(skipped)}." if skipped else ""
        if not late or not early:
            return f"The best single score came early; more time would go on with the search.{untried}"
        gain = max(late) / max(early) - 1
        said = f"rose by {gain:.1%}" if gain > 0 else "did not rise"
        return f"In the last third of the {shown(self.spent)} the best single score {said}.{untried}"
