"""From data and a budget to the best run that was found in it.

While it works, everything is in a folder beside the result, ``OUT.auto``: the searches (studies of ``topshelf tune``)
and ``auto.json`` with what was spent. The same call goes on there after a stop or a kill. When the result is written,
that folder is removed and its ``auto.json`` is in the run's folder.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from topshelf import files
from topshelf.auto.budget import Clock, seconds_of, shown
from topshelf.auto.candidates import Candidate, candidates
from topshelf.auto.finish import finished, parts
from topshelf.auto.outcome import Auto
from topshelf.auto.race import Configure, Race
from topshelf.config import RunConfig, assemble, merged, of_task
from topshelf.data import Split
from topshelf.data.named import task_of
from topshelf.errors import ConfigError, DataError, TrainingError, at_most
from topshelf.in_memory import dataset_of
from topshelf.terminal import say as print_line
from topshelf.training import StoppedEarly, load_dataset, save
from topshelf.training.folder import RunFolder

STATE = "auto.json"


def auto(
    data: Any,
    *,
    k: int = 20,
    budget: str | float = "10m",
    seed: int = 0,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    quiet: bool = True,
) -> Auto:
    """The best run for ``data`` that is found in ``budget``: a file, the name of a dataset, a frame or a matrix.

    Every candidate is tried once, the better ones are tuned on validation with what is left of the time, and the best
    are blended if that is better on validation. The test part is measured once, at the end, by models that have learned
    from train and validation; the result has then learned from everything. ``settings`` are sections of the run's
    config, such as ``{"data": {"user": "buyer"}}``. ``out`` keeps the result as a run folder, and makes the work
    resumable: the same call goes on after a kill. Ctrl-C ends the race and leaves the best so far.
    """
    total = seconds_of(budget)
    say = (lambda _: None) if quiet else lambda line: print_line(line, stderr=True)
    source = str(data) if isinstance(data, str | Path) else None
    if source is not None and (task := task_of(source)) not in (None, "interactions"):
        raise ConfigError(
            f"auto takes interactions, and {source!r} is a named dataset of task {task}; use topshelf train "
            f"--task {task} --data {source}"
        )
    configure = _configured(source, k, seed, settings or {})
    first = configure(Candidate("popularity", "popularity"), {})
    if out is not None:
        RunFolder(out).check_new()
    if source is not None:
        dataset = load_dataset(first)
    else:
        dataset = dataset_of(data, first)
        dataset.warn()
    at_most("k", k, dataset.split.n_items, f"{dataset.name} has {dataset.split.n_items} items")
    _check_something_is_left(dataset.split)
    with ExitStack() as stack:
        if out is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="topshelf-auto-")))
        else:
            folder = Path(f"{Path(out)}.auto")
        state = _state(folder, {"k": k, "seed": seed, "source": source, "settings": _plain(settings)})
        clock = Clock(total, state["spent"])
        say(_described(dataset, total, clock.spent))
        found = _raced(dataset, configure, folder, clock, state, say)
    if out is not None:
        _keep(found, Path(out), folder)
    return found


def _raced(
    dataset: Any,
    configure: Configure,
    folder: Path,
    clock: Clock,
    state: dict[str, Any],
    say: Callable[[str], None],
) -> Auto:
    entrants = candidates(configure(Candidate("popularity", "popularity"), {}).k, dataset.split)
    race = Race(
        entrants, dataset, configure, folder, clock, say, lambda: _write_state(folder, {**state, "spent": clock.spent})
    )
    race.run()
    ranked = race.ranked()
    if race.stopped and not ranked:
        raise StoppedEarly("stopped before a candidate was measured; the same command begins again")
    if not ranked:
        reasons = "; ".join(f"{one.candidate.name}: {one.note}" for one in race.runners)
        raise TrainingError(f"no candidate could be fitted: {reasons}")
    if race.stopped:
        say("stopping: the best so far is trained and kept; Ctrl-C again stops at once")
    chosen = parts(ranked, clock, is_hurried=race.stopped)
    fitted, weights = finished(chosen, dataset, say)
    by_name = {one.candidate.name: weight for one, weight in zip(chosen, weights, strict=True)}
    tried = [one.tried(by_name.get(one.candidate.name, 0.0)) for one in race.runners]
    metric = fitted.task.metric(fitted.config)
    return Auto(fitted, tried, metric, clock.total, clock.spent, race.history, race.stopped)


def _configured(source: str | None, k: int, seed: int, settings: Mapping[str, Any]) -> Configure:
    """Configs of candidates: the settings shipped for the data, then the candidate's, then the caller's."""
    if refused := {"model", "loss", "threshold", "negatives", "task", "k", "seed"} & settings.keys():
        names = ", ".join(sorted(refused))
        raise ConfigError(
            f"settings of auto must be of data, evaluate or train, got {names}: auto tries models, losses and their "
            "settings itself; topshelf train takes them, or Recommender"
        )

    def configure(candidate: Candidate, more: dict[str, Any]) -> RunConfig:
        values = merged(merged(candidate.settings, dict(settings)), more)
        config = assemble(
            data=source or "a table in memory",
            model=candidate.model,
            loss=candidate.loss or "softmax",
            k=k,
            seed=seed,
            more=values,
        )
        return of_task(config, RunConfig, "topshelf auto")

    return configure


def _check_something_is_left(split: Split) -> None:
    """Refuse data where every user has every item: trained models would fail at the last fit, on everything."""
    n_pairs = sum(len(split.lists(part).indices) for part in split.parts)
    if n_pairs >= split.n_users * split.n_items:
        raise DataError(
            f"at least one user must not have all items, and each of {split.n_users} users has all {split.n_items}: "
            "there is nothing to recommend. Give data with more items"
        )


def _described(dataset: Any, total: float, spent: float) -> str:
    split = dataset.split
    n = sum(len(split.lists(part).indices) for part in split.parts)
    density = n / max(1, split.n_users * split.n_items)
    resumed = f", {shown(spent)} of it spent before" if spent > 1 else ""
    sizes = f"{split.n_users:,} users, {split.n_items:,} items, {n:,} interactions, density {density:.2%}"
    return f"{dataset.name}: {sizes}; budget {shown(total)}{resumed}"


def _plain(settings: Mapping[str, Any] | None) -> Any:
    return json.loads(json.dumps(settings or {}, default=str, sort_keys=True))


def _state(folder: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    """What was spent in the folder before; one of other data or settings is refused."""
    path = folder / STATE
    if path.exists():
        state = files.read_sealed(path, is_always_sealed=True)
        for name, value in wanted.items():
            if state.get(name) != value:
                raise ConfigError(
                    f"{folder} has a search with {name} = {state.get(name)!r}, got {value!r}; go on with the same "
                    "values, give another --out, or delete that folder"
                )
        spent = state.get("spent")
        if not isinstance(spent, int | float) or isinstance(spent, bool) or not 0 <= spent < float("inf"):
            raise ConfigError(f"{path} is damaged: spent must be a number of seconds, got {spent!r}")
        return state
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} exists and has no {STATE}; give another --out, or delete that folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder {folder}: {files.reason(error)}; choose another --out") from None
    state = {**wanted, "spent": 0.0}
    _write_state(folder, state)
    return state


def _write_state(folder: Path, state: dict[str, Any]) -> None:
    files.write_sealed(folder / STATE, {name: value for name, value in state.items() if name != "checksum"})


def _keep(found: Auto, out: Path, folder: Path) -> None:
    save(found.fitted, out)
    files.write_text(out / STATE, json.dumps(found.to_json(), indent=2) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
