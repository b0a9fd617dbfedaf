"""The search as Optuna sees it: points as parameters, a sampler that needs no state, Hyperband's rungs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import HyperbandPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from topshelf.config import TrainSettings
from topshelf.tuning.ranges import Choice, Range, Space

TICKET = "ticket"  # the attribute of a trial that says which of the budget's it is
ASKED = "asked"  # the attribute of a trial whose point was chosen before it began
REDUCTION = 3  # Hyperband: one in three goes on from rung to rung
_FIRST_RUNG = REDUCTION**2  # the first rung is at this part of the epochs, so there are three brackets
_STARTUP = 10  # trials at random before TPE has something to go by: Optuna's own number
_ATTEMPTS = 20  # to draw a point that has not been tried


def parameter(name: str, range_: Range) -> str:
    """The name of a setting's parameter. Lists of numbers are searched by place, so that neighbours are near."""
    return f"{name} (place)" if isinstance(range_, Choice) and range_.is_ordered else name


def distributions(space: Space) -> dict[str, BaseDistribution]:
    return {parameter(name, range_): _distribution(range_) for name, range_ in space.ranges.items()}


def parameters(space: Space, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as parameters."""
    result = {}
    for name, range_ in space.ranges.items():
        by_place = isinstance(range_, Choice) and range_.is_ordered
        result[parameter(name, range_)] = range_.values.index(settings[name]) if by_place else settings[name]  # type: ignore[union-attr]
    return result


def suggest(space: Space, trial: Trial) -> dict[str, Any]:
    """The settings of a trial."""
    settings: dict[str, Any] = {}
    for name, range_ in space.ranges.items():
        key = parameter(name, range_)
        if isinstance(range_, Choice):
            settings[name] = (
                range_.values[trial.suggest_int(key, 0, len(range_.values) - 1)]
                if range_.is_ordered
                else trial.suggest_categorical(key, range_.values)
            )
        elif range_.whole:
            settings[name] = trial.suggest_int(key, int(range_.low), int(range_.high), log=range_.log)
        else:
            settings[name] = trial.suggest_float(key, range_.low, range_.high, log=range_.log)
    return settings


def _distribution(range_: Range) -> BaseDistribution:
    if isinstance(range_, Choice):
        if range_.is_ordered:
            return IntDistribution(0, len(range_.values) - 1)
        return CategoricalDistribution(range_.values)
    if range_.whole:
        return IntDistribution(int(range_.low), int(range_.high), log=range_.log)
    return FloatDistribution(range_.low, range_.high, log=range_.log)


class NumberedTPE(BaseSampler):
    """TPE that draws from a stream of its own for every trial, named by (seed, ticket of the trial).

    The ticket is the trial's number where no process was killed; a trial that takes the place of one that was killed
    before it had a point draws the same.

    What it suggests depends on those two and on the trials in the storage, so a resumed study needs no sampler from
    disk, and processes that share a study do not draw the same. It learns from the trials of all of Hyperband's
    brackets, where Optuna would show it one bracket: thirty trials are too few to be divided. A point that was tried is
    drawn again; where only such come, the next of the grid's that was not takes its place, if there is one.
    """

    def __init__(self, space: Space, seed: int) -> None:
        self._points, self._space, self._seed = space, distributions(space), seed
        self.study: Study | None = None

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:  # noqa: ARG002
        return {} if trial.user_attrs.get(ASKED) else self._space

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if not search_space:
            return {}
        whole = self.study or study
        states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING, TrialState.WAITING)
        trials = whole.get_trials(deepcopy=False, states=states)
        tried = [one.params or one.user_attrs.get(ASKED, {}) for one in trials]  # or soon to be
        ticket = trial.user_attrs.get(TICKET, trial.number)
        point: dict[str, Any] = {}
        for attempt in range(_ATTEMPTS):
            seed = int(np.random.SeedSequence([self._seed, ticket, attempt]).generate_state(1)[0])
            tpe = TPESampler(seed=seed, n_startup_trials=_STARTUP)
            point = tpe.sample_relative(whole, trial, search_space) or _at_random(whole, trial, search_space, seed)
            if point not in tried:
                return point
        if math.isinf(self._points.size):
            return point
        every = (parameters(self._points, settings) for settings in self._points.grid(self._seed))
        return next((other for other in every if other not in tried), point)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return RandomSampler(seed=self._seed).sample_independent(study, trial, param_name, param_distribution)


def _at_random(study: Study, trial: FrozenTrial, space: dict[str, BaseDistribution], seed: int) -> dict[str, Any]:
    sampler = RandomSampler(seed=seed)
    return {name: sampler.sample_independent(study, trial, name, one) for name, one in space.items()}


def rungs(settings: TrainSettings) -> list[int]:
    """The epochs at which a trial is compared with others."""
    first = max(settings.validate_every, settings.epochs // _FIRST_RUNG)
    found = []
    while first < settings.epochs:
        found.append(first)
        first *= REDUCTION
    return found


def pruner(settings: TrainSettings) -> HyperbandPruner:
    first = min(settings.epochs, max(settings.validate_every, settings.epochs // _FIRST_RUNG))
    return HyperbandPruner(min_resource=first, max_resource=settings.epochs, reduction_factor=REDUCTION)
