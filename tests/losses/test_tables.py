"""Tables of state: saved, moved, and right under DistributedDataParallel with two real processes."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn, tensor
from torch.testing import assert_close

import two_processes
from topshelf.losses import LOSSES, SLatK, SogCLR, SogSLatK

SCRIPT = Path(two_processes.__file__)
CASES, COMPILED = two_processes.CASES, two_processes.COMPILED
PLACES = [*CASES, *(f"{case}, beside" for case in CASES), *(f"{case}, compiled" for case in COMPILED)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What two processes hold after training, joined by gloo through the loopback device."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), str(folder)]
    running = [
        subprocess.Popen([*command, str(rank)], env=environment, stderr=subprocess.PIPE, text=True) for rank in (0, 1)
    ]
    try:
        errors = [process.communicate(timeout=600)[1] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], "\n".join(errors)
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_two_processes_keep_the_state_of_one_that_sees_both_batches(ranks, place):
    case = place.removesuffix(", beside").removesuffix(", compiled")
    expected = two_processes.train(case, None)
    first, second = (rank[place] for rank in ranks)
    assert any(
        not torch.equal(value, fresh) for value, fresh in zip(expected.values(), fresh_state(case), strict=False)
    )
    for key, value in expected.items():
        assert torch.equal(first[key], second[key]), key
        assert_close(first[key], value, rtol=1e-5, atol=1e-6)


def fresh_state(case):
    return two_processes.make(two_processes.CASES[case][0]).state_dict().values()


@pytest.mark.slow
def test_a_process_without_a_batch_takes_part_with_empty_tensors(ranks):
    expected = two_processes.without_batch(None)
    for rank in ranks:
        assert torch.equal(rank["without_batch"], expected)


@pytest.mark.slow
def test_what_one_process_loads_the_others_take_over(ranks):
    for rank in ranks:
        assert torch.equal(rank["loaded_by_one"], torch.arange(12.0))


@pytest.mark.slow
def test_of_a_row_that_both_wrote_the_lowest_rank_decides_and_copies_and_other_sizes_stay_equal(ranks):
    expected = torch.zeros(13, dtype=torch.float64)
    expected[tensor([0, 1, 3, 11, 12])] = tensor([20.0, 21.0, 10.0, 31.0, 30.0], dtype=torch.float64)
    for rank in ranks:
        assert torch.equal(rank["contested"], expected)


def test_tables_of_different_sizes_are_refused_on_every_rank(ranks):
    for rank in ranks:
        assert rank["refused"] == "threshold must have one size on all ranks, got 12 and 13"


def test_evaluation_and_losses_that_share_nothing_wait_for_nobody(ranks):
    assert ranks[0]["alone"] != 0


@pytest.mark.parametrize("name", ["slatk", "song", "song_at_k", "sogclr", "sogslatk"])
def test_tables_are_in_the_state_dict_and_follow_the_module_but_are_no_buffers(name):
    loss = two_processes.make(name)
    names = set(loss.state_dict())
    assert names == {"threshold", "g", "log_g"} & set(vars(loss))
    assert not list(loss.named_buffers())
    outer = nn.Sequential(loss).double()
    assert all(x.dtype == torch.float64 for x in outer.state_dict().values())
    assert {f"0.{name}" for name in names} == set(outer.state_dict())
    assert all(getattr(loss.to("meta"), name).is_meta for name in names)


def test_a_state_dict_that_does_not_fit_is_refused_as_torch_does():
    loss = SogSLatK(3)
    with pytest.raises(RuntimeError, match="size mismatch for threshold"):
        loss.load_state_dict({"threshold": torch.zeros(4), "log_g": torch.zeros(3)})
    with pytest.raises(RuntimeError, match=r'Missing key.*"log_g"'):
        loss.load_state_dict({"threshold": torch.zeros(3)})
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"other"'):
        loss.load_state_dict({**loss.state_dict(), "other": torch.zeros(3)})
    loss.load_state_dict({"threshold": torch.ones(3), "log_g": torch.ones(3)}, assign=True)
    assert torch.equal(loss.threshold, torch.ones(3))


def test_copies_have_tables_of_their_own():
    loss = SogCLR(3)
    loss.write("log_g", tensor([1, 1]), tensor([2.0, 3.0]))
    for other in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert torch.equal(other.log_g, loss.log_g)
        other.log_g.zero_()
    assert loss.log_g[1] == 2.0


def test_without_other_processes_nothing_is_exchanged():
    loss = SLatK(3)
    assert not loss.is_shared()
    loss.synchronise()


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_with_state_says_how_many_rows_there_are(name):
    """The indices of a batch are checked against them; SONG has none of queries, whose rows it only compares."""
    found = two_processes.make(name).index_sizes()
    assert found.items() <= {"query": 12, "pair": 36, "negative_item": 30}.items()
    needed = {"query", "pair", "negative_item"} & set(LOSSES[name].needs)
    assert set(found) == needed - ({"query"} if name == "song" else set())
