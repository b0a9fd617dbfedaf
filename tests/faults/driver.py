"""A process that has imported topshelf once and forks for each command, so that a killed one costs milliseconds.

Its threads are one, and it never calls polars itself: a fork of a process with threads may wait for them for ever.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS", "RAYON_NUM_THREADS")


@dataclass(frozen=True)
class Ended:
    """How a command ended: an exit code, or minus the number of the signal that killed it."""

    code: int
    points: list[str]
    output: str = ""
    errors: str = ""
    value: Any = None

    @property
    def was_killed(self) -> bool:
        return self.code == -9


def must(ended: Ended) -> Ended:
    """What ended well."""
    assert ended.code == 0, ended.output + ended.errors
    return ended


class Pipe:
    """The test's end of a pipe to a module that is run as a program and answers each line with a line of JSON."""

    def __init__(self, module: str) -> None:
        environment = {**os.environ, **dict.fromkeys(ONE_THREAD, "1"), "COLUMNS": "160", "MPLBACKEND": "agg"}
        environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=TESTS,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._asked, self._answers = self._process.stdin, self._process.stdout

    def ask(self, value: Any) -> Any:
        self._asked.write(json.dumps(value) + "\n")
        self._asked.flush()
        return json.loads(self._answers.readline())

    def close(self) -> None:
        self._asked.close()
        self._process.wait(timeout=60)
        self._answers.close()


class Driver(Pipe):
    """Commands of topshelf, each in a process of its own."""

    def __init__(self) -> None:
        super().__init__("faults.driver")

    def topshelf(self, *arguments: object, fault: Any = None) -> Ended:
        """A command of the command line, in a process of its own."""
        return self.call("faults.scenes:command", [str(argument) for argument in arguments], fault=fault)

    def call(self, action: str, *arguments: Any, fault: Any = None) -> Ended:
        """``module:function`` with arguments that JSON can carry, in a process of its own."""
        asked = {"action": action, "arguments": arguments, "fault": None if fault is None else vars(fault)}
        return Ended(**self.ask(asked))


def answer_all(answer: Callable[[Any], Any]) -> None:
    """The other end: a line for each line, until the pipe is closed."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed goes to the tests' own errors
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


def in_a_fork(work: Callable[[], Any]) -> tuple[Any, int]:
    """What the work gives in a process of its own, None if it dies; and the status that the process ends with."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            with os.fdopen(writing, "w") as out:
                json.dump(work(), out)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    return json.loads(text) if text else None, os.waitpid(child, 0)[1]


def _command(asked: dict[str, Any]) -> dict[str, Any]:
    value, status = in_a_fork(lambda: _run(asked))
    if os.WIFSIGNALED(status):
        return {"code": -os.WTERMSIG(status), "points": []}
    return value or {"code": 1, "points": [], "errors": "Traceback: the answer could not be made"}


def _run(asked: dict[str, Any]) -> dict[str, Any]:
    from faults.layer import Fault, faulty

    module, name = asked["action"].split(":")
    action = getattr(importlib.import_module(module), name)
    fault = asked["fault"] and Fault(**asked["fault"])
    output, errors, value, code = io.StringIO(), io.StringIO(), None, 0
    with faulty(fault) as points, redirect_stdout(output), redirect_stderr(errors), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            value = action(*asked["arguments"])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # noqa: BLE001  the test wants to see it
            code = 1
            traceback.print_exc(file=errors)
    return {
        "code": code, "points": points.seen, "output": output.getvalue(), "errors": errors.getvalue(), "value": value,
    }  # fmt: skip


if __name__ == "__main__":
    from faults import scenes

    scenes.warm_up()
    answer_all(_command)
