"""What starting the command line costs, and what TAB costs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = {"torch", "numpy", "polars", "numba", "pydantic", "scipy", "pandas", "matplotlib", "optuna"}
MODULES = 420  # --help has 350, with Typer and Rich; numpy alone would be 140 more
PROGRAM = f"""
import sys
sys.argv[0] = "topshelf"
from topshelf.__main__ import main
try:
    main()
finally:
    print(sorted({HEAVY} & set(sys.modules)), len(sys.modules), file=sys.stderr)
"""


def completion(*words):
    """What bash hands over when TAB is pressed at the end of these words."""
    texts = {"COMP_WORDS": "\n".join(("topshelf", *words)), "COMP_CWORD": str(len(words))}
    return {"_TOPSHELF_COMPLETE": "complete_bash", **texts}


COMMANDS = ["train", "evaluate", "recommend", "blend", "losses", "models", "demo", "diagnose", "tune", "report"]
COMMANDS += ["serve", "serve-key", "serve-events"]
COMMANDS += ["data", "data list", "data get", "data show", "data prepare"]
CASES = {
    "--version": (["--version"], {}),
    "--help": (["--help"], {}),
    "a command": ([], completion("tr")),
    "an option": ([], completion("train", "--m")),
    "a model": ([], completion("train", "--model", "")),
    "a loss": ([], completion("losses", "sl")),
    "data": ([], completion("train", "--data", "")),
    "a run": ([], completion("evaluate", "")),
    "a setting": ([], completion("train", "--loss", "psl", "--model", "slim", "--set", "")),
    "of another task": ([], completion("train", "--task", "links", "--model", "mlp", "--set", "")),
    "data of another task": ([], completion("train", "--task", "sequences", "--data", "")),
    "a value": ([], completion("train", "--set", "train.order", "=")),
}


@pytest.mark.parametrize("case", CASES)
def test_it_starts_fast_and_imports_nothing_heavy(case, tmp_path):
    arguments, more = CASES[case]
    command = [sys.executable, "-W", "error", "-c", PROGRAM, *arguments]
    done = subprocess.run(
        command, env={**os.environ, **more}, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    heavy, _, n_modules = done.stderr.rpartition(" ")
    assert (done.returncode, heavy) == (0, "[]")
    assert int(n_modules) < MODULES  # seconds depend on the machine: 0.1 to 0.2 s on an idle one of 2024


def test_the_help_of_every_command_imports_nothing_heavy():
    code = f"""
import contextlib, io, sys
from topshelf.cli import app
for command in {COMMANDS}:
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as shown:
        app([*command.split(), "--help"], prog_name="topshelf")
    assert "Usage: topshelf" in shown.getvalue(), command
print(sorted({HEAVY - {"pydantic"}} & set(sys.modules)))
"""  # Typer itself imports pydantic
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
