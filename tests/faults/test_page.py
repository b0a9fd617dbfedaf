"""docs/reliability.md gives the numbers that the tests here hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from faults import test_crafted, test_disks, test_hostile_inputs, test_kills, test_studies, test_tasks

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


@pytest.mark.parametrize(
    ("command", "count"),
    [
        ('pytest -m "slow or not slow" tests/faults/test_kills.py', test_kills.N_KILLS),
        ('pytest -m "slow or not slow" tests/faults/test_disks.py', test_disks.N_FAULTS),
        ("pytest tests/faults/test_crafted.py", test_crafted.N_CRAFTED),
        ("pytest tests/faults/test_tasks.py", test_tasks.N_CRAFTED),
        ("pytest tests/faults/test_hostile_inputs.py", test_hostile_inputs.CASES),
        ('pytest -m "slow or not slow" tests/faults/test_studies.py', len(test_studies.cases())),
    ],
)
def test_the_page_gives_the_counts_of_the_tests(command, count):
    row = re.search(rf"^\|.*\| *([0-9,]+) *\| *0 *\| *`{re.escape(command)}` *\|$", PAGE.read_text(), re.MULTILINE)
    assert row is not None, command
    assert int(row[1].replace(",", "")) == count


def test_the_page_says_how_many_crafted_folders_are_refused():
    assert f"more than {test_crafted.N_REFUSED} are refused" in " ".join(PAGE.read_text().split())
