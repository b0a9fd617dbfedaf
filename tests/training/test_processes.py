"""Several processes train what one process trains: the same losses, the same weights, up to rounding."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import torch
from torch.testing import assert_close

import shared_runs
from runs import assert_same, state_of
from shared_runs import CASES, MORE, MORE_REPLICATED, REFUSED, REPLICATED
from topshelf.errors import CheckpointError, ConfigError
from topshelf.models.slices import ItemSlice
from topshelf.training import checkpoint, load, resume
from topshelf.training.folder import RunFolder
from topshelf.training.shares import Share
from topshelf.world import ALONE, World, current, joined, summed, used_in_parts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def found(folder):
    """What each of two processes found, all cases in one start."""
    return shared_runs.results(folder, "default")


def assert_near(weights, expected):
    """Equal up to rounding, as a table: each number alone may differ by more.

    Adam's first step divides a gradient by its own size. Where the terms of a gradient cancel to 5e-8 in a row of
    length 0.08 ("slatk, sigmoid": user 0, the second number), its sign and size are those of rounding, and the step
    is still one of up to the learning rate. In float64 the weights of that case agree to 1e-14.
    """
    assert torch.linalg.vector_norm(weights - expected) <= 1e-4 * torch.linalg.vector_norm(expected)


def compare(processes, name, case):
    main, *others = (process[name] for process in processes)
    alone = shared_runs.train(case)
    assert len(main["records"]) == len(alone["records"]) > 0
    for record, expected in zip(main["records"], alone["records"], strict=True):
        assert record.keys() == expected.keys()
        assert record["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        assert record["valid"] == pytest.approx(expected["valid"], abs=2e-3)
        if "threshold" in expected:
            assert record["threshold"] == pytest.approx(expected["threshold"], rel=1e-4, abs=1e-5)
    for other in others:
        assert other["records"] == main["records"]
    for table, weights in alone["weights"].items():
        assert_near(main["weights"][table], weights)
        assert all(torch.equal(main["weights"][table], other["weights"][table]) for other in others)


@pytest.mark.parametrize("name", [*CASES, *REPLICATED])
def test_two_processes_equal_one(found, name):
    compare(found, name, {**CASES, **REPLICATED}[name])


@pytest.mark.parametrize("name", CASES)
def test_two_processes_with_slices_of_the_items_equal_one(found, name):
    compare(found, f"{name}, sliced", CASES[name])


def test_tables_of_bfloat16_are_the_same_on_all_processes_and_near_those_of_one(found):
    """Rounding at random turns a difference in the last bit of a gradient into one of a bfloat16 number."""
    main, other = (process["bfloat16"] for process in found)
    alone = shared_runs.train(shared_runs.HALF)
    assert main["records"] == other["records"]
    for table, weights in main["weights"].items():
        assert weights.dtype == torch.bfloat16
        assert torch.equal(weights, other["weights"][table])
    losses = [[record["loss"] for record in one["records"]] for one in (main, alone)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_partitions_and_thresholds_over_slices_are_those_of_the_whole_catalogue(found):
    for process in found:
        result = process["partition"]["slices"]
        queries, items, lists = result["tables"]
        scores = (queries @ items.T).double()
        block = result["block"]
        expected = []
        for row, own in enumerate(lists):
            left = [float(scores[row, item]) / 0.5 for item in range(11) if item not in own]
            top = max(left, default=0.0)
            expected.append(top + math.log(sum(math.exp(x - top) for x in left)) if left else -math.inf)
        assert_close(block["partition"].double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-4)
        assert_close(block["threshold"].double(), scores.sort(descending=True).values[:, 2], rtol=1e-5, atol=1e-5)
        own = torch.tensor([(row, item) for row, items in enumerate(lists) for item in items])
        assert_close(block["scores"].double(), scores[own[:, 0], own[:, 1]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["all items", "sliced"])
def test_a_resumed_run_is_the_same_to_the_last_bit(found, folder, name):
    assert found[0][f"stopped {name}"].startswith("StoppedEarly: stopped in epoch 2; continue with")
    assert_same(state_of(folder / f"whole {name}"), state_of(folder / f"stopped {name}"))


@pytest.mark.parametrize("name", ["all items", "sliced"])
def test_the_folder_is_that_of_one_process(found, folder, tmp_path, name):
    """Its checkpoint too: one process goes on where two have stopped."""
    whole = folder / f"whole {name}"
    fitted = load(whole)
    assert len(fitted.model.state_dict()["item_vectors"]) == fitted.dataset.split.n_items
    expected = shared_runs.train(CASES["slatk"])
    for table, weights in expected["weights"].items():
        assert_near(fitted.model.state_dict()[table], weights)
    assert json.loads((whole / "environment.json").read_text())["processes"] == 2
    (whole / "metrics.json").unlink()
    resumed = resume(whole)
    assert resumed.test.mean() == fitted.test.mean()
    assert RunFolder(whole).is_finished


def test_every_process_keeps_its_own_rows_of_divided_tables(found, folder):
    """One file per process, named by the checkpoint; those of older checkpoints are gone."""
    whole = RunFolder(folder / "whole sliced")
    (first, second), split = sorted(whole.path.glob("checkpoint-*.safetensors")), shared_runs.dataset().split
    tables = whole.load_checkpoint()["trainer"]["model"]["item_vectors"]
    rows = [checkpoint.load(path, run=whole.run)["table0"] for path in (first, second)]
    assert [len(one) for one in rows] == [31, 30]
    assert torch.equal(torch.cat(rows), tables)
    assert len(tables) == split.n_items
    assert not list((folder / "whole all items").glob("checkpoint-*.safetensors"))


@pytest.mark.parametrize("harm", ["missing", "changed", "of another run", "named elsewhere", "no name", "too few"])
def test_rows_that_do_not_belong_to_a_checkpoint_are_refused(found, folder, tmp_path, harm):
    shutil.copytree(folder / "stopped sliced", tmp_path / "run")
    damaged = RunFolder(tmp_path / "run")
    first, second = sorted(damaged.path.glob("checkpoint-*.safetensors"))
    if harm == "missing":
        second.unlink()
    elif harm == "changed":
        raw = bytearray(second.read_bytes())
        raw[-9] ^= 1
        second.write_bytes(raw)
    elif harm == "of another run":
        checkpoint.save(second, checkpoint.load(second, run=damaged.run), run="another")
    else:
        state = checkpoint.load(damaged.checkpoint, run=damaged.run)
        if harm == "no name":
            state["trainer"]["model"]["item_vectors"] = {"divided": ["table0"]}
        else:
            state["rows"] = ["../elsewhere.safetensors"] if harm == "named elsewhere" else state["rows"][:1]
        checkpoint.save(damaged.checkpoint, state, run=damaged.run)
    if harm == "too few":  # the tables are then those of fewer items
        (damaged.path / "metrics.json").unlink()
        with pytest.raises(CheckpointError, match="does not fit this run, or is damaged"):
            resume(damaged.path)
        return
    with pytest.raises(CheckpointError, match=r"damaged|does not exist"):
        damaged.load_checkpoint()
    assert first.exists()


def test_a_checkpoint_of_one_process_leaves_no_rows_behind(found, folder, tmp_path):
    shutil.copytree(folder / "stopped sliced", tmp_path / "run")
    kept = RunFolder(tmp_path / "run")
    state = kept.load_checkpoint()
    (kept.path / ".checkpoint-0123-1.safetensors.here-5-0-0.tmp").write_text("of a killed process")
    kept.save_checkpoint(state)
    assert not [path.name for path in kept.path.iterdir() if "checkpoint-" in path.name]
    assert_same(state, kept.load_checkpoint())


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_divided_is_refused_by_every_process(found, name):
    said = [process["refused"][name] for process in found]
    assert all(one.startswith("ConfigError: ") for one in said)
    assert said[0] == said[1]
    assert {"whole batch": "slatk, softmax or bpr", "closed form": "mf, history", "sliced ncf": "mf, history"}.get(
        name, "train.shard_items does not go with" if "clip" not in name else "train.clip_norm does not go with"
    ) in said[0]


def test_processes_that_disagree_are_refused(found):
    for process in found:
        assert "the same setting seed: process 0 has 0, process 1 has 1" in process["seed"]
        assert "the same data: process 0 has" in process["data"]


def test_a_process_whose_peer_has_ended_says_so(found):
    assert found[0]["lost"].startswith("WorldError: process 0 of 2 lost the others in all_reduce")
    assert "topshelf train --resume" in found[0]["lost"]


def test_the_bytes_of_a_step_are_those_of_the_formula(found):
    """docs/scale-out.md; a step of all users, 16 numbers per vector, and what an epoch's end exchanges."""
    split = shared_runs.dataset().split
    users, items, positives = int((split.seen("train").counts > 0).sum()), split.n_items, len(split.train)
    per_epoch = 2 * 8 + 16 + 8 + 4 + 8 + 8 * -(-int((split.lists("valid").counts > 0).sum()) // 2)
    first, second = found[0]["sent"]["all items"]
    assert second - first == 4 * 16 * (users + items) + 8 * 2 + 16 + per_epoch
    first, second = found[0]["sent"]["sliced"]
    gathered = 4 * 16 * -(-items // 2) + 8  # item vectors, for the validation
    expected = 4 * 16 * users + 4 * (3 * users + 2 * positives) + 8 + 8 + 16 + per_epoch - 8 + gathered
    assert second - first == expected


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_every_other_case_equals_one_process(tmp_path, size):
    processes = shared_runs.results(tmp_path, "more", size)
    for name, case in {**MORE, **MORE_REPLICATED}.items():
        compare(processes, name, case)
    for name, case in MORE.items():
        compare(processes, f"{name}, sliced", case)


@pytest.mark.slow
def test_four_processes_equal_one(tmp_path):
    processes = shared_runs.results(tmp_path, "four", 4)
    for name in processes[0]:
        compare(processes, name, CASES[name.removesuffix(", sliced")])


def test_one_process_is_a_world_of_its_own():
    with joined() as world:
        assert world is ALONE is current()
    table = torch.arange(6.0).view(3, 2)
    assert world.all_reduce(table) is table
    assert world.all_gather(table)[0] is world.all_rows(table) is table
    assert world.every("a") == ["a"]
    assert world.broadcast(3) == 3
    assert world.any(True, False) == [True, False]
    assert world.agreed(lambda: 5) == 5
    world.barrier()
    world.same(seed=1)
    assert world.sent == 0
    assert torch.equal(summed(table, world), table)
    assert torch.equal(used_in_parts(table, world), table)


def test_slices_are_consecutive_and_none_is_empty():
    slices = [ItemSlice.of(11, World(rank, 3)) for rank in range(3)]
    assert [(one.first, one.last) for one in slices] == [(0, 4), (4, 8), (8, 11)]
    with pytest.raises(ConfigError, match="5 items into 4 slices of 2, and the last one would be empty"):
        ItemSlice.of(5, World(0, 4))


def test_queries_are_divided_evenly_over_those_that_are_trained_on():
    positives = shared_runs.dataset().split.seen("train")
    trained = (positives.counts > 0).nonzero().squeeze(1)[20:]
    shares = [Share(trained, positives, World(rank, 3)) for rank in range(3)]
    counts = [len(share.places(trained)) for share in shares]
    assert sum(counts) == len(trained)
    assert max(counts) - min(counts) <= 1
    assert shares[0].pairs[0][0] == 0
    assert shares[0].pairs[-1][1] == positives.indices.numel()
