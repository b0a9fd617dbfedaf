"""Studies that are killed, and studies that are damaged or crafted with valid checksums.

Run as a program, it is a process that has imported topshelf once and forks for each study, so that a kill costs
milliseconds. It has one thread, because a fork of a process with several may wait for them for ever.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import tempfile
import traceback
import warnings
from collections.abc import Callable
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from faults.classes import BLEND, SECTIONS, TRAP, changed
from faults.driver import Pipe, answer_all, in_a_fork
from faults.edits import Case
from topshelf import files
from topshelf.config import make_config
from topshelf.data import generate, make_split
from topshelf.data.datasets import Dataset
from topshelf.errors import TopshelfError, TopshelfWarning
from topshelf.training import checkpoint
from topshelf.tuning import resume, tune
from topshelf.tuning.attributes import sealed
from topshelf.tuning.folder import StudyFolder
from topshelf.tuning.runner import Runner

TRIALS = 2
DEEP = 20_000
ODD = ("7", "{}", "null", "-1", '"x"', "[1]", "{", "[" * DEEP, '{"machine": 1, "pid": "x"}', "1e400")  # in a database


def config():
    return make_config({"k": 5, "data": {"source": "shop/clicks.csv"}, "model": {"name": "ease"}})


@cache
def dataset():
    return Dataset("clicks", make_split(generate(40, 24, interactions_per_user=8, seed=3), seed=0))


def begin(out):
    return tune(config(), dataset(), trials=TRIALS, ranges={"model.l2": "1:1000:log"}, out=out)


def begin_or_resume(out):
    """The same command again, where the folder is not there yet; else ``--resume``."""
    return resume(out) if StudyFolder(out).exists else begin(out)


def result_of(found):
    """What must be the same, however often the study was killed."""
    done = [row for row in found.rows if row.state == "complete"]
    points = [[row.settings, row.score, row.is_default] for row in done]
    return {"best": [found.best.settings, found.best.score], "done": points, "budget": found.budget.trials}


# Kills.


class Points:
    """Counts the points between two changes on disk, of files and of the database, and kills this process at one."""

    def __init__(self, kind: str, at: int) -> None:
        self.kind, self.at, self.seen = kind, at, []

    def step(self, what, path):
        self._reach("files", f"{what} {path.name}")

    def commit(self, *_):
        self._reach("commits", "commit")

    def trial(self, run, *given):
        self._reach("trials", "trial")
        return run(*given)

    def _reach(self, kind, what):
        if kind == self.kind:
            self.seen.append(what)
            if len(self.seen) - 1 == self.at:
                os.kill(os.getpid(), signal.SIGKILL)


def work(action, out, kind, at):
    """Do it, and be killed at point number ``at`` of a kind; the points come by, and the result."""
    import sqlalchemy

    points, run = Points(kind, at), Runner.run
    for moment in ("commit", "begin"):  # before a transaction is kept, and before the next: after it was
        sqlalchemy.event.listen(sqlalchemy.Engine, moment, points.commit)
    with (
        mock.patch("topshelf.files.step", points.step),
        mock.patch("os.fsync"),  # matters when the power fails; a kill leaves the system's cache as it is
        mock.patch.object(Runner, "run", lambda *given: points.trial(run, *given)),
        mock.patch("topshelf.charts.can_plot", return_value=False),
    ):
        found = globals()[action](Path(out))
    return {"points": points.seen, **result_of(found)}


class Server(Pipe):
    """Studies, each in a process of its own."""

    def __init__(self) -> None:
        super().__init__("faults.studies")

    def __call__(self, action, out, kind="files", at=-1) -> Any:
        """What :func:`work` returns; None if its process was killed."""
        answer = self.ask([action, str(out), kind, at])
        assert not isinstance(answer, str), answer
        return answer


def _answer(asked: list[Any]) -> Any:
    def done() -> Any:
        try:
            return work(*asked)
        except BaseException:  # noqa: BLE001  the parent shows it
            return traceback.format_exc()

    return in_a_fork(done)[0]


def serve() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:  # what SQLAlchemy and Optuna prepare once in a process
        begin(Path(place, "study"))
    answer_all(_answer)


# Damage.


def looked_at(folder: Path) -> tuple[str, Any]:
    """What becomes of a folder: ("done", result), ("refused", message) or ("traceback", text); notes are messages."""
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", TopshelfWarning)
        try:
            found = result_of(resume(folder))
        except TopshelfError as error:
            return "refused", str(error)
        except BaseException:  # noqa: BLE001  what is looked for
            return "traceback", traceback.format_exc()
    return ("noted", str(notes[0].message)) if notes else ("done", found)


def cases(seed: int = 0, flips: int = 3, *, is_thorough: bool = False) -> dict[str, Case]:
    """Every case by its name; another seed gives other damage. The thorough form has more values in the database."""
    found: dict[str, Case] = {}
    for name in ("study.toml", "study.json", "parts.safetensors", "study.db"):
        for number in range(flips):
            found[f"{name}: a byte flipped, {seed}.{number}"] = partial(_bytes, name, _flipped(f"{seed}.{number}"))
        found |= {f"{name}: cut at {share}": partial(_bytes, name, _cut(share)) for share in (0.0, 0.5, 0.999)}
        found[f"{name}: zeros"] = partial(_bytes, name, lambda raw: bytes(len(raw)))
        found[f"{name}: text"] = partial(_bytes, name, lambda raw: b"garbage\n" * 2000)
        found[f"{name}: missing"] = partial(_missing, name)
        found[f"{name}: a folder"] = partial(_folder, name)
    for name in ("best.toml", "trials.json", "report.html"):
        found[f"{name}: garbage"] = partial(_bytes, name, lambda raw: b"\xff{[" * 100)
        found[f"{name}: nested"] = partial(_bytes, name, lambda raw: b"[" * DEEP)
        found[f"{name}: a folder"] = partial(_folder, name)
    return (
        found
        | _odd_json()
        | _crafted_json()
        | _configs()
        | _ranges_of_classes()
        | _parts()
        | _databases(ODD if is_thorough else ODD[:2])
    )


def _flipped(seed: str) -> Callable[[bytes], bytes]:
    def flip(raw: bytes) -> bytes:
        draw = random.Random(seed)
        place = draw.randrange(len(raw))
        return raw[:place] + bytes([raw[place] ^ (1 << draw.randrange(8))]) + raw[place + 1 :]

    return flip


def _cut(share: float) -> Callable[[bytes], bytes]:
    return lambda raw: raw[: int(len(raw) * share)]


def _bytes(name: str, change: Callable[[bytes], bytes], folder: Path) -> None:
    path = folder / name
    path.write_bytes(change(path.read_bytes() if path.exists() else b""))


def _missing(name: str, folder: Path) -> None:
    (folder / name).unlink()


def _folder(name: str, folder: Path) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()


def _odd_json() -> dict[str, Case]:
    odd = {"null": "null", "a number": "7", "a list": "[1]", "text": '"study"', "an empty object": "{}",
           "nested lists": "[" * DEEP, "nested objects": '{"a":' * DEEP + "1" + "}" * DEEP,
           "a long number": '{"format": ' + "9" * 5000 + "}"}  # fmt: skip
    return {
        f"study.json: {name}": partial(_bytes, "study.json", lambda raw, text=text: text.encode())
        for name, text in odd.items()
    }


def rewrite(folder: Path, **changes: Any) -> None:
    """Change study.json and give it a valid checksum; a field of ``...`` is removed."""
    path = folder / "study.json"
    content = {**files.read_json(path), **changes}
    del content["checksum"]
    files.write_sealed(path, {name: value for name, value in content.items() if value is not ...})


def _crafted_json() -> dict[str, Case]:
    values: dict[str, list[Any]] = {
        "format": [1, 3, "2", True, None, ...],
        "study": ["0" * 16, 5, ...],
        "name": ["another", 5, ...],
        "sampler": ["grid", "random", 5, None, ...],
        "trials": [1, 30, 0, -1, True, "3", 2.5, 10**30, ...],
        "storage": ["sqlite:////tmp/topshelf-made-by-a-file.db", "sqlite:///relative.db", "no url", 5, ["x"], ...],
        "config": ["", "k = 5", "[" * 500, "[[[", 'seed = "x"', 5, ...],
        "parts_sha256": ["0" * 64, 5, None, ...],
        "default": [{}, {"model.l2": 1.0}, {"model.l2": "x"}, {"model.l2": 1e9}, {"loss.tau": 0.2}, [300.0], ...],
        "ranges": [
            {}, [], 5, ..., {"model.l2": []}, {"model.l2": [1.0, 300.0]}, {"model.l2": [[[1]]]}, {"model.l2": {}},
            {"model.l2": {"low": 1000.0, "high": 1.0, "log": True, "whole": False}},
            {"model.l2": {"low": 1.0, "high": 2000.0, "log": True, "whole": False}},
            {"model.l2": {"low": -1.0, "high": 1000.0, "log": True, "whole": False}},
            {"model.l2": {"low": "1", "high": 1000.0, "log": True, "whole": False}},
            {"model.l2": {"low": 1.0, "high": 10**400, "log": True, "whole": False}},
            {"model.l2": {"low": 1.0, "high": float("nan"), "log": True, "whole": False}},
            {"model.l2": {"low": 1.0, "high": 1000.0, "log": 1, "whole": False}},
            {"model.l2": {"low": 1.0, "high": 1000.0, "log": True, "whole": True}},
            {"model.l2": {"low": 1.0, "high": 1000.0, "log": True, "whole": False, "more": 1}},
            {"nowhere.l2": [1, 2]}, {"train.epochs": [1, 2]}, {"loss.tau": [0.1, 0.2]}, {"data.source": ["a", "b"]},
        ],
    }  # fmt: skip
    return {
        f"study.json: {name} = {str(value)[:70]}, checksum valid": partial(rewrite, **{name: value})
        for name, choices in values.items()
        for value in choices
    }


def _configs() -> dict[str, Case]:
    """study.toml, alone and with study.json made to agree."""
    edits: dict[str, Callable[[str], str]] = {
        "a comment": lambda text: f"# mine\n{text}",
        "the data moved": lambda text: text.replace("shop/clicks.csv", "elsewhere/clicks.csv"),
        "another source": lambda text: text.replace("shop/clicks.csv", "other.csv"),
        "another k": lambda text: text.replace("k = 5", "k = 10"),
        "a k beyond the items": lambda text: text.replace("k = 5", "k = 5000"),
        "an unknown model": lambda text: text.replace('"ease"', '"vae"'),
        "a blend": lambda text: text.replace('"ease"', '"blend"'),
        "a trained model": lambda text: text.replace('"ease"', '"mf"'),
        "an unknown loss": lambda text: text.replace('"slatk"', '"hinge"'),
        "an unknown setting": lambda text: text.replace("[model]", "[model]\nwidth = 5"),
        "an unknown section": lambda text: f"{text}\n[more]\nx = 1\n",
        "a wrong type": lambda text: text.replace("seed = 0", 'seed = "zero"'),
        "a section that is a number": lambda text: "train = 5\n" + text.replace("[train]", "[trained]"),
        "nested values": lambda text: "x = " + "[" * DEEP + "]" * DEEP + "\n" + text,
        "nested tables": lambda text: f"{text}\n[{'.'.join('a' * 900)}]\n",
        "cut": lambda text: text[: len(text) // 2],
        "cut in a line": lambda text: text[:-4],
        "empty": lambda text: "",
        "a device that is not there": lambda text: text.replace('device = "cpu"', 'device = "abacus"'),
    }

    for what, changes in SECTIONS.items():
        edits[f"{what} of another package"] = partial(changed, changes=changes)
    return {
        f"study.toml: {name}{', agreed' if agreed else ''}": partial(_edit_config, change, agreed)
        for name, change in edits.items()
        for agreed in (False, True)
    }


def _edit_config(change: Callable[[str], str], agreed: bool, folder: Path) -> None:
    path = folder / "study.toml"
    path.write_text(change(path.read_text()))
    if agreed:
        rewrite(folder, config=path.read_text())


def _ranges_of_classes() -> dict[str, Case]:
    """A range may name classes too."""
    part = {"name": BLEND, "weights": [1.0], "parts": [{"name": "ease"}]}
    found: dict[str, Case] = {}
    for model, name, value in (
        ({"name": "mf"}, "negatives.kind", TRAP), ({"name": "mf"}, "threshold.estimator", TRAP),
        ({"name": "mf"}, "loss.name", TRAP), (part, "model.parts", [{"name": TRAP}]),
        (part, "model.parts", [{**part, "parts": [{"name": TRAP}]}]),
    ):  # fmt: skip

        def craft(folder: Path, model: Any = model, name: str = name, value: Any = value) -> None:
            _edit_config(partial(changed, changes={"model": model}), True, folder)
            rewrite(folder, ranges={name: [value]}, default={name: value})

        found[f"study.json: a range of {name} of another package, {str(value)[:40]}"] = craft
    return found


def edit_parts(change: Callable[[dict[str, Any]], None], folder: Path) -> None:
    """Change parts.safetensors, with all of its checksums valid."""
    path = folder / "parts.safetensors"
    state = checkpoint.load(path)
    change(state)
    checkpoint.save(path, state)
    if files.read_json(folder / "study.json")["format"] == 2:
        rewrite(folder, parts_sha256=files.digest(path))


def _parts() -> dict[str, Case]:
    def put(part: str, tensor: str, place: int, value: int) -> Callable[[dict[str, Any]], None]:
        return lambda state: state[part][tensor].__setitem__(place, value)

    edits: dict[str, Callable[[dict[str, Any]], Any]] = {}
    for part in ("train", "valid"):
        for value in (24, -1, 2**31, 2**62):
            edits[f"{part}: item {value} of 24"] = put(part, "indices", -1, value)
        edits[f"{part}: lists from {10**6}"] = put(part, "indptr", 3, 10**6)
        edits[f"{part}: lists to -5"] = put(part, "indptr", -1, -5)
        edits[f"{part}: repeats"] = lambda state, part=part: state[part]["indices"].zero_()
        edits[f"{part}: float"] = lambda state, part=part: state[part].update(indices=torch.ones(9))
        edits[f"{part}: a list"] = lambda state, part=part: state[part].update(indptr=[0, 1])
        edits[f"{part}: empty"] = lambda state, part=part: state[part].update(
            indptr=torch.zeros(41, dtype=torch.int64), indices=torch.zeros(0, dtype=torch.int64)
        )
        edits[f"{part}: a number"] = lambda state, part=part: state.update({part: 5})
        edits[f"{part}: missing"] = lambda state, part=part: state.pop(part)
    for name in ("n_users", "n_items"):
        for value in (0, -1, 1, 41, 10**13, 10**30, True, "24", 2.5, None):
            edits[f"{name} = {value!r}"] = lambda state, name=name, value=value: state.update({name: value})
        edits[f"{name}: missing"] = lambda state, name=name: state.pop(name)
    edits["name: missing"] = lambda state: state.pop("name")
    return {f"parts: {name}, checksum valid": partial(edit_parts, change) for name, change in edits.items()}


def sql(statement: str, folder: Path, *values: Any) -> None:
    with closing(sqlite3.connect(folder / "study.db")) as database:
        database.execute(statement, values)
        database.commit()


def _databases(odd: tuple[str, ...]) -> dict[str, Case]:
    statements = {
        "no trials": "DELETE FROM trials",
        "a trial missing": "DELETE FROM trials WHERE number = 1",
        "no values": "DELETE FROM trial_values",
        "another score": "UPDATE trial_values SET value = value + 0.5",
        "no score": "UPDATE trial_values SET value = NULL",
        "a text as score": "UPDATE trial_values SET value = 'x'",
        "another point": "UPDATE trial_params SET param_value = 7.0",
        "no points": "DELETE FROM trial_params",
        "another distribution": "UPDATE trial_params SET distribution_json = '{}'",
        "an unknown state": "UPDATE trials SET state = 'DONE' WHERE number = 0",
        "another state": "UPDATE trials SET state = 'COMPLETE'",
        "all waiting": "UPDATE trials SET state = 'WAITING'",
        "numbers": "UPDATE trials SET number = number + 5",
        "no number": "UPDATE trials SET number = NULL",
        "to minimize": "UPDATE study_directions SET direction = 'MINIMIZE'",
        "no direction": "DELETE FROM study_directions",
        "another name": "UPDATE studies SET study_name = 'x'",
        "no study": "DELETE FROM studies",
        "no version": "DELETE FROM version_info",
        "a later version": "UPDATE version_info SET schema_version = 99",
        "another revision": "UPDATE alembic_version SET version_num = 'v99'",
        "no table of trials": "DROP TABLE trials",
        "no table of studies": "DROP TABLE studies",
        "dates": "UPDATE trials SET datetime_start = 'yesterday'",
        "no attributes": "DELETE FROM trial_user_attributes",
        "no attributes of the study": "DELETE FROM study_user_attributes",
        "no points asked for": "DELETE FROM trial_system_attributes",
    }
    found: dict[str, Case] = {f"study.db: {name}": partial(sql, text) for name, text in statements.items()}
    for key in ("ticket", "attempt", "asked", "checksum", "worker", "settings", "result"):
        for text in odd:
            statement = f"UPDATE trial_user_attributes SET value_json = ? WHERE key = '{key}'"
            found[f"study.db: {key} = {text[:30]}"] = lambda folder, s=statement, t=text: sql(s, folder, t)
    for key in ("data", "format", "study", "trials", "worker%"):
        for text in (*odd, '{"trials": 30}'):
            statement = f"UPDATE study_user_attributes SET value_json = ? WHERE key LIKE '{key}'"
            found[f"study.db: the study's {key} = {text[:30]}"] = lambda folder, s=statement, t=text: sql(s, folder, t)
    for name, changes in {"score": {"score": 0.99}, "settings": {"settings": {"model.l2": 5.0}},
                          "outside": {"settings": {"train.epochs": 10**9}}, "ticket": {"ticket": 1},
                          "history": {"history": {"x": 1}}, "text": {"score": "high"}}.items():  # fmt: skip
        found[f"study.db: a result with another {name}, checksum valid"] = partial(_another_result, changes)
    return found


def _another_result(changes: dict[str, Any], folder: Path) -> None:
    with closing(sqlite3.connect(folder / "study.db")) as database:
        rows = database.execute(
            "SELECT trial_id, value_json FROM trial_user_attributes WHERE key = 'result'"
        ).fetchall()
        for trial, text in rows:
            content = {**json.loads(text), **changes}
            del content["checksum"]
            statement = "UPDATE trial_user_attributes SET value_json = ? WHERE key = 'result' AND trial_id = ?"
            database.execute(statement, (json.dumps(sealed(content)), trial))
        database.commit()


if __name__ == "__main__":
    serve()
