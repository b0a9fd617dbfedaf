"""The forking process, shared by the tests of a module."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from faults.driver import Driver, must
from faults.scenes import options, write_clicks


@pytest.fixture(scope="package")
def driver():
    with closing(Driver()) as started:
        yield started


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


@dataclass(frozen=True)
class Diagnosis:
    """A diagnosis of a run, which is made again over an earlier one."""

    driver: Driver
    run: Path
    earlier: Path

    def make(self, place, fault=None):
        arguments = ("--users", "10", "--epochs", "1", "--losses", "softmax", "--out", place / "found")
        return self.driver.topshelf("diagnose", self.run, *arguments, fault=fault)

    def before(self, place):
        shutil.copytree(self.earlier, place / "found")


@pytest.fixture(scope="package")
def diagnosis(tmp_path_factory, driver, runs):
    made = Diagnosis(driver, runs / "mf", tmp_path_factory.mktemp("diagnosis") / "found")
    must(made.make(made.earlier.parent))
    return made
