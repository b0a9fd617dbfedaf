"""The race: every candidate is tried once, then the better half shares what is left of the time, and again."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topshelf.auto.budget import Clock, shown
from topshelf.auto.candidates import (
    LEAST_ITERATIONS,
    Candidate,
    expected_seconds,
    iteration_seconds,
    least_epoch_seconds,
)
from topshelf.auto.outcome import Tried
from topshelf.config import BaseConfig, RunConfig
from topshelf.errors import ConfigError, DataError, TrainingError
from topshelf.models import IALS
from topshelf.training import StoppedEarly, fit
from topshelf.training.watchers import stop_on_signals
from topshelf.tuning import Tuned, tune
from topshelf.tuning.folder import StudyFolder

ROUNDS = 2  # after the first, in which every candidate has one trial
LEAST_LEFT = 3  # candidates of the last round
BLENDED = 4
FITS = 3  # of each part of the result: on train, with validation, and on everything
MARGIN = 1.15
RESERVED = 0.4  # of the budget, at most, for the fits of a blend
LEAST_EPOCHS, MOST_TRIALS = 6, 200
Configure = Callable[[Candidate, dict[str, Any]], RunConfig]
NO_TIME = 1e-9  # for a search that begins no trial


@dataclass
class Runner:
    """A candidate in the race, with its best trial so far; ``note`` says why it got no further."""

    candidate: Candidate
    config: BaseConfig | None = None  # of the best trial
    score: float | None = None
    trial_seconds: float = 0.0  # what a fit with that config takes
    trials: int = 0
    seconds: float = 0.0
    note: str = ""

    @property
    def last_seconds(self) -> float:
        """What its part of the result takes: a fit on train, one with validation, and one on everything."""
        return MARGIN * FITS * self.trial_seconds

    def take(self, tuned: Tuned) -> None:
        """The state of its search."""
        spent = tuned.budget.spent
        self.trials, self.seconds = spent["complete"] + spent["pruned"], tuned.budget.spent_seconds
        if tuned.best is not None:
            self.config, self.score, self.trial_seconds = tuned.config, tuned.best.score, tuned.best.seconds

    def tried(self, weight: float = 0.0) -> Tried:
        return Tried(self.candidate.name, self.score, self.trials, self.seconds, weight, "" if weight else self.note)


def blend_order(ranked: Sequence[Runner]) -> list[Runner]:
    """The order in which runners join a blend: the best, the best of every other family, then the next best.

    A model that is there with another loss comes last: the two make the same mistakes. Popularity is there only if
    nothing is better.
    """
    useful = [one for one in ranked if one.candidate.model != "popularity" or one is ranked[0]]
    families: dict[str, Runner] = {}
    for runner in useful:
        families.setdefault(runner.candidate.family, runner)
    models = {runner.candidate.model: runner for runner in reversed([*families.values(), *useful])}
    first = [one for one in useful if one in models.values() and one not in families.values()]
    return [*families.values(), *first, *(one for one in useful if one not in models.values())]


class Race:
    """Validation scores of candidates under a clock; every trial is kept in ``folder``, so that a race can go on.

    ``configure(candidate, more)`` gives a candidate's config. ``keep`` is called after every search, to keep what was
    spent. ``stopped`` is true once the user asked to stop.
    """

    def __init__(
        self,
        entrants: list[Candidate],
        dataset: Any,
        configure: Configure,
        folder: Path,
        clock: Clock,
        say: Callable[[str], None],
        keep: Callable[[], None] = lambda: None,
    ) -> None:
        self.runners = [Runner(one) for one in entrants]
        self.dataset, self.configure, self.folder, self.clock, self.say = dataset, configure, folder, clock, say
        self.keep = keep
        self.history: list[tuple[float, float]] = []
        self.stopped = False
        self._asked: Callable[[], bool] = lambda: False

    def run(self) -> None:
        """Spend the time, except what the last fits need."""
        try:
            with stop_on_signals() as self._asked:  # between two searches, which stop on their own
                for runner in self.runners:
                    self._enter(runner)
                for left in range(ROUNDS, 0, -1):
                    self._round(left)
        except StoppedEarly:
            self.stopped = True

    def ranked(self) -> list[Runner]:
        """Those with a score, the best first."""
        scored = [one for one in self.runners if one.score is not None]
        return sorted(scored, key=lambda one: -(one.score or 0.0))

    def reserve(self) -> float:
        """Seconds that are kept for the result: for the best candidate, and for others as far as a share goes."""
        if all(one.candidate.model == "popularity" for one in self.ranked()):
            return 0.0  # whatever comes next takes its place, and keeps the time for its own fits
        best = [one.last_seconds for one in blend_order(self.ranked())[:BLENDED]]
        return max(best[0], min(sum(best), RESERVED * self.clock.total)) if best else 0.0

    def _enter(self, runner: Runner) -> None:
        """The first trial of a candidate, or the reason why it has none."""
        self._stop_if_asked()
        candidate = runner.candidate
        spare = self.clock.left - self.reserve()
        needed = expected_seconds(candidate, self.dataset.split)
        if self.ranked() and (spare <= 0 or (needed is not None and (FITS + 1) * needed > spare)):
            time_ = "" if needed is None else f"one fit takes about {shown(needed)}, and "
            runner.note = f"left out: {time_}the budget has {shown(spare) if spare > 0 else 'nothing'} left"
        else:
            try:
                self._first(runner, spare)
            except StoppedEarly:
                raise
            except (ConfigError, DataError, TrainingError, MemoryError) as error:
                runner.note = f"left out: {error}"
        score = "" if runner.score is None else f"{runner.score:.4f} in {shown(runner.trial_seconds)}"
        self.say(f"{candidate.name}: {score or runner.note}")

    def _first(self, runner: Runner, spare: float) -> None:
        study = StudyFolder(self._path(runner))
        if study.exists:  # of a race that was stopped
            self._search(runner, study.load().config, None, NO_TIME)
            if runner.score is None:
                self._search(runner, study.load().config, None, 1.0)
        elif runner.candidate.model == "popularity":  # it has nothing to search
            self._measure(runner)
        else:
            self._search(runner, self._timed(runner.candidate, spare), 1, None)

    def _measure(self, runner: Runner) -> None:
        """Once, and again for its time: the first evaluation of a process compiles, and must not count as its own."""
        runner.config, runner.trials = self.configure(runner.candidate, {}), 1
        for _ in range(2):
            started = time.perf_counter()
            fitted = fit(runner.config, self.dataset)
            runner.score = fitted.evaluate(part="valid").mean()[fitted.task.metric(runner.config)]
            runner.trial_seconds = time.perf_counter() - started
            runner.seconds += runner.trial_seconds

    def _timed(self, candidate: Candidate, spare: float) -> BaseConfig:
        """The config with as many epochs as its share of the time allows; refused if that is too few."""
        config = self.configure(candidate, {})
        if candidate.model == "ials":
            return self._shortened(candidate, spare)
        if not candidate.is_trained:
            return config
        share = self._share(spare)
        seconds = least_epoch_seconds(int(config.model.settings.get("dim", 1)), self.dataset.split)
        if LEAST_EPOCHS * seconds <= share:  # else there is no need to try
            seconds = self._epoch_seconds(candidate)
        epochs = min(config.train.epochs, int(share / seconds)) if seconds else config.train.epochs
        if epochs < LEAST_EPOCHS:
            raise TrainingError(
                f"an epoch takes {shown(seconds)}, and {LEAST_EPOCHS} must fit into its share of the budget, which is "
                f"{shown(share)}"
            )
        every = max(1, min(config.train.validate_every, epochs // 4))
        return self.configure(candidate, {"train": {"epochs": epochs, "validate_every": every}})

    def _share(self, spare: float) -> float:
        """Of the time, for one fit: the candidate may be fitted again for the result, and others want to be tried.

        All of it, as long as there is popularity alone: any list for each user of their own is better.
        """
        if all(one.candidate.model == "popularity" for one in self.ranked()):
            return spare / (FITS + 1)
        n_trained = sum(one.candidate.is_trained for one in self.runners)
        return spare / (FITS + 1 + n_trained)

    def _shortened(self, candidate: Candidate, spare: float) -> BaseConfig:
        """iALS with fewer iterations where the time is short: most of its quality is there after a few.

        Popularity has shown what a fit takes beside its iterations: it is all evaluation.
        """
        made = IALS(1, 1, **self.configure(candidate, {}).model.settings)
        of_other = max((one.trial_seconds for one in self.runners if one.candidate.model == "popularity"), default=0.0)
        seconds, share = iteration_seconds(made.dim, self.dataset.split), self._share(spare)
        allowed = (share - of_other) / seconds
        if allowed < LEAST_ITERATIONS:
            raise TrainingError(
                f"{LEAST_ITERATIONS} iterations take about {shown(LEAST_ITERATIONS * seconds + of_other)}, and its "
                f"share of the budget is {shown(share)}"
            )
        if allowed >= made.iterations:
            return self.configure(candidate, {})
        return self.configure(candidate, {"model": {"iterations": int(allowed)}})

    def _epoch_seconds(self, candidate: Candidate) -> float:
        """Of the second of two: the first compiles."""
        config = self.configure(candidate, {"train": {"epochs": 1, "validate_every": 1, "patience": 0}})
        fit(config, self.dataset)
        started = time.perf_counter()
        fit(config, self.dataset)
        return time.perf_counter() - started

    def _round(self, left: int) -> None:
        """Let the better half go on, with equal shares of this round's part of the time."""
        ranked = [one for one in self.ranked() if one.candidate.model != "popularity"]
        n = max(LEAST_LEFT, math.ceil(len(ranked) / 2 ** (ROUNDS - left + 1)))
        end = self.clock.spent + (self.clock.left - self.reserve()) / left
        chosen = ranked[:n]
        for place, runner in enumerate(chosen):
            self._stop_if_asked()
            share = (end - self.clock.spent) / (len(chosen) - place)
            if share > runner.trial_seconds:  # a trial that was begun is ended
                study = StudyFolder(self._path(runner)).load()
                self._search(runner, study.config, MOST_TRIALS, share - runner.trial_seconds)
        for runner in ranked[n:]:
            runner.note = runner.note or f"out after round {ROUNDS - left + 1}"
        if self.ranked():
            first = self.ranked()[0]
            self.say(f"round {ROUNDS - left + 1}: {first.candidate.name} leads with {first.score:.4f}")

    def _stop_if_asked(self) -> None:
        if self._asked():
            raise StoppedEarly("asked to stop")

    def _search(self, runner: Runner, config: BaseConfig, trials: int | None, timeout: float | None) -> None:
        ranges, out = runner.candidate.ranges, self._path(runner)
        runner.take(tune(config, self.dataset, trials=trials, ranges=ranges, timeout=timeout, out=out, page=False))
        self.keep()
        if (best := self.ranked()) and best[0].score is not None:
            self.history.append((self.clock.spent, best[0].score))

    def _path(self, runner: Runner) -> Path:
        return self.folder / re.sub(r"[^a-z0-9]+", "-", runner.candidate.name.lower())
