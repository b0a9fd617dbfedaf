"""Several processes train what one process trains: the same losses, the same weights, up to rounding."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

import shared_runs
from runs import assert_same, state_of
from shared_runs import CASES, MORE, MORE_REPLICATED, REFUSED, REPLICATED


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def found(folder):
    """What each of two processes found, all cases in one start."""
    return shared_runs.results(folder, "default")


def compare(main, other, case):
    alone = shared_runs.train(case)
    assert len(main["records"]) == len(alone["records"])
    for record, expected in zip(main["records"], alone["records"], strict=True):
        assert record["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        for name in {"threshold", "ndcg@5"} & expected.keys():
            assert record[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-5)
    assert other["records"] == []  # callbacks are the main process's
    assert other["valid"] == main["valid"]
    for name, weights in alone["weights"].items():
        assert_close(main["weights"][name], weights, rtol=1e-3, atol=1e-4)
        assert torch.equal(main["weights"][name], other["weights"][name])


@pytest.mark.parametrize("name", [*CASES, *REPLICATED])
def test_two_processes_equal_one(found, name):
    compare(found[0][name], found[1][name], {**CASES, **REPLICATED}[name])


@pytest.mark.parametrize("name", CASES)
def test_two_processes_with_slices_of_the_items_equal_one(found, name):
    compare(found[0][f"{name}, sliced"], found[1][f"{name}, sliced"], CASES[name])
