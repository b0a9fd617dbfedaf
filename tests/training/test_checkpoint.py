from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from topshelf.errors import CheckpointError
from topshelf.training import checkpoint

leaves = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text()
states = st.dictionaries(
    st.text() | st.integers(),
    st.recursive(
        leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner), max_leaves=8
    ),
)


@settings(max_examples=50, deadline=None)
@given(state=states)
def test_nested_state_survives_the_round_trip(tmp_path_factory, state):
    file = tmp_path_factory.mktemp("state") / "a.safetensors"
    checkpoint.save(file, state)
    assert checkpoint.load(file) == state


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
def test_tensors_survive_bit_for_bit(tmp_path, dtype):
    tensor = (torch.randn(3, 4) * 3).to(dtype)
    checkpoint.save(
        tmp_path / "a", {"x": [tensor, tensor[:, 1]], "empty": torch.zeros(0, 2), "scalar": torch.tensor(2)}
    )
    found = checkpoint.load(tmp_path / "a")
    assert_close(found["x"][0], tensor, rtol=0, atol=0)
    assert_close(found["x"][1], tensor[:, 1], rtol=0, atol=0)
    assert found["empty"].shape == (0, 2)
    assert found["scalar"].item() == 2


def test_a_flipped_bit_is_found(tmp_path):
    file = tmp_path / "a.safetensors"
    checkpoint.save(file, {"x": torch.arange(1000.0)})
    raw = bytearray(file.read_bytes())
    raw[-5] ^= 1
    file.write_bytes(raw)
    with pytest.raises(CheckpointError, match="the checksum of 't0' does not match"):
        checkpoint.load(file)


def test_no_flipped_bit_of_the_header_passes_for_another_state(tmp_path):
    file = tmp_path / "a.safetensors"
    state = {"epoch": 6, "best": {"score": 0.25, "weights": torch.arange(3.0)}, "log": "text"}
    checkpoint.save(file, state)
    raw = file.read_bytes()
    for place in range(8, len(raw)):
        damaged = bytearray(raw)
        damaged[place] ^= 1
        file.write_bytes(damaged)
        try:
            found = checkpoint.load(file)
        except CheckpointError:
            continue
        assert str(found) == str(state)  # white space between the fields may change


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not ours", b"\x80\x04\x95pickle", b"\xff" * 200])
def test_a_foreign_file_is_refused(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged or not a topshelf file"):
        checkpoint.load(tmp_path / "a")


def test_a_truncated_file_is_refused(tmp_path):
    file = tmp_path / "a"
    checkpoint.save(file, {"x": torch.arange(1000.0)})
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load(file)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="gone does not exist"):
        checkpoint.load(tmp_path / "gone")


def test_what_cannot_be_saved_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(TypeError, match="cannot save a set"):
        checkpoint.save(tmp_path / "a", {"x": {1, 2}})
    assert list(tmp_path.iterdir()) == []


def _limit_files() -> None:
    # A file may not grow past 100 kB: the kernel's way to say that the disk is full. The signal must not kill.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


def test_a_full_disk_keeps_the_file_that_was_there_and_leaves_no_litter(tmp_path):
    file = tmp_path / "a.safetensors"
    checkpoint.save(file, {"x": torch.arange(5)})
    script = (
        "import sys, json, torch\n"
        "from topshelf.training import checkpoint\n"
        "from topshelf.errors import CheckpointError\n"
        "try:\n"
        "    checkpoint.save(sys.argv[1], {'x': torch.zeros(10**6)})\n"
        "except CheckpointError as error:\n"
        "    print(json.dumps(str(error)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(file)], preexec_fn=_limit_files, capture_output=True, text=True, check=True
    )
    message = json.loads(done.stdout)
    assert message.startswith(f"cannot write {file}")
    assert "the file that was there before is kept" in message
    assert_close(checkpoint.load(file)["x"], torch.arange(5))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.safetensors"]


def test_tensors_that_share_memory_are_saved_and_others_are_not_copied(tmp_path, monkeypatch):
    table = torch.arange(12.0).view(3, 4)
    written = {}
    real = checkpoint.save_file
    monkeypatch.setattr(
        checkpoint, "save_file", lambda some, *rest, **more: (written.update(some), real(some, *rest, **more))
    )
    checkpoint.save(tmp_path / "x", {"whole": table, "row": table[1], "turned": table.T, "none": table[:0]})
    state = checkpoint.load(tmp_path / "x")
    for name, wanted in {"whole": table, "row": table[1], "turned": table.T, "none": table[:0]}.items():
        assert torch.equal(state[name], wanted)
    assert sum(one.data_ptr() == table.data_ptr() for one in written.values()) == 1
