"""What a task can say of a fitted model: how good it is for whom, beside what, and what its loss sees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from topshelf.evaluation import Evaluation


@dataclass(frozen=True)
class Advice:
    """One thing to change: what was seen, the rule it breaks, and what to do."""

    topic: str
    seen: str
    rule: str
    do: str

    def sentences(self) -> str:
        return f"{self.seen} {self.rule} {self.do}"


@dataclass(frozen=True, eq=False)
class Trait:
    """How the queries of an evaluation differ: the group of each, (n,), and the names of the groups."""

    title: str
    group: np.ndarray
    labels: tuple[str, ...]

    @classmethod
    def of_counts(cls, title: str, values: np.ndarray, edges: Sequence[int]) -> Trait:
        """Groups of counts: one begins at each of the edges, ascending; none is below the first."""
        ends = [edge - 1 for edge in edges[1:]]
        names = [f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high in zip(edges, ends, strict=False)]
        group = np.searchsorted(np.asarray(edges), values, side="right") - 1
        return cls(title, group, (*names, f"{edges[-1]:,} and more"))


@dataclass(frozen=True)
class Group:
    """Some queries of one kind: their number, their mean, and their share of the whole metric."""

    label: str
    n: int
    mean: float
    share: float


@dataclass(frozen=True)
class Gap:
    """The same measure on what the model was trained on and on what it was not."""

    seen: float
    held_out: float
    how: str


@dataclass(frozen=True, eq=False)
class ScoreSample:
    """Scores of training queries with their positives, as the loss sees them.

    positive    (P,) scores of positives
    threshold   (P,) the exact K-th best score of each positive's query
    used        (P,) the threshold by the run's own estimator; None where that is the exact one
    negative    (N,) scores of some other candidates
    effective   (Q,) how many candidates the softmax at the loss's temperature is spread over; None without one
    n_candidates (Q,)
    """

    positive: np.ndarray
    threshold: np.ndarray
    used: np.ndarray | None
    negative: np.ndarray
    effective: np.ndarray | None
    n_candidates: np.ndarray


@dataclass(frozen=True, eq=False)
class Examination:
    """One model on one held-out part. ``facts`` are what a person should know of the data, a name and a value each."""

    part: str
    metric: str
    evaluation: Evaluation
    references: Mapping[str, Evaluation]
    traits: Sequence[Trait]
    gap: Gap | None = None
    scores: ScoreSample | None = None
    facts: Sequence[tuple[str, str]] = ()
    advice: Sequence[Advice] = ()

    @property
    def values(self) -> np.ndarray:
        """The metric of each evaluated query, (n,)."""
        return self.evaluation.per_user[self.metric].numpy()

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    def with_advice(self, *rules: Advice | None) -> Examination:
        """The same with the advice of those rules that are broken."""
        return replace(self, advice=[*self.advice, *(rule for rule in rules if rule is not None)])

    def groups(self, trait: Trait) -> list[Group]:
        """The groups of a trait that have queries, in order."""
        group, values = trait.group[self.evaluation.users.numpy()], self.values
        total = float(values.sum())
        found = []
        for place, label in enumerate(trait.labels):
            chosen = values[group == place]
            if chosen.size:
                share = float(chosen.sum()) / total if total else 0.0
                found.append(Group(label, chosen.size, float(chosen.mean()), share))
        return found


def effective_count(scores: Tensor, tau: float, mask: Tensor | None = None) -> np.ndarray:
    """The number of equally likely candidates with the entropy of softmax(scores / tau), (Q, N) to (Q,)."""
    logits = scores.double() / tau
    if mask is not None:
        logits = logits.masked_fill(mask, -math.inf)
    log_p = logits.log_softmax(1)
    entropy = -torch.where(log_p.isfinite(), log_p.exp() * log_p, 0.0).sum(1)
    count: np.ndarray = entropy.exp().cpu().numpy()
    return count
