"""The progress bar, the JSONL log, the checkpoints, and Ctrl-C during training."""

from __future__ import annotations

import json
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from torch import Tensor

from topshelf import files
from topshelf.callbacks import Callbacks
from topshelf.errors import TrainingError
from topshelf.progress import progress_bar
from topshelf.terminal import TaskID
from topshelf.training import checkpoint
from topshelf.training.folder import RunFolder
from topshelf.training.sliced_checkpoint import without_rows
from topshelf.training.trainer import Trainer
from topshelf.world import World

_APART = 10  # times the seconds that a checkpoint took: what of a training's time goes to checkpoints, at most a tenth


class RunWatcher:
    """Shows progress, logs epochs, saves checkpoints, and notices a request to stop.

    ``phase`` is "train" or "refit"; ``extra`` is saved with every checkpoint.
    """

    def __init__(
        self,
        folder: RunFolder | None,
        *,
        phase: str,
        metric: str,
        quiet: bool = False,
        extra: dict[str, Any] | None = None,
        stop: Callable[[], bool] = lambda: False,
        callbacks: Callbacks | None = None,
    ) -> None:
        self.folder, self.phase, self.metric, self.extra = folder, phase, metric, extra or {}
        self.keeps = folder is not None  # whether checkpoints are kept, by this process or by another one
        self._stop, self._callbacks = stop, callbacks or Callbacks()
        self._saved, self._took = time.monotonic(), 0.0  # when the last checkpoint was written, in how many seconds
        self._bar = progress_bar(quiet)
        self._task: TaskID | None = None

    def __enter__(self) -> RunWatcher:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, trainer: Trainer) -> None:
        """Show the progress so far, and write the log up to it."""
        progress = trainer.progress
        self._task = self._bar.add_task(
            self.phase, total=trainer.settings.epochs * len(trainer.batches), shown=self._shown(trainer, None)
        )
        self._bar.update(self._task, completed=progress.epoch * len(trainer.batches) + progress.step)
        if self.folder is not None:
            lines = "".join(self._line(record) for record in progress.history)
            files.write_text(self.folder.log, self.extra.get("log", "") + lines)
        if self.keeps and self._is_first(progress.epoch == progress.step == 0):
            self.save(trainer)

    def on_step(self, trainer: Trainer) -> None:
        if self._task is not None:
            self._bar.advance(self._task)
        if self.keeps and trainer.settings.checkpoint_seconds > 0 and self._is_due(trainer):
            self.save(trainer)

    def on_epoch(self, trainer: Trainer, record: dict[str, Any]) -> None:
        if self._task is not None:
            self._bar.update(self._task, shown=self._shown(trainer, record))
        if self.folder is not None:
            files.append(self.folder.log, self._line(record))
        if self.keeps and self._is_due(trainer):
            self.save(trainer)
        try:
            self._tell(self._named(record))
        except TrainingError:
            self.save(trainer)  # of this epoch, so that the run can go on from here
            raise

    def wants_to_stop(self) -> bool:
        return self._stop()

    def save(self, trainer: Trainer) -> None:
        if self.keeps:
            started, state = time.monotonic(), trainer.state_dict()
            if self.folder is not None:
                self.folder.save_checkpoint({"phase": self.phase, "extra": self.extra, "trainer": state})
            self._note_saved(started)

    def _is_first(self, is_new: bool) -> bool:
        """Whether nothing of this training is in a checkpoint yet: a new one, or one that a race began."""
        return is_new or (self.folder is not None and not self.folder.checkpoint.exists())

    def _tell(self, record: dict[str, Any]) -> None:
        self._callbacks.on_epoch_end(record)

    def _note_saved(self, started: float) -> None:
        self._saved = time.monotonic()
        self._took = self._saved - started

    def _is_due(self, trainer: Trainer) -> bool:
        least = trainer.settings.checkpoint_seconds
        return time.monotonic() - self._saved >= (max(least, _APART * self._took) if least else 0.0)

    def _line(self, record: dict[str, Any]) -> str:
        return json.dumps(self._named(record)) + "\n"

    def _named(self, record: dict[str, Any]) -> dict[str, Any]:
        return named_record(record, self.phase, self.metric)

    def _shown(self, trainer: Trainer, record: dict[str, Any] | None) -> str:
        progress = trainer.progress
        parts = [f"{progress.epoch}/{trainer.settings.epochs}"]
        if record is not None:
            parts.append(f"loss {record['loss']:.4f}")
        if progress.best_epoch:
            parts.append(f"{self.metric} {progress.best_score:.4f} at {progress.best_epoch}")
        return "  ".join(parts)


class SharedWatcher(RunWatcher):
    """A :class:`RunWatcher` of several processes: when to save and when to stop is decided together.

    Only the main process has the folder, the bar and the callbacks; ``keeps``: whether it has a folder.
    """

    def __init__(self, folder: RunFolder | None, world: World, *, keeps: bool, **options: Any) -> None:
        super().__init__(folder, **options)
        self.world, self.keeps = world, keeps
        self._saves = self._stops = False

    def on_step(self, trainer: Trainer) -> None:
        self._decide(trainer)
        super().on_step(trainer)

    def on_epoch(self, trainer: Trainer, record: dict[str, Any]) -> None:
        self._decide(trainer)
        super().on_epoch(trainer, record)

    def wants_to_stop(self) -> bool:
        return self._stops

    def save(self, trainer: Trainer) -> None:
        """Of divided tables, every process writes its own rows; then the main one the rest, which names them."""
        if not self.keeps or trainer.model.held is None:
            super().save(trainer)
            return
        started = time.monotonic()
        rows: dict[str, Tensor] = {}
        state = without_rows(trainer.state_dict(), rows)
        folder = self.folder
        said: Any = None if folder is None else [str(folder.path), folder.run, secrets.token_hex(8)]
        path, run, token = self.world.broadcast(said)
        names = [f"checkpoint-{token}-{rank}.safetensors" for rank in range(self.world.size)]
        self.world.agreed(lambda: checkpoint.save(Path(path) / names[self.world.rank], rows, run=run))
        if folder is not None:
            folder.save_checkpoint({"phase": self.phase, "extra": self.extra, "trainer": state}, names)
        self._note_saved(started)

    def _decide(self, trainer: Trainer) -> None:
        """The main process's clock says when a checkpoint is due; any process may have been asked to stop."""
        is_due = self.world.is_main and super()._is_due(trainer)
        self._saves, self._stops = self.world.any(is_due, super().wants_to_stop())

    def _is_due(self, trainer: Trainer) -> bool:  # noqa: ARG002
        return self._saves

    def _is_first(self, is_new: bool) -> bool:
        return self.world.any(super()._is_first(is_new))[0]

    def _tell(self, record: dict[str, Any]) -> None:
        self.world.agreed(lambda: super(SharedWatcher, self)._tell(record))


def named_record(record: dict[str, Any], phase: str, metric: str) -> dict[str, Any]:
    """An epoch as the log and the callbacks have it."""
    return {"phase": phase, **{metric if key == "valid" else key: value for key, value in record.items()}}


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Within it, Ctrl-C and SIGTERM ask to stop between two steps; a second one stops at once."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # only the main thread receives signals
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
