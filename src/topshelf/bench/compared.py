"""Any run folders as results of one table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from topshelf.bench.results import Measured, Place, Results
from topshelf.bench.worker import measured_users
from topshelf.config import BaseConfig, flat
from topshelf.errors import ConfigError, suggestion
from topshelf.evaluation import Evaluation
from topshelf.training import load
from topshelf.training.race import as_asked
from topshelf.training.run import Fitted


def of_runs(paths: Sequence[str | Path], *, protocols: Sequence[str] = (), ours: str | None = None) -> Results:
    """The results of run folders. Runs that differ in the seed alone are one method with several seeds."""
    places = [Path(path).resolve() for path in paths]
    if again := [str(path) for path, place in zip(paths, places, strict=True) if places.count(place) > 1]:
        raise ConfigError(f"every run must be given once, got {again[0]} twice")
    fitted = {str(path): load(path) for path in paths}
    if unfinished := [path for path, run in fitted.items() if not run.is_finished]:
        raise ConfigError(f"{unfinished[0]} is not finished; finish it: topshelf train --resume {unfinished[0]}")
    check_task(run.config for run in fitted.values())
    labels = labels_of({path: as_asked(path, run.config) for path, run in fitted.items()})
    known = list(dict.fromkeys(labels.values()))
    if ours is not None and ours not in known:
        raise ConfigError(f"--ours must be one of {'; '.join(known)}, got {ours!r}{suggestion(ours, known)}")
    runs = []
    for path, label in labels.items():
        evaluations = [fitted[path].evaluate(name) for name in protocols or (None,)]
        runs.append(measured(fitted[path], label, evaluations))
    return results_of(runs, next(iter(fitted.values())).config, ours or (known[0] if len(known) > 1 else None))


def results_of(runs: Sequence[Measured], config: BaseConfig, ours: str | None) -> Results:
    """The results of measured runs; ``config`` is that of one of them."""
    common = [name for name in _names(runs[0]) if all(name in _names(run) for run in runs)]
    if twice := [run for run in runs if sum((o.place, o.seed) == (run.place, run.seed) for o in runs) > 1]:
        raise ConfigError(f"two runs are the same: {twice[0].method} with seed {twice[0].seed}; give one of them")
    return Results(
        name="compare",
        title=f"{len(runs)} runs on {', '.join(dict.fromkeys(run.data for run in runs))}",
        metrics=_reported(common, config),
        runs=list(runs),
        places=list(dict.fromkeys(run.place for run in runs)),
        protocols=tuple(dict.fromkeys(name for run in runs for name in run.metrics)),
        ours=ours,
        note=_of_other_lists(runs),
    )


def _of_other_lists(runs: Sequence[Measured]) -> str:
    """What to know of runs of one seed and dataset whose test lists differ: their split or their preparation did."""
    lists: dict[Any, set[int]] = {}
    for run in runs:
        for protocol, fingerprint in run.fingerprints.items():
            lists.setdefault((run.data, run.seed, protocol), set()).add(fingerprint)
    if all(len(found) == 1 for found in lists.values()):
        return ""
    return (
        "The runs were not measured on the same test lists (another split or preparation): read differences with "
        "care. Only runs with the same lists are tested against each other."
    )


def check_task(configs: Iterable[BaseConfig]) -> None:
    """Refuse runs of several tasks: their numbers do not mean the same."""
    if len(tasks := {config.task for config in configs}) > 1:
        raise ConfigError(f"runs must be of one task to be compared, got {', '.join(sorted(tasks))}")


def _names(run: Measured) -> list[str]:
    return list(next(iter(run.metrics.values())))


def _reported(common: list[str], config: BaseConfig) -> tuple[str, ...]:
    """The metrics at the runs' K that people look at first, else all that they share."""
    wanted = [f"{name}@{config.k}" for name in ("hit_rate", "recall", "ndcg")] + ["mrr"]
    chosen = [name for name in wanted if name in common]
    return tuple(chosen[-2:] or common[:2])


def labels_of(configs: dict[str, BaseConfig]) -> dict[str, str]:
    """Model and loss, and the settings in which runs of the same two differ besides the seed."""
    values = {path: _used(config) for path, config in configs.items()}
    basic = {path: _basic(config) for path, config in configs.items()}
    labels = {}
    for path, name in basic.items():
        same = [values[other] for other, label in basic.items() if label == name]
        names = dict.fromkeys(key for one in same for key in one)
        differ = [
            key
            for key in names
            if key != "seed" and not key.startswith("evaluate.") and len({repr(one.get(key)) for one in same}) > 1
        ]
        told = ", ".join(f"{key} {values[path].get(key)}" for key in differ if key != "data.source")
        labels[path] = f"{name}, {told}" if told else name
    return labels


def _basic(config: BaseConfig) -> str:
    return config.model.name if _is_closed(config) else f"{config.model.name}, {config.loss.name}"


def _is_closed(config: BaseConfig) -> bool:
    from topshelf.training.build import model_class

    return config.model.name == "blend" or model_class(config).is_closed_form


def _used(config: BaseConfig) -> dict[str, Any]:
    """The settings; a model that is fitted in closed form has no use for those of the training, but for its refit."""
    values = flat(config.model_dump(mode="json"))
    if not _is_closed(config):
        return values
    unused = ("loss.", "negatives.", "threshold.", "train.")
    return {name: value for name, value in values.items() if name == "train.refit" or not name.startswith(unused)}


def measured(fitted: Fitted, label: str, evaluations: Sequence[Evaluation]) -> Measured:
    """A run with its evaluations, one per protocol."""
    means: dict[str, dict[str, Any]] = {one.protocol: one.mean() for one in evaluations}
    names = tuple(next(iter(means.values())))
    place = Place(fitted.dataset.name, "", label)
    return Measured(
        data=place.data,
        group="",
        method=label,
        x=None,
        k=None,
        seed=fitted.config.seed,
        fold=None,
        metrics=means,
        names=names,
        facts={"seconds": round(fitted.seconds, 3), "best_epoch": fitted.best_epoch},
        fingerprints={one.protocol: one.fingerprint for one in evaluations},
        users=lambda: measured_users({one.protocol: one for one in evaluations}),
    )
