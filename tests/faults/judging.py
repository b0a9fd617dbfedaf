"""What becomes of a damaged or crafted run folder: refused, the same, said, a traceback, or silently different."""

from __future__ import annotations

import io
import json
import shutil
import traceback
import warnings
from collections import Counter
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from faults.layer import tree
from faults.scenes import config_of, small_data
from topshelf.blending import blend
from topshelf.cli import show
from topshelf.errors import TopshelfError, TopshelfWarning
from topshelf.recommender import Recommender
from topshelf.training import StoppedEarly, fit, load, resume
from topshelf.training import phases as phases_module
from topshelf.training.folder import RunFolder

REFUSED, SAME, SAID, UNTOUCHED = "refused", "same", "said", "untouched"
TRACEBACK, DIFFERENT, CRASHED = "traceback", "silently different", "crashed"
FAILURES = (TRACEBACK, DIFFERENT, CRASHED)
_WORST_LAST = (SAME, REFUSED, SAID, DIFFERENT, TRACEBACK)
UNFINISHED = ("training", "refitting", "ease-begun", "slim-begun", "itemknn-begun", "rp3beta-begun")
FINISHED = ("mf", "all", "ease", "slim", "itemknn", "rp3beta", "blend")


class StopAfter:
    def __init__(self, steps: int) -> None:
        self.left = steps

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def build(place: str) -> None:
    """The runs that are damaged: finished ones, and ones stopped in training, in the refit, or before a fit."""
    folder, data = Path(place), small_data()
    fit(config_of(), data, out=folder / "mf")
    fit(config_of(refit="all"), data, out=folder / "all")
    for name in ("ease", "slim", "itemknn", "rp3beta"):
        fit(config_of(name), data, out=folder / name)
        shutil.copytree(folder / name, folder / f"{name}-begun")
        for made in ("model", "artifact", "metrics"):
            getattr(RunFolder(folder / f"{name}-begun"), made).unlink()
    blend([folder / "mf", folder / "itemknn"], weights=[1.0, 0.5], out=folder / "blend")
    for name, steps in (("training", (8,)), ("refitting", (1000, 4))):
        _stopped(folder / name, steps, data)
    for name in ("training", "refitting"):
        shutil.copytree(folder / name, folder / f"{name}-end")
        resume(folder / f"{name}-end")


def _stopped(out: Path, steps: tuple[int, ...], data: Any) -> None:
    turns = iter([StopAfter(some) for some in steps])

    class Stop:
        def __enter__(self) -> StopAfter:
            return next(turns)

        def __exit__(self, *_: object) -> None:
            pass

    with mock.patch.object(phases_module, "stop_on_signals", Stop):
        try:
            fit(config_of(epochs=4, refit=len(steps) > 1), data, out=out)
        except StoppedEarly:
            return
    raise AssertionError("the run was not stopped")


@dataclass(frozen=True)
class Seen:
    """What a person gets of a run: its numbers and its lists, or the message in their place."""

    outcome: str
    result: Any
    notes: tuple[str, ...] = ()


def look(action: Any) -> Seen:
    """Do it, and see the result, the message or the traceback."""
    with warnings.catch_warnings(record=True) as notes, redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        try:
            outcome, result = SAME, action()
        except TopshelfError as error:
            outcome, result = REFUSED, str(error)
        except Exception:  # noqa: BLE001  whatever it is, it is counted
            outcome, result = TRACEBACK, traceback.format_exc(limit=-3)
        except BaseException as error:  # noqa: BLE001  polars panics with one
            outcome, result = TRACEBACK, repr(error)
    said = tuple(str(note.message) for note in notes if issubclass(note.category, TopshelfWarning))
    return Seen(outcome, result, tuple(text for text in said if "is not finished" not in text))


def served(folder: Path) -> Any:
    """Numbers and lists, as `evaluate` and `recommend` give them."""
    return _shown(load(folder), folder)


def resumed(folder: Path) -> Any:
    return _shown(resume(folder), folder)


