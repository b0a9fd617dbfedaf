"""The examples of losses in other people's loops run and learn; each of them checks that by itself too."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["two_towers", "sequence_model", "many_users"])
def test_the_example_learns_and_says_so(name, capsys):
    before, after = loaded(name).main()
    assert after > 4 * before
    assert re.search(r"@\d+: 0\.\d+ before training, 0\.\d+ after\n$", capsys.readouterr().out)


@pytest.mark.parametrize("name", ["two_towers", "sequence_model", "many_users"])
def test_the_example_fails_when_it_learned_nothing(name):
    with pytest.raises(AssertionError, match="it learned nothing"):
        loaded(name).main(epochs=0)


@pytest.mark.slow
def test_two_processes_learn_and_end_with_the_same_thresholds():
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / "distributed.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    before, after = map(float, re.findall(r"0\.\d+", done.stdout))
    assert after > 4 * before
