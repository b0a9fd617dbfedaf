"""A small file of clicks, and cells that run in this process."""

from __future__ import annotations

import pytest

from benches import HereContext, write_clicks


@pytest.fixture(scope="session")
def clicks(tmp_path_factory):
    return write_clicks(tmp_path_factory.mktemp("bench") / "clicks.csv")


@pytest.fixture
def here(monkeypatch):
    """The runner without processes of its own."""
    monkeypatch.setattr("topshelf.bench.runner.get_context", lambda _: HereContext)
    monkeypatch.setattr("topshelf.bench.runner._POLL", 0.0)
