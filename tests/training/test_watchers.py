"""When checkpoints are written."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from topshelf.training import watchers
from topshelf.training.watchers import RunWatcher


class Disk:
    """A run folder in which a checkpoint takes some seconds, on a clock of its own."""

    def __init__(self, seconds):
        self.seconds, self.now, self.written = seconds, 0.0, []

    def save_checkpoint(self, state):
        self.written.append(self.now)
        self.now += self.seconds


@pytest.mark.parametrize(
    ("seconds", "least", "apart"), [(0.0, 30.0, 30), (1.0, 30.0, 31), (20.0, 30.0, 220), (2.0, 5.0, 22)]
)
def test_checkpoints_wait_ten_times_as_long_as_one_takes(monkeypatch, seconds, least, apart):
    disk = Disk(seconds)
    monkeypatch.setattr(watchers, "time", SimpleNamespace(monotonic=lambda: disk.now))
    watcher = RunWatcher(disk, phase="train", metric="ndcg@5", quiet=True)
    trainer = SimpleNamespace(settings=SimpleNamespace(checkpoint_seconds=least), state_dict=dict)
    for _ in range(2000):
        disk.now += 1.0
        watcher.on_step(trainer)
    gaps = {after - before for before, after in zip(disk.written[1:], disk.written[2:], strict=False)}
    assert gaps == {apart}


def test_zero_seconds_are_every_epoch_however_long_a_checkpoint_takes(monkeypatch):
    disk = Disk(100.0)
    monkeypatch.setattr(watchers, "time", SimpleNamespace(monotonic=lambda: disk.now))
    watcher = RunWatcher(disk, phase="train", metric="ndcg@5", quiet=True)
    watcher.folder.log = None
    monkeypatch.setattr(watchers.files, "append", lambda *_: None)
    trainer = SimpleNamespace(settings=SimpleNamespace(checkpoint_seconds=0.0), state_dict=dict)
    for epoch in range(5):
        watcher.on_step(trainer)
        watcher.on_epoch(trainer, {"epoch": epoch, "loss": 1.0})
    assert len(disk.written) == 5
