"""The runs of a report: opened, checked to belong on one page, and measured once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from topshelf.bench.compared import check_task, labels_of, measured, results_of
from topshelf.bench.results import Measured, Results
from topshelf.bench.worker import with_activity
from topshelf.diagnose.examine import Epoch, log_of
from topshelf.errors import CheckpointError, ConfigError, TopshelfWarning
from topshelf.evaluation import Evaluation
from topshelf.training import Fitted, load
from topshelf.training.folder import RunFolder
from topshelf.training.race import as_asked

# Lengths of lists that the curves are drawn at.
_LENGTHS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 75, 100)
_LONGEST_NAME = 32


@dataclass(frozen=True, eq=False)
class Shown:
    """A run of the page. ``result`` is its evaluation as JSON; that of a run refitted on all is from before it.

    ``evaluation`` is None where the model has seen the test part, or there is none.
    """

    path: str
    name: str  # by which the page calls it: its folder
    label: str  # its model, its loss and how it differs from the others
    folder: RunFolder
    fitted: Fitted
    evaluation: Evaluation | None
    result: dict[str, Any] | None
    log: list[Epoch]
    log_note: str = ""

    @property
    def config(self) -> Any:
        return self.fitted.config

    @property
    def metric(self) -> str:
        """By which epochs are chosen, and runs are compared first."""
        return self.fitted.task.metric(self.config)

    @cached_property
    def measured(self) -> Measured:
        """As a row of a bench, with what each user has in train."""
        assert self.evaluation is not None
        row = measured(self.fitted, self.name, [self.evaluation])
        return replace(row, users=lambda: with_activity(row.users(), self.fitted))

    def mean(self, metric: str) -> float | None:
        """A metric, or a figure of the lists as a whole; None where it was not measured."""
        if self.result is None:
            return None
        return self.result["mean"].get(metric, self.result["extras"].get(metric))

    def interval(self, metric: str) -> tuple[float, float] | None:
        ends = None if self.result is None else self.result["interval"].get(metric)
        return None if ends is None or None in ends else (ends[0], ends[1])


def open_runs(
    paths: Sequence[str | Path], *, allow: Collection[str] = (), say: Callable[[str], None] = lambda _: None
) -> list[Shown]:
    """Open and measure the runs; refused unless they are of one task and on the same data."""
    if not paths:
        raise ConfigError("give at least one run folder, got none")
    places = [Path(path).resolve() for path in paths]
    if again := [str(path) for path, place in zip(paths, places, strict=True) if places.count(place) > 1]:
        raise ConfigError(f"every run must be given once, got {again[0]} twice")
    fitted = {}
    for path in map(str, paths):
        say(f"reading {path}")
        fitted[path] = load(path, allow=allow)
    check_task(run.config for run in fitted.values())
    if len(data := dict.fromkeys(run.dataset.name for run in fitted.values())) > 1:
        raise ConfigError(
            f"runs on one page must be on the same data, got {' and '.join(list(data)[:2])}; make a page for each"
        )
    names, labels = _names(list(fitted)), labels_of({path: as_asked(path, run.config) for path, run in fitted.items()})
    lengths = {k for run in fitted.values() for k in (*run.config.cutoffs, run.config.k)}
    found = []
    for path, run in fitted.items():
        say(f"measuring {path}")
        found.append(_shown(path, names[path], labels[path], run, lengths))
    return found


def _names(paths: list[str]) -> dict[str, str]:
    """Names of folders; of those that are alike or long, the ends of their paths."""
    names = {path: Path(path).resolve().name for path in paths}
    same = {name for name in names.values() if list(names.values()).count(name) > 1}
    long = {path: path if name in same else name for path, name in names.items()}
    return {
        path: name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}" for path, name in long.items()
    }


def _shown(path: str, name: str, label: str, fitted: Fitted, lengths: set[int]) -> Shown:
    folder, evaluation, result = RunFolder(path), None, fitted.measured
    if result is None and fitted.task.has("test"):
        evaluation = fitted.evaluate(cutoffs=_cutoffs(fitted, lengths))
        result = evaluation.to_json()
    log, note = _log(folder, fitted)
    return Shown(path, name, label, folder, fitted, evaluation, result, log, note)


def _cutoffs(fitted: Fitted, lengths: set[int]) -> tuple[int, ...]:
    n_items = fitted.task.n_items
    if n_items is None:  # every query has a short list of its own
        n_items = max(lengths)
    return tuple(sorted(k for k in {*lengths, *_LENGTHS} if k <= n_items))


def _log(folder: RunFolder, fitted: Fitted) -> tuple[list[Epoch], str]:
    """The epochs of a run, or why there are none."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", TopshelfWarning)
        try:
            return log_of(folder, fitted), ""
        except (CheckpointError, TopshelfWarning) as error:
            return [], str(error)


def as_results(runs: Sequence[Shown], *, by_label: bool = False) -> Results | None:
    """The runs that have values per user as one table; ``by_label``, runs that differ in the seed alone are one row."""
    rows = [run for run in runs if run.evaluation is not None]
    if not rows:
        return None
    found = [replace(run.measured, method=run.label) if by_label else run.measured for run in rows]
    return replace(results_of(found, rows[0].config, None), metrics=(rows[0].metric,))
