"""Fixtures of the data tests: no test sees the user's own cache or data folder unless it asks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

PAPER_DATA = os.environ.get("TOPSHELF_DATA")  # read before the fixture below hides it


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.delenv("TOPSHELF_DATA", raising=False)
    monkeypatch.setenv("TOPSHELF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def paper_data(monkeypatch) -> Path:
    """The folder with the paper's files, for the tests that compare with them."""
    if PAPER_DATA is None:
        pytest.skip("TOPSHELF_DATA is not set")
    monkeypatch.setenv("TOPSHELF_DATA", PAPER_DATA)
    folder = Path(PAPER_DATA)
    return folder / "recommendation" if (folder / "recommendation").is_dir() else folder
