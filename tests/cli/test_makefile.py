"""What ``make clean`` deletes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_clean_keeps_the_runs():
    done = subprocess.run(["make", "--dry-run", "clean"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ".venv" in done.stdout.split()
    assert "runs" not in done.stdout.split()
