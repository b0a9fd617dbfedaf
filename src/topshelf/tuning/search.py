"""The search in Optuna's terms: points as parameters, a sampler without state, and Hyperband's rungs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import count, takewhile
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import HyperbandPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from topshelf.config import TrainSettings
from topshelf.tuning.attributes import ASKED, SLOT
from topshelf.tuning.ranges import Choice, Range, Space

REDUCTION = 3  # Hyperband: one trial in three continues at each rung
_FIRST_RUNG = REDUCTION**2  # the first rung is at this fraction of the epochs, which gives three brackets
_STARTUP = 10  # random trials before TPE, Optuna's default
_ATTEMPTS = 20  # to draw a point that was not tried


def parameter(name: str, range_: Range) -> str:
    """The parameter of a setting. Lists of numbers are searched by position, so that neighbours are close."""
    return f"{name} (place)" if isinstance(range_, Choice) and range_.is_ordered else name


def parameters(space: Space, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as parameters."""
    result = {}
    for name, range_ in space.ranges.items():
        value = settings[name]
        is_position = isinstance(range_, Choice) and range_.is_ordered
        result[parameter(name, range_)] = range_.values.index(value) if is_position else value  # type: ignore[union-attr]
    return result


def suggest(space: Space, trial: Trial) -> dict[str, Any]:
    """The settings of a trial."""
    settings = {}
    for name, range_ in space.ranges.items():
        value = _suggest(trial, parameter(name, range_), _distribution(range_))
        settings[name] = range_.values[value] if isinstance(range_, Choice) and range_.is_ordered else value
    return settings


def _suggest(trial: Trial, name: str, distribution: BaseDistribution) -> Any:
    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(name, distribution.choices)
    if isinstance(distribution, IntDistribution):
        return trial.suggest_int(name, distribution.low, distribution.high, log=distribution.log)
    assert isinstance(distribution, FloatDistribution)
    return trial.suggest_float(name, distribution.low, distribution.high, log=distribution.log)


def _distribution(range_: Range) -> BaseDistribution:
    if isinstance(range_, Choice):
        if range_.is_ordered:
            return IntDistribution(0, len(range_.values) - 1)
        return CategoricalDistribution(range_.values)
    if range_.whole:
        return IntDistribution(int(range_.low), int(range_.high), log=range_.log)
    return FloatDistribution(range_.low, range_.high, log=range_.log)


class SlotSampler(BaseSampler):
    """TPE with a separate random stream for every trial, seeded by (seed, slot).

    A suggestion depends on those two and on the trials in the storage. So a resumed study needs no sampler state, and
    processes that share a study draw different points. TPE learns from the trials of all Hyperband brackets, not of one
    as Optuna does by default: thirty trials are too few to divide. Points that were tried are drawn again; if that
    fails, the next untried point of the grid is used, if there is one.
    """

    def __init__(self, space: Space, seed: int) -> None:
        self._space, self._seed = space, seed
        self._distributions = {parameter(name, range_): _distribution(range_) for name, range_ in space.ranges.items()}
        self.study: Study | None = None

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:  # noqa: ARG002
        return {} if trial.user_attrs.get(ASKED) else self._distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if not search_space:
            return {}
        study = self.study or study
        states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING, TrialState.WAITING)
        trials = study.get_trials(deepcopy=False, states=states)
        tried = [other.params or other.user_attrs.get(ASKED, {}) for other in trials]
        point: dict[str, Any] = {}
        for attempt in range(_ATTEMPTS):
            entropy = [self._seed, trial.user_attrs.get(SLOT, trial.number), attempt]
            seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
            tpe = TPESampler(seed=seed, n_startup_trials=_STARTUP)
            point = tpe.sample_relative(study, trial, search_space) or _random_point(study, trial, search_space, seed)
            if point not in tried:
                return point
        if math.isinf(self._space.size):
            return point
        grid = (parameters(self._space, settings) for settings in self._space.grid(self._seed))
        return next((other for other in grid if other not in tried), point)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return RandomSampler(seed=self._seed).sample_independent(study, trial, param_name, param_distribution)


def _random_point(study: Study, trial: FrozenTrial, space: dict[str, BaseDistribution], seed: int) -> dict[str, Any]:
    sampler = RandomSampler(seed=seed)
    return {name: sampler.sample_independent(study, trial, name, one) for name, one in space.items()}


def rungs(settings: TrainSettings) -> list[int]:
    """The epochs at which a trial is compared with others."""
    epochs = (_first_rung(settings) * REDUCTION**number for number in count())
    return list(takewhile(lambda epoch: epoch < settings.epochs, epochs))


def pruner(settings: TrainSettings) -> HyperbandPruner:
    first = min(settings.epochs, _first_rung(settings))
    return HyperbandPruner(min_resource=first, max_resource=settings.epochs, reduction_factor=REDUCTION)


def _first_rung(settings: TrainSettings) -> int:
    return max(settings.validate_every, settings.epochs // _FIRST_RUNG)
