"""What was trained on what: data, settings that are not the defaults, versions, seeds, times."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from topshelf.config import assemble, flat
from topshelf.data import Dataset
from topshelf.data.summary import describe
from topshelf.errors import CheckpointError, ConfigError
from topshelf.files import read_json
from topshelf.page import Cell, Page
from topshelf.report.shown import Shown
from topshelf.training.build import resolve

NOTHING = "–"
_OF_TRAINING, _OF_ALL = ("loss.", "negatives.", "threshold.", "train."), ("train.refit", "train.device")
_NOT_SETTINGS = ("data.source", "task", "model.name", "loss.name", "model.parts")  # said elsewhere


def data_section(page: Page, runs: Sequence[Shown]) -> None:
    page.heading("Data")
    first = runs[0]
    if isinstance(first.fitted.dataset, Dataset):
        facts = describe(first.fitted.dataset)
        parts = facts.get("parts", {})
        page.tiles(
            [
                ("users", f"{facts['users']:,}"),
                ("items", f"{facts['items']:,}"),
                ("interactions", f"{facts['interactions']:,}"),
                ("density", f"{facts['density']:.2%}"),
                ("items of a user, median", _spread(facts["per_user"])),
                ("users of an item, median", _spread(facts["per_item"])),
                *((f"in {name}", f"{n:,}") for name, n in parts.items()),
            ]
        )
    said = first.fitted.task.lines(first.fitted.through)
    for line in said:
        page.paragraph(f"{line[0].upper()}{line[1:]}.")
    for run in runs[1:]:
        if (other := run.fitted.task.lines(run.fitted.through)) != said:
            page.paragraph(f"{run.name}: {'; '.join(other)}.", note=True)


def _spread(percentiles: Mapping[str, int]) -> Cell:
    return Cell(f"{percentiles['p50']:,}", f"{percentiles['p0']:,} to {percentiles['p100']:,}")


def runs_section(page: Page, runs: Sequence[Shown]) -> None:
    """Facts and settings, a column per run."""
    page.heading("Training")
    header = ("", *(run.name for run in runs))
    columns = [_facts(run) for run in runs]
    names = list(dict.fromkeys(name for column in columns for name in column))
    same = [name for name in names if len(runs) > 1 and len({column.get(name) for column in columns}) == 1]
    if same:
        page.paragraph(f"The same in all runs: {'; '.join(f'{name} {columns[0][name]}' for name in same)}.")
    page.table(
        header,
        [(name, *(column.get(name, NOTHING) for column in columns)) for name in names if name not in same],
        caption="How each run was made",
        numbers=False,
        sortable=False,
    )
    rows = _settings(runs)
    if rows:
        page.table(
            header,
            rows,
            caption="Settings that are not the defaults, or differ between the runs",
            numbers=False,
            sortable=False,
        )
    else:
        page.paragraph("All settings are the defaults for this data, model and loss.")


def _facts(run: Shown) -> dict[str, str]:
    fitted, config, environment = run.fitted, run.config, _environment(run)
    is_closed = fitted.model.is_closed_form
    packages = environment.get("packages")
    packages = packages if isinstance(packages, dict) else {}
    facts = {
        "folder": run.path,
        "model": config.model.name,
        "loss": "none (closed form)" if is_closed else config.loss.name,
        "K": str(config.k),
        "seed": str(config.seed),
        "state": "finished" if fitted.is_finished else "not finished",
        "learned from": _LEARNED[fitted.through],
        "best epoch": "" if is_closed else f"{fitted.best_epoch} of {len(run.log) or NOTHING}",
        "training": f"{fitted.seconds:,.1f} s",
        "memory, peak": _memory(run),
        "topshelf": packages.get("topshelf"),
        "torch": packages.get("torch"),
        "Python": environment.get("python"),
        "threads": environment.get("threads"),
        "system": environment.get("platform"),
        "made by": _command(environment.get("command")),
    }
    return {name: str(value) for name, value in facts.items() if value not in (None, "")}


_LEARNED = {"train": "train", "valid": "train and validation", "all": "everything"}


def _environment(run: Shown) -> dict[str, Any]:
    try:
        return read_json(run.folder.environment)
    except CheckpointError:
        return {}  # a run that was put together by hand may have none


def _memory(run: Shown) -> str:
    peak = run.folder.load_metrics().get("peak_mib") if run.fitted.is_finished else None
    return f"{peak:,.0f} MiB" if isinstance(peak, int | float) else ""


def _command(words: Any) -> str:
    """The command line that began the run; one of Python says nothing to a reader."""
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words) or len(words) < 2:
        return ""
    program = words[0].replace("\\", "/").rpartition("/")[2]
    return shlex.join(["topshelf", *words[1:]]) if program in ("topshelf", "__main__.py", "topshelf.exe") else ""


def _settings(runs: Sequence[Shown]) -> list[tuple[str | Cell, ...]]:
    """Rows of settings: those that are not the default in some run, or are not the same in all."""
    own = [_used(run) for run in runs]
    usual = [_defaults(run.config) for run in runs]
    rows: list[tuple[str | Cell, ...]] = []
    for name in dict.fromkeys(name for values in own for name in values):
        if name in _NOT_SETTINGS or (name == "seed" and len(runs) > 1):
            continue
        values = [repr(values.get(name)) for values in own]
        is_usual = [
            name not in values or values[name] == default.get(name) for values, default in zip(own, usual, strict=True)
        ]
        if all(is_usual) and len({value for value, one in zip(values, own, strict=True) if name in one}) < 2:
            continue
        rows.append((name, *(_setting(name, *pair) for pair in zip(own, usual, strict=True))))
    return rows


def _used(run: Shown) -> dict[str, Any]:
    """The settings of a run; a model that is fitted in closed form has no use for those of the training."""
    values = flat(run.config.model_dump(mode="json"))
    if not run.fitted.model.is_closed_form:
        return values
    return {name: value for name, value in values.items() if not name.startswith(_OF_TRAINING) or name in _OF_ALL}


def _setting(name: str, own: Mapping[str, Any], usual: Mapping[str, Any]) -> Cell:
    if name not in own:
        return Cell(NOTHING)
    if own[name] == usual.get(name):
        return Cell(_text(own[name]), "default")
    return Cell(_text(own[name]), f"default {_text(usual[name])}" if name in usual else "")


def _text(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _defaults(config: Any) -> dict[str, Any]:
    """What `topshelf train` would use for this data, model and loss."""
    named = {"task": config.task, "data": config.data.source, "model": config.model.name, "loss": config.loss.name}
    try:
        return flat(resolve(assemble(**named), is_fitted=True).model_dump(mode="json"))
    except ConfigError:
        return {}  # a blend is made of runs and has none


def warn_of_differences(page: Page, runs: Sequence[Shown]) -> None:
    """Say what a reader must know before comparing numbers."""
    for run in runs:
        if not run.fitted.is_finished:
            page.paragraph(
                f"{run.name} is not finished: these are the numbers of its best model so far (epoch "
                f"{run.fitted.best_epoch}). Finish it: topshelf train --resume {shlex.quote(run.path)}",
                warning=True,
            )
        if run.result is None:
            page.paragraph(f"{run.name} has no test part, so it has no test metrics.", warning=True)
        elif run.evaluation is None:
            page.paragraph(
                f"{run.name} was refitted on everything: its metrics are of the model before that, and what needs "
                "values per user is left out.",
                warning=True,
            )
    prints = {run.evaluation.fingerprint for run in runs if run.evaluation is not None}
    if len(prints) > 1:
        page.paragraph(
            "The runs were not measured on the same test lists (another seed, split or file): read differences with "
            "care. Only runs with the same lists are tested against each other.",
            warning=True,
        )


def best_of(values: Sequence[float | None]) -> float:
    """The largest of the numbers that are there, as it is printed; NaN where there is one or none."""
    known = [round(value, 4) for value in values if value is not None]
    return max(known) if len(values) > 1 and known else float(np.nan)