def listed(folder: Path) -> Any:
    """Lists as `recommend` gives them of a finished run, without its data: of known users, of new ones, of items."""
    recommender = Recommender.load(folder)
    user, item = recommender.artifact.users.values[0], recommender.artifact.items.values[0]
    tables = (
        recommender.recommend(),
        recommender.recommend_new({user: [item], "new": []}),
        recommender.similar_items([item]),
    )
    return [table.write_csv() for table in tables]


def _shown(fitted: Any, folder: Path) -> Any:
    show.run(fitted, folder)
    numbers = fitted.measured or fitted.evaluate().to_json()
    lists = Recommender.of(fitted).recommend()
    return json.dumps(numbers["mean"]), lists.write_csv()


ACTIONS = {"served": served, "listed": listed, "resumed": resumed}


def judge(folder: Path, expected: dict[str, Seen], actions: dict[str, Any] = ACTIONS) -> tuple[str, str]:
    """The worst of what each action gives, and what there is to tell of it."""
    found, details = SAME, ""
    for name in expected:
        if name == "resumed" and RunFolder(folder).is_finished:
            continue  # it is loaded, as by served
        seen = look(lambda name=name: actions[name](folder))
        outcome = _compared(seen, expected[name])
        if _WORST_LAST.index(outcome) > _WORST_LAST.index(found):
            found, details = outcome, f"{name}: {seen.result}"
    return found, details


def _compared(seen: Seen, expected: Seen) -> str:
    if seen.outcome != SAME or seen.result == expected.result:
        return seen.outcome
    return SAID if set(seen.notes) - set(expected.notes) else DIFFERENT


def judge_cases(place: str, kind: str, names: list[str], progress: str, seed: int, flips: int) -> None:
    """Judge some cases of a kind of run; a line for each is added to ``progress``, also should the next one crash."""
    from faults.crafting import cases

    pristine, work = Path(place) / kind, Path(progress).parent / "work"
    expected = {name: look(lambda action=action: action(copied(pristine, work)))
                for name, action in ACTIONS.items() if name != "listed" or kind in FINISHED}  # fmt: skip
    assert TRACEBACK not in {seen.outcome for seen in expected.values()}, expected
    judge_each(cases(kind, seed, flips), names, pristine, Path(progress), lambda folder: judge(folder, expected))


def judge_each(known: dict[str, Any], names: list[str], pristine: Path, progress: Path, judge_one: Any) -> None:
    """Damage copies of a run, and write down what each gives."""
    work, before = progress.parent / "work", tree(pristine)
    for name in names:
        known[name](copied(pristine, work))
        # A case that does not apply to this kind of run, such as an edit of a setting that it does not have.
        outcome = (UNTOUCHED, "") if tree(work) == before else judge_one(work)
        with progress.open("a") as file:
            file.write(json.dumps([name, *outcome]) + "\n")


def copied(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


def judged(
    driver: Any,
    place: Path,
    kind: str,
    names: list[str],
    scratch: Path,
    seed: int = 0,
    flips: int = 2,
    action: str = "faults.judging:judge_cases",
) -> dict[str, Any]:
    """Outcomes of cases of a kind, in forked processes: when one dies, the case that killed it is known."""
    progress, done = scratch / f"{kind}-{seed}.jsonl", {}
    while len(done) < len(names):
        left = [name for name in names if name not in done]
        ended = driver.call(action, str(place), kind, left, str(progress), seed, flips)
        lines = progress.read_text().splitlines() if progress.exists() else []
        done.update({name: (outcome, details) for name, outcome, details in map(json.loads, lines)})
        left = [name for name in names if name not in done]
        if left and ended.code < 0:
            done[left[0]] = (CRASHED, f"signal {-ended.code}")
        else:
            assert not left, (left[0], ended.errors)
    return {name: found for name, found in done.items() if found[0] != UNTOUCHED}


def counted(outcomes: dict[str, tuple[str, str]]) -> Counter[str]:
    return Counter(outcome for outcome, _ in outcomes.values())
