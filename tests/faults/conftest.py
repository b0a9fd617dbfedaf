"""The forking process, shared by the tests of a module."""

from __future__ import annotations

import pytest

from faults.driver import Driver, must
from faults.scenes import options, write_clicks


@pytest.fixture(scope="package")
def driver():
    started = Driver()
    yield started
    started.close()


@pytest.fixture(scope="package")
def clicks(tmp_path_factory):
    return write_clicks(tmp_path_factory.mktemp("clicks") / "clicks.csv")


@pytest.fixture(scope="package")
def runs(tmp_path_factory, driver, clicks):
    """Finished runs of one split, by name."""
    place = tmp_path_factory.mktemp("runs")
    chosen = {"mf": {"model__dim": 8}, "ease": {}, "all": {"model__dim": 8, "train__refit": '"all"'}}
    for name, settings in chosen.items():
        model = "mf" if name == "all" else name
        must(driver.topshelf("train", "--data", clicks, "--model", model, *options(**settings), "--out", place / name))
    return place
