"""What a run left behind, and whether two runs are the same to the last bit."""

from __future__ import annotations

import json

import torch
from torch.testing import assert_close

from topshelf.training.folder import RunFolder

COSTS = ("seconds", "peak_mib", "log_text", "run", "model_sha256", "artifact_sha256", "checksum")


def state_of(out):
    """Everything a run left behind, without the seconds and the memory it took."""
    folder = RunFolder(out)
    log = [json.loads(line) for line in folder.log.read_text().splitlines()] if folder.log.exists() else []
    metrics = json.loads(folder.metrics.read_text())
    state = {"model": folder.load_model(), "checkpoint": folder.load_checkpoint(), "artifact": folder.load_artifact()}
    return _without_seconds({"log": log, "metrics": metrics, "state": state})


def _without_seconds(value):
    if isinstance(value, dict):
        return {key: _without_seconds(item) for key, item in value.items() if key not in COSTS}
    return [_without_seconds(item) for item in value] if isinstance(value, list) else value


def assert_same(first, second):
    if isinstance(first, torch.Tensor):
        assert_close(first, second, rtol=0, atol=0, equal_nan=True)
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            if key == "extra":  # carries the first phase's log, seconds included
                continue
            assert_same(first[key], second[key])
    elif isinstance(first, list):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert_same(one, other)
    else:
        assert first == second


class StopAfter:
    """Asks to stop after a number of steps, as Ctrl-C would."""

    def __init__(self, steps):
        self.left = steps

    def __call__(self):
        self.left -= 1
        return self.left < 0
