"""From the winners of the race to one run: weights on validation, the test once, then a fit on everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from topshelf.auto.budget import Clock, shown
from topshelf.auto.race import BLENDED, Runner, blend_order
from topshelf.blending import WeightSearch, combined
from topshelf.training import Fitted, fit, refit


def parts(ranked: Sequence[Runner], clock: Clock, *, is_hurried: bool) -> list[Runner]:
    """The first ``BLENDED`` of :func:`blend_order`, as far as the time allows; in a hurry, the best alone."""
    ordered = blend_order(ranked)
    chosen, needed = ordered[:1], ordered[0].last_seconds
    for runner in ordered[1:] if not is_hurried else []:
        if len(chosen) < BLENDED and needed + runner.last_seconds <= clock.left:
            chosen.append(runner)
            needed += runner.last_seconds
    return chosen


def finished(chosen: Sequence[Runner], dataset: Any, say: Callable[[str], None]) -> tuple[Fitted, list[float]]:
    """The model that learned from everything, and the weight of each chosen runner in it.

    The test part is measured once, by models that were refitted on train and validation.
    """
    fits = []
    for runner in chosen:
        assert runner.config is not None
        say(f"training {runner.candidate.name} for the result, about {shown(runner.trial_seconds)}")
        fits.append(fit(runner.config, dataset))
    weights, scales, score = [1.0], [1.0], _valid(fits[0])
    if len(fits) > 1:
        search = WeightSearch(fits)
        weights, score = search.weights(any_number=True)
        scales = search.scales
    used = [place for place, weight in enumerate(weights) if weight > 0]
    kept = [fits[place] for place in used]
    shares, spreads = ([some[place] for place in used] for some in (weights, scales))
    say("refitting on train and validation, and measuring the test part once")
    measured = _summed([refit(one, True) for one in kept], shares, spreads, valid_score=score).test_json()
    say("refitting on everything")
    seconds = sum(one.seconds for one in fits)
    last = [refit(one, "all", measured=measured) for one in kept]
    return _summed(last, shares, spreads, valid_score=score, measured=measured, seconds=seconds), weights


def _valid(fitted: Fitted) -> float:
    """The validation score of a model that has learned from train alone."""
    if fitted.valid_score is not None:
        return fitted.valid_score
    return float(fitted.evaluate(part="valid").mean()[fitted.task.metric(fitted.config)])


def _summed(runs: list[Fitted], weights: list[float], scales: list[float], **more: Any) -> Fitted:
    """A blend, or the one run that is left of it."""
    if len(runs) > 1:
        return combined(runs, weights, scales, **more)
    only = runs[0]
    return Fitted(only.config, only.dataset, only.model, **{"best_epoch": only.best_epoch, **more})
